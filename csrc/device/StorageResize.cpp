#include "StorageResize.h"

#include <c10/core/DeviceGuard.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "MTIACachingAllocator.h"
#include "MTIAStream.h"

namespace torch_mtia {

void resize_storage(c10::StorageImpl* storage, size_t size) {
  TORCH_CHECK(storage->resizable(), "Trying to resize storage that is not resizable");
  const c10::Device device = storage->device();
  const c10::DeviceGuard guard(device);
  auto& allocator = MTIACachingAllocator::get();
  c10::DataPtr grown = allocator.allocate(size);
  const size_t kept = std::min(size, storage->nbytes());
  if (kept > 0) {
    allocator.copy_data(grown.get(), storage->data(), kept);
    // The old block goes back to the stream it was allocated for; the copy may run on another.
    allocator.recordStream(storage->data_ptr(), MTIAStream::current(device.index()).unwrap());
  }
  storage->clear_materializer();  // of a lazy clone: the memory is its own now
  storage->set_data_ptr_noswap(std::move(grown));
  storage->set_nbytes(size);
}

}  // namespace torch_mtia
