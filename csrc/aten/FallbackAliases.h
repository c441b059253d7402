// The values of a call that falls back, as the CPU kernel takes them: see Note [Fallback] in Fallback.cpp.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>

#include "../core/WorkItem.h"
#include "../device/MTIAGenerator.h"
#include "../runtime/mtia_runtime.h"

namespace torch_mtia {

// Calls visit for each defined tensor of a value.
template <typename Visit>
void for_each_tensor(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) visit(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorList()) {
      if (tensor.defined()) visit(tensor);
    }
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) for_each_tensor(element, visit);
  }
}

// A part of a storage.
struct ByteRange {
  size_t begin = 0;
  size_t end = 0;

  bool empty() const { return begin == end; }
  bool contains(const ByteRange& other) const { return begin <= other.begin && other.end <= end; }
  void extend(const ByteRange& other) {
    if (other.empty()) return;
    *this = empty() ? other : ByteRange{std::min(begin, other.begin), std::max(end, other.end)};
  }
};

// From the lowest to the highest byte of the elements.
inline ByteRange range_of(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return {};
  const size_t itemsize = tensor.itemsize();
  const size_t begin = static_cast<size_t>(tensor.storage_offset()) * itemsize;
  return {begin, begin + at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), itemsize)};
}

// What a kernel does with an argument.
struct ArgumentUse {
  bool writes = false;
  core::OldBytes old_bytes = core::OldBytes::kRead;
  bool is_out = false;
};

// The host aliases of a call's storages and tensors, and the way back.
class FallbackAliases {
 public:
  // Generators among the arguments are of `generator_device`.
  FallbackAliases(const c10::OperatorHandle& op, c10::Device device, c10::Device generator_device)
      : op_(op), device_(device), generator_device_(generator_device) {}

  // Has float32 tensors stand in for those of this dtype: see Note [Float32 accumulation].
  void widen(at::ScalarType dtype) { narrow_dtype_ = dtype; }

  // An argument for the kernel.
  c10::IValue to_host(const c10::IValue& value, const ArgumentUse& use);

  // Around the kernel, where it runs: what stands in for arguments gets their elements, and gives them back.
  void fill_substitutes() const;
  void copy_from_substitutes() const;

  // After it, on the caller: arguments of the device become what the kernel has made of them. `results`: what it gave,
  // valid until they are converted.
  void write_back(std::span<const c10::IValue> results);
  // A result for the caller.
  c10::IValue to_device(const c10::IValue& value);

  // Before the memory of the aliases goes: copies from and to it may be on their way.
  void wait_for_copies() const noexcept;

  // Whether a tensor of the host stands for one of the device.
  bool is_alias(const at::Tensor& host) const;
  void list_operands(core::OperandSink& sink) const;

 private:
  struct StorageAlias {
    c10::Storage device;
    c10::Storage host;
    void* address;
    // Without a host view: what was copied to the host, and what is to be copied back.
    ByteRange copied = {};
    ByteRange written = {};
  };
  struct TensorAlias {
    at::Tensor device;
    at::Tensor host;
    bool writes = false;  // the kernel, says its schema
    core::OldBytes old_bytes = core::OldBytes::kRead;
    // The memory of an argument for which `host` is a substitute: contiguous for an `out`, float32 for 16 bits.
    at::Tensor memory = {};

    const at::Tensor& in_place() const { return memory.defined() ? memory : host; }
  };

  at::Tensor to_host(const at::Tensor& tensor, const ArgumentUse& use);
  c10::Storage to_host_storage(const at::Tensor& tensor, const ArgumentUse& use);
  void note_use(StorageAlias& alias, const ByteRange& range, bool writes);
  void copy(const StorageAlias& alias, const ByteRange& range, mtia_copy_kind kind) const;
  bool copy_back_resized() const;
  const StorageAlias& storage_alias_of(const at::Tensor& device) const;
  c10::DataPtr adopt_or_copy(const c10::Storage& host, bool kept_elsewhere) const;
  c10::DataPtr copy_to_device(const c10::StorageImpl& host) const;
  c10::Storage to_device(const c10::Storage& host);
  at::Tensor to_device(const at::Tensor& host);
  bool is_host_argument(const at::Tensor& host) const;

  const c10::OperatorHandle& op_;
  const c10::Device device_;
  const c10::Device generator_device_;
  std::optional<at::ScalarType> narrow_dtype_;
  c10::SmallVector<StorageAlias, 4> storages_;
  c10::SmallVector<TensorAlias, 4> tensors_;
  c10::SmallVector<c10::Storage, 1> host_storages_;  // of arguments on the CPU
  std::span<const c10::IValue> results_;
};

// What lets a CPU kernel without an argument for a generator draw the numbers of the device.

inline uint64_t mix(uint64_t seed, uint64_t offset) {  // splitmix64's finalizer
  uint64_t x = seed + 0x9e3779b97f4a7c15ULL * (offset + 1);
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

// A seed for one draw of an mtia generator, which advances after it.
inline uint64_t draw_seed(const at::Generator& generator) {
  const auto [seed, offset] = reserve(generator, 1);
  return mix(seed, offset);
}

// The CPU's default generator, with another seed while this lives. Its mutex guards each step, and cannot be held in
// between: the kernel takes it to draw. What another thread draws on the CPU meanwhile is drawn of this seed.
class DefaultCPUSeedGuard {
 public:
  explicit DefaultCPUSeedGuard(uint64_t seed) : seed_(seed), generator_(at::detail::getDefaultCPUGenerator()) {
    const std::lock_guard<std::mutex> lock(generator_.mutex());
    state_ = generator_.get_state();
    generator_.set_current_seed(seed);
  }
  ~DefaultCPUSeedGuard() {
    const std::lock_guard<std::mutex> lock(generator_.mutex());
    if (generator_.current_seed() == seed_) generator_.set_state(state_);  // else somebody has seeded it meanwhile
  }
  DefaultCPUSeedGuard(const DefaultCPUSeedGuard&) = delete;
  DefaultCPUSeedGuard& operator=(const DefaultCPUSeedGuard&) = delete;

 private:
  const uint64_t seed_;
  at::Generator generator_;
  at::Tensor state_;
};

}  // namespace torch_mtia
