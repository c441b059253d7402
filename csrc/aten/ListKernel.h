// Runs one of ATen's CPU kernels on lists of tensors (`_foreach_*_`, `_fused_*_`) as one work item. The code that calls
// this is generated from rows with `runs` (tools/codegen/cpu_kernels.py).
//
// Note [List kernels]
// A kernel that takes lists looks at its arguments only when it runs, and what it refuses has to be refused at the
// call.
//   - A foreach operator becomes one work item if its lists are alike (fits_one_item): that is the usual case, and CUDA
//     draws the same line. Any other lists go to ATen's slow path, one operator for each tensor, which raises what
//     there is to raise. The slow path is also what the work item runs, on host aliases.
//   - A fused operator has no slow path: check raises.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>
#include <c10/util/SmallVector.h>

#include <concepts>
#include <optional>
#include <vector>

#include "CPUKernelLaunch.h"

namespace torch_mtia {

// The arguments of an operator on lists, by kind; the first list is what it writes. Borrows them.
class ListArguments {
 public:
  template <typename... Arguments>
  explicit ListArguments(const Arguments&... arguments) {
    (add(arguments), ...);
  }

  // Whether one work item does what ATen's slow path would do with these.
  bool fits_one_item(const Operator& op) const;

  // Raises for lists that a fused kernel does not take. All tensors are on one device; a list is empty or as long as
  // the first; if there are several, each has one dtype and the sizes and strides of the first.
  void check(const char* name) const;

 private:
  void add(at::TensorList list) { lists_.push_back(list); }
  void add(const at::Tensor& tensor) { tensors_.push_back(&tensor); }
  void add(const std::optional<at::Tensor>& tensor) {
    if (tensor) tensors_.push_back(&*tensor);
  }
  void add(const at::Scalar& scalar) { scalars_.push_back(scalar); }
  void add(at::ArrayRef<at::Scalar> scalars) {
    scalars_.append(scalars.begin(), scalars.end());
    has_scalar_list_ = true;
  }
  template <typename T>
    requires std::is_arithmetic_v<T>
  void add(T) {}

  bool have_same_length() const;
  bool overlap_partially() const;

  c10::SmallVector<at::TensorList, 6> lists_;
  c10::SmallVector<const at::Tensor*, 3> tensors_;
  c10::SmallVector<at::Scalar, 4> scalars_;
  bool has_scalar_list_ = false;
};

// Tells autograd that the tensors have changed, as ATen's slow path does.
void advance_versions(at::TensorList list);

}  // namespace torch_mtia
