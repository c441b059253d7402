// The stream-ordered allocator: which memory is given out again, when, and what the statistics say.
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/Waits.h"
#include "device_under_test.h"

namespace torch_mtia::test {
namespace {

using core::kAll;

constexpr size_t kMiB = size_t{1} << 20;

// Each test has an allocator of its own, and leaves the device empty for the next.
struct Fixture {
  core::BlockAllocator& allocator = new_allocator();
  core::Stream& stream = new_stream();

  ~Fixture() { allocator.empty_cache(); }
  mtia_device_ptr allocate(size_t size) { return allocator.allocate(size, &stream); }
};

TEST(sizes_are_rounded_to_512_bytes) {
  Fixture f;
  mtia_device_ptr block = f.allocate(700);
  CHECK_EQ(f.allocator.find(block)->size, size_t{1024});
  CHECK_EQ(f.allocator.find(block)->requested, size_t{700});
  CHECK(f.allocator.find(block)->stream == &f.stream);
  CHECK_EQ(block % 512, uint64_t{0});
  const core::AllocatorStats stats = f.allocator.stats();
  CHECK_EQ(stats.allocated_bytes[kAll].current, 1024);
  CHECK_EQ(stats.requested_bytes[kAll].current, 700);
  CHECK_EQ(stats.allocation[kAll].current, 1);
  CHECK_EQ(stats.active[kAll].current, 1);
  CHECK_EQ(stats.segment[kAll].current, 1);
  CHECK_EQ(stats.reserved_bytes[kAll].current, int64_t{2 * kMiB});
  CHECK_EQ(stats.inactive_split_bytes[kAll].current, int64_t{2 * kMiB} - 1024);
  f.allocator.free(block);
}

TEST(a_freed_block_is_given_to_the_next_request_of_its_stream) {
  Fixture f;
  for (const size_t size : {size_t{512}, size_t{100'000}, kMiB, 5 * kMiB, 30 * kMiB}) {
    mtia_device_ptr block = f.allocate(size);
    const mtia_device_ptr address = block;
    f.allocator.free(block);
    mtia_device_ptr again = f.allocate(size);
    CHECK_EQ(again, address);
    f.allocator.free(again);
  }
}

TEST(a_block_is_found_by_its_address_while_it_is_in_use) {
  Fixture f;
  std::vector<mtia_device_ptr> blocks;
  for (size_t i = 0; i < 5000; ++i) blocks.push_back(f.allocate(1 + i));
  CHECK(f.allocator.is_valid());
  for (size_t i = 0; i < blocks.size(); ++i) CHECK_EQ(f.allocator.find(blocks[i])->requested, 1 + i);
  for (const mtia_device_ptr other : {mtia_device_ptr{0}, blocks[0] + 1, blocks[4999] + 512, blocks[4999] + kMiB}) {
    CHECK(!f.allocator.find(other).has_value());
    CHECK_EQ(f.allocator.free(other), size_t{0});
    CHECK(f.allocator.record_stream(other, &f.stream) == nullptr);
  }
  for (size_t i = 0; i < blocks.size(); ++i) CHECK_EQ(f.allocator.free(blocks[i]), (1 + i + 511) / 512 * 512);
  CHECK_EQ(f.allocator.free(blocks[0]), size_t{0});  // not twice
  CHECK(!f.allocator.find(blocks[0]).has_value());
  f.allocator.empty_cache();
  CHECK(f.allocator.is_valid());
}

TEST(a_tag_stays_with_a_block_while_it_is_in_use) {
  Fixture f;
  const mtia_device_ptr first = f.allocate(512);
  const mtia_device_ptr second = f.allocate(3 * kMiB);
  const int tag = 0;
  f.allocator.set_tag(first + 512, &tag);  // no block
  CHECK(f.allocator.tagged().empty());
  f.allocator.set_tag(first, &tag);
  f.allocator.set_tag(second, &f);
  CHECK_EQ(f.allocator.tagged().size(), size_t{2});
  f.allocator.set_tag(second, nullptr);
  CHECK(f.allocator.find(second)->tag == nullptr);
  CHECK_EQ(f.allocator.tagged().size(), size_t{1});
  CHECK_EQ(f.allocator.tagged()[0].address, first);
  CHECK(f.allocator.is_valid());
  f.allocator.free(first);
  CHECK_EQ(f.allocate(512), first);
  CHECK(f.allocator.find(first)->tag == nullptr);
  CHECK(f.allocator.tagged().empty());
  CHECK(f.allocator.is_valid());
  f.allocator.free(first);
  f.allocator.free(second);
}

TEST(segments_have_three_sizes) {
  Fixture f;
  const auto reserved_for = [&](size_t size) {
    const int64_t before = f.allocator.stats().reserved_bytes[kAll].current;
    f.allocator.free(f.allocate(size));
    const int64_t reserved = f.allocator.stats().reserved_bytes[kAll].current - before;
    f.allocator.empty_cache();
    return static_cast<size_t>(reserved);
  };
  CHECK_EQ(reserved_for(1), 2 * kMiB);
  CHECK_EQ(reserved_for(kMiB), 2 * kMiB);
  CHECK_EQ(reserved_for(kMiB + 1), 20 * kMiB);
  CHECK_EQ(reserved_for(10 * kMiB - 512), 20 * kMiB);
  CHECK_EQ(reserved_for(10 * kMiB), 10 * kMiB);
  CHECK_EQ(reserved_for(10 * kMiB + 1), 12 * kMiB);
}

TEST(neighbours_share_a_segment_and_become_one_block_again) {
  Fixture f;
  std::vector<mtia_device_ptr> blocks;
  for (int i = 0; i < 8; ++i) blocks.push_back(f.allocate(256 * 1024));
  CHECK_EQ(f.allocator.stats().segment[kAll].current, 1);
  CHECK_EQ(f.allocator.stats().inactive_split_bytes[kAll].current, 0);
  for (const size_t i : {1U, 3U, 2U, 7U, 0U, 5U, 4U, 6U}) f.allocator.free(blocks[i]);
  CHECK_EQ(f.allocator.stats().inactive_split_bytes[kAll].current, 0);
  mtia_device_ptr first = f.allocate(kMiB);
  mtia_device_ptr second = f.allocate(kMiB);
  CHECK_EQ(f.allocator.stats().segment[kAll].current, 1);
  f.allocator.free(first);
  f.allocator.free(second);
}

TEST(the_smallest_block_that_fits_is_taken) {
  Fixture f;
  std::vector<mtia_device_ptr> blocks;
  for (const size_t size : {4096U, 512U, 1024U, 512U, 2048U, 512U}) blocks.push_back(f.allocate(size));
  const mtia_device_ptr hole_of_1024 = blocks[2];
  for (const size_t i : {0U, 2U, 4U}) f.allocator.free(blocks[i]);
  mtia_device_ptr block = f.allocate(600);
  CHECK_EQ(block, hole_of_1024);
  f.allocator.free(block);
  for (const size_t i : {1U, 3U, 5U}) f.allocator.free(blocks[i]);
}

TEST(a_block_stays_with_its_stream) {
  Fixture f;
  core::Stream& other = new_stream();
  mtia_device_ptr block = f.allocate(512);
  const mtia_device_ptr address = block;
  f.allocator.free(block);
  mtia_device_ptr others = f.allocator.allocate(512, &other);
  CHECK(others != address);
  CHECK_EQ(f.allocator.stats().segment[kAll].current, 2);
  f.allocator.free(others);
}

TEST(freeing_does_not_wait_for_the_stream) {
  Fixture f;
  Gate gate;
  mtia_device_ptr block = f.allocate(512);
  hold(f.stream, gate);
  f.allocator.free(block);
  mtia_device_ptr again = f.allocate(512);  // the stream orders the uses
  CHECK(again == block);
  f.allocator.free(again);
  gate.open();
  finish(f.stream);
}

TEST(a_block_that_another_stream_uses_is_not_given_out_before_it_is_done) {
  Fixture f;
  core::Stream& user = new_stream();
  Gate gate;
  mtia_device_ptr block = f.allocate(512);
  const mtia_device_ptr address = block;
  hold(user, gate);
  f.allocator.record_stream(block, &user);
  f.allocator.record_stream(block, &user);
  f.allocator.record_stream(block, &f.stream);  // its own stream needs no event
  f.allocator.free(block);

  core::AllocatorStats stats = f.allocator.stats();
  CHECK_EQ(stats.allocated_bytes[kAll].current, 0);
  CHECK_EQ(stats.allocation[kAll].current, 0);
  CHECK_EQ(stats.active_bytes[kAll].current, 512);
  CHECK_EQ(stats.active[kAll].current, 1);
  mtia_device_ptr meanwhile = f.allocate(512);
  CHECK(meanwhile != address);
  f.allocator.free(meanwhile);

  gate.open();
  finish(user);
  mtia_device_ptr again = f.allocate(512);
  CHECK_EQ(again, address);
  f.allocator.free(again);
  CHECK_EQ(f.allocator.stats().active_bytes[kAll].current, 0);
}

TEST(a_block_waits_for_all_streams_that_use_it) {
  Fixture f;
  core::Stream& first = new_stream();
  core::Stream& second = new_stream();
  Gate first_gate;
  Gate second_gate;
  mtia_device_ptr block = f.allocate(512);
  hold(first, first_gate);
  hold(second, second_gate);
  f.allocator.record_stream(block, &first);
  f.allocator.record_stream(block, &second);
  f.allocator.free(block);
  const auto active_after_events = [&] {
    f.allocator.free(f.allocate(512));
    return f.allocator.stats().active_bytes[kAll].current;
  };
  first_gate.open();
  finish(first);
  CHECK_EQ(active_after_events(), 512);
  second_gate.open();
  finish(second);
  CHECK_EQ(active_after_events(), 0);
}

TEST(emptying_the_cache_returns_free_segments_after_their_work_is_done) {
  Fixture f;
  uint64_t free_before = 0;
  uint64_t total = 0;
  runtime::call(&mtia_runtime_api::memory_info, 0, &free_before, &total);
  mtia_device_ptr kept = f.allocate(512);
  mtia_device_ptr dropped = f.allocate(4 * kMiB);
  bool done = false;
  std::byte* bytes = host_view(dropped);
  f.stream.launch(kLarge, [&, bytes](const mtia_work_context&) {
    for (size_t i = 0; i < 4 * kMiB; ++i) bytes[i] = std::byte{1};
    done = true;
  });
  f.allocator.free(dropped);
  f.allocator.empty_cache();
  CHECK(done);
  CHECK_EQ(f.allocator.stats().segment[kAll].current, 1);
  uint64_t free_now = 0;
  runtime::call(&mtia_runtime_api::memory_info, 0, &free_now, &total);
  CHECK_EQ(free_now, free_before - 2 * kMiB);
  f.allocator.free(kept);
}

TEST(emptying_the_cache_waits_for_other_streams_too) {
  Fixture f;
  core::Stream& user = new_stream();
  mtia_device_ptr block = f.allocate(4 * kMiB);
  Gate gate;
  hold(user, gate);
  f.allocator.record_stream(block, &user);
  f.allocator.free(block);
  std::thread opener([&] { gate.open(); });
  f.allocator.empty_cache();
  opener.join();
  CHECK_EQ(f.allocator.stats().segment[kAll].current, 0);
  CHECK_EQ(f.allocator.stats().active[kAll].current, 0);
}

TEST(a_full_device_gives_back_its_cache_and_tries_again) {
  Fixture f;
  core::Stream& other = new_stream();
  f.allocator.free(f.allocator.allocate(200 * kMiB, &other));
  mtia_device_ptr block = f.allocate(150 * kMiB);
  const core::AllocatorStats stats = f.allocator.stats();
  CHECK_EQ(stats.num_alloc_retries, 1);
  CHECK_EQ(stats.num_ooms, 0);
  CHECK_EQ(stats.reserved_bytes[kAll].current, int64_t{150 * kMiB});
  f.allocator.free(block);
}

TEST(what_does_not_fit_at_all_raises_with_the_figures) {
  Fixture f;
  mtia_device_ptr block = f.allocate(100 * kMiB);
  for (const size_t size : {size_t{200} * kMiB, SIZE_MAX, SIZE_MAX - 1000, SIZE_MAX / 2}) {
    try {
      f.allocate(size);
      CHECK(false);
    } catch (const core::OutOfDeviceMemory& error) {
      CHECK_EQ(error.requested, size);
      CHECK_EQ(error.device_total, uint64_t{256 * kMiB});
      CHECK_EQ(error.device_free, uint64_t{156 * kMiB});
    }
  }
  CHECK_EQ(f.allocator.stats().num_ooms, 4);
  f.allocator.free(block);
}

TEST(a_request_takes_what_is_left_when_a_shared_segment_does_not_fit) {
  Fixture f;
  mtia_device_ptr most = f.allocate(240 * kMiB);
  mtia_device_ptr first = f.allocate(4 * kMiB);
  mtia_device_ptr second = f.allocate(9 * kMiB);
  CHECK_EQ(f.allocator.stats().reserved_bytes[kAll].current, static_cast<int64_t>(254 * kMiB));
  CHECK_EQ(f.allocator.stats().num_alloc_retries, 0);
  const auto error = CHECK_THROWS(core::OutOfDeviceMemory, f.allocate(4 * kMiB));
  CHECK_CONTAINS(error, "is out of memory: 4.00 MiB requested");
  for (mtia_device_ptr block : {most, first, second}) f.allocator.free(block);
}

TEST(the_last_2_MiB_serve_a_request_above_1_MiB) {
  Fixture f;
  mtia_device_ptr most = f.allocate(254 * kMiB);
  mtia_device_ptr last = f.allocate(3 * kMiB / 2);
  const core::AllocatorStats stats = f.allocator.stats();
  CHECK_EQ(stats.segment[core::kLarge].current, int64_t{2});
  CHECK_EQ(stats.segment[core::kSmall].current, int64_t{0});
  f.allocator.free(last);
  mtia_device_ptr again = f.allocate(kMiB + kMiB / 4);
  for (mtia_device_ptr block : {most, again}) f.allocator.free(block);
  f.allocator.empty_cache();
  CHECK_EQ(f.allocator.stats().reserved_bytes[kAll].current, int64_t{0});
}

TEST(an_error_of_work_survives_waiting_for_memory) {
  Fixture f;
  f.allocator.free(f.allocate(512));
  f.stream.launch(kLarge, [](const mtia_work_context&) { throw std::runtime_error("still here"); });
  f.allocator.empty_cache();
  CHECK_EQ(CHECK_THROWS(std::runtime_error, finish(f.stream)), "still here");
}

// See Note [Memory of running work].
TEST(memory_freed_behind_running_work_waits_for_the_work_to_end) {
  Fixture f;
  mtia_device_ptr freed_behind = f.allocate(512);
  const mtia_device_ptr address = freed_behind;
  const core::WindowId window = f.allocator.open_window(&f.stream);
  f.allocator.free(freed_behind);
  mtia_device_ptr of_running_work = f.allocate(512);
  CHECK(of_running_work != address);
  f.allocator.close_window(&f.stream, window);
  mtia_device_ptr next = f.allocate(512);
  CHECK_EQ(next, address);
  f.allocator.free(next);
  f.allocator.free(of_running_work);
  CHECK_EQ(f.allocator.stats().active_bytes[kAll].current, 0);
}

TEST(memory_freed_behind_several_running_items_waits_for_the_last_one) {
  Fixture f;
  mtia_device_ptr freed_behind = f.allocate(512);
  const mtia_device_ptr address = freed_behind;
  const core::WindowId first = f.allocator.open_window(&f.stream);
  const core::WindowId second = f.allocator.open_window(&f.stream);
  f.allocator.free(freed_behind);
  f.allocator.close_window(&f.stream, second);
  mtia_device_ptr early = f.allocate(512);
  CHECK(early != address);
  f.allocator.close_window(&f.stream, first);
  mtia_device_ptr late = f.allocate(512);
  CHECK_EQ(late, address);
  f.allocator.free(early);
  f.allocator.free(late);
}

TEST(items_that_overlap_for_ever_do_not_hold_memory_back_for_ever) {
  Fixture f;
  core::WindowId oldest = f.allocator.open_window(&f.stream);
  for (int i = 0; i < 100; ++i) {
    f.allocator.free(f.allocate(kMiB));
    const core::WindowId next = f.allocator.open_window(&f.stream);
    f.allocator.close_window(&f.stream, oldest);
    oldest = next;
  }
  CHECK_EQ(f.allocator.stats().reserved_bytes[kAll].current, int64_t{2 * kMiB});
  f.allocator.close_window(&f.stream, oldest);
}

TEST(running_work_takes_only_memory_that_is_idle_and_waits_for_nobody) {
  Fixture f;
  core::Stream& busy = new_stream();
  core::Stream& idle = new_stream();
  Gate gate;
  f.allocator.free(f.allocate(20 * kMiB));
  f.allocator.free(f.allocator.allocate(30 * kMiB, &idle));
  hold(busy, gate);
  f.allocator.free(f.allocator.allocate(40 * kMiB, &busy));
  const core::WindowId window = f.allocator.open_window(&f.stream);
  f.stream.launch(kLarge, [&](const mtia_work_context&) {
    const core::RunningWork running(f.stream);
    f.allocator.empty_cache();
    CHECK_EQ(f.allocator.stats().reserved_bytes[kAll].current, int64_t{40 * kMiB});
    CHECK_THROWS(core::OutOfDeviceMemory, f.allocate(240 * kMiB));
  });
  finish(f.stream);
  f.allocator.close_window(&f.stream, window);
  gate.open();
}

TEST(running_work_allocates_while_another_thread_waits_for_it_to_reclaim) {
  Fixture f;
  f.allocator.free(f.allocate(200 * kMiB));
  Gate started;
  Gate go;
  std::thread waiter;
  const core::WindowId window = f.allocator.open_window(&f.stream);
  f.stream.launch(kLarge, [&](const mtia_work_context&) {
    const core::RunningWork running(f.stream);
    started.open();
    go.wait();
    f.allocator.empty_cache();
    f.allocator.free(f.allocate(200 * kMiB));
  });
  started.wait();
  waiter = std::thread([&] { f.allocator.empty_cache(); });
  while (f.allocator.stats().num_sync_all_streams == 0) std::this_thread::yield();
  go.open();
  waiter.join();
  finish(f.stream);
  f.allocator.close_window(&f.stream, window);
}

TEST(memory_freed_behind_running_work_is_waited_for_when_the_device_is_full) {
  Fixture f;
  core::Stream& other = new_stream();
  Gate gate;
  mtia_device_ptr block = f.allocator.allocate(200 * kMiB, &other);
  const core::WindowId window = f.allocator.open_window(&other);
  const auto close = [&](void*) { f.allocator.close_window(&other, window); };
  other.launch(kLarge,
               [&gate, closer = std::shared_ptr<void>(nullptr, close)](const mtia_work_context&) { gate.wait(); });
  f.allocator.free(block);
  const std::jthread opener([&] {
    while (f.allocator.stats().num_sync_all_streams == 0) std::this_thread::yield();
    gate.open();
  });
  f.allocator.free(f.allocate(200 * kMiB));
}

TEST(a_block_that_running_work_frees_waits_for_what_is_queued_behind_the_work) {
  Fixture f;
  core::Stream& other = new_stream();
  Gate freed;
  Gate used;
  mtia_device_ptr block = f.allocate(512);
  f.allocator.record_stream(block, &other);
  const core::WindowId window = f.allocator.open_window(&other);
  Gate go;
  other.launch(kLarge, [&](const mtia_work_context&) {
    const core::RunningWork running(other);
    go.wait();
    f.allocator.free(block);
    freed.open();
  });
  hold(other, used);
  go.open();
  freed.wait();
  f.allocator.close_window(&other, window);
  mtia_device_ptr meanwhile = f.allocate(512);
  CHECK(meanwhile != block);
  used.open();
  other.wait_until_idle();
  mtia_device_ptr later = f.allocate(512);
  CHECK(later == block);
  f.allocator.free(later);
  f.allocator.free(meanwhile);
}

TEST(running_work_uses_its_own_memory_again_at_once) {
  Fixture f;
  const core::WindowId window = f.allocator.open_window(&f.stream);
  mtia_device_ptr first = f.allocate(512);
  const mtia_device_ptr address = first;
  f.allocator.free(first, /*in_own_window=*/true);
  mtia_device_ptr second = f.allocate(512);
  CHECK_EQ(second, address);
  f.allocator.free(second, /*in_own_window=*/true);
  f.allocator.close_window(&f.stream, window);
}

TEST(running_work_does_not_hold_back_the_memory_of_other_streams) {
  Fixture f;
  core::Stream& other = new_stream();
  const core::WindowId window = f.allocator.open_window(&f.stream);
  mtia_device_ptr block = f.allocator.allocate(512, &other);
  const mtia_device_ptr address = block;
  f.allocator.free(block);
  mtia_device_ptr again = f.allocator.allocate(512, &other);
  CHECK_EQ(again, address);
  f.allocator.free(again);
  f.allocator.close_window(&f.stream, window);
}

TEST(statistics_have_peaks_and_totals_that_can_be_reset) {
  Fixture f;
  mtia_device_ptr first = f.allocate(1024);
  mtia_device_ptr second = f.allocate(512);
  f.allocator.free(second);
  core::AllocatorStats stats = f.allocator.stats();
  CHECK_EQ(stats.allocated_bytes[kAll].current, 1024);
  CHECK_EQ(stats.allocated_bytes[kAll].peak, 1536);
  CHECK_EQ(stats.allocated_bytes[kAll].allocated, 1536);
  CHECK_EQ(stats.allocated_bytes[kAll].freed, 512);
  f.allocator.reset_peak_stats();
  f.allocator.reset_accumulated_stats();
  stats = f.allocator.stats();
  CHECK_EQ(stats.allocated_bytes[kAll].current, 1024);
  CHECK_EQ(stats.allocated_bytes[kAll].peak, 1024);
  CHECK_EQ(stats.allocated_bytes[kAll].allocated, 0);
  CHECK_EQ(stats.allocated_bytes[kAll].freed, 0);
  f.allocator.free(first);
}

TEST(live_ranges_are_the_requested_bytes_of_blocks_that_are_not_freed) {
  Fixture f;
  core::Stream& other = new_stream();
  mtia_device_ptr small = f.allocate(700);
  mtia_device_ptr large = f.allocate(3 * kMiB);
  mtia_device_ptr freed = f.allocate(100);
  mtia_device_ptr pending = f.allocate(200);
  Gate gate;
  hold(other, gate);
  f.allocator.record_stream(pending, &other);
  f.allocator.free(freed);
  f.allocator.free(pending);  // waits for the other stream
  std::vector<mtia_span> expected{{small, 700}, {large, 3 * kMiB}};
  if (expected[0].address > expected[1].address) std::swap(expected[0], expected[1]);
  const std::vector<mtia_span> spans = f.allocator.live_ranges();
  CHECK_EQ(spans.size(), size_t{2});
  for (size_t i = 0; i < 2; ++i) {
    CHECK_EQ(spans[i].address, expected[i].address);
    CHECK_EQ(spans[i].size, expected[i].size);
  }
  gate.open();
  f.allocator.free(small);
  f.allocator.free(large);
  CHECK(f.allocator.live_ranges().empty());
}

}  // namespace
}  // namespace torch_mtia::test

int main(int argc, char** argv) {
  return torch_mtia::test::run_tests_on_device(argc, argv);
}
