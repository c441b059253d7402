// A thread that waits for an item may leave before the item has run: the item must not touch its stack then.
#include "core/Waits.h"

#include <atomic>
#include <exception>
#include <stdexcept>
#include <thread>

#include "core/Graph.h"
#include "device_under_test.h"

namespace torch_mtia::test {
namespace {

constexpr core::WorkInfo kOnExecutor{.name = "waited for", .cost = 1'000'000, .flags = 0};

// An item that its launching thread waits for.
auto item(uint64_t ticket, std::atomic<int>& runs, std::atomic<int>& runs_without_thread) {
  return [ticket, &runs, &runs_without_thread](const mtia_work_context&) {
    core::Awaited::Run thread(ticket);
    if (!thread) {
      ++runs_without_thread;
      return;
    }
    ++runs;
    thread.finish();
  };
}

TEST(a_wait_ends_with_the_item_and_raises_what_it_threw) {
  core::Stream& stream = new_stream();
  std::atomic<int> runs{0};
  core::Awaited awaited;
  stream.launch(kOnExecutor, item(awaited.ticket(), runs, runs));
  awaited.wait(stream);
  CHECK_EQ(runs.load(), 1);

  core::Awaited failing;
  stream.launch(kOnExecutor, [ticket = failing.ticket()](const mtia_work_context&) {
    core::Awaited::Run thread(ticket);
    thread.fail(std::make_exception_ptr(std::out_of_range("index 7")));
    thread.finish();
  });
  CHECK_EQ(CHECK_THROWS(std::out_of_range, failing.wait(stream)), "index 7");
  finish(stream);  // nothing left behind
}

TEST(an_item_finds_nobody_when_its_thread_has_left) {
  core::Stream& stream = new_stream();
  Gate gate;
  hold(stream, gate);
  std::atomic<int> runs{0};
  std::atomic<int> runs_without_thread{0};
  {
    const core::Awaited awaited;
    stream.launch(kOnExecutor, item(awaited.ticket(), runs, runs_without_thread));
  }
  gate.open();
  finish(stream);
  CHECK_EQ(runs.load(), 0);
  CHECK_EQ(runs_without_thread.load(), 1);
}

TEST(a_thread_does_not_leave_while_the_item_is_running) {
  core::Stream& stream = new_stream();
  Gate gate;
  std::atomic<bool> is_running{false};
  std::atomic<bool> is_done{false};
  std::thread opens;
  {
    const core::Awaited awaited;
    stream.launch(kOnExecutor, [&, ticket = awaited.ticket()](const mtia_work_context&) {
      const core::Awaited::Run thread(ticket);
      is_running = true;
      gate.wait();
      is_done = true;
    });
    while (!is_running) std::this_thread::yield();
    opens = std::thread([&] { gate.open(); });
  }
  CHECK(is_done);
  opens.join();
  finish(stream);
}

TEST(a_wait_outlives_a_capture_that_another_thread_begins) {
  core::Stream& stream = new_stream();
  Gate gate;
  hold(stream, gate);
  std::atomic<int> runs{0};
  core::Awaited awaited;
  stream.launch(kOnExecutor, item(awaited.ticket(), runs, runs));
  core::Graph graph;
  graph.begin_capture(stream);
  std::thread opens([&] { gate.open(); });
  awaited.wait(stream);
  CHECK_EQ(runs.load(), 1);
  opens.join();
  graph.end_capture();
  CHECK_EQ(graph.invalid_reason(), "");
}

TEST(an_error_is_given_to_the_thread_that_waits_and_to_no_other) {
  const auto error = std::make_exception_ptr(std::out_of_range("index 7"));
  uint64_t ticket = 0;
  {
    core::Awaited awaited;
    ticket = awaited.ticket();
    CHECK(core::Awaited::give(ticket, error));
    CHECK_EQ(CHECK_THROWS(std::out_of_range, awaited.raise_error()), "index 7");
    awaited.raise_error();  // once
  }
  CHECK(!core::Awaited::give(ticket, error));
}

// What a launch does that is captured after it has looked whether it would be.
TEST(an_error_of_a_captured_item_goes_to_the_stream_when_its_thread_has_left) {
  core::Stream& stream = new_stream();
  core::Graph graph;
  graph.begin_capture(stream);
  {
    const core::Awaited awaited;
    const auto fail = [](const mtia_work_context&) { throw std::out_of_range("index 7"); };
    core::WorkBlock<decltype(fail)> block{fail, "fails"};
    block.awaited = awaited.ticket();
    stream.launch(core::make_work(kSmall, block));
  }
  graph.end_capture();
  graph.instantiate();
  for (int replay = 0; replay < 2; ++replay) {
    graph.launch(stream, nullptr);
    CHECK_EQ(CHECK_THROWS(std::out_of_range, finish(stream)), "index 7");
  }
}

}  // namespace
}  // namespace torch_mtia::test

int main(int argc, char** argv) {
  return torch_mtia::test::run_tests_on_device(argc, argv);
}
