// Launch blocking: every launch returns when its work is done, and tells whether it failed.
#include <atomic>
#include <stdexcept>
#include <string>
#include <thread>

#include "../../csrc/core/Graph.h"
#include "../../csrc/core/Waits.h"
#include "device_under_test.h"

namespace torch_mtia::test {
namespace {

TEST(work_is_done_when_the_launch_returns) {
  core::Stream& stream = new_stream();
  for (const core::WorkInfo& info : {kSmall, kLarge}) {
    bool done = false;
    stream.launch(info, [&](const mtia_work_context&) { done = true; });
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

TEST(a_launch_throws_what_its_work_throws) {
  core::Stream& stream = new_stream();
  for (const core::WorkInfo& info : {kSmall, kLarge}) {
    const auto fail = [](const mtia_work_context&) { throw std::out_of_range("index 7"); };
    CHECK_EQ(CHECK_THROWS(std::out_of_range, stream.launch(info, fail)), "index 7");
    finish(stream);  // nothing left behind
    stream.launch(info, [](const mtia_work_context&) {});
  }
}

// Fails without an exception.
mtia_work failing_work() {
  mtia_work work{};
  work.struct_size = sizeof(work);
  work.name = "raw";
  work.run = [](void*, const mtia_work_context*) noexcept -> mtia_status { return MTIA_ERROR_INTERNAL; };
  return work;
}

TEST(a_launch_of_a_drivers_work_raises_its_failure) {
  core::Stream& stream = new_stream();
  CHECK_CONTAINS(CHECK_THROWS(runtime::DriverError, stream.launch(failing_work())), "raw failed");
  finish(stream);
}

TEST(a_launch_of_a_graph_raises_what_its_nodes_throw) {
  core::Stream& stream = new_stream();
  core::Graph graph;
  graph.begin_capture(stream);
  stream.launch(kSmall, [](const mtia_work_context&) { throw std::out_of_range("index 7"); });
  graph.end_capture();
  graph.instantiate();
  CHECK_EQ(CHECK_THROWS(std::out_of_range, graph.launch(stream, nullptr)), "index 7");
  finish(stream);
}

TEST(failures_are_raised_in_the_terms_of_the_layer_above) {
  core::Stream& stream = new_stream();
  core::hooks.raise_error = [](const core::Stream& failed, const core::WorkError& error) {
    throw std::domain_error(std::to_string(failed.device()) + " " + error.operator_name + ": " + error.message);
  };
  const std::string raised = CHECK_THROWS(std::domain_error, stream.launch(failing_work()));
  core::hooks.raise_error = nullptr;
  CHECK_CONTAINS(raised, "0 work: raw failed");
}

TEST(nested_work_throws_into_the_work_around_it) {
  core::Stream& stream = new_stream();
  const auto nest = [&](const mtia_work_context&) {
    stream.launch(kSmall, [](const mtia_work_context&) { throw std::out_of_range("inner"); });
  };
  CHECK_EQ(CHECK_THROWS(std::out_of_range, stream.launch(kLarge, nest)), "inner");
  finish(stream);
}

TEST(running_work_does_not_wait_for_what_it_gives_to_other_streams) {
  core::Stream& stream = new_stream();
  core::Stream& other = new_stream();
  std::atomic<bool> launched{false};
  bool done = false;
  stream.launch(kLarge, [&](const mtia_work_context&) {
    const core::RunningWork running(stream);
    for (const core::WorkInfo& info : {kSmall, kLarge}) {
      other.launch(info, [&launched, &done, waits = info.cost == kLarge.cost](const mtia_work_context&) {
        while (waits && !launched) std::this_thread::yield();
        done = true;
      });
    }
    other.launch(kLarge, [](const mtia_work_context&) { throw std::out_of_range("later"); });
    launched = true;
  });
  other.wait_until_idle();
  CHECK(done);
  const auto error = other.take_error();
  CHECK(error.has_value());
  CHECK_EQ(CHECK_THROWS(std::out_of_range, std::rethrow_exception(error->exception)), "later");
}

TEST(threads_that_share_a_stream_get_their_own_failures) {
  core::Stream& stream = new_stream();
  constexpr int kLaunches = 2000;
  std::atomic<int> thrown{0};
  std::atomic<int> failed{0};
  const auto launch = [&](bool fails) {
    mtia_work raw{};
    raw.struct_size = sizeof(raw);
    raw.args = &fails;
    raw.args_size = sizeof(fails);
    raw.run = [](void* args, const mtia_work_context*) noexcept {
      return *static_cast<bool*>(args) ? MTIA_ERROR_INTERNAL : MTIA_SUCCESS;
    };
    for (int i = 0; i < kLaunches; ++i) {
      bool threw = false;
      try {
        stream.launch(i % 2 == 0 ? kSmall : kLarge, [fails](const mtia_work_context&) {
          if (fails) throw std::out_of_range("mine");
        });
      } catch (const std::out_of_range&) {
        threw = true;
      }
      if (threw == fails) ++thrown;
      threw = false;
      try {
        stream.launch(raw);
      } catch (const runtime::DriverError&) {
        threw = true;
      }
      if (threw == fails) ++failed;
    }
  };
  std::thread other(launch, true);
  launch(false);
  other.join();
  CHECK_EQ(thrown.load(), 2 * kLaunches);
  CHECK_EQ(failed.load(), 2 * kLaunches);
  finish(stream);
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
