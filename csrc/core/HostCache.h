// What the layer above keeps of the host's memory for later requests, pinned memory, as far as the allocator of device
// memory has to know of it: where devices have memory of the host, it leaves them less.
#pragma once

namespace torch_mtia::core {

using ReturnHostCache = void (*)();

// Gives back what nobody uses. Called without locks of the allocator, on any thread, inside of work too; must not wait
// for streams. The layer above sets it, once, before the device is used. Null: there is no such memory.
extern constinit ReturnHostCache return_host_cache;

}  // namespace torch_mtia::core
