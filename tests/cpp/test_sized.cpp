// Structs of callers whose header is older or newer than the driver's.
#include <cstddef>
#include <cstdint>

#include "check.h"
#include "runtime/host/error.h"

namespace torch_mtia::test {
namespace {

using runtime::host::Failure;
using runtime::host::fill_in;
using runtime::host::with_struct;

// As ABI version 1 began, as the driver's header has it, and as a later one does.
struct First {
  uint32_t struct_size;
  int32_t value;
};
struct Known {
  uint32_t struct_size;
  int32_t value;
  int64_t appended;
};
struct Later {
  Known known;
  int64_t unknown;
};
constexpr uint32_t kLeast = sizeof(First);

TEST(what_an_older_caller_leaves_out_is_zero) {
  const Known given{kLeast, 5, -1};  // the last lies behind the caller's struct
  with_struct(&given, kLeast, "it", [](const Known& whole) {
    CHECK_EQ(whole.value, 5);
    CHECK_EQ(whole.appended, 0);
  });
}

TEST(what_a_newer_caller_says_more_is_left_alone) {
  const Later given{{sizeof(Later), 5, 6}, 7};
  with_struct(&given.known, kLeast, "it", [&](const Known& whole) { CHECK_EQ(&whole, &given.known); });
}

TEST(a_struct_shorter_than_at_first_is_refused) {
  for (const uint32_t size : {0U, 4U, kLeast - 1}) {
    Known given{size, 5, 6};
    CHECK_CONTAINS(CHECK_THROWS(Failure, with_struct(&given, kLeast, "it", [](const Known&) { CHECK(false); })), "it");
    CHECK_CONTAINS(CHECK_THROWS(Failure, fill_in(&given, kLeast, "it", {0, 1, 2})), "it");
    CHECK_EQ(given.value, 5);
  }
  Known* none = nullptr;
  CHECK_CONTAINS(CHECK_THROWS(Failure, with_struct(none, kLeast, "it", [](const Known&) {})), "null");
  CHECK_CONTAINS(CHECK_THROWS(Failure, fill_in(none, kLeast, "it", {})), "null");
}

TEST(only_what_a_caller_has_room_for_is_filled_in) {
  Later to{{kLeast, 0, -1}, -1};
  fill_in(&to.known, kLeast, "it", {99, 5, 6});
  CHECK_EQ(to.known.struct_size, kLeast);
  CHECK_EQ(to.known.value, 5);
  CHECK_EQ(to.known.appended, -1);
  to.known.struct_size = sizeof(to);
  fill_in(&to.known, kLeast, "it", {99, 5, 6});
  CHECK_EQ(to.known.appended, 6);
  CHECK_EQ(to.unknown, -1);
  CHECK_EQ(to.known.struct_size, sizeof(to));
}

}  // namespace
}  // namespace torch_mtia::test

int main(int argc, char** argv) {
  return torch_mtia::test::run_tests(argc, argv);
}
