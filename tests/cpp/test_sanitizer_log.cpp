// Entries of the log are applied in their order, however late some of them come.
#include "sanitizer/Log.h"

#include <chrono>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "check.h"

namespace torch_mtia::test {
namespace {

using namespace sanitizer;

// A log whose entries say what was applied.
struct Said {
  Log log;
  std::string text;

  void add(const char* what) {
    log.add([this, what] { text += what; });
  }
  // Applied when the kernels have finished.
  std::vector<std::shared_ptr<Watcher>> add_kernels(const char* what, size_t count) {
    std::vector<std::shared_ptr<Watcher>> kernels;
    std::vector<Node> nodes(1);  // one that is no kernel
    while (kernels.size() < count) {
      kernels.push_back(std::make_shared<Watcher>(mtia_kernel_launch{}, false, false));
      nodes.push_back({.item = {.name = "kernel", .operands = {}, .context = {}}, .kernel = kernels.back()});
    }
    log.add(std::move(nodes), [this, what, count](std::vector<Node> done) {
      CHECK_EQ(done.size(), count + 1);
      CHECK(done.front().item.is_listed && (count == 0 || !done.back().item.is_listed));
      text += what;
    });
    return kernels;
  }
};

TEST(what_comes_after_a_kernel_waits_for_it) {
  Said said;
  said.add("a");
  said.add_kernels("b", 0);
  CHECK_EQ(said.text, "ab");
  const auto first = said.add_kernels("c", 2);
  said.add("d");
  const auto second = said.add_kernels("e", 1);
  said.add("f");
  second[0]->finished();
  first[1]->finished();
  CHECK_EQ(said.text, "ab");
  first[0]->finished();
  CHECK_EQ(said.text, "abcdef");
  said.add("g");
  CHECK_EQ(said.text, "abcdefg");
}

TEST(what_is_cleared_is_never_applied) {
  Said said;
  const auto kernels = said.add_kernels("a", 1);
  said.add("b");
  said.log.clear();
  kernels[0]->finished();
  said.add("c");
  CHECK_EQ(said.text, "c");
}

TEST(an_entry_that_fails_is_not_applied_again) {
  Said said;
  const auto kernel = std::make_shared<Watcher>(mtia_kernel_launch{}, false, false);
  said.log.add({{.item = {.name = "kernel", .operands = {}, .context = {}}, .kernel = kernel}}, [&](std::vector<Node>) {
    said.text += "a";
    throw std::bad_alloc();
  });
  said.add("b");
  kernel->finished();
  said.add_kernels("c", 0);
  CHECK_EQ(said.text, "abc");
}

TEST(waiting_ends_when_everything_is_applied_or_takes_too_long) {
  Said said;
  const auto kernels = said.add_kernels("a", 1);
  said.log.wait(std::chrono::seconds(0));
  std::thread worker([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    kernels[0]->finished();
  });
  said.log.wait(std::chrono::seconds(60));
  CHECK_EQ(said.text, "a");
  worker.join();
}

}  // namespace
}  // namespace torch_mtia::test

int main(int argc, char** argv) {
  return torch_mtia::test::run_tests(argc, argv);
}
