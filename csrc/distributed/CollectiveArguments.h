// The arguments of collectives: the tensors among them, and what is wrong with them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace torch_mtia {

using Tensors = std::vector<at::Tensor>;

inline void add_to(Tensors& list, const at::Tensor& tensor) {
  list.push_back(tensor);
}
inline void add_to(Tensors& list, const Tensors& tensors) {
  list.insert(list.end(), tensors.begin(), tensors.end());
}
inline void add_to(Tensors& list, const std::vector<Tensors>& lists) {
  for (const Tensors& tensors : lists) add_to(list, tensors);
}
template <typename Options>
void add_to(Tensors& /*list*/, const Options& /*options*/) {}

// The tensors among the arguments.
template <typename... Arguments>
Tensors tensors_of(const Arguments&... arguments) {
  Tensors list;
  (add_to(list, arguments), ...);
  return list;
}

// The device of all of them. Raises ValueError if there is none, or another.
c10::Device device_of(const Tensors& tensors);

// What one rank can know to be wrong is raised at the call.

void check_root(int64_t root, int size);
void check_dtype(const at::Tensor& output, const at::Tensor& input);

// One tensor that has a part for each rank.
void check_whole(const at::Tensor& whole, const at::Tensor& part, int size);

// Lists with a tensor for each rank, which has the part of one.
void check_lists(const std::vector<Tensors>& lists, const Tensors& parts, int size);

// The sizes of parts along the first dimension; none: equal ones.
void check_splits(const at::Tensor& tensor, const std::vector<int64_t>& sizes, int size);

}  // namespace torch_mtia
