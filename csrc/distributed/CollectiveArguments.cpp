#include "CollectiveArguments.h"

#include <c10/util/Exception.h>

#include <numeric>

namespace torch_mtia {

c10::Device device_of(const Tensors& tensors) {
  TORCH_CHECK_VALUE(!tensors.empty(), "a collective needs a tensor");
  for (const at::Tensor& tensor : tensors) {
    TORCH_CHECK_VALUE(tensor.device() == tensors[0].device(), "the tensors of a collective are on one device, got ",
                      tensors[0].device(), " and ", tensor.device());
  }
  return tensors[0].device();
}

void check_root(int64_t root, int size) {
  TORCH_CHECK_VALUE(root >= 0 && root < size, "expected a root below ", size, ", got ", root);
}

void check_dtype(const at::Tensor& output, const at::Tensor& input) {
  TORCH_CHECK_TYPE(output.scalar_type() == input.scalar_type(), "expected an output of ", input.scalar_type(), ", got ",
                   output.scalar_type());
}

void check_whole(const at::Tensor& whole, const at::Tensor& part, int size) {
  check_dtype(whole, part);
  TORCH_CHECK_VALUE(whole.numel() == part.numel() * size, "expected ", size, " times the ", part.numel(),
                    " elements of one rank, got ", whole.numel());
}

void check_lists(const std::vector<Tensors>& lists, const Tensors& parts, int size) {
  TORCH_CHECK_VALUE(lists.size() == parts.size(), "expected a list for each of ", parts.size(), " tensors, got ",
                    lists.size());
  for (size_t i = 0; i < lists.size(); ++i) {
    TORCH_CHECK_VALUE(static_cast<int>(lists[i].size()) == size, "expected a tensor for each of ", size, " ranks, got ",
                      lists[i].size());
    for (const at::Tensor& tensor : lists[i]) check_dtype(tensor, parts[i]);
  }
}

void check_splits(const at::Tensor& tensor, const std::vector<int64_t>& sizes, int size) {
  if (sizes.empty()) {
    TORCH_CHECK_VALUE(tensor.size(0) % size == 0, "expected a first dimension that ", size, " ranks divide, got ",
                      tensor.size(0));
    return;
  }
  TORCH_CHECK_VALUE(static_cast<int>(sizes.size()) == size, "expected a size for each of ", size, " ranks, got ",
                    sizes.size());
  const int64_t sum = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  TORCH_CHECK_VALUE(sum == tensor.size(0), "expected sizes that add up to the first dimension, ", tensor.size(0),
                    ", got ", sum);
}

}  // namespace torch_mtia
