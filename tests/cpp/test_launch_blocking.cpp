// Launch blocking: every launch returns when its work is done, and tells whether it failed.
#include <string>
#include <thread>

#include "device_under_test.h"

namespace torch_mtia::test {
namespace {

TEST(work_is_done_when_the_launch_returns) {
  core::Stream& stream = new_stream();
  for (const core::WorkInfo& info : {kSmall, kLarge}) {
    bool done = false;
    CHECK_EQ(stream.launch(info, [&](const mtia_work_context&) { done = true; }), MTIA_SUCCESS);
    CHECK(done);
  }
}

TEST(large_work_still_runs_on_the_executor_with_its_threads) {
  core::Stream& stream = new_stream();
  std::thread::id ran_on;
  int granted = 0;
  stream.launch({.name = "parallel", .cost = 1'000'000, .num_threads = 3}, [&](const mtia_work_context& context) {
    ran_on = std::this_thread::get_id();
    granted = context.num_threads;
  });
  CHECK(ran_on != std::this_thread::get_id());
  CHECK_EQ(granted, 3);
}

TEST(a_failure_is_returned_by_the_launch_with_its_exception) {
  core::Stream& stream = new_stream();
  for (const core::WorkInfo& info : {kSmall, kLarge}) {
    CHECK_EQ(stream.launch(info, [](const mtia_work_context&) { throw std::out_of_range("index 7"); }),
             MTIA_ERROR_LAUNCH_FAILED);
    CHECK_CONTAINS(api().last_error_message(), info.name);
    CHECK_EQ(CHECK_THROWS(std::out_of_range, finish(stream)), "index 7");
    finish(stream);  // nothing left behind
    CHECK_EQ(stream.launch(info, [](const mtia_work_context&) {}), MTIA_SUCCESS);
  }
}

TEST(nested_work_reports_to_the_work_around_it) {
  core::Stream& stream = new_stream();
  mtia_status inner = MTIA_SUCCESS;
  CHECK_EQ(stream.launch(kLarge,
                         [&](const mtia_work_context&) {
                           inner = stream.launch(kSmall, [](const mtia_work_context&) { throw 1; });
                         }),
           MTIA_SUCCESS);
  CHECK_EQ(inner, MTIA_ERROR_LAUNCH_FAILED);
  CHECK(stream.take_error().has_value());
}

TEST(copies_fills_and_events_work_as_ever) {
  core::Stream& stream = new_stream();
  core::Stream& other = new_stream();
  mtia_device_ptr address = 0;
  runtime::call(&mtia_runtime_api::memory_allocate, 0, 4096, &address);
  const uint32_t value = 7;
  runtime::call(&mtia_runtime_api::memory_fill, stream.handle(), address, &value, 4, 1024);
  core::Event event(true);
  event.record(stream);
  other.wait(event);
  uint32_t read = 0;
  runtime::call(&mtia_runtime_api::memory_copy, other.handle(), reinterpret_cast<uint64_t>(&read), address + 4092, 4,
                MTIA_COPY_DEVICE_TO_HOST);
  CHECK_EQ(read, value);
  runtime::call(&mtia_runtime_api::memory_free, 0, address);
}

}  // namespace
}  // namespace torch_mtia::test

int main(int argc, char** argv) {
  return torch_mtia::test::run_tests_on_device(argc, argv, {.launch_blocking = true});
}
