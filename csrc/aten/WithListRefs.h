// The kernels of an operator that upstream has structured, and the overlay has not: the dispatcher wants one C++ type
// for all kernels of an operator, and has lists of tensors as ITensorListRef if it is structured, otherwise as
// TensorList.
#pragma once

#include <ATen/core/IListRef.h>
#include <ATen/core/Tensor.h>

#include <type_traits>
#include <vector>

namespace torch_mtia {

template <class Argument>
struct ListRef {
  using type = Argument;
  static Argument&& list(std::remove_reference_t<Argument>& argument) { return static_cast<Argument&&>(argument); }
};

template <>
struct ListRef<at::TensorList> {
  using type = const at::ITensorListRef&;
  static std::vector<at::Tensor> list(const at::ITensorListRef& argument) { return {argument.begin(), argument.end()}; }
};

template <auto kernel>
struct WithListRefs;

template <class Result, class... Arguments, Result (*kernel)(Arguments...)>
struct WithListRefs<kernel> {
  static Result call(typename ListRef<Arguments>::type... arguments) {
    return kernel(ListRef<Arguments>::list(arguments)...);
  }
};

}  // namespace torch_mtia
