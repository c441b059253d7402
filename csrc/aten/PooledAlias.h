// A host alias on loan, for kernels that make a few for every call.
//
// Note [Stock of aliases]
// An alias is a tensor, a storage and a version counter: three allocations, more than a small operator can afford. Each
// thread keeps a few that are not in use. An alias goes back to the stock of the thread on which the work item dies.
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>

#include "../core/Operands.h"
#include "Dtypes.h"

namespace torch_mtia {

// The CPU tensor that stands for a tensor in a work item: see Note [Host alias] in HostAlias.h. A tensor that lives on
// the CPU (a number) is copied, so that the caller may change it. Nothing of the tensor is kept.
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
  // Whether it stands in a list behind another tensor.
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
