// Threads x streams x allocations x events against a model: what was last written to each block.
//
// Every block is filled with a number by work of its stream, and checked by later work, of this or, behind an event, of
// another stream. If the allocator gave memory out too early, if a stream ran out of order or if an event let go too
// early, a check finds another number (and ThreadSanitizer a data race).
#include <atomic>
#include <cstdint>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "device_under_test.h"

namespace torch_mtia::test {
namespace {

constexpr int kThreads = 3;
constexpr int kStreamsPerThread = 3;
constexpr int kSteps = 3000;
constexpr size_t kMaxLiveBlocks = 24;

struct LiveBlock {
  core::Block* block;
  uint32_t value;  // the model: what the last write left
};

class Worker {
 public:
  Worker(core::BlockAllocator& allocator, std::vector<core::Stream*> streams, uint32_t seed)
      : allocator_(allocator), streams_(std::move(streams)), random_(seed), next_value_(seed << 24) {}

  void run() {
    for (int step = 0; step < kSteps; ++step) {
      const uint32_t choice = pick(100);
      if (live_.empty() || (choice < 35 && live_.size() < kMaxLiveBlocks)) {
        allocate();
      } else if (choice < 60) {
        free_one();
      } else if (choice < 75) {
        write(any());
      } else if (choice < 90) {
        read_on_another_stream(any());
      } else if (choice < 97) {
        read(any());
      } else {
        finish(*streams_[pick(streams_.size())]);
      }
    }
    while (!live_.empty()) free_one();
    for (core::Stream* stream : streams_) finish(*stream);
  }

 private:
  uint32_t pick(size_t count) {
    return std::uniform_int_distribution<uint32_t>(0, static_cast<uint32_t>(count) - 1)(random_);
  }
  LiveBlock& any() { return live_[pick(live_.size())]; }
  const core::WorkInfo& any_size() { return pick(4) == 0 ? kLarge : kSmall; }

  static uint32_t* words(const core::Block* block) {
    return reinterpret_cast<uint32_t*>(host_view(core::block_address(block)));
  }
  // The first words and the last one are enough to see somebody else's number, also in a large block.
  static constexpr size_t kCheckedWords = 16;
  static size_t last_word(const core::Block* block) { return core::block_requested_size(block) / sizeof(uint32_t) - 1; }

  void allocate() {
    const size_t size = pick(8) == 0 ? 1'500'000 + 4 * pick(1'000'000) : 4 + 4 * pick(20'000);
    live_.push_back({allocator_.allocate(size, streams_[pick(streams_.size())]), 0});
    write(live_.back());
  }

  void free_one() {
    const size_t i = pick(live_.size());
    read(live_[i]);
    free_block(i);
  }

  void free_block(size_t i) {
    allocator_.free(live_[i].block);
    live_[i] = live_.back();
    live_.pop_back();
  }

  void write(LiveBlock& target) {
    target.value = ++next_value_;
    core::block_stream(target.block)
        ->launch(any_size(), [to = words(target.block), last = last_word(target.block),
                              value = target.value](const mtia_work_context&) {
          for (size_t i = 0; i < kCheckedWords && i < last; ++i) to[i] = value;
          to[last] = value;
        });
  }

  void launch_check(core::Stream& stream, const LiveBlock& target) {
    stream.launch(any_size(), [from = words(target.block), last = last_word(target.block),
                               value = target.value](const mtia_work_context&) {
      for (size_t i = 0; i < kCheckedWords && i < last; ++i) CHECK_EQ(from[i], value);
      CHECK_EQ(from[last], value);
    });
  }

  void read(const LiveBlock& target) { launch_check(*core::block_stream(target.block), target); }

  void read_on_another_stream(LiveBlock& target) {
    core::Stream& reader = *streams_[pick(streams_.size())];
    core::Event written(false);
    written.record(*core::block_stream(target.block));
    reader.wait(written);
    launch_check(reader, target);
    allocator_.record_stream(target.block, &reader);
    if (pick(2) == 0)
      return free_block(static_cast<size_t>(&target - live_.data()));  // only the allocator knows that it is being read
    core::Event read(false);
    read.record(reader);
    core::block_stream(target.block)->wait(read);  // so that a later write comes behind
  }

  core::BlockAllocator& allocator_;
  const std::vector<core::Stream*> streams_;
  std::mt19937 random_;
  uint32_t next_value_;
  std::vector<LiveBlock> live_;
};

TEST(memory_events_and_order_agree_with_the_model) {
  core::BlockAllocator& allocator = new_allocator();
  std::vector<std::string> failures(kThreads);
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&allocator, &failure = failures[t], t] {
      std::vector<core::Stream*> streams;
      for (int i = 0; i < kStreamsPerThread; ++i) streams.push_back(&new_stream());
      try {
        Worker(allocator, std::move(streams), t + 1).run();
      } catch (const std::exception& error) {
        failure = error.what();
      }
    });
  }
  for (int i = 0; i < 20; ++i) allocator.empty_cache();  // beside everything else
  for (std::thread& thread : threads) thread.join();
  for (const std::string& failure : failures) CHECK_EQ(failure, "");

  runtime::call(&mtia_runtime_api::device_synchronize, 0);
  allocator.empty_cache();
  const core::AllocatorStats stats = allocator.stats();
  for (const core::StatArray& stat :
       {stats.allocation, stats.active, stats.segment, stats.allocated_bytes, stats.active_bytes, stats.reserved_bytes,
        stats.inactive_split_bytes, stats.requested_bytes}) {
    CHECK_EQ(stat[core::kAll].current, 0);
    CHECK_EQ(stat[core::kAll].allocated, stat[core::kAll].freed);
  }
}

// Blocks allocated by one thread and freed by others, on streams that all share.
TEST(threads_may_share_streams_and_free_each_others_blocks) {
  core::BlockAllocator& allocator = new_allocator();
  core::Stream& shared = new_stream();
  std::mutex mutex;
  std::vector<core::Block*> passed_on;
  std::vector<std::thread> threads;
  std::atomic<int> items{0};
  for (uint32_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      for (int i = 0; i < kSteps; ++i) {
        core::Block* block = allocator.allocate(512 * (1 + random() % 2000), &shared);
        shared.launch(i % 8 == 0 ? kLarge : kSmall, [&items](const mtia_work_context&) { ++items; });
        {
          const std::lock_guard lock(mutex);
          passed_on.push_back(block);
          std::swap(passed_on.back(), passed_on[random() % passed_on.size()]);
          block = passed_on.back();
          if (passed_on.size() < 30) continue;
          passed_on.pop_back();
        }
        allocator.free(block);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (core::Block* block : passed_on) allocator.free(block);
  finish(shared);
  CHECK_EQ(items.load(), kThreads * kSteps);
  CHECK_EQ(allocator.stats().active[core::kAll].current, 0);
  allocator.empty_cache();
  CHECK_EQ(allocator.stats().reserved_bytes[core::kAll].current, 0);
}

}  // namespace
}  // namespace torch_mtia::test

int main(int argc, char** argv) {
  return torch_mtia::test::run_tests_on_device(argc, argv,
                                               {.num_devices = 1, .memory_per_device = uint64_t{512} << 20});
}
