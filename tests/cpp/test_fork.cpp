// A process that was forked from one that uses the device gets errors that say what to do; nothing hangs or crashes.
#include <atomic>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "child_process.h"
#include "device_under_test.h"
#include "runtime/forks.h"

namespace torch_mtia::test {
namespace {

TEST(a_child_forked_before_initialization_can_use_the_device) {
  runtime::configure(settings({}));
  CHECK_EQ(runtime::device_count(), 2);  // loads the driver, and starts nothing
  CHECK(child_succeeds([] {
    runtime::ensure_initialized();
    core::Stream& stream = new_stream();
    bool ran = false;
    stream.launch(kSmall, [&](const mtia_work_context&) { ran = true; });
    finish(stream);
    CHECK(ran);
  }));
}

template <typename... Arguments>
mtia_status call_with_zeros(mtia_status (*function)(Arguments...)) {
  return function(Arguments{}...);
}
// These two serve every process.
mtia_status call_with_zeros(const char* (*)()) {
  return MTIA_ERROR_FORKED;
}
mtia_status call_with_zeros(mtia_status (*)(const mtia_init_params*)) {
  return MTIA_ERROR_FORKED;
}

void check_that_all_refuse() {
#define MTIA_REFUSES(function, capability) CHECK_EQ(call_with_zeros(api().function), MTIA_ERROR_FORKED);
  MTIA_RUNTIME_FUNCTIONS(MTIA_REFUSES)
#undef MTIA_REFUSES
}

TEST(a_child_forked_during_initialization_is_refused_and_does_not_wait) {
  CHECK(child_succeeds([] {
    int started[2];
    int release[2];
    CHECK_EQ(pipe(started), 0);
    CHECK_EQ(pipe(release), 0);
    setenv("MTIA_TEST_STARTED", std::to_string(started[1]).c_str(), 1);
    setenv("MTIA_TEST_RELEASE", std::to_string(release[0]).c_str(), 1);
    setenv("MTIA_TEST_DEFECT", "initialize is slow", 1);
    runtime::DriverSettings slow = settings({});
    slow.library = library("libfake_driver.so");
    runtime::configure(slow);
    std::thread initializes([] { runtime::ensure_initialized(); });
    char byte = 0;
    CHECK_EQ(read(started[0], &byte, 1), 1);
    const bool succeeds = child_succeeds([] {
      alarm(60);  // ends a child that waits for a thread it does not have
      CHECK(runtime::is_forked());
      CHECK_CONTAINS(CHECK_THROWS(runtime::DriverError, runtime::ensure_initialized()), "spawn");
      CHECK_CONTAINS(CHECK_THROWS(runtime::DriverError, runtime::configure(settings({}))), "spawn");
      CHECK(!runtime::launch_blocking());
      CHECK_EQ(runtime::device_count(), 7);
    });
    CHECK_EQ(write(release[1], &byte, 1), 1);
    initializes.join();
    CHECK(runtime::is_initialized());
    CHECK(!runtime::is_forked());
    CHECK(succeeds);
  }));
}

struct Counted {
  std::mutex mutex;
  int value = 0;  // twice as many as the times the mutex was locked
};
Counted& counted(runtime::ForkOrder order) {
  auto& made = *std::make_unique<Counted>().release();
  runtime::hold_at_forks(order, made.mutex);
  return made;
}

TEST(a_fork_finds_what_the_mutexes_of_the_list_guard_whole) {
  Counted& outer = counted(runtime::ForkOrder::kAllocator);
  Counted& inner = counted(runtime::ForkOrder::kTable);
  std::atomic<bool> is_done{false};
  std::vector<std::thread> threads;
  for (Counted* alone : {&outer, &inner}) {
    threads.emplace_back([&, alone] {
      while (!is_done) {
        const std::lock_guard lock(alone->mutex);
        ++alone->value;
        std::this_thread::yield();
        ++alone->value;
      }
    });
  }
  threads.emplace_back([&] {
    while (!is_done) {
      const std::lock_guard first(outer.mutex);
      const std::lock_guard second(inner.mutex);
      ++outer.value;
      std::this_thread::yield();
      ++outer.value;
    }
  });
  bool all_succeed = true;
  for (int i = 0; i < 20; ++i) {
    all_succeed &= child_succeeds([&] {
      alarm(60);
      for (Counted* each : {&inner, &outer}) {
        const std::lock_guard lock(each->mutex);
        CHECK_EQ(each->value % 2, 0);
      }
    });
  }
  is_done = true;
  for (std::thread& thread : threads) thread.join();
  CHECK(all_succeed);
}

TEST(a_mutex_joins_the_list_while_others_of_it_are_held) {
  Counted& held = counted(runtime::ForkOrder::kAllocator);
  // One for each fork: ThreadSanitizer follows no more than 64 mutexes that a thread holds.
  std::atomic<int> num_wanted{0};
  std::atomic<bool> is_done{false};
  std::thread other([&] {
    for (int num_made = 0; !is_done || num_made == 0;) {
      const std::lock_guard lock(held.mutex);
      if (num_made == num_wanted) continue;
      (void)counted(runtime::ForkOrder::kTable);
      ++num_made;
    }
  });
  bool all_succeed = true;
  for (int i = 0; i < 20; ++i) {
    ++num_wanted;
    all_succeed &= child_succeeds([&] {
      alarm(60);
      const std::lock_guard lock(held.mutex);
    });
  }
  is_done = true;
  other.join();
  CHECK(all_succeed);
}

TEST(every_function_refuses_in_a_child_forked_later) {
  runtime::ensure_initialized();
  core::Stream& stream = new_stream();
  core::Event event(true);
  core::BlockAllocator& allocator = new_allocator();
  mtia_device_ptr block = allocator.allocate(512, &stream);
  mtia_device_ptr shared_block = allocator.allocate(512, &stream);
  allocator.record_stream(shared_block, &new_stream());
  Gate gate;
  hold(stream, gate);  // also while the device is busy

  CHECK(child_succeeds([&] {
    check_that_all_refuse();
    CHECK_CONTAINS(api().last_error_message(), "spawn");
    CHECK_CONTAINS(CHECK_THROWS(runtime::DriverError, stream.launch(kSmall, [](const mtia_work_context&) {})), "spawn");
    // Objects that the child inherited may still go away.
    allocator.free(block);
    allocator.free(shared_block);
  }));

  gate.open();
  finish(stream);  // the parent goes on as before
  allocator.free(block);
  allocator.free(shared_block);
}

std::atomic<bool> is_inside_allocator{false};

TEST(a_child_frees_what_it_inherited_whatever_other_threads_were_doing) {
  runtime::ensure_initialized();
  core::Stream& stream = new_stream();
  core::BlockAllocator& allocator = new_allocator([] {  // asked for with the allocator's lock held
    is_inside_allocator = true;
    for (int i = 0; i < 100; ++i) std::this_thread::yield();
    return core::AllocatorOptions{};
  });
  mtia_device_ptr block = allocator.allocate(512, &stream);
  is_inside_allocator = false;
  std::atomic<bool> is_done{false};
  std::thread other([&] {
    while (!is_done) {
      allocator.free(allocator.allocate(size_t{4} << 20, &stream));
      for (int i = 0; i < 100; ++i) std::this_thread::yield();  // so that the fork gets the lock at some time
    }
  });
  while (!is_inside_allocator) std::this_thread::yield();
  const bool succeeds = child_succeeds([&] {
    alarm(60);  // ends a child that waits for a thread it does not have
    allocator.free(block);
    CHECK_CONTAINS(CHECK_THROWS(runtime::DriverError, allocator.allocate(size_t{40} << 20, &stream)), "spawn");
  });
  is_done = true;
  other.join();
  CHECK(succeeds);
  allocator.free(block);
}

}  // namespace
}  // namespace torch_mtia::test

int main(int argc, char** argv) {
  return torch_mtia::test::run_tests(argc, argv);
}
