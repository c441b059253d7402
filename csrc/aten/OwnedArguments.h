// The arguments of a CPU kernel as a work item owns them: tensors as host aliases, everything else by value.
//
// own(argument) gives an object whose get() yields, any number of times, what the kernel takes for that argument. One
// with tensors has visit(apply), which calls apply for each alias and may be used to exchange it. own_output(tensor)
// is for a tensor that the kernel overwrites, own_in_place(tensor) for one that it changes; core::OldBytes as the
// second argument tells what else is not read. To support another type, add an overload of own.
#pragma once

#include <ATen/core/IListRef.h>
#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>
#include <c10/util/SmallVector.h>

#include <concepts>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "HostAlias.h"

namespace torch_mtia {

using VisitTensor = c10::function_ref<void(PooledAlias&)>;

// A number, a flag, a dtype.
template <typename T>
struct OwnedValue {
  T value;
  const T& get() const { return value; }
};

struct OwnedTensor {
  PooledAlias tensor;
  const at::Tensor& get() const { return tensor.get(); }
  void visit(VisitTensor apply) { apply(tensor); }
};

struct OwnedOutput : OwnedTensor {
  // Kernels of out= and in-place operators take the output by a reference that is not const.
  at::Tensor& get() const { return const_cast<at::Tensor&>(tensor.get()); }
};

struct OwnedOptionalTensor {
  PooledAlias tensor;
  // What kernels take: std::optional<Tensor> or OptionalTensorRef.
  struct Reference {
    const at::Tensor& tensor;
    operator std::optional<at::Tensor>() const {
      return tensor.defined() ? std::optional<at::Tensor>(tensor) : std::nullopt;
    }
    operator at::OptionalTensorRef() const {
      return tensor.defined() ? at::OptionalTensorRef(tensor) : at::OptionalTensorRef();
    }
  };
  Reference get() const { return {tensor.get()}; }
  void visit(VisitTensor apply) { apply(tensor); }
};

struct OwnedTensorList {
  std::vector<PooledAlias> tensors;
  std::vector<at::Tensor> aliases;
  at::TensorList get() const { return aliases; }
  void visit(VisitTensor apply) {
    for (size_t i = 0; i < tensors.size(); ++i) {
      apply(tensors[i]);
      if (!aliases[i].is_same(tensors[i].get())) aliases[i] = tensors[i].get();
    }
  }
};

struct OwnedOptionalTensorList {
  std::vector<PooledAlias> tensors;
  std::unique_ptr<c10::List<std::optional<at::Tensor>>> aliases;  // a List cannot be moved
  const c10::List<std::optional<at::Tensor>>& get() const { return *aliases; }
  void visit(VisitTensor apply) {
    for (size_t i = 0; i < tensors.size(); ++i) {
      apply(tensors[i]);
      const at::Tensor& alias = tensors[i].get();
      if (alias.defined() && !aliases->get(i)->is_same(alias)) aliases->set(i, alias);
    }
  }
};

template <typename T>
struct OwnedArray {
  c10::SmallVector<T, 5> values;  // as many as c10::DimVector has in place
  at::ArrayRef<T> get() const { return values; }
};

template <typename T>
struct OwnedOptionalArray {
  std::optional<std::vector<T>> values;
  struct Reference {
    const std::optional<std::vector<T>>& values;
    operator std::optional<at::ArrayRef<T>>() const {
      return values ? std::optional<at::ArrayRef<T>>(*values) : std::nullopt;
    }
    operator at::OptionalArrayRef<T>() const { return values ? at::OptionalArrayRef<T>(*values) : std::nullopt; }
  };
  Reference get() const { return {values}; }
};

struct OwnedOptionalScalar {
  std::optional<at::Scalar> value;
  at::OptionalScalarRef get() const { return value ? at::OptionalScalarRef(*value) : at::OptionalScalarRef(); }
};

struct OwnedString {
  std::string value;
  std::string_view get() const { return value; }
};

struct OwnedOptionalString {
  std::optional<std::string> value;
  std::optional<std::string_view> get() const { return value; }
};

template <typename T>
  requires std::is_trivially_copyable_v<T> || std::is_same_v<T, at::Scalar> ||
           std::is_same_v<T, std::optional<at::Scalar>>
OwnedValue<T> own(const T& value) {
  return {value};
}

// What rows in yaml/native_functions.yaml ask of an argument: a flag, or the factor of a term.
inline bool is_set(bool flag) {
  return flag;
}
inline bool is_set(const at::Scalar& factor) {
  return !factor.equal(0.0);
}

inline OwnedTensor own(const at::TensorBase& tensor, core::OldBytes old_bytes = core::OldBytes::kRead) {
  return {PooledAlias(tensor, /*for_write=*/false, old_bytes)};
}
inline OwnedOutput own_in_place(const at::TensorBase& tensor, core::OldBytes old_bytes = core::OldBytes::kRead) {
  return {{PooledAlias(tensor, /*for_write=*/true, old_bytes)}};
}
inline OwnedOutput own_output(const at::TensorBase& tensor) {
  return own_in_place(tensor, core::OldBytes::kOverwritten);
}

inline OwnedOptionalTensor own(const std::optional<at::Tensor>& tensor) {
  return tensor ? OwnedOptionalTensor{PooledAlias(*tensor, /*for_write=*/false)} : OwnedOptionalTensor{};
}
inline OwnedOptionalTensor own(const at::OptionalTensorRef& tensor) {
  return tensor.has_value() ? OwnedOptionalTensor{PooledAlias(*tensor, /*for_write=*/false)} : OwnedOptionalTensor{};
}

// Of an argument that the kernel writes, though its type does not say so.
inline OwnedOptionalTensor own_in_place(const std::optional<at::Tensor>& tensor) {
  return tensor ? OwnedOptionalTensor{PooledAlias(*tensor, /*for_write=*/true)} : OwnedOptionalTensor{};
}

template <typename List>
OwnedTensorList own_list(const List& list, bool for_write, core::OldBytes old_bytes = core::OldBytes::kRead) {
  OwnedTensorList owned;
  owned.tensors.reserve(list.size());
  owned.aliases.reserve(list.size());
  for (const at::Tensor& tensor : list) {
    owned.tensors.emplace_back(tensor, for_write, old_bytes, /*follows_in_list=*/!owned.tensors.empty());
    owned.aliases.push_back(owned.tensors.back().get());
  }
  return owned;
}
inline OwnedTensorList own(at::TensorList list) {
  return own_list(list, /*for_write=*/false);
}
inline OwnedTensorList own(const at::ITensorListRef& list) {
  return own_list(list, /*for_write=*/false);
}
inline OwnedTensorList own_in_place(at::TensorList list, core::OldBytes old_bytes = core::OldBytes::kRead) {
  return own_list(list, /*for_write=*/true, old_bytes);
}
inline OwnedTensorList own_output(at::TensorList list) {
  return own_in_place(list, core::OldBytes::kOverwritten);
}

inline OwnedOptionalTensorList own(const c10::List<std::optional<at::Tensor>>& list) {
  OwnedOptionalTensorList owned{{}, std::make_unique<c10::List<std::optional<at::Tensor>>>()};
  for (const std::optional<at::Tensor>& tensor : list) {
    owned.tensors.emplace_back(tensor.value_or(at::Tensor()), /*for_write=*/false, core::OldBytes::kRead,
                               /*follows_in_list=*/!owned.tensors.empty());
    owned.aliases->push_back(tensor ? std::optional<at::Tensor>(owned.tensors.back().get()) : std::nullopt);
  }
  return owned;
}

template <typename T>
OwnedArray<T> own(at::ArrayRef<T> values) {
  return {{values.begin(), values.end()}};
}
template <typename T>
OwnedOptionalArray<T> own(const std::optional<at::ArrayRef<T>>& values) {
  return values ? OwnedOptionalArray<T>{values->vec()} : OwnedOptionalArray<T>{};
}
template <typename T>
OwnedOptionalArray<T> own(const at::OptionalArrayRef<T>& values) {
  return values ? OwnedOptionalArray<T>{values->vec()} : OwnedOptionalArray<T>{};
}
// A template, because get() compiles only where c10/util/Exception.h was included before anything else.
template <std::same_as<at::Scalar> T>
OwnedOptionalScalar own(const c10::OptionalRef<T>& value) {
  return {value.has_value() ? std::optional<at::Scalar>(value.get()) : std::nullopt};
}
inline OwnedString own(std::string_view value) {
  return {std::string(value)};
}
inline OwnedOptionalString own(const std::optional<std::string_view>& value) {
  return {value ? std::optional<std::string>(*value) : std::nullopt};
}

}  // namespace torch_mtia
