// Prints what the paths cost that every operator takes: a launch, inline and queued, and an allocation. Not a test.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "device_under_test.h"

namespace torch_mtia::test {
namespace {

constexpr int kRepetitions = 100'000;
constexpr int kSamples = 15;

// The median over samples of the nanoseconds of one call of body(), which does `kRepetitions` calls.
template <typename Body>
void measure(const char* name, Body body, int repetitions = kRepetitions) {
  std::vector<double> samples;
  for (int sample = 0; sample < kSamples; ++sample) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < repetitions; ++i) body();
    const std::chrono::duration<double, std::nano> elapsed = std::chrono::steady_clock::now() - start;
    samples.push_back(elapsed.count() / repetitions);
  }
  std::sort(samples.begin(), samples.end());
  std::printf("%-44s %8.1f ns   (best %.1f)\n", name, samples[samples.size() / 2], samples.front());
}

void run() {
  core::Stream& stream = *core::Stream::create(0, 0);
  core::BlockAllocator& allocator = new_allocator();

  core::WorkInfo small{.name = "empty"};
  core::WorkInfo large{.name = "empty", .cost = 1'000'000};
  const auto empty = [](const mtia_work_context&) {};
  measure("launch, empty item, inline", [&] { stream.launch(small, empty); });

  // Hundreds queue before the executor wakes; the synchronization at the end is part of the figure.
  measure(
      "launch, empty item, queued, 1000 then wait",
      [&] {
        for (int i = 0; i < 1000; ++i) stream.launch(large, empty);
        stream.wait_until_idle();
      },
      kRepetitions / 1000);
  measure(
      "launch, one queued item, then wait",
      [&] {
        stream.launch(large, empty);
        stream.wait_until_idle();
      },
      kRepetitions / 100);

  measure("allocate + free, 512 bytes", [&] { allocator.free(allocator.allocate(512, &stream)); });
  measure("allocate + free, 100 kB", [&] { allocator.free(allocator.allocate(100'000, &stream)); });
  measure("allocate + free, 4 MiB", [&] { allocator.free(allocator.allocate(4 << 20, &stream)); });
  measure("allocate + free, 64 MiB", [&] { allocator.free(allocator.allocate(64 << 20, &stream)); });
  std::vector<mtia_device_ptr> blocks(100);
  measure(
      "allocate 100, free 100, mixed small sizes",
      [&] {
        for (size_t i = 0; i < blocks.size(); ++i) blocks[i] = allocator.allocate(512 * (1 + i % 7), &stream);
        for (mtia_device_ptr block : blocks) allocator.free(block);
      },
      kRepetitions / 100);

  core::Event event(/*enable_timing=*/false);
  measure("event record + query, idle stream", [&] {
    event.record(stream);
    event.query();
  });
  measure("stream synchronize, idle", [&] { stream.wait_until_idle(); });
}

}  // namespace
}  // namespace torch_mtia::test

int main() {
  torch_mtia::test::start_driver({});
  torch_mtia::test::run();
  std::fflush(stdout);
  std::_Exit(0);
}
