// With a delay seed, work is done when somebody waits for it, and missing synchronization shows.
#include <atomic>
#include <thread>

#include "core/Event.h"
#include "device_under_test.h"

namespace torch_mtia::test {
namespace {

TEST(what_nobody_waits_for_is_not_done_when_something_else_is) {
  constexpr int kRounds = 20;  // on a busy machine the time for which work is held back may pass in one of them
  int not_done = 0;
  for (int round = 0; round < kRounds; ++round) {
    core::Stream& forgotten = new_stream();
    core::Stream& awaited = new_stream();
    std::atomic<bool> done{false};
    std::atomic<bool> seen{true};
    forgotten.launch(kSmall, [&](const mtia_work_context&) { done = true; });
    awaited.launch(kSmall, [&](const mtia_work_context&) { seen = done.load(); });
    finish(awaited);
    if (!seen) ++not_done;
    finish(forgotten);
    CHECK(done);
  }
  CHECK(not_done > 0);
}

TEST(an_event_that_a_stream_waits_for_comes_first) {
  core::Stream& producer = new_stream();
  core::Stream& consumer = new_stream();
  std::atomic<int> value{0};
  std::atomic<int> seen{0};
  producer.launch(kSmall, [&](const mtia_work_context&) { value = 1; });
  core::Event event(/*enable_timing=*/false);
  event.record(producer);
  consumer.wait(event);
  consumer.launch(kSmall, [&](const mtia_work_context&) { seen = value.load(); });
  finish(consumer);
  CHECK_EQ(seen.load(), 1);
}

TEST(work_is_done_in_the_end_though_nobody_waits) {
  core::Stream& stream = new_stream();
  stream.launch(kSmall, [](const mtia_work_context&) {});
  while (!stream.query()) std::this_thread::yield();
}

}  // namespace
}  // namespace torch_mtia::test

int main(int argc, char** argv) {
  return torch_mtia::test::run_tests_on_device(argc, argv, {.delay_seed = 7});
}
