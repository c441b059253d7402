// Growth of storages on the device.
#pragma once

#include <c10/core/StorageImpl.h>

namespace torch_mtia {

// Gives the storage `size` bytes, keeping what fits: allocates, copies on the current stream, frees in stream order.
// ATen's own function copies on the host. Raises RuntimeError for a storage that is not resizable.
void resize_storage(c10::StorageImpl* storage, size_t size);

}  // namespace torch_mtia
