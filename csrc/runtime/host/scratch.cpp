#include "scratch.h"

#include <cstdlib>
#include <memory>

namespace torch_mtia::runtime::host {
namespace {

constexpr uint64_t kAlignment = 64;

struct Free {
  void operator()(std::byte* memory) const { std::free(memory); }
};

struct Scratch {
  std::unique_ptr<std::byte, Free> memory;
  uint64_t size = 0;
};

thread_local Scratch scratch_of_thread;

}  // namespace

std::byte* thread_scratch(uint64_t size) noexcept {
  Scratch& scratch = scratch_of_thread;
  if (size == 0) return nullptr;
  if (size > scratch.size) {
    const uint64_t rounded = (size + kAlignment - 1) / kAlignment * kAlignment;
    scratch.memory.reset();
    scratch.memory.reset(static_cast<std::byte*>(std::aligned_alloc(kAlignment, rounded)));
    scratch.size = scratch.memory != nullptr ? rounded : 0;
  }
  return scratch.memory.get();
}

}  // namespace torch_mtia::runtime::host
