// Events: what a record stands for, and who waits for it.
#include <cstring>
#include <memory>
#include <thread>

#include "device_under_test.h"

namespace torch_mtia::test {
namespace {

mtia_status status_of(const core::Event& start, const core::Event& end) {
  double milliseconds = 0;
  return api().event_elapsed_time(start.handle(), end.handle(), &milliseconds);
}

TEST(an_event_that_was_never_recorded_is_complete) {
  core::Event event(false);
  CHECK(event.query());
  event.synchronize();
  core::Stream& stream = new_stream();
  stream.wait(event);
  CHECK(stream.query());
}

TEST(a_record_on_an_idle_stream_is_complete_at_once) {
  core::Event event(false);
  event.record(new_stream());
  CHECK(event.query());
}

TEST(a_record_on_a_busy_stream_completes_when_the_stream_gets_there) {
  core::Stream& stream = new_stream();
  core::Event event(false);
  Gate before;
  Gate behind;
  hold(stream, before);
  event.record(stream);
  hold(stream, behind);
  CHECK(!event.query());
  before.open();
  event.synchronize();  // returns although the stream is still held
  CHECK(event.query());
  CHECK(!stream.query());
  behind.open();
  finish(stream);
}

TEST(a_stream_waits_for_an_event_of_another_stream_and_device) {
  for (const int32_t device : {0, 1}) {
    core::Stream& producer = new_stream(0);
    core::Stream& consumer = new_stream(device);
    core::Event event(false);
    Gate gate;
    int value = 0;
    int seen = 0;
    hold(producer, gate);
    producer.launch(kSmall, [&](const mtia_work_context&) { value = 42; });
    event.record(producer);
    consumer.wait(event);
    consumer.launch(kSmall, [&](const mtia_work_context&) { seen = value; });
    CHECK(!consumer.query());
    gate.open();
    finish(consumer);
    CHECK_EQ(seen, 42);
    finish(producer);
  }
}

TEST(waiting_is_for_the_record_that_was_last_when_it_was_asked_for) {
  core::Stream& first = new_stream();
  core::Stream& second = new_stream();
  core::Stream& early_waiter = new_stream();
  core::Stream& late_waiter = new_stream();
  core::Event event(false);
  Gate first_gate;
  Gate second_gate;
  hold(first, first_gate);
  hold(second, second_gate);
  event.record(first);
  early_waiter.wait(event);
  event.record(second);
  late_waiter.wait(event);

  // The second record completes first, which does not let the early waiter go.
  second_gate.open();
  event.synchronize();
  finish(late_waiter);
  CHECK(event.query());
  CHECK(!early_waiter.query());
  first_gate.open();
  finish(early_waiter);
}

TEST(recording_again_does_not_delay_who_waits_for_the_earlier_record) {
  core::Stream& first = new_stream();
  core::Stream& second = new_stream();
  core::Stream& waiter = new_stream();
  core::Event event(false);
  Gate first_gate;
  Gate second_gate;
  hold(first, first_gate);
  hold(second, second_gate);
  event.record(first);
  waiter.wait(event);
  event.record(second);
  first_gate.open();
  finish(waiter);
  CHECK(!event.query());
  second_gate.open();
  event.synchronize();
}

TEST(an_event_may_be_destroyed_while_streams_wait_for_it) {
  core::Stream& stream = new_stream();
  core::Stream& waiter = new_stream();
  Gate gate;
  hold(stream, gate);
  {
    core::Event event(false);
    event.record(stream);
    waiter.wait(event);
  }
  bool ran = false;
  waiter.launch(kSmall, [&](const mtia_work_context&) { ran = true; });
  gate.open();
  finish(waiter);
  CHECK(ran);
}

TEST(a_stream_does_not_wait_for_its_own_record) {
  core::Stream& stream = new_stream();
  core::Event event(false);
  Gate gate;
  hold(stream, gate);
  event.record(stream);
  stream.wait(event);
  gate.open();
  finish(stream);
}

TEST(a_record_inside_work_of_the_stream_is_complete_at_once) {
  core::Stream& stream = new_stream();
  core::Event event(false);
  bool complete = false;
  stream.launch(kLarge, [&](const mtia_work_context&) {
    event.record(stream);
    complete = event.query();
  });
  finish(stream);
  CHECK(complete);
}

TEST(a_moved_event_keeps_its_record) {
  core::Stream& stream = new_stream();
  Gate gate;
  hold(stream, gate);
  core::Event event(false);
  event.record(stream);
  core::Event moved(std::move(event));
  CHECK(!moved.query());
  core::Event assigned(false);
  assigned = std::move(moved);
  CHECK(!assigned.query());
  gate.open();
  assigned.synchronize();
}

TEST(elapsed_time_is_measured_on_the_stream) {
  core::Stream& stream = new_stream();
  core::Event start(true);
  core::Event end(true);
  Gate gate;
  start.record(stream);
  hold(stream, gate);
  end.record(stream);
  CHECK_EQ(status_of(start, end), MTIA_ERROR_NOT_READY);
  gate.open();
  end.synchronize();
  CHECK(start.elapsed_time(end) >= 0);
  CHECK(end.elapsed_time(start) <= 0);
}

TEST(elapsed_time_needs_two_records_with_timing) {
  core::Stream& stream = new_stream();
  core::Event timed(true);
  core::Event never_recorded(true);
  core::Event untimed(false);
  timed.record(stream);
  untimed.record(stream);
  CHECK_EQ(status_of(timed, never_recorded), MTIA_ERROR_INVALID_VALUE);
  CHECK_CONTAINS(api().last_error_message(), "never recorded");
  CHECK_EQ(status_of(untimed, timed), MTIA_ERROR_INVALID_VALUE);
  CHECK_CONTAINS(api().last_error_message(), "without timing");
  CHECK_THROWS(runtime::DriverError, timed.elapsed_time(never_recorded));
}

TEST(several_threads_may_wait_for_one_record) {
  core::Stream& stream = new_stream();
  core::Event event(false);
  Gate gate;
  int value = 0;
  hold(stream, gate);
  stream.launch(kSmall, [&](const mtia_work_context&) { value = 1; });
  event.record(stream);
  std::vector<std::thread> waiters;
  std::vector<int> seen(4);
  for (int& result : seen) {
    waiters.emplace_back([&] {
      event.synchronize();
      result = value;
    });
  }
  gate.open();
  for (std::thread& waiter : waiters) waiter.join();
  for (const int result : seen) CHECK_EQ(result, 1);
}

// Fails in the driver when the thread ends, and looks at the message.
struct FailsAtTheEnd {
  ~FailsAtTheEnd() {
    status = api().event_query(nullptr);
    length = std::strlen(api().last_error_message());
  }
  static inline mtia_status status = MTIA_SUCCESS;
  static inline size_t length = 0;
};

TEST(calls_may_fail_until_the_thread_has_ended) {
  std::thread thread([] {
    thread_local FailsAtTheEnd made_first;  // and so destroyed last
    (void)&made_first;
    CHECK_EQ(api().event_query(nullptr), MTIA_ERROR_INVALID_VALUE);
    CHECK_CONTAINS(api().last_error_message(), "null");
  });
  thread.join();
  CHECK_EQ(FailsAtTheEnd::status, MTIA_ERROR_INVALID_VALUE);
  CHECK_EQ(FailsAtTheEnd::length, size_t{0});
}

}  // namespace
}  // namespace torch_mtia::test

int main(int argc, char** argv) {
  return torch_mtia::test::run_tests_on_device(argc, argv);
}
