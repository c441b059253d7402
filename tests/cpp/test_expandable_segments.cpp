// Expandable segments: memory is mapped where blocks need it, and given back page by page.
#include <vector>

#include "device_under_test.h"

namespace torch_mtia::test {
namespace {

using core::kAll;

constexpr size_t kMiB = size_t{1} << 20;

struct Fixture {
  ~Fixture() { allocator.empty_cache(); }

  mtia_device_ptr allocate(size_t size) { return allocator.allocate(size, &stream); }
  size_t reserved() const { return static_cast<size_t>(allocator.stats().reserved_bytes[kAll].current); }
  int64_t segments() const { return allocator.stats().segment[kAll].current; }

  core::BlockAllocator& allocator = new_allocator([] { return core::AllocatorOptions{.expandable_segments = true}; });
  core::Stream& stream = new_stream();
};

TEST(large_blocks_of_a_stream_lie_side_by_side) {
  Fixture f;
  mtia_device_ptr first = f.allocate(30 * kMiB);
  mtia_device_ptr second = f.allocate(5 * kMiB);
  mtia_device_ptr third = f.allocate(11 * kMiB);
  CHECK_EQ(second, first + 30 * kMiB);
  CHECK_EQ(third, second + 5 * kMiB);
  CHECK_EQ(f.reserved(), 50 * kMiB);  // 20 MiB were mapped for the second, of which the third took the rest
  CHECK_EQ(f.segments(), int64_t{1});
  for (mtia_device_ptr block : {first, second, third}) f.allocator.free(block);
}

TEST(a_request_takes_what_is_left_when_a_larger_piece_does_not_fit) {
  Fixture f;
  mtia_device_ptr most = f.allocator.allocate(240 * kMiB, &new_stream());
  mtia_device_ptr last = f.allocate(9 * kMiB);
  CHECK_EQ(f.reserved(), 250 * kMiB);
  f.allocator.free(most);
  f.allocator.free(last);
}

TEST(a_request_grows_the_free_end_of_the_segment) {
  Fixture f;
  mtia_device_ptr kept = f.allocate(20 * kMiB);
  f.allocator.free(f.allocate(40 * kMiB));
  mtia_device_ptr grown = f.allocate(100 * kMiB);
  CHECK_EQ(grown, kept + 20 * kMiB);
  CHECK_EQ(f.reserved(), 120 * kMiB);
  f.allocator.free(kept);
  f.allocator.free(grown);
}

TEST(pages_between_blocks_are_given_back_and_mapped_again) {
  Fixture f;
  std::vector<mtia_device_ptr> blocks;
  for (int i = 0; i < 5; ++i) blocks.push_back(f.allocate(21 * kMiB));  // 22 MiB are mapped for each
  const mtia_device_ptr begin = blocks[0];
  for (const int i : {1, 2, 3}) f.allocator.free(blocks[static_cast<size_t>(i)]);
  const size_t before = f.reserved();
  f.allocator.empty_cache();
  // 63 MiB from 21 MiB on are free: 62 of them in whole pages.
  CHECK_EQ(before - f.reserved(), 62 * kMiB + (before - 105 * kMiB) / (2 * kMiB) * (2 * kMiB));
  CHECK_EQ(f.segments(), int64_t{2});
  const auto segments = f.allocator.snapshot();
  CHECK_EQ(segments.size(), size_t{2});
  for (const auto& segment : segments) CHECK(segment.is_expandable);
  mtia_device_ptr in_between = f.allocate(63 * kMiB);
  CHECK_EQ(in_between, begin + 21 * kMiB);
  CHECK_EQ(f.segments(), int64_t{1});
  for (mtia_device_ptr block : {blocks[0], in_between, blocks[4]}) f.allocator.free(block);
  f.allocator.empty_cache();
  CHECK_EQ(f.reserved(), size_t{0});
  CHECK_EQ(f.segments(), int64_t{0});
  CHECK(f.allocator.snapshot().empty());
}

TEST(memory_of_another_stream_is_mapped_here_when_the_device_is_full) {
  Fixture f;
  core::Stream& other = new_stream();
  f.allocator.free(f.allocator.allocate(200 * kMiB, &other));
  mtia_device_ptr block = f.allocate(150 * kMiB);
  CHECK_EQ(f.reserved(), 150 * kMiB);
  CHECK_EQ(f.allocator.stats().num_alloc_retries, int64_t{1});
  CHECK_THROWS(core::OutOfDeviceMemory, f.allocate(110 * kMiB));
  mtia_device_ptr rest = f.allocate(106 * kMiB);
  for (mtia_device_ptr used : {block, rest}) f.allocator.free(used);
}

TEST(small_blocks_keep_their_segments) {
  Fixture f;
  mtia_device_ptr small = f.allocate(1000);
  CHECK_EQ(f.reserved(), 2 * kMiB);
  CHECK(!f.allocator.snapshot().at(0).is_expandable);
  f.allocator.free(small);
}

TEST(a_memory_fraction_limits_what_is_mapped) {
  Fixture f;
  f.allocator.set_memory_fraction(0.5);
  mtia_device_ptr block = f.allocate(100 * kMiB);
  CHECK_THROWS(core::OutOfDeviceMemory, f.allocate(30 * kMiB));
  mtia_device_ptr rest = f.allocate(28 * kMiB);
  for (mtia_device_ptr used : {block, rest}) f.allocator.free(used);
}

TEST(history_says_what_was_mapped_where) {
  Fixture f;
  f.allocator.record_history({.enabled = true, .max_entries = 100});
  f.allocator.free(f.allocate(30 * kMiB));
  f.allocator.empty_cache();
  std::vector<core::TraceAction> actions;
  for (const auto& entry : f.allocator.history()) {
    actions.push_back(entry.action);
    CHECK_EQ(entry.size, 30 * kMiB);
  }
  using enum core::TraceAction;
  CHECK(actions == (std::vector{kSegmentMap, kAlloc, kFreeRequested, kFreeCompleted, kSegmentUnmap}));
}

}  // namespace
}  // namespace torch_mtia::test

int main(int argc, char** argv) {
  return torch_mtia::test::run_tests_on_device(argc, argv);
}
