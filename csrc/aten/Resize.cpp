// resize_ and set_.
#include <ATen/Context.h>
#include <ATen/native/Resize.h>
#include <ATen/native/ResizeCommon.h>
#include <c10/core/DeviceGuard.h>

#include "../device/MTIACachingAllocator.h"
#include "../device/StorageResize.h"
#include "MTIANativeFunctions.h"

namespace torch_mtia {

namespace {

void resize_tensor(c10::TensorImpl* self, at::IntArrayRef size, at::OptionalIntArrayRef stride) {
  if (self->sizes() == size && (!stride || self->strides() == *stride)) return;
  const size_t itemsize = self->dtype().itemsize();
  const auto offset = static_cast<size_t>(self->storage_offset());
  size_t bytes = 0;
  if (stride) {
    self->set_sizes_and_strides(size, *stride);
    bytes = at::detail::computeStorageNbytes(size, *stride, itemsize, offset);
  } else {
    self->set_sizes_contiguous(size);
    bytes = at::detail::computeStorageNbytesContiguous(size, itemsize, offset);
  }
  // Nothing to hold; a storage smaller than the offset is legal then.
  if (self->numel() == 0) return;
  auto* storage = self->unsafe_storage().unsafeGetStorageImpl();
  if (bytes > storage->nbytes()) resize_storage(storage, bytes);
}

}  // namespace
}  // namespace torch_mtia

namespace at::native {

const Tensor& resize_mtia_(const Tensor& self, IntArrayRef size, std::optional<MemoryFormat> memory_format) {
  const auto old_bytes = static_cast<int64_t>(self.storage().nbytes());
  torch_mtia::resize_tensor(self.unsafeGetTensorImpl(), size, std::nullopt);
  if (memory_format) {
    TORCH_CHECK(*memory_format != MemoryFormat::Preserve, "Unsupported memory format", *memory_format);
    self.unsafeGetTensorImpl()->empty_tensor_restride(*memory_format);
  }
  if (C10_UNLIKELY(at::globalContext().deterministicAlgorithms() &&
                   at::globalContext().deterministicFillUninitializedMemory())) {
    fill_resize_deterministic_(self, old_bytes);
  }
  return self;
}

Tensor& set_storage_mtia_(Tensor& self, Storage source, int64_t storage_offset, IntArrayRef size, IntArrayRef stride) {
  checkSetStorage(self, std::move(source), storage_offset, size, stride);
  self.unsafeGetTensorImpl()->set_storage_offset(storage_offset);
  torch_mtia::resize_tensor(self.unsafeGetTensorImpl(), size,
                            stride.data() != nullptr ? OptionalIntArrayRef(stride) : std::nullopt);
  return self;
}

Tensor& set_mtia_(Tensor& self) {
  const c10::DeviceGuard guard(self.device());
  Storage storage(c10::Storage::use_byte_size_t(), 0, &torch_mtia::MTIACachingAllocator::get(), /*resizable=*/true);
  return set_storage_mtia_(self, std::move(storage), 0, {0}, {});
}

}  // namespace at::native
