// The trace of work items: what the driver reports, and what the recording makes of it.
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <string>
#include <thread>
#include <vector>

#include "core/WorkTrace.h"
#include "device_under_test.h"

namespace torch_mtia::test {
namespace {

using core::WorkRecord;
using core::WorkTrace;

void nothing(const mtia_work_context&) {}

const WorkRecord& find(const std::deque<WorkRecord>& records, const std::string& name) {
  const auto found =
      std::find_if(records.begin(), records.end(), [&](const WorkRecord& record) { return record.name == name; });
  CHECK(found != records.end());
  return *found;
}

TEST(each_item_is_recorded_with_its_stream_thread_and_times) {
  core::Stream& stream = new_stream(1);
  CHECK(WorkTrace::start());
  stream.launch(kSmall, nothing);
  stream.launch(kLarge, nothing);
  finish(stream);
  const auto records = WorkTrace::stop();
  CHECK_EQ(records.size(), 2u);
  CHECK(records[0].id != records[1].id);
  for (const WorkRecord& record : records) {
    CHECK(record.stream == &stream);
    CHECK_EQ(record.thread, static_cast<int32_t>(gettid()));
    CHECK_EQ(record.operation, 0u);
    CHECK(record.submit_start_ns <= record.submit_end_ns);
    CHECK(record.submit_start_ns <= record.start_ns);
    CHECK(record.start_ns <= record.end_ns);
  }
  const WorkRecord& within_the_call = find(records, "small");
  CHECK(within_the_call.end_ns <= within_the_call.submit_end_ns);
  CHECK(find(records, "large").start_ns >= within_the_call.end_ns);
}

TEST(a_record_keeps_the_name_of_what_is_gone) {
  core::Stream& stream = new_stream();
  WorkTrace::start();
  {
    std::string name = "a kernel that is collected before anybody reads the records";
    stream.launch({.name = name.c_str()}, nothing);
    finish(stream);
    std::fill(name.begin(), name.end(), 'x');
  }
  const auto records = WorkTrace::stop();
  CHECK_EQ(records.size(), 1u);
  CHECK_EQ(std::string(records[0].name), "a kernel that is collected before anybody reads the records");
}

TEST(copies_fills_and_waits_are_recorded_too) {
  core::Stream& stream = new_stream();
  core::Stream& other = new_stream();
  mtia_device_ptr address = 0;
  runtime::call(&mtia_runtime_api::memory_allocate, 0, 4096, &address);
  Gate gate;
  hold(stream, gate);
  core::Event event(true);
  event.record(stream);
  WorkTrace::start();
  other.wait(event);
  const uint32_t value = 7;
  runtime::call(&mtia_runtime_api::memory_fill, other.handle(), address, &value, 4, 1024);
  uint32_t read = 0;
  runtime::call(&mtia_runtime_api::memory_copy, other.handle(), reinterpret_cast<uint64_t>(&read), address, 4,
                MTIA_COPY_DEVICE_TO_HOST);
  gate.open();
  finish(other);
  const auto records = WorkTrace::stop();
  CHECK_EQ(records.size(), 3u);
  CHECK(find(records, "mtia::stream_wait_event").end_ns <= find(records, "mtia::memory_fill").start_ns);
  CHECK(find(records, "mtia::memory_fill").end_ns <= find(records, "mtia::memory_copy").start_ns);
  runtime::call(&mtia_runtime_api::memory_free, 0, address);
}

TEST(nothing_is_recorded_before_the_start_or_after_the_stop) {
  core::Stream& stream = new_stream();
  Gate gate;
  hold(stream, gate);
  WorkTrace::start();
  CHECK(!WorkTrace::start());
  stream.launch({.name = "in flight"}, nothing);
  const auto records = WorkTrace::stop();
  stream.launch({.name = "late"}, nothing);
  gate.open();
  finish(stream);
  CHECK_EQ(records.size(), 1u);
  CHECK_EQ(std::string(records[0].name), "in flight");
  CHECK_EQ(records[0].end_ns, 0);
  WorkTrace::start();
  CHECK(WorkTrace::stop().empty());
}

TEST(an_item_is_recorded_with_the_innermost_operation_of_its_thread) {
  core::Stream& stream = new_stream();
  WorkTrace::start();
  WorkTrace::push_operation(7);
  WorkTrace::push_operation(8);
  stream.launch({.name = "inner"}, nothing);
  WorkTrace::pop_operation();
  stream.launch({.name = "outer"}, nothing);
  std::thread([&] { stream.launch({.name = "other thread"}, nothing); }).join();
  WorkTrace::pop_operation();
  WorkTrace::pop_operation();  // one too many does no harm
  stream.launch({.name = "none"}, nothing);
  WorkTrace::push_operation(9);  // is never popped
  finish(stream);
  const auto records = WorkTrace::stop();
  CHECK_EQ(find(records, "inner").operation, 8u);
  CHECK_EQ(find(records, "outer").operation, 7u);
  CHECK_EQ(find(records, "other thread").operation, 0u);
  CHECK_EQ(find(records, "none").operation, 0u);

  WorkTrace::start();
  stream.launch(kSmall, nothing);
  CHECK_EQ(WorkTrace::stop().front().operation, 0u);
}

std::atomic<int> heard{0};

TEST(a_listener_hears_of_launches_with_and_without_a_recording) {
  core::Stream& stream = new_stream();
  WorkTrace::set_launch_listener([](const core::Stream&, const char*) noexcept { ++heard; });
  stream.launch(kSmall, nothing);
  WorkTrace::start();
  stream.launch(kSmall, nothing);
  WorkTrace::stop();
  stream.launch(kSmall, nothing);
  WorkTrace::set_launch_listener(nullptr);
  stream.launch(kSmall, nothing);
  CHECK_EQ(heard, 3);
}

TEST(recordings_may_begin_and_end_while_threads_launch) {
  std::atomic<bool> done{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      core::Stream& stream = new_stream();
      while (!done) {
        WorkTrace::push_operation(1);
        stream.launch(kSmall, nothing);
        stream.launch(kLarge, nothing);
        WorkTrace::pop_operation();
        finish(stream);
      }
    });
  }
  size_t recorded = 0;
  while (recorded < 1000) {
    WorkTrace::start();
    std::this_thread::yield();
    recorded += WorkTrace::stop().size();
  }
  done = true;
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace torch_mtia::test

int main(int argc, char** argv) {
  return torch_mtia::test::run_tests_on_device(argc, argv);
}
