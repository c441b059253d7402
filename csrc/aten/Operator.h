// An operator by name, with what its row in yaml/native_functions.yaml says of it for the mechanisms that operators
// share, and with the dtypes that its CPU kernel is known to take.
#pragma once

#include <ATen/core/IListRef.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <string_view>
#include <type_traits>
#include <vector>

#include "../device/DeviceType.h"
#include "../device/MTIAFunctions.h"
#include "OperatorDtypes.h"
#include "OperatorTraits.h"

namespace torch_mtia {

template <typename Row, size_t kRows>
constexpr const Row* find_row(const Row (&rows)[kRows], std::string_view name) {
  const auto* row = std::lower_bound(std::begin(rows), std::end(rows), name,
                                     [](const Row& row, std::string_view name) { return row.name < name; });
  return row != std::end(rows) && row->name == name ? row : nullptr;
}

// `name` without an overload, as in aten::index.
constexpr OperatorTraits traits_of(std::string_view name) {
  const auto* row = find_row(kOperatorRows, name);
  return row != nullptr ? row->traits : OperatorTraits();
}

// Made of literals only: the compiler looks its rows up, and no call does. `kernel` is the name of the CPU kernel in
// yaml/dtypes.yaml.
struct Operator {
  consteval Operator(const char* name) : Operator(name, name) {}
  consteval Operator(const char* name, const char* kernel) : name(name), kernel(kernel), traits(traits_of(name)) {
    if (const auto* row = find_row(kDtypeRows, kernel)) {
      known_dtypes = kDtypeSignatures + row->first;
      num_known_dtypes = row->count;
    }
  }

  // See Note [Dtypes]. The usual dtypes come first.
  bool takes(const DtypeSignature& dtypes) const {
    for (size_t i = 0; i < num_known_dtypes; ++i) {
      if (known_dtypes[i] == dtypes.code()) return true;
    }
    return false;
  }

  const char* name;
  const char* kernel;
  OperatorTraits traits;
  const uint64_t* known_dtypes = nullptr;
  size_t num_known_dtypes = 0;
};

// The device that an operator runs on: the one of its arguments. Raises what CUDA raises if there are several.
class CommonDevice {
 public:
  // `operator_name` is referred to.
  CommonDevice(std::string_view operator_name, bool takes_host_tensors, bool writes_host_tensors)
      : name_(operator_name),
        // Operators from outside of ATen decide themselves.
        is_checked_(name_.starts_with("aten::")),
        takes_host_tensors_(takes_host_tensors),
        writes_host_tensors_(writes_host_tensors) {}

  void add(const at::Tensor& tensor, bool is_written) { add(tensor.device(), tensor.dim(), is_written); }
  // A tensor on the CPU of no dimensions is a number, unless it is written.
  void add(c10::Device device, int64_t dim, bool is_written) {
    if (is_ours(device)) {
      if (device_) check(device);
      device_ = device;
      if (host_) check(*host_);
    } else if (is_checked_ && (is_written ? !writes_host_tensors_ : dim > 0 && !takes_host_tensors_)) {
      host_ = device;
      if (device_) check(device);
    }
  }
  void add(c10::Device device) {
    if (!device_ && is_ours(device)) {
      device_ = device.has_index() ? device : c10::Device(device_type(), current_device());
    }
  }
  c10::Device get() const { return device_.value_or(c10::Device(device_type(), current_device())); }
  // Where generators must be: tensors of the CPU may be here because of their generator alone.
  c10::Device of_generators() const { return !device_ && host_ ? *host_ : get(); }

 private:
  void check(c10::Device other) const {
    TORCH_CHECK(other == *device_, "Expected all tensors to be on the same device, but found at least two devices, ",
                *device_, " and ", other, "! (when running ", name_, ")");
  }

  std::string_view name_;
  bool is_checked_;
  bool takes_host_tensors_;
  bool writes_host_tensors_;
  std::optional<c10::Device> device_;
  std::optional<c10::Device> host_;
};

// The kernels of an operator that upstream has structured, and the overlay has not: the dispatcher wants one C++ type
// for all kernels of an operator, and has lists of tensors as ITensorListRef if it is structured, otherwise as
// TensorList.
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
