// What holds for the process as a whole, in one word that every call reads first.
#pragma once

#include <atomic>
#include <cstdint>

namespace torch_mtia::runtime::host {

enum ProcessState : uint32_t {
  kInitialized = 1,
  kForked = 2,          // this is a child of the process that initialized: its threads and memory are not here
  kLaunchBlocking = 4,  // every launch returns only when its work is done
};

inline constinit std::atomic<uint32_t> process_state{0};

}  // namespace torch_mtia::runtime::host
