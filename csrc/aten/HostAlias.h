// CPU tensors over the bytes of device tensors.
//
// Note [Host alias]
// A host alias is a CPU tensor whose storage points, without owning it, at the host view of a device tensor's bytes.
// ATen's CPU code runs on it as on any CPU tensor. It refers to no Python object and to no device tensor, so it may die
// on any thread. It is valid only for work that runs in stream order, or on a host that has synchronized.
//
// Note [Stock of aliases]
// An alias is a tensor, a storage and a version counter: three allocations, more than a small operator can afford. Each
// thread keeps a few that are not in use. An alias goes back to the stock of the thread on which the work item dies.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>
#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>

#include <concepts>
#include <cstdint>
#include <optional>
#include <utility>

#include "../core/WorkItem.h"
#include "Dtypes.h"

namespace torch_mtia {

// Same sizes, strides, offset, dtype and conjugate and negative bits. Of a CPU tensor: an alias of its own bytes.
// `for_write` makes a lazily cloned storage its own first.
at::Tensor host_alias(const at::TensorBase& tensor, bool for_write);
// The same over `storage` in place of the view of the tensor's own.
at::Tensor host_alias(const at::TensorBase& tensor, c10::Storage storage);

// The memory of a host alias of a device tensor.
void list_operand(const at::Tensor& alias, bool writes, core::OldBytes old_bytes, core::OperandSink& sink);
// A tensor of the host's own.
void list_host_operand(const at::TensorBase& tensor, bool writes, core::OperandSink& sink);

// The numbers that a work item is given: whoever looks for the first NaN has to know that a program fills with it on
// purpose.
template <typename T>
void list_numbers(const T& /*value*/, core::OperandSink& /*sink*/) {}

template <std::floating_point T>
void list_numbers(const T& value, core::OperandSink& sink) {
  sink.add_host({reinterpret_cast<uint64_t>(&value),
                 sizeof(T),
                 {},
                 {},
                 1,
                 /*writes=*/false,
                 core::OldBytes::kRead,
                 sizeof(T) == sizeof(double) ? "float64" : "float32"});
}

inline void list_numbers(const c10::Scalar& value, core::OperandSink& sink) {
  if (!value.isFloatingPoint() && !value.isComplex()) return;
  const auto number = value.toComplexDouble();
  list_numbers(number.real(), sink);
  list_numbers(number.imag(), sink);
}

template <typename T>
void list_numbers(const std::optional<T>& value, core::OperandSink& sink) {
  if (value) list_numbers(*value, sink);
}

template <typename T>
void list_numbers(const c10::ArrayRef<T>& values, core::OperandSink& sink) {
  for (const T& value : values) list_numbers(value, sink);
}

inline void list_numbers(const c10::OptionalRef<const c10::Scalar>& value, core::OperandSink& sink) {
  if (value.has_value()) list_numbers(value.get(), sink);
}

// A CPU tensor with the same sizes, strides, dtype and, for a number that Python wrapped, the same standing in type
// promotion, and bytes of its own.
at::Tensor clone_on_host(const at::TensorBase& cpu_tensor);

// Zeros with the same sizes, strides, dtype and conjugate and negative bits. What is only read takes no memory.
at::Tensor zeros_on_host(const at::TensorBase& tensor);

// A host alias on loan, for kernels that make a few for every call: the CPU tensor that stands for a tensor in a work
// item. A tensor that lives on the CPU (a number) is copied, so that the caller may change it. Nothing of the tensor is
// kept. See Note [Stock of aliases].
class PooledAlias {
 public:
  PooledAlias() = default;  // stands for an undefined tensor
  PooledAlias(const at::TensorBase& tensor, bool for_write, core::OldBytes old_bytes = core::OldBytes::kRead,
              bool follows_in_list = false);
  ~PooledAlias() {
    if (alias_.defined()) recycle();
  }
  PooledAlias(PooledAlias&& other) noexcept
      : alias_(std::move(other.alias_)),
        source_(other.source_),
        device_(other.device_),
        writes_(other.writes_),
        old_bytes_(other.old_bytes_),
        follows_in_list_(other.follows_in_list_),
        nbytes_(other.nbytes_) {}
  PooledAlias& operator=(PooledAlias&&) = delete;

  const at::Tensor& get() const { return alias_; }
  size_t nbytes() const { return nbytes_; }
  uint64_t dtype_symbol() const {
    return torch_mtia::dtype_symbol(alias_.defined() ? alias_.scalar_type() : at::ScalarType::Undefined,
                                    follows_in_list_);
  }

  // Kernels ask whether their output is one of their inputs: makes this stand for the same object as `other`, if both
  // were made of one tensor.
  void unite_with(const PooledAlias& other) {
    if (alias_.defined() && source_ == other.source_) alias_ = other.alias_;
  }

  // Whether both have some of the device's bytes, as tensors that are not the same.
  bool overlaps(const PooledAlias& other) const;

  // Whether both were made of one tensor.
  bool is_of_tensor_of(const PooledAlias& other) const { return source_ == other.source_; }
  // Puts another tensor in the alias's place.
  void exchange(at::Tensor& alias) noexcept { std::swap(alias_, alias); }

  // Where the tensor is for which this stands.
  c10::Device device() const { return device_; }
  bool on_device() const { return !device_.is_cpu(); }
  bool writes() const { return writes_; }
  core::OldBytes old_bytes() const { return old_bytes_; }
  // Whether it stands in a list after another tensor.
  bool follows_in_list() const { return follows_in_list_; }

 private:
  void recycle() noexcept;

  at::Tensor alias_;
  const void* source_ = nullptr;  // for comparison only
  c10::Device device_ = c10::kCPU;
  bool writes_ = false;
  core::OldBytes old_bytes_ = core::OldBytes::kRead;
  bool follows_in_list_ = false;
  size_t nbytes_ = 0;
};

}  // namespace torch_mtia
