#include "scratch.h"

#include <cstdlib>

namespace torch_mtia::runtime::host {
namespace {

constexpr uint64_t kAlignment = 64;

// Without a destructor, as in error.cpp.
struct Scratch {
  std::byte* memory = nullptr;
  uint64_t size = 0;
  bool is_over = false;  // the thread ends
};

constinit thread_local Scratch scratch_of_thread;

struct FreesScratch {
  ~FreesScratch() {
    std::free(scratch_of_thread.memory);
    scratch_of_thread = {nullptr, 0, /*is_over=*/true};
  }
};

}  // namespace

std::byte* thread_scratch(uint64_t size) noexcept {
  Scratch& scratch = scratch_of_thread;
  if (size == 0 || scratch.is_over) return nullptr;
  [[maybe_unused]] thread_local const FreesScratch at_end_of_thread;
  if (size > scratch.size) {
    const uint64_t rounded = (size + kAlignment - 1) / kAlignment * kAlignment;
    std::free(scratch.memory);
    scratch.memory = static_cast<std::byte*>(std::aligned_alloc(kAlignment, rounded));
    scratch.size = scratch.memory != nullptr ? rounded : 0;
  }
  return scratch.memory;
}

}  // namespace torch_mtia::runtime::host
