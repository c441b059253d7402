// What a recorder finds in the accesses of programs, and what it says that a launch has touched.
#include "sanitizer/AccessRecorder.h"

#include <array>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "check.h"

namespace torch_mtia::test {
namespace {

using namespace sanitizer;

constexpr uint64_t kLoad = MTIA_SITE_READS;
constexpr uint64_t kStore = MTIA_SITE_WRITES;
constexpr uint64_t kVolatile = MTIA_SITE_READS | MTIA_SITE_ATOMIC | MTIA_SITE_ACQUIRES;
constexpr uint64_t kRelaxed = MTIA_SITE_READS | MTIA_SITE_WRITES | MTIA_SITE_ATOMIC;
constexpr uint64_t kAtomic = kRelaxed | MTIA_SITE_ACQUIRES | MTIA_SITE_RELEASES;
constexpr uint64_t kRelease = MTIA_SITE_WRITES | MTIA_SITE_ATOMIC | MTIA_SITE_RELEASES;

// A kernel whose memory is `memory`, at device addresses from kBase on.
struct Kernel {
  static constexpr uint64_t kBase = 1 << 20;
  static constexpr uint64_t kAll = ~uint64_t{0};

  std::vector<std::byte> memory = std::vector<std::byte>(1 << 14);
  std::vector<mtia_site> sites;
  mtia_kernel_context context{};
  AccessRecorder recorder;
  std::array<int32_t, 3> program{};

  explicit Kernel(std::optional<std::vector<mtia_span>> live = std::nullopt, std::vector<std::byte> arguments = {})
      : recorder(std::move(live), std::move(arguments)) {
    sites.reserve(64);
    context.struct_size = sizeof(context);
    context.grid[0] = 64;
    context.grid[1] = context.grid[2] = 1;
    context.host_offset = static_cast<int64_t>(reinterpret_cast<uint64_t>(memory.data()) - kBase);
  }

  const mtia_site* site(uint64_t kind, uint32_t size = 4, int64_t argument = -1) {
    const auto number = static_cast<uint32_t>(sites.size());
    return &sites.emplace_back(mtia_site{number, static_cast<uint32_t>(kind), size, static_cast<int32_t>(number + 1),
                                         argument, "kernel.py", argument < 0 ? "" : "x"});
  }
  void begin(int32_t number, uint64_t how = MTIA_PROGRAM_BEGINS) {
    program = {number, 0, 0};
    recorder.access(context, nullptr, program, how, 0, nullptr, 0, nullptr);
  }
  void resume(int32_t number) { program = {number, 0, 0}; }
  void end() { recorder.access(context, nullptr, program, MTIA_PROGRAM_ENDS, 0, nullptr, 0, nullptr); }
  void begin_store(const mtia_site* site) { recorder.access(context, site, program, 0, 0, nullptr, 0, nullptr); }
  // `count` neighbours from an offset on.
  uint64_t access(const mtia_site* site, uint64_t offset, uint32_t count = 1) {
    const uint64_t lanes = count == 64 ? kAll : (uint64_t{1} << count) - 1;
    return recorder.access(context, site, program, kBase + offset, site->size, nullptr, lanes, nullptr);
  }
  // Values to offsets; they are in memory afterwards.
  void store(const mtia_site* site, const std::vector<uint64_t>& offsets, const std::vector<int32_t>& values) {
    std::vector<uint64_t> addresses;
    for (const uint64_t offset : offsets) addresses.push_back(kBase + offset);
    const uint64_t lanes = (uint64_t{1} << offsets.size()) - 1;
    recorder.access(context, site, program, 0, 0, addresses.data(), lanes, values.data());
    for (size_t lane = 0; lane < offsets.size(); ++lane) {
      std::memcpy(memory.data() + offsets[lane], &values[lane], sizeof(int32_t));
    }
  }

  std::string findings() {
    std::string text;
    for (const Finding& finding : recorder.take().findings) {
      const KernelAccesses& each = *finding.kernel;
      text += text.empty() ? "" : ", ";
      text += std::to_string(each.access.line->line) + " of " + std::to_string(each.access.program[0]);
      if (each.earlier) {
        text += " with " + std::to_string(each.earlier->line->line) + " of " + std::to_string(each.earlier->program[0]);
      }
    }
    return text;
  }
  std::string touched() {
    std::string text;
    for (const Operand& each : recorder.take().operands) {
      text += (text.empty() ? "" : ", ") + std::string(each.writes ? "writes " : "reads ") + each.type + " from " +
              std::to_string(each.region.begin() - kBase);
    }
    return text;
  }
};

TEST(what_is_read_before_it_is_written_is_told_and_all_that_is_written) {
  Kernel kernel;
  const auto* load = kernel.site(kLoad);
  const auto* store = kernel.site(kStore);
  kernel.begin(0);
  kernel.access(load, 0, 64);
  kernel.access(store, 128, 16);
  kernel.access(load, 128, 32);
  CHECK_EQ(kernel.touched(), "reads 256 bytes from 0, writes 64 bytes from 128");
  CHECK_EQ(kernel.touched(), "");
}

TEST(rows_that_are_alike_are_one_operand) {
  Kernel kernel;
  const auto* store = kernel.site(kStore);
  kernel.begin(0);
  for (uint64_t row = 0; row < 32; ++row) kernel.access(store, row * 100, 16);
  const auto launch = kernel.recorder.take();
  CHECK_EQ(launch.operands.size(), size_t{1});
  CHECK_EQ(launch.operands[0].type, "2048 bytes");
  CHECK(!launch.operands[0].region.overlaps(Kernel::kBase + 64, Kernel::kBase + 100));
}

TEST(bytes_and_words_meet_where_they_overlap) {
  Kernel kernel;
  const auto* word = kernel.site(kStore, 8);
  const auto* byte = kernel.site(kStore, 1);
  kernel.begin(0);
  kernel.access(word, 0);
  kernel.begin(1);
  kernel.access(byte, 8);
  CHECK_EQ(kernel.findings(), "");
  kernel.begin(0);
  kernel.access(word, 0);
  kernel.begin(1);
  kernel.access(byte, 7);
  CHECK_EQ(kernel.findings(), "2 of 1 with 1 of 0");
}

TEST(programs_that_touch_what_another_one_writes_are_found) {
  Kernel kernel;
  const auto* load = kernel.site(kLoad);
  const auto* store = kernel.site(kStore);
  kernel.begin(0);
  kernel.access(load, 0, 16);
  kernel.access(store, 64, 16);
  kernel.begin(1);
  kernel.access(load, 0, 16);
  kernel.access(store, 128, 16);
  kernel.begin(2);
  kernel.access(load, 124, 2);
  kernel.access(store, 0, 16);
  CHECK_EQ(kernel.findings(), "1 of 2 with 2 of 0, 2 of 2 with 1 of 1");
}

TEST(programs_are_in_order_behind_atomics_that_acquire_what_was_released) {
  for (const bool is_ordered : {true, false}) {
    Kernel kernel;
    const auto* load = kernel.site(kLoad);
    const auto* store = kernel.site(kStore);
    const auto* ticket = kernel.site(is_ordered ? kAtomic : kRelaxed);
    for (int32_t program = 0; program < 4; ++program) {
      kernel.begin(program);
      kernel.access(store, 4 * static_cast<uint64_t>(program));
      kernel.access(ticket, 1024);
    }
    kernel.access(load, 0, 4);
    CHECK_EQ(kernel.findings(), is_ordered ? "" : "1 of 3 with 2 of 0");
  }
}

TEST(programs_that_take_turns_keep_what_they_have_learned) {
  const auto run = [](bool acquires_first) {
    Kernel kernel;
    const auto* load = kernel.site(kLoad);
    const auto* store = kernel.site(kStore);
    const auto* atomic = kernel.site(kAtomic);
    kernel.begin(3, MTIA_PROGRAM_BEGINS_AMONG_OTHERS);
    if (!acquires_first) kernel.access(atomic, 1024);  // before anything was released
    kernel.begin(5, MTIA_PROGRAM_BEGINS_AMONG_OTHERS);
    kernel.access(store, 0);
    kernel.access(atomic, 1024);
    kernel.end();
    kernel.resume(3);
    if (acquires_first) kernel.access(atomic, 1024);
    kernel.begin(4, MTIA_PROGRAM_BEGINS_AMONG_OTHERS);
    kernel.resume(3);
    kernel.access(kernel.site(kLoad), 512);
    kernel.resume(4);
    kernel.end();
    kernel.resume(3);
    kernel.access(load, 0);
    kernel.end();
    return kernel.findings();
  };
  CHECK_EQ(run(/*acquires_first=*/true), "");
  CHECK_EQ(run(/*acquires_first=*/false), "1 of 3 with 2 of 5");
}

TEST(what_comes_behind_a_release_is_not_released) {
  Kernel kernel;
  const auto* load = kernel.site(kLoad);
  const auto* store = kernel.site(kStore);
  const auto* release = kernel.site(kRelease);
  const auto* look = kernel.site(kVolatile);
  kernel.begin(0);
  kernel.access(store, 0);
  kernel.access(release, 1024);
  kernel.access(store, 4);
  kernel.begin(1);
  kernel.access(look, 1024);
  kernel.access(load, 0);
  CHECK_EQ(kernel.findings(), "");
  kernel.begin(0);
  kernel.access(store, 0);
  kernel.access(release, 1024);
  kernel.access(store, 4);
  kernel.begin(1);
  kernel.access(look, 1024);
  kernel.access(load, 4);
  CHECK_EQ(kernel.findings(), "1 of 1 with 2 of 0");
}

TEST(order_is_handed_on) {
  Kernel kernel;
  const auto* load = kernel.site(kLoad);
  const auto* store = kernel.site(kStore);
  const auto* atomic = kernel.site(kAtomic);
  kernel.begin(5);  // in whatever order they are numbered
  kernel.access(store, 0);
  kernel.access(atomic, 1024);
  kernel.begin(3);
  kernel.access(atomic, 1024);
  kernel.access(atomic, 1028);
  kernel.begin(4);
  kernel.access(atomic, 1028);
  kernel.access(load, 0);
  CHECK_EQ(kernel.findings(), "");
}

TEST(atomics_do_not_race_with_each_other_but_with_plain_accesses) {
  Kernel kernel;
  const auto* load = kernel.site(kLoad);
  const auto* atomic = kernel.site(kRelaxed);
  kernel.begin(0);
  kernel.access(atomic, 0);
  kernel.begin(1);
  kernel.access(atomic, 0);
  kernel.begin(2);
  kernel.access(load, 0);
  CHECK_EQ(kernel.findings(), "1 of 2 with 2 of 1");
}

TEST(an_atomic_does_not_hide_what_its_program_did_before) {
  Kernel kernel;
  const auto* load = kernel.site(kLoad);
  const auto* store = kernel.site(kStore);
  const auto* relaxed = kernel.site(kRelaxed);
  kernel.begin(0);
  kernel.access(store, 0);
  kernel.access(relaxed, 0);
  kernel.begin(1);
  kernel.access(relaxed, 0);
  CHECK_EQ(kernel.findings(), "3 of 1 with 2 of 0");
  kernel.begin(0);
  kernel.access(load, 0);
  kernel.access(relaxed, 0);
  kernel.begin(1);
  kernel.access(relaxed, 0);
  CHECK_EQ(kernel.findings(), "3 of 1 with 1 of 0");
}

TEST(all_that_have_read_are_remembered) {
  Kernel kernel;
  const auto* load = kernel.site(kLoad);
  const auto* store = kernel.site(kStore);
  const auto* ticket = kernel.site(kAtomic);
  for (int program = 0; program < 5; ++program) {
    kernel.begin(program);
    kernel.access(load, 0);
    if (program != 2) kernel.access(ticket, 128);
  }
  kernel.begin(5);
  kernel.access(ticket, 128);
  kernel.access(store, 0);
  CHECK_EQ(kernel.findings(), "2 of 5 with 1 of 2");
}

TEST(strips_side_by_side_keep_their_order_with_those_of_other_lines) {
  Kernel kernel;
  const auto* load = kernel.site(kLoad);
  const auto* store = kernel.site(kStore);
  const auto* again = kernel.site(kLoad);
  kernel.begin(0);
  for (uint64_t at = 0; at < 8192; at += 64) {  // behind the first strip, each line touches what the other has
    kernel.access(load, at + 64, 16);
    kernel.access(store, at, 16);
    kernel.access(again, at, 16);
  }
  CHECK_EQ(kernel.touched(), "reads 8192 bytes from 64, writes 8192 bytes from 0");
  kernel.begin(0);
  for (uint64_t at = 0; at < 8192; at += 64) {
    kernel.access(store, at, 16);
    kernel.access(load, at, 16);
  }
  CHECK_EQ(kernel.touched(), "writes 8192 bytes from 0");
}

TEST(pages_that_one_program_touches_are_told_apart_by_another_one) {
  for (const uint64_t offset : {uint64_t{0}, uint64_t{4096 + 60}, uint64_t{8192 - 4}}) {
    Kernel kernel;
    const auto* store = kernel.site(kStore);
    const auto* load = kernel.site(kLoad);
    kernel.begin(0);
    for (uint64_t at = 0; at < 8192; at += 64) kernel.access(store, at, 16);
    kernel.begin(1);
    kernel.access(load, 8192);
    CHECK_EQ(kernel.recorder.take().findings.size(), size_t{0});
    kernel.begin(0);
    for (uint64_t at = 0; at < 8192; at += 64) kernel.access(store, at, 16);
    kernel.begin(1);
    kernel.access(load, offset);
    CHECK_EQ(kernel.findings(), "2 of 1 with 1 of 0");
  }
}

TEST(what_comes_before_an_acquire_is_not_behind_what_that_has_learned) {
  Kernel kernel;
  const auto* store = kernel.site(kStore);
  const auto* release = kernel.site(kRelease);
  const auto* load = kernel.site(kLoad);
  const auto* acquire = kernel.site(kVolatile);
  kernel.begin(0);
  kernel.access(store, 0);
  kernel.access(release, 1024);
  kernel.begin(1);
  kernel.access(load, 0);
  kernel.access(acquire, 1024);
  CHECK_EQ(kernel.findings(), "3 of 1 with 1 of 0");
}

TEST(what_comes_before_a_release_is_released_and_what_comes_behind_it_is_not) {
  Kernel kernel;
  const auto* store = kernel.site(kStore);
  const auto* release = kernel.site(kRelease);
  const auto* load = kernel.site(kLoad);
  const auto* acquire = kernel.site(kVolatile);
  kernel.begin(0);
  kernel.access(store, 0, 16);
  kernel.access(release, 1024);
  kernel.access(store, 64, 16);  // side by side with what was released
  kernel.begin(1);
  kernel.access(acquire, 1024);
  kernel.access(load, 0, 16);
  CHECK_EQ(kernel.findings(), "");
  kernel.begin(0);
  kernel.access(store, 0, 16);
  kernel.access(release, 1024);
  kernel.access(store, 64, 16);
  kernel.begin(1);
  kernel.access(acquire, 1024);
  kernel.access(load, 0, 32);
  CHECK_EQ(kernel.findings(), "3 of 1 with 1 of 0");
}

TEST(lanes_of_one_store_may_only_agree) {
  Kernel kernel;
  const auto* store = kernel.site(kStore);
  kernel.begin(0);
  kernel.begin_store(store);
  kernel.store(store, {0, 4, 0}, {1, 2, 1});
  kernel.store(store, {8, 4}, {3, 2});
  kernel.begin_store(store);  // in the next round of a loop
  kernel.store(store, {0, 4, 8}, {7, 8, 9});
  CHECK_EQ(kernel.findings(), "");
  kernel.begin(0);
  kernel.begin_store(store);
  kernel.store(store, {0, 4, 0}, {1, 2, 3});
  CHECK_EQ(kernel.findings(), "1 of 0");
  kernel.begin(0);
  kernel.begin_store(store);
  kernel.store(store, {0, 4}, {1, 2});
  kernel.store(store, {8, 4}, {3, 5});
  CHECK_EQ(kernel.findings(), "1 of 0");
}

TEST(lanes_that_leave_the_tensor_of_their_argument_stop) {
  const uint64_t address = Kernel::kBase + 256;
  std::vector<std::byte> arguments(8);
  std::memcpy(arguments.data(), &address, sizeof(address));
  Kernel kernel(std::vector<mtia_span>{{Kernel::kBase, 128}, {Kernel::kBase + 256, 100}, {Kernel::kBase + 512, 512}},
                arguments);
  const auto* load = kernel.site(kLoad, 4, 0);
  const auto* unknown = kernel.site(kLoad);
  kernel.begin(0);
  CHECK_EQ(kernel.access(load, 256, 25), (uint64_t{1} << 25) - 1);
  CHECK_EQ(kernel.access(unknown, 512, 16), uint64_t{0xFFFF});
  CHECK_EQ(kernel.access(unknown, 112, 4), (uint64_t{1} << 4) - 1);
  CHECK_EQ(kernel.findings(), "");
  kernel.begin(7);
  CHECK_EQ(kernel.access(load, 256 + 92, 4), uint64_t{3});
  CHECK_EQ(kernel.findings(), "1 of 7");
  kernel.begin(0);
  CHECK_EQ(kernel.access(load, 512, 4), uint64_t{0});  // of another tensor
  CHECK_EQ(kernel.findings(), "1 of 0");
}

TEST(lanes_whose_end_exceeds_64_bits_stop) {
  const uint64_t address = Kernel::kBase;
  std::vector<std::byte> arguments(8);
  std::memcpy(arguments.data(), &address, sizeof(address));
  for (const int64_t argument : {0, -1}) {
    Kernel kernel(std::vector<mtia_span>{{Kernel::kBase, 128}}, arguments);
    const auto* load = kernel.site(kLoad, 4, argument);
    kernel.begin(0);
    CHECK_EQ(kernel.access(load, uint64_t{0} - Kernel::kBase - 4), uint64_t{0});
    CHECK_EQ(kernel.access(load, uint64_t{0} - Kernel::kBase - 8, 4), uint64_t{0});
    CHECK_EQ(kernel.findings(), "1 of 0");
  }
}

TEST(where_nothing_is_alive_all_lanes_stop) {
  Kernel kernel(std::vector<mtia_span>{});
  kernel.begin(0);
  CHECK_EQ(kernel.access(kernel.site(kStore), 0, 4), uint64_t{0});
  CHECK_EQ(kernel.findings(), "1 of 0");
}

TEST(a_kernel_that_was_not_compiled_for_it_is_not_followed) {
  Kernel kernel;
  CHECK(!kernel.recorder.take().was_followed);
  kernel.begin(0);
  CHECK(kernel.recorder.take().was_followed);
}

TEST(a_launch_with_sites_that_no_compiler_makes_is_not_followed) {
  for (const auto& [number, size] : {std::pair{~uint32_t{0}, uint32_t{4}}, std::pair{uint32_t{0}, uint32_t{64}},
                                     std::pair{uint32_t{0}, uint32_t{0}}}) {
    Kernel kernel;
    kernel.recorder.watch_numbers();
    const mtia_site* site = kernel.site(kLoad | MTIA_SITE_FLOAT, size);
    const_cast<mtia_site*>(site)->number = number;
    kernel.begin(0);
    CHECK_EQ(kernel.access(site, 0, 4), uint64_t{15});
    CHECK(!kernel.recorder.take().was_followed);
    kernel.begin(0);
    kernel.access(kernel.site(kLoad), 0, 4);
    CHECK(kernel.recorder.take().was_followed);
  }
}

}  // namespace
}  // namespace torch_mtia::test

int main(int argc, char** argv) {
  return torch_mtia::test::run_tests(argc, argv);
}
