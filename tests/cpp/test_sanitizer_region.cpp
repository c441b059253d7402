// Regions of strided tensors, against sets of their bytes.
#include "sanitizer/Region.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <set>
#include <vector>

#include "check.h"

namespace torch_mtia::test {
namespace {

using sanitizer::Region;

struct Layout {
  int64_t address;
  int64_t element_size;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;

  Region region() const { return Region(address, element_size, sizes, strides); }
  std::set<uint64_t> bytes() const {
    std::set<uint64_t> found;
    add(found, 0, address);
    return found;
  }
  void add(std::set<uint64_t>& found, size_t d, int64_t at) const {
    if (d == sizes.size()) {
      for (int64_t byte = 0; byte < element_size; ++byte) found.insert(at + byte);
      return;
    }
    for (int64_t i = 0; i < sizes[d]; ++i) add(found, d + 1, at + i * strides[d]);
  }
};

Layout random_layout(std::mt19937& random) {
  const auto number = [&](int64_t low, int64_t high) { return std::uniform_int_distribution(low, high)(random); };
  Layout layout{number(1000, 1060), number(1, 4), {}, {}};
  for (int64_t d = number(0, 3); d > 0; --d) {
    layout.sizes.push_back(number(0, 12) == 0 ? 0 : number(1, 5));
    layout.strides.push_back(number(-9, 20));
  }
  return layout;
}

TEST(regions_hold_and_meet_what_their_bytes_do) {
  std::mt19937 random(1);
  int met = 0;
  for (int round = 0; round < 20000; ++round) {
    const Layout one = random_layout(random);
    const Layout other = random_layout(random);
    const auto bytes = one.bytes();
    const Region region = one.region();
    CHECK_EQ(region.empty(), bytes.empty());
    if (bytes.empty()) continue;
    CHECK_EQ(region.begin(), *bytes.begin());
    CHECK_EQ(region.end(), *bytes.rbegin() + 1);
    if (region.is_dense()) CHECK_EQ(region.end() - region.begin(), bytes.size());
    bool meet = false;
    for (const uint64_t byte : other.bytes()) meet = meet || bytes.contains(byte);
    CHECK_EQ(region.overlaps(other.region()), meet);
    for (uint64_t at = region.begin() - 1; at <= region.end(); ++at) {
      const auto next = bytes.lower_bound(at);
      CHECK_EQ(region.next(at), next != bytes.end() ? *next : Region::kNone);
      if (!bytes.contains(at)) continue;
      CHECK(region.run_end(at) > at);
      for (uint64_t byte = at; byte < region.run_end(at); ++byte) CHECK(bytes.contains(byte));
    }
    const auto others = other.bytes();
    const bool has_all = std::all_of(others.begin(), others.end(), [&](uint64_t byte) { return bytes.contains(byte); });
    if (!others.empty() && region.contains(other.region())) CHECK(has_all);
    CHECK(region.contains(region));
    met += meet ? 1 : 0;
  }
  CHECK(met > 1000);
}

TEST(halves_of_rows_are_apart) {
  const int64_t sizes[] = {1000, 16};
  const int64_t strides[] = {128, 4};
  const Region left(4096, 4, sizes, strides);
  const Region right(4096 + 64, 4, sizes, strides);
  CHECK(!left.overlaps(right));
  CHECK(!right.overlaps(left));
  CHECK(left.overlaps(Region(4096 + 60, 4, sizes, strides)));
  CHECK(!left.is_dense());
  CHECK(Region(4096, 4, sizes, std::vector<int64_t>{64, 4}).is_dense());
  const int64_t fewer[] = {1000, 4};
  CHECK(right.contains(Region(4096 + 112, 4, fewer, strides)));
  CHECK(!right.contains(Region(4096 + 116, 4, fewer, strides)));
  CHECK(!Region(4096 + 64, 4, fewer, strides).contains(right));
  CHECK(Region::dense(4096, 128 * 1000).contains(right));
}

TEST(runs_here_and_there_meet_what_is_in_them) {
  const Region scattered({{100, 104}, {200, 208}, {216, 220}});
  CHECK_EQ(scattered.begin(), uint64_t{100});
  CHECK_EQ(scattered.end(), uint64_t{220});
  CHECK(!scattered.is_dense());
  CHECK(scattered.overlaps(103, 150) && scattered.overlaps(0, 1000) && scattered.overlaps(219, 220));
  CHECK(!scattered.overlaps(104, 200) && !scattered.overlaps(208, 216) && !scattered.overlaps(220, 300));
  CHECK(scattered.overlaps(Region::dense(207, 1)) && Region::dense(207, 1).overlaps(scattered));
  CHECK(!Region::dense(208, 8).overlaps(scattered));
  CHECK(scattered.overlaps(Region({{96, 100}, {103, 104}})) && !scattered.overlaps(Region({{96, 100}, {104, 200}})));
  const int64_t sizes[] = {4};
  const int64_t strides[] = {16};
  CHECK(scattered.overlaps(Region(204, 4, sizes, strides)));
  CHECK(!scattered.overlaps(Region(208, 4, sizes, strides)));
  CHECK_EQ(scattered.next(0), uint64_t{100});
  CHECK_EQ(scattered.next(103), uint64_t{103});
  CHECK_EQ(scattered.next(104), uint64_t{200});
  CHECK_EQ(scattered.next(220), Region::kNone);
  CHECK(scattered.contains(Region(scattered)));
}

}  // namespace
}  // namespace torch_mtia::test

int main(int argc, char** argv) {
  return torch_mtia::test::run_tests(argc, argv);
}
