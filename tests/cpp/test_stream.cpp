// The order of work, who runs it, and with how many threads.
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "device_under_test.h"

namespace torch_mtia::test {
namespace {

int threads_of_process() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return static_cast<int>(std::distance(begin(tasks), end(tasks)));
}

// Must be the first: later there are threads.
TEST(a_thread_starts_with_the_first_queued_item_and_not_before) {
  std::thread([] {}).join();  // a sanitizer starts its own thread with the first
  const int before = threads_of_process();
  core::Stream& stream = new_stream();
  stream.launch(kSmall, [](const mtia_work_context&) {});
  finish(stream);
  CHECK_EQ(threads_of_process(), before);
  stream.launch(kLarge, [](const mtia_work_context&) {});
  CHECK_EQ(threads_of_process(), before + 1);
  finish(stream);
}

TEST(executor_threads_have_names_and_leave_signals_to_the_application) {
  core::Stream& stream = new_stream(1);
  std::array<char, 16> name{};
  sigset_t blocked;
  stream.launch(kLarge, [&](const mtia_work_context&) {
    pthread_getname_np(pthread_self(), name.data(), name.size());
    pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
  });
  finish(stream);
  CHECK_EQ(std::string(name.data()).rfind("mtia:1/s", 0), size_t{0});
  CHECK(sigismember(&blocked, SIGINT) == 1);
  CHECK(sigismember(&blocked, SIGPROF) == 1);
  CHECK(sigismember(&blocked, SIGSEGV) == 0);  // a crash handler still gets its turn
}

TEST(work_of_a_stream_runs_in_order_whoever_runs_it) {
  core::Stream& stream = new_stream();
  std::vector<int> order;
  constexpr int kItems = 5000;
  for (int i = 0; i < kItems; ++i) {
    // Some small ones find the stream idle and run on this thread, some large or small ones queue.
    stream.launch(i % 97 < 3 ? kLarge : kSmall, [&order, i](const mtia_work_context&) { order.push_back(i); });
  }
  finish(stream);
  CHECK_EQ(order.size(), size_t{kItems});
  for (int i = 0; i < kItems; ++i) CHECK_EQ(order[static_cast<size_t>(i)], i);
}

TEST(small_work_queues_behind_large_work) {
  core::Stream& stream = new_stream();
  Gate gate;
  hold(stream, gate);
  std::thread::id ran_on;
  stream.launch(kSmall, [&](const mtia_work_context&) { ran_on = std::this_thread::get_id(); });
  CHECK(!stream.query());
  gate.open();
  finish(stream);
  CHECK(ran_on != std::thread::id());
  CHECK(ran_on != std::this_thread::get_id());
}

TEST(a_second_thread_sees_the_stream_busy_while_an_item_runs_inline) {
  core::Stream& stream = new_stream();
  std::vector<int> order;
  Gate running;
  Gate queued;
  std::thread first([&] {
    stream.launch(kSmall, [&](const mtia_work_context&) {
      running.open();
      queued.wait();
      order.push_back(1);
    });
  });
  running.wait();
  CHECK(!stream.query());
  stream.launch(kSmall, [&](const mtia_work_context&) { order.push_back(2); });
  queued.open();
  finish(stream);
  first.join();
  CHECK_EQ(order.size(), size_t{2});
  CHECK_EQ(order[0], 1);
}

TEST(synchronizing_waits_for_an_item_that_runs_inline_on_another_thread) {
  core::Stream& stream = new_stream();
  Gate running;
  Gate gate;
  bool done = false;
  std::thread first([&] {
    stream.launch(kSmall, [&](const mtia_work_context&) {
      running.open();
      gate.wait();
      done = true;
    });
  });
  running.wait();
  std::thread opener([&] { gate.open(); });
  stream.wait_until_idle();
  CHECK(done);
  first.join();
  opener.join();
}

TEST(several_threads_may_launch_and_wait) {
  core::Stream& stream = new_stream();
  constexpr int kThreads = 4;
  constexpr int kItems = 500;
  int64_t sum = 0;  // only touched by work of one stream: no lock
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      int64_t own = 0;
      for (int i = 0; i < kItems; ++i) {
        const auto work = [&](const mtia_work_context&) {
          ++sum;
          ++own;
        };
        stream.launch(i % 5 == 0 ? kLarge : kSmall, work);
        if (i % 50 != 49) continue;
        stream.wait_until_idle();
        CHECK_EQ(own, i + 1);
      }
      stream.wait_until_idle();
    });
  }
  for (std::thread& thread : threads) thread.join();
  finish(stream);
  CHECK_EQ(sum, kThreads * kItems);
}

TEST(synchronizing_does_not_wait_for_what_another_thread_goes_on_to_submit) {
  core::Stream& stream = new_stream();
  std::atomic<bool> stop{false};
  std::atomic<int> in_flight{0};
  std::thread feeder([&] {
    while (!stop) {
      if (in_flight > 100) continue;
      ++in_flight;
      stream.launch(kLarge, [&](const mtia_work_context&) { --in_flight; });
    }
  });
  for (int i = 0; i < 20; ++i) stream.wait_until_idle();
  stop = true;  // comes only because waiting ended
  feeder.join();
  finish(stream);
}

TEST(streams_run_concurrently) {
  core::Stream& one = new_stream();
  core::Stream& other = new_stream();
  Gate gate;
  hold(one, gate);
  other.launch(kLarge, [&](const mtia_work_context&) { gate.open(); });
  finish(one);
  finish(other);
}

TEST(work_launched_inside_work_of_the_same_stream_runs_at_once) {
  for (const core::WorkInfo& info : {kSmall, kLarge}) {
    core::Stream& stream = new_stream();
    bool inner_done = false;
    bool seen_by_outer = false;
    stream.launch(info, [&](const mtia_work_context&) {
      stream.launch(kLarge, [&](const mtia_work_context&) { inner_done = true; });
      seen_by_outer = inner_done;
    });
    finish(stream);
    CHECK(seen_by_outer);
  }
}

TEST(an_exception_of_nested_work_reaches_the_synchronizing_call) {
  core::Stream& stream = new_stream();
  stream.launch(kLarge, [&](const mtia_work_context&) {
    stream.launch(kSmall, [](const mtia_work_context&) { throw std::runtime_error("inner"); });
  });
  CHECK_EQ(CHECK_THROWS(std::runtime_error, finish(stream)), "inner");
}

TEST(work_may_wait_for_its_own_stream_and_device) {
  for (const core::WorkInfo& info : {kSmall, kLarge}) {
    core::Stream& stream = new_stream();
    core::Stream& other = new_stream();
    core::Event event(false);
    Gate gate;
    hold(stream, gate);
    stream.launch(info, [&](const mtia_work_context&) {
      stream.wait_until_idle();
      runtime::call(&mtia_runtime_api::device_synchronize, 0);
      event.synchronize();  // recorded behind this item
      other.launch(kSmall, [&](const mtia_work_context&) { stream.wait_until_idle(); });
    });
    event.record(stream);
    gate.open();
    finish(stream);
  }
}

TEST(one_stream_of_a_device_at_a_time_uses_several_threads) {
  core::Stream& first = new_stream();
  core::Stream& second = new_stream();
  core::Stream& other_device = new_stream(1);
  const core::WorkInfo parallel{.name = "parallel", .cost = 1'000'000, .num_threads = 4};
  Gate started;
  Gate gate;
  int granted_first = 0;
  int granted_second = 0;
  int granted_other_device = 0;
  int granted_later = 0;
  first.launch(parallel, [&](const mtia_work_context& context) {
    granted_first = context.num_threads;
    started.open();
    gate.wait();
  });
  started.wait();
  second.launch(parallel, [&](const mtia_work_context& context) { granted_second = context.num_threads; });
  other_device.launch(parallel, [&](const mtia_work_context& context) { granted_other_device = context.num_threads; });
  finish(second);
  finish(other_device);
  gate.open();
  finish(first);
  second.launch(parallel, [&](const mtia_work_context& context) { granted_later = context.num_threads; });
  finish(second);
  CHECK_EQ(granted_first, 4);
  CHECK_EQ(granted_second, 1);
  CHECK_EQ(granted_other_device, 4);
  CHECK_EQ(granted_later, 4);
}

TEST(small_work_gets_one_thread_and_nested_work_those_around_it) {
  core::Stream& stream = new_stream();
  int granted_small = 0;
  int granted_nested_small = 0;
  int granted_nested_large = 0;
  const core::WorkInfo small{.name = "small", .num_threads = 4};
  const core::WorkInfo large{.name = "large", .cost = 1'000'000, .num_threads = 4};
  stream.launch(small, [&](const mtia_work_context& context) { granted_small = context.num_threads; });
  stream.launch({.name = "outer", .cost = 1'000'000, .num_threads = 3}, [&](const mtia_work_context&) {
    stream.launch(small, [&](const mtia_work_context& context) { granted_nested_small = context.num_threads; });
    stream.launch(large, [&](const mtia_work_context& context) { granted_nested_large = context.num_threads; });
  });
  finish(stream);
  CHECK_EQ(granted_small, 1);
  CHECK_EQ(granted_nested_small, 1);
  CHECK_EQ(granted_nested_large, 3);
}

TEST(synchronizing_a_device_waits_for_all_its_streams) {
  constexpr int kStreams = 5;
  std::atomic<int> done{0};
  for (int i = 0; i < kStreams; ++i) new_stream().launch(kLarge, [&](const mtia_work_context&) { ++done; });
  runtime::call(&mtia_runtime_api::device_synchronize, 0);
  CHECK_EQ(done.load(), kStreams);
}

TEST(destroying_a_stream_does_not_wait_and_its_work_still_runs) {
  mtia_stream stream = nullptr;
  runtime::call(&mtia_runtime_api::stream_create, 0, 0, nullptr, &stream);
  Gate gate;
  bool done = false;
  auto wait = [&](const mtia_work_context&) {
    gate.wait();
    done = true;
  };
  core::WorkBlock<decltype(wait)> block{wait, "wait"};
  const mtia_work work = core::make_work(kLarge, block);
  runtime::call(&mtia_runtime_api::stream_launch, stream, &work);
  runtime::call(&mtia_runtime_api::stream_destroy, stream);
  mtia_stream next = nullptr;
  runtime::call(&mtia_runtime_api::stream_create, 0, 0, nullptr, &next);
  CHECK(next != stream);  // not handed out again while it is busy
  gate.open();
  runtime::call(&mtia_runtime_api::device_synchronize, 0);
  CHECK(done);
}

TEST(wrong_devices_and_null_handles_are_refused_with_a_message) {
  mtia_stream stream = nullptr;
  CHECK_EQ(api().stream_create(2, 0, nullptr, &stream), MTIA_ERROR_INVALID_DEVICE);
  CHECK_CONTAINS(api().last_error_message(), "no device 2");
  CHECK_EQ(api().stream_create(-1, 0, nullptr, &stream), MTIA_ERROR_INVALID_DEVICE);
  CHECK_EQ(api().stream_synchronize(nullptr), MTIA_ERROR_INVALID_VALUE);
  CHECK_EQ(api().device_synchronize(7), MTIA_ERROR_INVALID_DEVICE);
}

// What a thread keeps for its waits is gone when this one's destructor waits: it was made before.
struct WaitsAtExit {
  core::Stream* stream = nullptr;
  Gate* gate = nullptr;
  int* bytes = nullptr;
  ~WaitsAtExit() {
    std::FILE* files[8];  // with the lowest descriptors that are free
    for (std::FILE*& file : files) file = std::tmpfile();
    hold(*stream, *gate);
    std::thread opener([this] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      gate->open();
    });
    stream->wait_until_idle();
    opener.join();
    for (std::FILE* file : files) {
      std::fseek(file, 0, SEEK_END);
      *bytes += static_cast<int>(std::ftell(file));
      std::fclose(file);
    }
  }
};

TEST(a_thread_that_ends_can_wait_and_touches_no_file_of_others) {
  core::Stream& stream = new_stream();
  Gate first;
  Gate second;
  int bytes = 0;
  std::thread([&] {
    thread_local WaitsAtExit last;
    last.stream = &stream;
    last.gate = &second;
    last.bytes = &bytes;
    hold(stream, first);
    std::thread opener([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      first.open();
    });
    stream.wait_until_idle();
    opener.join();
  }).join();
  CHECK_EQ(bytes, 0);
}

// Opens the gate when a wait begins: without that, the test would wait for ever.
struct GivenUp {
  static inline Gate* gate = nullptr;
  static inline int locks = 0;
  static inline int locks_taken_back = 0;
  static inline int threads = 0;

  explicit GivenUp(Gate& opened) {
    gate = &opened;
    locks = locks_taken_back = threads = 0;
    core::hooks.release_interpreter_lock = []() -> void* { return ++locks, &locks; };
    core::hooks.reacquire_interpreter_lock = [](void*) { ++locks_taken_back; };
    core::hooks.release_threads = [] {
      ++threads;
      gate->open();
    };
  }
  ~GivenUp() {
    core::hooks.release_interpreter_lock = nullptr;
    core::hooks.release_threads = nullptr;
  }
};

TEST(who_waits_gives_up_the_interpreters_lock_and_threads) {
  core::Stream& stream = new_stream();
  for (const bool waits_for_event : {false, true}) {
    Gate gate;
    hold(stream, gate);
    core::Event event(/*enable_timing=*/false);
    event.record(stream);
    const GivenUp given_up(gate);
    waits_for_event ? event.synchronize() : stream.wait_until_idle();
    CHECK_EQ(GivenUp::locks, 1);
    CHECK_EQ(GivenUp::locks_taken_back, 1);
    CHECK_EQ(GivenUp::threads, 1);
  }
  finish(stream);
}

TEST(threads_may_wait_when_no_file_descriptors_are_left) {
  core::Stream& stream = new_stream();
  Gate gate;
  hold(stream, gate);
  rlimit before;
  CHECK_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{0, before.rlim_max};
  // Threads begin and end with descriptors: UndefinedBehaviorSanitizer looks at their objects through a pipe.
  std::atomic<bool> are_none_left{false};
  std::atomic<int> waiting{0};
  std::atomic<int> done{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      while (!are_none_left) std::this_thread::yield();
      ++waiting;
      finish(stream);
      ++done;
      while (are_none_left) std::this_thread::yield();
    });
  }
  CHECK_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  are_none_left = true;
  while (waiting < 3) std::this_thread::yield();
  gate.open();
  while (done < 3) std::this_thread::yield();
  setrlimit(RLIMIT_NOFILE, &before);
  are_none_left = false;
  for (std::thread& thread : threads) thread.join();
  CHECK(stream.is_idle());
}

TEST(a_wait_that_takes_no_time_keeps_the_threads) {
  core::Stream& stream = new_stream();
  finish(stream);
  Gate gate;
  const GivenUp given_up(gate);
  finish(stream);
  CHECK_EQ(GivenUp::threads, 0);
  CHECK_EQ(GivenUp::locks, GivenUp::locks_taken_back);
}

}  // namespace
}  // namespace torch_mtia::test

int main(int argc, char** argv) {
  return torch_mtia::test::run_tests_on_device(argc, argv);
}
