// Starts the host driver for a test program, with threads of its own for parallel work.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "core/BlockAllocator.h"
#include "core/Event.h"
#include "core/Stream.h"
#include "core/WorkItem.h"
#include "runtime/loader.h"

namespace torch_mtia::test {

inline std::atomic<int32_t> wanted_threads{64};  // by those who launch work
inline std::atomic<int32_t> used_threads{0};     // in the latest parallel_for

// What PyTorch's thread pool does in the real thing, in the simplest way: a thread a piece.
inline void parallel_for(int64_t begin, int64_t end, int64_t grain, int32_t num_threads,
                         void (*body)(void* args, int64_t first, int64_t last), void* args) {
  used_threads = num_threads;
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
  uint64_t delay_seed = 0;
};

// A library that lies beside the test program.
inline std::string library(const char* name) {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / name;
}

inline runtime::DriverSettings settings(const DriverOptions& options) {
  return {.library = test::library("libmtia_host.so"),
          .num_devices = options.num_devices,
          .memory_per_device = options.memory_per_device,
          .launch_blocking = options.launch_blocking,
          .delay_seed = options.delay_seed,
          .parallel_for = &parallel_for,
          .num_threads = [] { return wanted_threads.load(); }};
}

inline void start_driver(const DriverOptions& options) {
  runtime::configure(settings(options));
  runtime::ensure_initialized();
}

// main() of a test program: starts the driver, runs the tests.
inline int run_tests_on_device(int argc, char** argv, const DriverOptions& options = {}) {
  start_driver(options);
  return run_tests(argc, argv);
}

// Work waits here until somebody opens it. A test that fails and leaves lets its work go.
class Gate {
 public:
  Gate() = default;
  ~Gate() { open(); }
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  void open() { state_->open(); }
  void wait() { state_->wait(); }

 private:
  friend void hold(core::Stream& stream, Gate& gate);

  struct State {
    void open() {
      const std::lock_guard lock(mutex);
      is_open = true;
      opened.notify_all();
    }
    void wait() {
      std::unique_lock lock(mutex);
      opened.wait(lock, [this] { return is_open; });
    }
    std::mutex mutex;
    std::condition_variable opened;
    bool is_open = false;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

inline core::Stream& new_stream(int32_t device = 0) {
  return *core::Stream::create(device, 0);
}

// Allocators are leaked; the list is for the leak checker, as an application keeps one for each device.
inline core::BlockAllocator& new_allocator(core::BlockAllocator::OptionsSource options = [] {
  return core::AllocatorOptions{};
}) {
  static auto& allocators = *std::make_unique<std::vector<core::BlockAllocator*>>().release();
  allocators.push_back(core::BlockAllocator::create(/*device=*/0, options));
  return *allocators.back();
}

// May run on the launching thread.
inline constexpr core::WorkInfo kSmall{.name = "small"};
// Runs on the stream's executor.
inline constexpr core::WorkInfo kLarge{.name = "large", .cost = 1'000'000};

// Occupies the stream until the gate opens.
inline void hold(core::Stream& stream, Gate& gate) {
  stream.launch(kLarge, [state = gate.state_](const mtia_work_context&) { state->wait(); });
}

inline void wait_for(core::Stream& waiting, core::Stream& waited_for) {
  core::Event event(false);
  event.record(waited_for);
  waiting.wait(event);
}

// Waits for the stream and raises what its work threw.
inline void finish(core::Stream& stream) {
  stream.wait_until_idle();
  if (auto error = stream.take_error()) {
    if (error->exception) std::rethrow_exception(error->exception);
    throw std::runtime_error(error->message);
  }
}

// The driver's own table, for what the layer above does not use.
inline const mtia_runtime_api& api() {
  return runtime::driver();
}

// The device's bytes as the host sees them.
inline std::byte* host_view(mtia_device_ptr address) {
  int64_t offset = 0;
  runtime::call(&mtia_runtime_api::memory_host_offset, &offset);
  return reinterpret_cast<std::byte*>(address + static_cast<uint64_t>(offset));
}

}  // namespace torch_mtia::test
