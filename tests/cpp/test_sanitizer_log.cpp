// Entries of the log are applied in their order, however late some of them come.
#include "sanitizer/Log.h"

#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "check.h"

namespace torch_mtia::test {
namespace {

using sanitizer::Log;

TEST(what_comes_behind_a_kernel_waits_for_it) {
  Log log;
  std::string text;
  const auto say = [&](const char* what) { return [&text, what] { text += what; }; };
  log.add(say("a"));
  CHECK_EQ(text, "a");
  const auto first = log.reserve();
  log.add(say("c"));
  const auto second = log.reserve();
  log.add(say("e"));
  log.fill(*second, say("d"));
  CHECK_EQ(text, "a");
  log.fill(*first, say("b"));
  CHECK_EQ(text, "abcde");
  log.add(say("f"));
  CHECK_EQ(text, "abcdef");
}

TEST(what_is_cleared_is_never_applied) {
  Log log;
  std::string text;
  const auto place = log.reserve();
  log.add([&] { text += "b"; });
  log.clear();
  log.fill(*place, [&] { text += "a"; });
  log.add([&] { text += "c"; });
  CHECK_EQ(text, "c");
}

TEST(waiting_ends_when_everything_is_applied_or_takes_too_long) {
  Log log;
  const auto place = log.reserve();
  log.wait(std::chrono::seconds(0));
  bool is_applied = false;
  std::thread worker([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    log.fill(*place, [&] { is_applied = true; });
  });
  log.wait(std::chrono::seconds(60));
  CHECK(is_applied);
  worker.join();
}

}  // namespace
}  // namespace torch_mtia::test

int main(int argc, char** argv) {
  return torch_mtia::test::run_tests(argc, argv);
}
