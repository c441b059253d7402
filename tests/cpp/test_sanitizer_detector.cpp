// What the detector finds in sequences of submissions, and what it does not.
#include "sanitizer/Detector.h"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "check.h"

namespace torch_mtia::test {
namespace {

using namespace sanitizer;

// Streams and events are addresses.
const char kStreams[3] = {};
const void* const kMain = &kStreams[0];
const void* const kSide = &kStreams[1];
const void* const kThird = &kStreams[2];
const char kEvents[2] = {};
const void* const kEvent = &kEvents[0];
const void* const kOther = &kEvents[1];

constexpr uint64_t kX = 1 << 20;

Operand read(uint64_t address, uint64_t size) {
  return {Region::dense(address, size), false, OldBytes::kRead, "x"};
}
Operand write(uint64_t address, uint64_t size) {
  return {Region::dense(address, size), true, OldBytes::kOverwritten, "x"};
}
Operand with(OldBytes old_bytes, Operand operand) {
  operand.old_bytes = old_bytes;
  return operand;
}
// Of a matrix with rows of 64 bytes.
Operand columns(int64_t first, int64_t count, bool writes) {
  const int64_t sizes[] = {16, count};
  const int64_t strides[] = {64, 1};
  return {Region(kX + first, 1, sizes, strides), writes, writes ? OldBytes::kOverwritten : OldBytes::kRead, "columns"};
}

std::string kinds(const std::vector<Finding>& findings) {
  std::string text;
  for (const Finding& each : findings) {
    constexpr const char* kNames[] = {"race", "freed too early", "use after free", "uninitialized"};
    text += (text.empty() ? "" : ", ") + std::string(kNames[static_cast<int>(each.kind)]);
    if (each.earlier != nullptr) text += " with " + each.earlier->name;
  }
  return text;
}

struct Device {
  Detector detector;

  std::string submit(const void* stream, const char* name, std::vector<Operand> operands) {
    return kinds(detector.submit(
        {.name = name, .stream = stream, .is_listed = true, .operands = std::move(operands), .context = {}}));
  }
  void allocate(uint64_t address, uint64_t size, bool is_private = false) {
    detector.allocate(address, size, is_private, /*is_written=*/is_private, nullptr);
  }
};

TEST(streams_without_order_race) {
  Device device;
  CHECK_EQ(device.submit(kMain, "fill", {write(kX, 64)}), "");
  CHECK_EQ(device.submit(kSide, "sum", {read(kX + 32, 8)}), "race with fill");
  CHECK_EQ(device.submit(kSide, "add", {read(kX + 64, 8)}), "");
  CHECK_EQ(device.submit(kThird, "mul", {read(kX, 64), write(kX, 64)}), "race with fill, race with sum");
}

TEST(events_order) {
  Device device;
  device.submit(kMain, "fill", {write(kX, 64)});
  device.detector.clocks().record(kEvent, kMain);
  device.submit(kMain, "zero", {write(kX + 64, 64)});
  device.detector.clocks().wait(kSide, kEvent);
  CHECK_EQ(device.submit(kSide, "sum", {read(kX, 64)}), "");
  CHECK_EQ(device.submit(kSide, "late", {read(kX, 128)}), "race with zero");
  // What a stream waited for is passed on.
  device.detector.clocks().record(kOther, kSide);
  device.detector.clocks().wait(kThird, kOther);
  CHECK_EQ(device.submit(kThird, "third", {write(kX, 64)}), "");
}

TEST(an_event_stands_for_what_was_before_its_last_record) {
  Device device;
  device.detector.clocks().record(kEvent, kMain);
  device.submit(kMain, "fill", {write(kX, 64)});
  device.detector.clocks().wait(kSide, kEvent);
  CHECK_EQ(device.submit(kSide, "sum", {read(kX, 64)}), "race with fill");
  device.detector.clocks().record(kEvent, kMain);
  device.detector.clocks().wait(kSide, kEvent);
  CHECK_EQ(device.submit(kSide, "sum", {read(kX, 64)}), "");
}

TEST(the_host_orders_what_it_waited_for) {
  Device device;
  device.submit(kMain, "fill", {write(kX, 64)});
  device.detector.clocks().host_waits_for_stream(kMain);
  CHECK_EQ(device.submit(kSide, "sum", {read(kX, 64)}), "");
  device.submit(kMain, "again", {write(kX + 64, 64)});
  device.detector.clocks().record(kEvent, kMain);
  device.detector.clocks().wait(/*stream=*/nullptr, kEvent);
  CHECK_EQ(device.submit(kThird, "sum", {read(kX, 128)}), "");
}

TEST(reads_do_not_race_and_writes_race_with_all_of_them) {
  Device device;
  device.submit(kMain, "a", {read(kX, 64)});
  device.submit(kSide, "b", {read(kX, 64)});
  device.submit(kMain, "c", {read(kX, 32)});
  CHECK_EQ(device.submit(kThird, "w", {write(kX, 64)}), "race with b, race with c, race with a");
  CHECK_EQ(device.submit(kThird, "w", {write(kX, 64)}), "");
}

TEST(what_waits_before_memory_is_used_again_orders_that_memory_only) {
  Device device;
  device.allocate(kX, 64);
  device.submit(kMain, "fill", {write(kX, 128)});
  device.submit(kSide, "sum", {read(kX + 256, 8)});
  device.detector.reuse_waits_for(kMain, kX, 64);
  device.detector.free(kX, nullptr);
  device.submit(kMain, "late", {write(kX + 256, 8)});
  device.allocate(kX, 64);
  CHECK_EQ(device.submit(kThird, "again", {write(kX, 64)}), "");
  CHECK_EQ(device.submit(kThird, "beside", {write(kX + 64, 64)}), "race with fill");
}

TEST(memory_that_is_used_again_waits_for_no_other_stream) {
  Device device;
  device.allocate(kX, 64);
  device.submit(kMain, "a", {read(kX, 64)});
  device.submit(kSide, "b", {read(kX, 64)});
  device.detector.reuse_waits_for(kSide, kX, 64);
  device.detector.free(kX, nullptr);
  device.allocate(kX, 64);
  CHECK_EQ(device.submit(kThird, "again", {write(kX, 64)}), "freed too early with a");
}

TEST(columns_of_a_matrix_are_apart) {
  Device device;
  device.submit(kMain, "left", {columns(0, 32, true)});
  CHECK_EQ(device.submit(kSide, "right", {columns(32, 32, true)}), "");
  CHECK_EQ(device.submit(kThird, "both", {columns(16, 32, false)}), "race with left, race with right");
}

TEST(memory_that_another_stream_uses_is_freed_too_early) {
  Device device;
  device.allocate(kX, 64);
  device.submit(kMain, "fill", {write(kX, 64)});
  device.detector.clocks().record(kEvent, kMain);
  device.detector.clocks().wait(kSide, kEvent);
  device.submit(kSide, "sum", {read(kX, 64)});
  device.detector.free(kX, nullptr);
  device.allocate(kX, 32);
  CHECK_EQ(device.submit(kMain, "next", {write(kX, 32)}), "freed too early with sum");
}

TEST(memory_is_live_and_written_before_it_is_read) {
  Device device;
  device.allocate(kX, 128);
  CHECK_EQ(device.submit(kMain, "half", {write(kX, 64)}), "");
  CHECK_EQ(device.submit(kMain, "sum", {read(kX, 64)}), "");
  CHECK_EQ(device.submit(kMain, "all", {read(kX, 128)}), "uninitialized");
  device.detector.free(kX, nullptr);
  CHECK_EQ(device.submit(kMain, "late", {write(kX, 64)}), "use after free");
  device.allocate(kX, 128);
  CHECK_EQ(device.submit(kMain, "copy", {read(kX, 64)}), "uninitialized");
  CHECK_EQ(device.submit(kMain, "in place", {read(kX + 64, 64), write(kX + 64, 64)}), "uninitialized");
  CHECK_EQ(device.submit(kMain, "other", {read(1, 64)}), "");  // nobody knows of it
}

TEST(gaps_of_what_is_written_are_not_written) {
  Device device;
  device.allocate(kX, 16 * 64);
  CHECK_EQ(device.submit(kMain, "left", {columns(0, 32, true)}), "");
  CHECK_EQ(device.submit(kMain, "sum", {columns(0, 32, false)}), "");
  CHECK_EQ(device.submit(kMain, "some", {with(OldBytes::kReadInPart, columns(16, 32, false))}), "");
  CHECK_EQ(device.submit(kMain, "none", {with(OldBytes::kReadInPart, columns(32, 32, false))}), "uninitialized");
  CHECK_EQ(device.submit(kMain, "all", {read(kX, 16 * 64)}), "uninitialized");
  CHECK_EQ(device.submit(kMain, "right", {columns(32, 32, true)}), "");
  CHECK_EQ(device.submit(kMain, "all", {read(kX, 16 * 64)}), "");
}

TEST(what_nobody_lists_may_have_written) {
  Device device;
  device.allocate(kX, 128);
  device.detector.submit({.name = "kernel", .stream = kMain, .is_listed = false, .operands = {}, .context = {}});
  CHECK_EQ(device.submit(kMain, "sum", {read(kX, 128)}), "");
  device.allocate(2 * kX, 128);
  CHECK_EQ(device.submit(kMain, "sum", {read(2 * kX, 128)}), "uninitialized");
}

TEST(memory_of_graphs_is_used_when_it_is_freed) {
  Device device;
  device.allocate(kX, 128, /*is_private=*/true);
  device.detector.free(kX, nullptr);
  CHECK_EQ(device.submit(kMain, "graph", {read(kX, 128), write(kX, 64)}), "");
}

TEST(the_host_is_behind_what_it_has_waited_for) {
  Device device;
  device.submit(kMain, "copy", {write(kX, 64)});
  CHECK_EQ(device.submit(nullptr, "item", {read(kX, 64)}), "race with copy");
  device.detector.clocks().host_waits_for_stream(kMain);
  CHECK_EQ(device.submit(nullptr, "sum", {read(kX, 64)}), "");
  CHECK_EQ(device.submit(nullptr, "fill", {write(kX, 64)}), "");
  // All that is submitted is behind what the host has done.
  CHECK_EQ(device.submit(kSide, "back", {read(kX, 64)}), "");
  CHECK_EQ(device.submit(nullptr, "again", {write(kX, 64)}), "race with back");
}

TEST(a_function_of_the_host_is_part_of_its_stream) {
  Device device;
  const auto does = [&](uint64_t function, const void* stream, const char* name, Operand operand) {
    return kinds(device.detector.submit(
        {.name = name, .stream = stream, .function = function, .operands = {std::move(operand)}, .context = {}}));
  };
  device.submit(kMain, "before", {write(kX, 64)});
  device.detector.begin_function(1, kMain);
  device.submit(kMain, "behind", {write(kX + 64, 64)});
  CHECK_EQ(does(1, kMain, "sum", read(kX, 64)), "");
  CHECK_EQ(does(1, kMain, "sum", read(kX + 64, 64)), "");  // it comes later
  CHECK_EQ(does(1, kSide, "submitted", read(kX, 64)), "");
  device.submit(kThird, "elsewhere", {write(3 * kX, 64)});
  CHECK_EQ(does(1, kMain, "sum", read(3 * kX, 64)), "race with elsewhere");
  CHECK_EQ(does(1, kMain, "fill", write(2 * kX, 64)), "");
  CHECK_EQ(device.submit(kMain, "last", {read(2 * kX, 64)}), "");
  CHECK_EQ(device.submit(kThird, "third", {read(2 * kX, 64)}), "race with fill");
  // The next one is behind the first.
  device.detector.end_function(1);
  device.detector.begin_function(2, kMain);
  CHECK_EQ(does(2, kMain, "fill", write(2 * kX, 32)), "race with third");
  CHECK_EQ(does(1, kMain, "nobody", write(kX, 64)), "");  // it has ended
}

TEST(a_graph_touches_the_memory_of_its_capture_whoever_has_it_now) {
  Device device;
  device.allocate(kX, 128);
  Operand operand = write(kX, 64);
  operand.captured = std::make_shared<const uint64_t>(device.detector.num_blocks());
  CHECK_EQ(device.submit(kMain, "graph", {operand}), "");
  device.detector.free(kX, nullptr);
  CHECK_EQ(device.submit(kMain, "graph", {operand}), "use after free");
  device.allocate(kX, 128);
  CHECK_EQ(device.submit(kMain, "graph", {operand}), "use after free");
  CHECK_EQ(device.submit(kMain, "fill", {write(kX, 64)}), "");
  operand.captured = std::make_shared<const uint64_t>(device.detector.num_blocks());
  CHECK_EQ(device.submit(kMain, "graph", {operand}), "");
  // Memory of graphs is that of several.
  device.allocate(kX, 128, /*is_private=*/true);
  CHECK_EQ(device.submit(kMain, "graph", {operand}), "");
}

TEST(where_the_memory_of_a_graph_was_freed_is_known) {
  Detector detector;
  const auto freed = std::make_shared<int>();
  detector.allocate(kX, 128, /*is_private=*/false, /*is_written=*/true, nullptr);
  Operand operand = write(kX, 64);
  operand.captured = std::make_shared<const uint64_t>(detector.num_blocks());
  detector.free(kX, freed);
  detector.allocate(kX, 64, /*is_private=*/false, /*is_written=*/true, std::make_shared<int>());
  const auto found = detector.submit({.name = "graph", .stream = kMain, .operands = {operand}, .context = {}});
  CHECK_EQ(kinds(found), "use after free");
  CHECK(found[0].memory == freed);
}

TEST(of_many_shapes_none_is_forgotten_unsaid) {
  Device device;
  constexpr int64_t kWidth = 10000;
  const auto column = [](int64_t at) {
    const int64_t sizes[] = {16};
    const int64_t strides[] = {kWidth};
    return Operand{Region(kX + at, 1, sizes, strides), true, OldBytes::kOverwritten, "column"};
  };
  for (int64_t at = 0; at < 4096; ++at) device.submit(kMain, "column", {column(at)});
  CHECK_EQ(device.detector.num_forgotten(), uint64_t{0});
  CHECK_EQ(device.submit(kSide, "first", {column(0)}), "race with column");
  for (int64_t at = 4096; at < 4106; ++at) device.submit(kMain, "column", {column(at)});
  CHECK(device.detector.num_forgotten() >= 10);
}

TEST(what_is_done_again_to_the_same_views_is_known_once) {
  Device device;
  for (int round = 0; round < 1000; ++round) {
    for (int64_t at = 0; at < 64; at += 4) {
      CHECK_EQ(device.submit(kMain, "column", {columns(at, 4, false), columns(at, 4, true)}), "");
    }
    CHECK_EQ(device.submit(kMain, "left", {columns(0, 32, false)}), "");
    CHECK_EQ(device.submit(kMain, "right", {columns(32, 32, false)}), "");
  }
  CHECK_EQ(device.detector.num_forgotten(), uint64_t{0});
  CHECK_EQ(device.submit(kSide, "last", {columns(60, 4, true)}), "race with column, race with right");
}

TEST(a_view_that_is_covered_has_been_checked) {
  Device device;
  device.submit(kMain, "narrow", {columns(8, 4, true)});
  CHECK_EQ(device.submit(kSide, "wide", {columns(4, 16, true)}), "race with narrow");
  device.detector.clocks().record(kEvent, kSide);
  device.detector.clocks().wait(kThird, kEvent);
  CHECK_EQ(device.submit(kThird, "third", {columns(8, 4, true)}), "");
  // A later reader of less is no reason to forget one of more.
  device.submit(kMain, "reads", {columns(32, 16, false)});
  device.submit(kMain, "reads less", {columns(32, 8, false)});
  CHECK_EQ(device.submit(kThird, "writes", {columns(44, 4, true)}), "race with reads");
}

TEST(what_is_passed_on_need_not_be_written) {
  Device device;
  device.allocate(kX, 128);
  CHECK_EQ(device.submit(kMain, "send", {with(OldBytes::kPassedThrough, read(kX, 128))}), "");
  CHECK_EQ(device.submit(kMain, "sum", {read(kX, 128)}), "uninitialized");
  CHECK_EQ(device.submit(kMain, "masked fill", {with(OldBytes::kPassedThrough, write(kX, 128))}), "");
  CHECK_EQ(device.submit(kMain, "sum", {read(kX, 128)}), "");
}

TEST(what_is_changed_in_place_is_read) {
  Device device;
  device.allocate(kX, 128);
  device.submit(kMain, "fill", {write(kX, 64)});
  CHECK_EQ(device.submit(kMain, "add", {with(OldBytes::kRead, write(kX, 64))}), "");
  CHECK_EQ(device.submit(kMain, "add", {with(OldBytes::kRead, write(kX, 128))}), "uninitialized");
  CHECK_EQ(device.submit(kMain, "add", {with(OldBytes::kRead, write(kX, 128))}), "");  // it was said
}

TEST(what_is_changed_in_part_has_to_be_written_in_part) {
  Device device;
  device.allocate(kX, 128);
  device.allocate(2 * kX, 128);
  device.submit(kMain, "fill", {write(kX, 64)});
  CHECK_EQ(device.submit(kMain, "index add", {with(OldBytes::kReadInPart, write(kX, 128))}), "");
  CHECK_EQ(device.submit(kMain, "index add", {with(OldBytes::kReadInPart, write(2 * kX, 128))}), "uninitialized");
}

TEST(blocks_that_are_alive_know_when_they_were_used) {
  Device device;
  const auto context = std::make_shared<int>();
  for (const uint64_t at : {kX, 2 * kX, 3 * kX}) {
    device.detector.allocate(at, 128, /*is_private=*/false, /*is_written=*/false, context, /*site=*/1);
    device.submit(kMain, "fill", {write(at, 128)});
  }
  device.submit(kMain, "sum", {read(kX + 64, 8)});
  device.detector.free(2 * kX, nullptr);
  const std::vector<LiveBlock> blocks = device.detector.live_blocks().at(0).blocks;
  CHECK_EQ(blocks.size(), size_t{2});
  CHECK_EQ(blocks[0].allocated, uint64_t{0});
  CHECK_EQ(blocks[0].used, uint64_t{4});
  CHECK_EQ(blocks[1].allocated, uint64_t{2});
  CHECK_EQ(blocks[1].used, uint64_t{3});
}

TEST(a_site_counts_executions_and_those_in_which_it_became_more) {
  Device device;
  const auto context = std::make_shared<int>();
  const auto allocate = [&](uint64_t at) { device.detector.allocate(at, 128, false, false, context, /*site=*/1); };
  const auto site = [&] { return device.detector.live_blocks().at(0).site; };
  const auto free = [&](uint64_t at, const Context& where) { device.detector.free(at, where); };
  for (uint64_t at = 1; at <= 5; ++at) allocate(at * kX);  // nothing is freed in between
  CHECK_EQ(site().executions, uint64_t{1});
  CHECK_EQ(site().rises, uint64_t{1});
  free(5 * kX, context);
  allocate(5 * kX);  // as many as before
  CHECK_EQ(site().executions, uint64_t{2});
  CHECK_EQ(site().rises, uint64_t{1});
  device.detector.allocate(9 * kX, 128, false, false, context, /*site=*/2);
  free(9 * kX, context);  // of another site
  allocate(6 * kX);
  CHECK_EQ(site().executions, uint64_t{3});
  CHECK_EQ(site().rises, uint64_t{2});
  CHECK_EQ(site().last_rise, uint64_t{3});
  device.detector.allocate(9 * kX, 128, false, false, nullptr);
  free(9 * kX, nullptr);  // by running work
  allocate(7 * kX);
  CHECK_EQ(site().executions, uint64_t{3});
}

}  // namespace
}  // namespace torch_mtia::test

int main(int argc, char** argv) {
  return torch_mtia::test::run_tests(argc, argv);
}
