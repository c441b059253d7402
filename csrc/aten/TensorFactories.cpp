// Tensors with memory whose contents are undefined, zeros without memory, and lazy clones.
#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/native/mtia/EmptyTensor.h>
#include <ATen/ops/_lazy_clone_native.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/TensorOptions.h>
#include <c10/core/impl/COW.h>

#include <vector>

#include "../core/Event.h"
#include "../core/Graph.h"
#include "../core/Waits.h"
#include "../device/DeviceType.h"
#include "../device/MTIACachingAllocator.h"
#include "../device/MTIAFunctions.h"
#include "../device/MTIAStream.h"
#include "MTIANativeFunctions.h"

namespace at::detail {
namespace {

c10::DispatchKeySet device_keys() {
  return c10::DispatchKeySet(torch_mtia::dispatch_key());
}

// Makes the device current for the allocation; the allocator serves the current device.
class AllocationDevice {
 public:
  explicit AllocationDevice(std::optional<Device> device)
      : previous_(torch_mtia::current_device()),
        changed_(device && device->has_index() && device->index() != previous_) {
    if (changed_) torch_mtia::set_device(device->index());
  }
  ~AllocationDevice() {
    if (changed_) torch_mtia::set_device_unchecked(previous_);
  }
  AllocationDevice(const AllocationDevice&) = delete;
  AllocationDevice& operator=(const AllocationDevice&) = delete;

 private:
  const c10::DeviceIndex previous_;
  const bool changed_;
};

void check_supported(std::optional<Layout> layout, std::optional<bool> pin_memory) {
  TORCH_CHECK_NOT_IMPLEMENTED(layout.value_or(Layout::Strided) == Layout::Strided, torch_mtia::device_name(),
                              " tensors are strided; there is no ", *layout, " layout on this device");
  TORCH_CHECK(!pin_memory.value_or(false), "Only dense CPU tensors can be pinned");
}

// torch.use_deterministic_algorithms promises that uninitialized memory reads as NaN or the largest value.
at::Tensor fill_if_deterministic(TensorBase base) {
  at::Tensor tensor(std::move(base));
  if (C10_UNLIKELY(at::globalContext().deterministicAlgorithms() &&
                   at::globalContext().deterministicFillUninitializedMemory())) {
    at::native::fill_empty_deterministic_(tensor);
  }
  return tensor;
}

}  // namespace

TensorBase empty_mtia(IntArrayRef size, const TensorOptions& options) {
  AllocationDevice device(options.device_opt());
  return empty_generic(size, &torch_mtia::MTIACachingAllocator::get(), device_keys(),
                       c10::typeMetaToScalarType(options.dtype()), options.memory_format_opt());
}

TensorBase empty_strided_mtia(IntArrayRef size, IntArrayRef stride, const TensorOptions& options) {
  AllocationDevice device(options.device_opt());
  return empty_strided_generic(size, stride, &torch_mtia::MTIACachingAllocator::get(), device_keys(),
                               c10::typeMetaToScalarType(options.dtype()));
}

}  // namespace at::detail

namespace at::native {

Tensor empty_memory_format_mtia(IntArrayRef size, std::optional<ScalarType> dtype, std::optional<Layout> layout,
                                std::optional<Device> device, std::optional<bool> pin_memory,
                                std::optional<MemoryFormat> memory_format) {
  at::detail::check_supported(layout, pin_memory);
  at::detail::AllocationDevice guard(device);
  auto tensor = at::detail::empty_generic(size, &torch_mtia::MTIACachingAllocator::get(), at::detail::device_keys(),
                                          c10::dtype_or_default(dtype), memory_format);
  return at::detail::fill_if_deterministic(std::move(tensor));
}

Tensor empty_strided_mtia(IntArrayRef size, IntArrayRef stride, std::optional<ScalarType> dtype,
                          std::optional<Layout> layout, std::optional<Device> device, std::optional<bool> pin_memory) {
  at::detail::check_supported(layout, pin_memory);
  at::detail::AllocationDevice guard(device);
  auto tensor = at::detail::empty_strided_generic(size, stride, &torch_mtia::MTIACachingAllocator::get(),
                                                  at::detail::device_keys(), c10::dtype_or_default(dtype));
  return at::detail::fill_if_deterministic(std::move(tensor));
}

Tensor _efficientzerotensor_mtia(IntArrayRef size, std::optional<ScalarType> dtype, std::optional<Layout> layout,
                                 std::optional<Device> device, std::optional<bool> pin_memory) {
  at::detail::check_supported(layout, pin_memory);
  at::detail::AllocationDevice guard(device);
  const auto type = c10::scalarTypeToTypeMeta(c10::dtype_or_default(dtype));
  const Device on(torch_mtia::device_type(), torch_mtia::current_device());
  auto storage = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), at::detail::computeStorageNbytesContiguous(size, type.itemsize()),
      c10::DataPtr(nullptr, on), /*allocator=*/nullptr, /*resizable=*/false);
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), at::detail::device_keys() | c10::DispatchKeySet(c10::DispatchKey::ZeroTensor), type);
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  return tensor;
}

namespace {

// The other streams that may use memory: in a capture, those of the capture. Running work must not wait for any.
std::vector<torch_mtia::core::Stream*> streams_beside(const torch_mtia::MTIAStream& current) {
  if (torch_mtia::core::RunningWork::on_this_thread()) return {};
  if (const torch_mtia::core::Graph* graph = current.core().graph()) {
    std::vector<torch_mtia::core::Stream*> captured = graph->captured_streams();
    std::erase(captured, &current.core());
    return captured;
  }
  std::vector<torch_mtia::core::Stream*> all;
  for (c10::DeviceIndex device = 0; device < torch_mtia::device_count(); ++device) {
    const auto one = torch_mtia::MTIAStream::current(device);
    if (&one.core() != &current.core() && one.core().graph() == nullptr) all.push_back(&one.core());
    for (const torch_mtia::MTIAStream& other : one.others()) {
      if (&other.core() != &current.core()) all.push_back(&other.core());
    }
  }
  return all;
}

// What a lazy clone is once it owns its memory: see Note [Lazy clones and graphs] in MTIACachingAllocator.cpp. A lazy
// clone reads nothing, so a program that makes one need not synchronize. The copy here reads: it comes after the work
// that all streams have, and before what they get.
Tensor clone_of_storage(const Tensor& self) {
  const c10::DeviceGuard guard(self.device());
  const auto current = torch_mtia::MTIAStream::current(self.device().index());
  const auto beside = streams_beside(current);
  for (torch_mtia::core::Stream* stream : beside) {
    torch_mtia::core::Event before(/*enable_timing=*/false);
    before.record(*stream);
    current.core().wait(before);
  }
  auto& allocator = torch_mtia::MTIACachingAllocator::get();
  const c10::Storage& storage = self.storage();
  auto copy = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), storage.nbytes(),
                                                    allocator.clone(storage.data(), storage.nbytes()), &allocator,
                                                    storage.resizable());
  torch_mtia::core::Event copied(/*enable_timing=*/false);
  copied.record(current.core());
  for (torch_mtia::core::Stream* stream : beside) stream->wait(copied);
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(std::move(copy)), self.key_set(), self.dtype());
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(self.sizes(), self.strides(), self.storage_offset());
  return tensor;
}

}  // namespace

Tensor _lazy_clone_mtia(const Tensor& self) {
  if (torch_mtia::MTIACachingAllocator::may_be_of_graph(*self.storage().unsafeGetStorageImpl())) {
    return clone_of_storage(self);
  }
  const auto is_owned_otherwise = [](const c10::StorageImpl& storage) {  // as memory of a graph is
    namespace cow = c10::impl::cow;
    return !cow::has_simple_data_ptr(storage) && !cow::is_cow_data_ptr(storage.data_ptr());
  };
  if (is_owned_otherwise(*self.storage().unsafeGetStorageImpl())) return self.clone();
  Tensor clone = native::_lazy_clone(self);
  torch_mtia::MTIACachingAllocator::finish_lazy_clone(*self.storage().unsafeGetStorageImpl());
  torch_mtia::MTIACachingAllocator::finish_lazy_clone(*clone.storage().unsafeGetStorageImpl());
  return clone;
}

}  // namespace at::native
