// resize_ and set_.
#include <ATen/Context.h>
#include <ATen/native/Resize.h>
#include <ATen/native/ResizeCommon.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>

#include "../device/MTIACachingAllocator.h"
#include "MTIANativeFunctions.h"

namespace torch_mtia {

namespace {

// The storage grows first: without memory for it, the tensor stays what it is.
void resize_tensor(c10::TensorImpl* self, at::IntArrayRef size, at::OptionalIntArrayRef stride) {
  if (self->sizes() == size && (!stride || self->strides() == *stride)) return;
  const size_t itemsize = self->dtype().itemsize();
  const auto offset = static_cast<size_t>(self->storage_offset());
  const size_t bytes = stride ? at::detail::computeStorageNbytes(size, *stride, itemsize, offset)
                              : at::detail::computeStorageNbytesContiguous(size, itemsize, offset);
  // Where there is nothing to hold, a storage smaller than the offset is legal.
  const bool is_empty = std::find(size.begin(), size.end(), 0) != size.end();
  auto* storage = self->unsafe_storage().unsafeGetStorageImpl();
  if (!is_empty && bytes > storage->nbytes()) resize_storage(storage, bytes);
  if (stride) {
    self->set_sizes_and_strides(size, *stride);
  } else {
    self->set_sizes_contiguous(size);
  }
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
  c10::TensorImpl* const tensor = self.unsafeGetTensorImpl();
  const Storage before = tensor->storage();
  const int64_t offset_before = tensor->storage_offset();
  checkSetStorage(self, std::move(source), storage_offset, size, stride);
  tensor->set_storage_offset(storage_offset);
  try {
    torch_mtia::resize_tensor(tensor, size, stride.data() != nullptr ? OptionalIntArrayRef(stride) : std::nullopt);
  } catch (...) {
    tensor->set_storage_offset(offset_before);
    tensor->set_storage_keep_dtype(before);
    throw;
  }
  return self;
}

Tensor& set_mtia_(Tensor& self) {
  const c10::DeviceGuard guard(self.device());
  Storage storage(c10::Storage::use_byte_size_t(), 0, &torch_mtia::MTIACachingAllocator::get(), /*resizable=*/true);
  return set_storage_mtia_(self, std::move(storage), 0, {0}, {});
}

}  // namespace at::native
