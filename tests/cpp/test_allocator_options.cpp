// The allocator's settings, private pools, history and snapshots.
#include <algorithm>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "device_under_test.h"

namespace torch_mtia::test {
namespace {

using core::kAll;

constexpr size_t kMiB = size_t{1} << 20;
constexpr core::PoolId kPool{0, 7};

struct Fixture {
  explicit Fixture(core::BlockAllocator::OptionsSource options = [] { return core::AllocatorOptions{}; })
      : allocator(new_allocator(options)) {}
  ~Fixture() { allocator.empty_cache(); }

  mtia_device_ptr allocate(size_t size) { return allocator.allocate(size, &stream); }
  size_t reserved() const { return static_cast<size_t>(allocator.stats().reserved_bytes[kAll].current); }
  uint64_t device_bytes_in_use() const {
    uint64_t free = 0;
    uint64_t total = 0;
    runtime::call(&mtia_runtime_api::memory_info, 0, &free, &total);
    return total - free;
  }

  core::BlockAllocator& allocator;
  core::Stream& stream = new_stream();
};

// Settings ------------------------------------------------------------------------------------------------------------

TEST(statistics_tell_small_blocks_from_large_ones) {
  Fixture f;
  mtia_device_ptr small = f.allocate(1000);
  mtia_device_ptr large = f.allocate(3 * kMiB);
  const core::AllocatorStats stats = f.allocator.stats();
  CHECK_EQ(stats.allocated_bytes[core::kSmall].current, int64_t{1024});
  CHECK_EQ(stats.allocated_bytes[core::kLarge].current, int64_t{3 * kMiB});
  CHECK_EQ(stats.segment[core::kSmall].current, int64_t{1});
  CHECK_EQ(stats.segment[core::kLarge].current, int64_t{1});
  CHECK_EQ(stats.inactive_split[kAll].current, int64_t{2});
  CHECK_EQ(stats.num_device_alloc, int64_t{2});
  f.allocator.free(small);
  f.allocator.free(large);
}

TEST(blocks_above_max_split_size_stay_whole) {
  Fixture f([] { return core::AllocatorOptions{.max_split_size = 32 * kMiB}; });
  f.allocator.free(f.allocate(60 * kMiB));
  mtia_device_ptr small_part = f.allocate(30 * kMiB);
  CHECK_EQ(f.reserved(), 90 * kMiB);  // not cut out of the 60 MiB
  mtia_device_ptr close_in_size = f.allocate(50 * kMiB);
  CHECK_EQ(f.reserved(), 90 * kMiB);  // all 60 MiB
  CHECK_EQ(f.allocator.find(close_in_size)->size, 60 * kMiB);
  CHECK_EQ(f.allocator.stats().oversize_allocations.current, int64_t{1});
  CHECK_EQ(f.allocator.stats().oversize_segments.current, int64_t{1});
  f.allocator.free(close_in_size);
  mtia_device_ptr too_small = f.allocate(33 * kMiB);
  CHECK_EQ(f.reserved(), 124 * kMiB);  // 60 MiB would be more than 20 MiB too many
  f.allocator.free(small_part);
  f.allocator.free(too_small);
}

size_t present_max_split_size = std::numeric_limits<size_t>::max();

TEST(statistics_of_oversize_blocks_survive_a_change_of_the_limit) {
  Fixture f([] { return core::AllocatorOptions{.max_split_size = present_max_split_size}; });
  mtia_device_ptr normal = f.allocate(40 * kMiB);
  present_max_split_size = 20 * kMiB;
  mtia_device_ptr oversize = f.allocate(50 * kMiB);
  f.allocator.free(normal);
  CHECK_EQ(f.allocator.stats().oversize_allocations.current, int64_t{1});
  CHECK_EQ(f.allocator.stats().oversize_segments.current, int64_t{1});
  present_max_split_size = std::numeric_limits<size_t>::max();
  f.allocator.free(oversize);
  f.allocator.empty_cache();
  CHECK_EQ(f.allocator.stats().oversize_allocations.current, int64_t{0});
  CHECK_EQ(f.allocator.stats().oversize_segments.current, int64_t{0});
}

TEST(garbage_is_collected_from_the_oldest_free_segments) {
  Fixture f([] { return core::AllocatorOptions{.garbage_collection_threshold = 0.5}; });  // of 256 MiB
  mtia_device_ptr first = f.allocate(40 * kMiB);
  mtia_device_ptr second = f.allocate(50 * kMiB);
  f.allocator.free(second);
  f.allocator.free(first);
  CHECK_EQ(f.reserved(), 90 * kMiB);
  mtia_device_ptr third = f.allocate(60 * kMiB);
  CHECK_EQ(f.reserved(), 100 * kMiB);  // the 50 MiB went, the 40 MiB did not have to
  CHECK_EQ(f.allocator.stats().num_alloc_retries, int64_t{0});
  mtia_device_ptr fourth = f.allocate(100 * kMiB);
  CHECK_EQ(f.reserved(), 160 * kMiB);  // beyond the threshold, for want of garbage
  f.allocator.free(third);
  f.allocator.free(fourth);
}

TEST(a_memory_fraction_is_a_limit) {
  Fixture f;
  f.allocator.set_memory_fraction(0.25);  // of 256 MiB
  mtia_device_ptr block = f.allocate(60 * kMiB);
  CHECK_THROWS(core::OutOfDeviceMemory, f.allocate(10 * kMiB));
  f.allocator.free(block);
  f.allocator.free(f.allocate(64 * kMiB));
  CHECK_EQ(f.reserved(), 64 * kMiB);
  CHECK_THROWS(std::invalid_argument, f.allocator.set_memory_fraction(1.5));
  f.allocator.set_memory_fraction(1);
  f.allocator.free(f.allocate(200 * kMiB));
}

// Private pools -------------------------------------------------------------------------------------------------------

TEST(a_private_pool_shares_no_memory) {
  Fixture f;
  f.allocator.free(f.allocate(5 * kMiB));
  f.allocator.use_pool(kPool);
  f.allocator.direct_to_pool(&f.stream, kPool);
  mtia_device_ptr inside = f.allocate(5 * kMiB);
  CHECK_EQ(f.reserved(), 40 * kMiB);
  f.allocator.direct_to_default_pool(&f.stream);
  const mtia_device_ptr address = inside;
  f.allocator.free(inside);
  mtia_device_ptr outside = f.allocate(5 * kMiB);
  CHECK(outside != address);
  CHECK_EQ(f.reserved(), 40 * kMiB);
  f.allocator.free(outside);
  f.allocator.empty_cache();
  CHECK_EQ(f.reserved(), 20 * kMiB);  // the pool is in use
  f.allocator.direct_to_pool(&f.stream, kPool);
  mtia_device_ptr again = f.allocate(5 * kMiB);
  CHECK_EQ(again, address);
  f.allocator.free(again);
  f.allocator.direct_to_default_pool(&f.stream);
  f.allocator.release_pool(kPool);
  f.allocator.empty_cache();
  CHECK_EQ(f.reserved(), size_t{0});
}

TEST(a_pool_lives_until_its_last_user_and_its_last_block) {
  Fixture f;
  f.allocator.use_pool(kPool);
  f.allocator.use_pool(kPool);
  f.allocator.direct_to_pool(&f.stream, kPool);
  mtia_device_ptr block = f.allocate(512);
  f.allocator.direct_to_default_pool(&f.stream);
  f.allocator.release_pool(kPool);
  f.allocator.free(block);
  f.allocator.empty_cache(kPool);
  CHECK_EQ(f.reserved(), 2 * kMiB);
  f.allocator.release_pool(kPool);
  f.allocator.empty_cache(kPool);
  CHECK_EQ(f.reserved(), size_t{0});
  CHECK_THROWS(std::invalid_argument, f.allocator.release_pool(kPool));
}

TEST(a_thread_allocates_from_its_innermost_pool) {
  constexpr core::PoolId kInner{0, 8};
  Fixture f;
  f.allocator.use_pool(kPool);
  const core::DirectionId to_outer = f.allocator.direct_thread_to_pool(kPool);
  mtia_device_ptr outer = f.allocate(5 * kMiB);
  const core::DirectionId to_inner = f.allocator.direct_thread_to_pool(kInner);
  mtia_device_ptr inner = f.allocate(5 * kMiB);
  mtia_device_ptr of_thread = 0;
  std::thread([&] { of_thread = f.allocate(5 * kMiB); }).join();
  CHECK_EQ(f.reserved(), 60 * kMiB);
  CHECK(f.allocator.is_valid());
  f.allocator.end_direction(to_inner);
  f.allocator.free(outer);
  CHECK_EQ(f.allocate(5 * kMiB), outer);
  f.allocator.end_direction(to_outer);
  CHECK_THROWS(std::invalid_argument, f.allocator.end_direction(to_outer));
  for (const mtia_device_ptr address : {outer, inner, of_thread}) f.allocator.free(address);
  f.allocator.empty_cache();
  CHECK_EQ(f.reserved(), 20 * kMiB);  // kPool is in use, kInner is not
  f.allocator.release_pool(kPool);
  f.allocator.empty_cache();
  CHECK_EQ(f.reserved(), size_t{0});
}

TEST(directions_of_a_thread_end_in_any_order_and_on_any_thread) {
  constexpr core::PoolId kInner{0, 8};
  Fixture f;
  const core::DirectionId to_outer = f.allocator.direct_thread_to_pool(kPool);
  const core::DirectionId to_inner = f.allocator.direct_thread_to_pool(kInner);
  std::thread([&] { f.allocator.end_direction(to_outer); }).join();
  mtia_device_ptr block = f.allocate(512);
  CHECK(f.allocator.snapshot().at(0).pool == kInner);
  f.allocator.end_direction(to_inner);
  f.allocator.free(block);
  f.allocator.empty_cache();
  block = f.allocate(512);
  CHECK(f.allocator.snapshot().at(0).pool == core::PoolId(0, 0));
  f.allocator.free(block);
}

TEST(a_captured_stream_prefers_the_pool_of_its_graph) {
  constexpr core::PoolId kOfThread{0, 8};
  Fixture f;
  const core::DirectionId direction = f.allocator.direct_thread_to_pool(kOfThread);
  f.allocator.direct_to_pool(&f.stream, kPool);
  const mtia_device_ptr block = f.allocate(512);
  CHECK(f.allocator.snapshot().at(0).pool == kPool);
  f.allocator.direct_to_default_pool(&f.stream);
  f.allocator.end_direction(direction);
  f.allocator.free(block);
}

TEST(a_pool_may_have_a_source_of_its_own) {
  static size_t taken = 0;
  static size_t given_back = 0;
  static bool refuses = false;
  core::SegmentSource source;
  source.allocate = [](size_t size, int device, void*) -> void* {
    mtia_device_ptr address = 0;
    if (refuses) return nullptr;
    runtime::call(&mtia_runtime_api::memory_allocate, device, size, &address);
    taken += size;
    return reinterpret_cast<void*>(address);
  };
  source.free = [](void* address, size_t size, int device, void*) {
    runtime::call(&mtia_runtime_api::memory_free, device, reinterpret_cast<mtia_device_ptr>(address));
    given_back += size;
  };
  Fixture f([] { return core::AllocatorOptions{.expandable_segments = true}; });
  f.allocator.use_pool(kPool);
  f.allocator.set_source(kPool, source);
  const core::DirectionId direction = f.allocator.direct_thread_to_pool(kPool);
  const mtia_device_ptr large = f.allocate(30 * kMiB);
  const mtia_device_ptr small = f.allocate(100);
  CHECK_EQ(taken, 32 * kMiB);
  refuses = true;
  CHECK_THROWS(core::OutOfDeviceMemory, f.allocate(3 * kMiB));
  refuses = false;
  f.allocator.end_direction(direction);
  f.allocator.free(f.allocate(3 * kMiB));
  CHECK_EQ(taken, 32 * kMiB);  // the default pool's is the driver's
  f.allocator.free(large);
  f.allocator.free(small);
  f.allocator.release_pool(kPool);
  CHECK(f.allocator.is_valid());
  f.allocator.empty_cache();
  CHECK_EQ(given_back, 32 * kMiB);
  CHECK_EQ(f.device_bytes_in_use(), uint64_t{0});
}

// History -------------------------------------------------------------------------------------------------------------

TEST(history_has_every_step_with_its_context) {
  Fixture f;
  f.allocator.record_history({.enabled = true,
                              .max_entries = 100,
                              .context_of_alloc = [] { return std::make_shared<std::string>("alloc"); },
                              .context_of_free = [] { return std::make_shared<std::string>("free"); }});
  mtia_device_ptr block = f.allocate(700);
  const mtia_device_ptr address = block;
  f.allocator.free(block);
  f.allocator.empty_cache();
  const auto entries = f.allocator.history();
  using enum core::TraceAction;
  const std::vector<core::TraceAction> expected{kSegmentAlloc, kAlloc, kFreeRequested, kFreeCompleted, kSegmentFree};
  CHECK_EQ(entries.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    CHECK(entries[i].action == expected[i]);
    CHECK_EQ(entries[i].address, address);
    CHECK(i == 0 || entries[i].time_us >= entries[i - 1].time_us);
  }
  CHECK_EQ(entries[1].size, size_t{700});
  CHECK_EQ(*static_cast<std::string*>(entries[1].context.get()), std::string("alloc"));
  CHECK_EQ(*static_cast<std::string*>(entries[2].context.get()), std::string("free"));
  f.allocator.record_history({});
  f.allocator.free(f.allocate(512));
  CHECK(f.allocator.history().empty());
}

TEST(history_keeps_the_latest_entries) {
  Fixture f;
  f.allocator.record_history({.enabled = true, .max_entries = 3});
  for (int i = 0; i < 10; ++i) f.allocator.free(f.allocate(512));
  const auto entries = f.allocator.history();
  CHECK_EQ(entries.size(), size_t{3});
  CHECK(entries.back().action == core::TraceAction::kFreeCompleted);
  f.allocator.record_history({});
}

TEST(a_snapshot_accounts_for_every_byte_and_so_do_the_live_ranges) {
  Fixture f;
  core::Stream& other = new_stream();
  mtia_device_ptr kept = f.allocate(700);
  mtia_device_ptr freed = f.allocate(5000);
  mtia_device_ptr large = f.allocator.allocate(3 * kMiB, &other);
  f.allocator.free(freed);
  const auto segments = f.allocator.snapshot();
  CHECK_EQ(segments.size(), size_t{2});
  size_t total = 0;
  size_t requested = 0;
  for (const auto& segment : segments) {
    uint64_t address = segment.address;
    for (const auto& block : segment.blocks) {
      CHECK_EQ(block.address, address);
      address += block.size;
      total += block.size;
      if (block.allocated) requested += block.requested;
    }
    CHECK_EQ(address, segment.address + segment.size);
    CHECK(segment.stream == (segment.is_large ? &other : &f.stream));
  }
  CHECK_EQ(total, f.reserved());
  CHECK_EQ(requested, 700 + 3 * kMiB);
  const auto live = f.allocator.live_ranges();
  CHECK_EQ(live.size(), size_t{2});
  CHECK(live[0].address < live[1].address);
  CHECK_EQ(live[0].size + live[1].size, 700 + 3 * kMiB);
  f.allocator.free(kept);
  f.allocator.free(large);
}

// A simple model: whatever happens, no two live blocks overlap, and the statistics are sums over the live blocks.
void follow_random_traces(core::BlockAllocator::OptionsSource options) {
  for (const uint32_t seed : {1U, 2U, 3U, 4U}) {
    Fixture f(options);
    core::Stream& other = new_stream();
    std::mt19937 random(seed);
    f.allocator.use_pool(kPool);
    std::map<uint64_t, core::BlockInfo> live;
    int64_t requested = 0;
    int64_t rounded = 0;
    const auto drop = [&](std::map<uint64_t, core::BlockInfo>::iterator entry) {
      requested -= static_cast<int64_t>(entry->second.requested);
      rounded -= static_cast<int64_t>(entry->second.size);
      f.allocator.free(entry->first);
      live.erase(entry);
    };
    for (int step = 0; step < 4000; ++step) {
      const auto dice = random() % 100;
      if (dice < 55 && live.size() < 200) {
        const size_t size = 1 + random() % (dice == 0 ? 8 * kMiB : dice < 50 ? 4096 : 3 * kMiB);
        core::Stream* stream = random() % 2 ? &f.stream : &other;
        if (random() % 4 == 0) f.allocator.direct_to_pool(stream, kPool);
        const core::BlockInfo block = *f.allocator.find(f.allocator.allocate(size, stream));
        f.allocator.direct_to_default_pool(stream);
        requested += static_cast<int64_t>(size);
        rounded += static_cast<int64_t>(block.size);
        CHECK_EQ(block.size, (size + 511) / 512 * 512);
        const auto entry = live.emplace(block.address, block).first;
        if (entry != live.begin()) {
          const auto before = std::prev(entry);
          CHECK(before->first + before->second.size <= entry->first);
        }
        if (const auto behind = std::next(entry); behind != live.end()) {
          CHECK(entry->first + block.size <= behind->first);
        }
      } else if (dice < 98) {
        if (!live.empty()) drop(std::next(live.begin(), static_cast<long>(random() % live.size())));
      } else {
        f.allocator.empty_cache();
      }
      CHECK(f.allocator.is_valid());
      if (step % 100 != 0) continue;
      const core::AllocatorStats stats = f.allocator.stats();
      CHECK_EQ(stats.requested_bytes[kAll].current, requested);
      CHECK_EQ(stats.allocated_bytes[kAll].current, rounded);
      CHECK_EQ(stats.allocation[kAll].current, static_cast<int64_t>(live.size()));
      const auto segments = f.allocator.snapshot();
      int64_t in_segments = 0;
      int64_t inactive = 0;
      uint64_t end_of_previous = 0;
      for (const auto& segment : segments) {
        CHECK(segment.address >= end_of_previous);
        uint64_t address = segment.address;
        for (const auto& block : segment.blocks) {
          CHECK_EQ(block.address, address);
          address += block.size;
          in_segments += static_cast<int64_t>(block.size);
          const bool is_split = block.size != segment.size || segment.is_expandable;
          if (!block.active && is_split) inactive += static_cast<int64_t>(block.size);
        }
        CHECK_EQ(segment.size, address - segment.address);
        end_of_previous = address;
      }
      CHECK_EQ(stats.reserved_bytes[kAll].current, in_segments);
      CHECK_EQ(stats.inactive_split_bytes[kAll].current, inactive);
      CHECK_EQ(stats.segment[kAll].current, static_cast<int64_t>(segments.size()));
      CHECK_EQ(f.device_bytes_in_use(), static_cast<uint64_t>(in_segments));
      CHECK_EQ(stats.allocated_bytes[core::kSmall].current + stats.allocated_bytes[core::kLarge].current, rounded);
    }
    while (!live.empty()) drop(live.begin());
    f.allocator.release_pool(kPool);
    f.allocator.empty_cache();
    CHECK_EQ(f.reserved(), size_t{0});
    CHECK_EQ(f.allocator.stats().segment[kAll].current, int64_t{0});
    CHECK_EQ(f.allocator.stats().inactive_split[kAll].current, int64_t{0});
  }
}

TEST(random_traces_account_for_every_byte) {
  follow_random_traces([] { return core::AllocatorOptions{}; });
}

TEST(random_traces_with_expandable_segments_account_for_every_byte) {
  follow_random_traces([] { return core::AllocatorOptions{.expandable_segments = true}; });
}

}  // namespace
}  // namespace torch_mtia::test

int main(int argc, char** argv) {
  return torch_mtia::test::run_tests_on_device(argc, argv);
}
