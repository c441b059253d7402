// Which accesses of kernels the bounds check of the driver lets through.
#include <array>
#include <cstdint>

#include "check.h"
#include "runtime/host/kernel.h"

namespace torch_mtia::test {
namespace {

constexpr mtia_span kLive{0x1000, 64};

// The lanes of one access that are inside of kLive, of `size` bytes each.
uint64_t inside(uint64_t address, uint64_t size, uint64_t lanes = 1, int64_t stride = 0) {
  mtia_error_cell cell{};
  mtia_kernel_context context{};
  context.error_cell = &cell;
  context.live_ranges = &kLive;
  context.num_live_ranges = 1;
  mtia_site site{};
  site.file = "kernel.py";
  site.argument = "x";
  site.size = size;
  site.kind = MTIA_SITE_READS;
  const auto& watch = runtime::host::bounds_watch;
  const uint64_t result = watch.access(&watch, &context, &site, 0, 0, 0, address, stride, nullptr, lanes, nullptr);
  CHECK_EQ(cell.reported != 0, result != lanes);
  return result;
}

TEST(an_access_is_inside_to_its_last_byte) {
  CHECK_EQ(inside(0x1000, 64), uint64_t{1});
  CHECK_EQ(inside(0x103c, 4), uint64_t{1});
  CHECK_EQ(inside(0x103d, 4), uint64_t{0});
  CHECK_EQ(inside(0x0fff, 1), uint64_t{0});
  CHECK_EQ(inside(0x1040, 1), uint64_t{0});
  CHECK_EQ(inside(0x1000, 65), uint64_t{0});
  CHECK_EQ(inside(0x1030, 8, /*lanes=*/7, /*stride=*/8), uint64_t{3});
}

TEST(an_access_whose_end_exceeds_64_bits_is_outside) {
  for (uint64_t size : {2, 4, 8, 64}) {
    for (uint64_t before_the_end = 1; before_the_end < size; ++before_the_end) {
      CHECK_EQ(inside(uint64_t{0} - before_the_end, size), uint64_t{0});
    }
  }
  CHECK_EQ(inside(0, 4, /*lanes=*/3, /*stride=*/-4), uint64_t{0});
}

}  // namespace
}  // namespace torch_mtia::test

int main(int argc, char** argv) {
  return torch_mtia::test::run_tests(argc, argv);
}
