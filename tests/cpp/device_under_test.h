// Starts the host driver for a test program, with threads of its own for parallel work.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <thread>
#include <vector>

#include "core/BlockAllocator.h"
#include "core/Event.h"
#include "core/Stream.h"
#include "core/WorkItem.h"
#include "runtime/loader.h"

namespace torch_mtia::test {

// What PyTorch's thread pool does in the real thing, in the simplest way: a thread a piece.
inline void parallel_for(int64_t begin, int64_t end, int64_t grain, int32_t num_threads,
                         void (*body)(void* args, int64_t first, int64_t last), void* args) {
  const int64_t pieces = std::clamp<int64_t>((end - begin) / std::max<int64_t>(grain, 1), 1, num_threads);
  const int64_t length = (end - begin + pieces - 1) / pieces;
  std::vector<std::thread> threads;
  for (int64_t first = begin + length; first < end; first += length) {
    threads.emplace_back(body, args, first, std::min(first + length, end));
  }
  body(args, begin, std::min(begin + length, end));
  for (std::thread& thread : threads) thread.join();
}

struct DriverOptions {
  int32_t num_devices = 2;
  uint64_t memory_per_device = uint64_t{256} << 20;
  bool launch_blocking = false;
};

// The library is named by the environment variable MTIA_TEST_DRIVER, which the Makefile sets.
inline runtime::DriverSettings settings(const DriverOptions& options) {
  const char* library = std::getenv("MTIA_TEST_DRIVER");
  return {.library = library != nullptr ? library : "libmtia_host.so",
          .num_devices = options.num_devices,
          .memory_per_device = options.memory_per_device,
          .launch_blocking = options.launch_blocking,
          .parallel_for = &parallel_for};
}

inline void start_driver(const DriverOptions& options) {
  runtime::configure(settings(options));
  runtime::ensure_initialized();
}

}  // namespace torch_mtia::test
