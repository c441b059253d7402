// What an allocator waits for orders the next use of its memory, and nothing else.
#include <atomic>
#include <cstdint>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "child_process.h"
#include "core/Waits.h"
#include "device_under_test.h"
#include "sanitizer/Sanitizer.h"

namespace torch_mtia::test {
namespace {

using namespace sanitizer;

constexpr size_t kSize = size_t{4} << 20;
constexpr Sanitizer::Program kProgram{[]() -> Context { return nullptr; }, []() -> uint64_t { return 0; },
                                      [](std::vector<Finding> findings) { return findings; }};

// Two streams and an allocator, watched until the end of the test.
struct Watched {
  core::Stream& main = new_stream();
  core::Stream& side = new_stream();
  core::BlockAllocator& allocator = new_allocator();

  Watched() { Sanitizer::start({.initialized = false}, /*numbers=*/false, kProgram); }
  ~Watched() {
    Sanitizer::stop();
    Sanitizer::take();
  }

  mtia_device_ptr allocate(core::Stream& stream, size_t size = kSize) { return allocator.allocate(size, &stream); }
  static void fill(core::Stream& stream, mtia_device_ptr block) {
    const std::byte zero{};
    stream.fill(block, &zero, 1, 64);
  }
  // The sanitizer does not hear of it.
  void become_idle() {
    finish(main);
    finish(side);
  }
  // A tensor that both have used is freed when they are idle, and its memory is handed out again.
  void free_recorded() {
    for (core::Stream* stream : {&main, &side}) {
      mtia_device_ptr block = allocate(*stream);
      allocator.record_stream(block, stream == &main ? &side : &main);
      become_idle();
      allocator.free(block);
      allocator.free(allocate(*stream));
    }
  }

  static std::string findings() {
    std::string text;
    for (const Finding& each : Sanitizer::take()) {
      constexpr const char* kNames[] = {"race", "freed too early", "use after free"};
      text += (text.empty() ? "" : ", ") + std::string(kNames[static_cast<int>(each.kind)]);
    }
    return text;
  }
};

TEST(polls_of_the_allocator_order_nothing) {
  Watched device;
  mtia_device_ptr shared = device.allocate(device.main);
  device.fill(device.main, shared);
  device.free_recorded();
  device.fill(device.side, shared);
  CHECK_EQ(device.findings(), "race");
  device.become_idle();
  device.allocator.empty_cache();
  device.fill(device.main, shared);
  CHECK_EQ(device.findings(), "race");
  device.allocator.free(shared);
}

TEST(the_programs_own_questions_order) {
  Watched device;
  mtia_device_ptr shared = device.allocate(device.main);
  for (const bool is_asked : {false, true}) {
    device.fill(device.main, shared);
    core::Event event(/*enable_timing=*/false);
    event.record(device.main);
    device.become_idle();
    CHECK(is_asked ? core::program_queries(event) : event.query());
    device.fill(device.side, shared);
    CHECK_EQ(device.findings(), is_asked ? "" : "race");
    wait_for(device.main, device.side);
  }
  // An event that is not complete orders nothing, however often it is asked.
  Gate gate;
  hold(device.main, gate);
  device.fill(device.main, shared);
  core::Event event(/*enable_timing=*/false);
  event.record(device.main);
  CHECK(!core::program_queries(event));
  CHECK(!core::program_queries(device.main));
  device.fill(device.side, shared);
  CHECK_EQ(device.findings(), "race");
  gate.open();
  device.become_idle();
  device.allocator.free(shared);
}

TEST(recorded_memory_is_used_again_in_any_stream) {
  Watched device;
  mtia_device_ptr block = device.allocate(device.main);
  const uint64_t address = block;
  wait_for(device.side, device.main);
  device.fill(device.side, block);
  device.allocator.record_stream(block, &device.side);
  device.allocator.free(block);
  device.become_idle();
  block = device.allocate(device.main);
  CHECK_EQ(block, address);
  device.fill(device.main, block);
  CHECK_EQ(device.findings(), "");
  device.allocator.free(block);
}

TEST(memory_is_its_own_streams_when_it_is_used_again) {
  Watched device;
  mtia_device_ptr block = device.allocate(device.main);
  const uint64_t address = block;
  device.fill(device.main, block);
  device.allocator.free(block);
  block = device.allocate(device.main);
  CHECK_EQ(block, address);
  device.fill(device.side, block);  // does not wait for what the main stream did to the memory before
  CHECK_EQ(device.findings(), "freed too early");
  device.become_idle();
  device.allocator.free(block);
}

TEST(memory_that_the_driver_got_back_is_used_again_in_any_stream) {
  Watched device;
  mtia_device_ptr block = device.allocate(device.main);
  const uint64_t address = block;
  device.fill(device.main, block);
  device.allocator.free(block);
  device.allocator.empty_cache();
  block = device.allocate(device.side);
  CHECK_EQ(block, address);
  device.fill(device.side, block);
  CHECK_EQ(device.findings(), "");
  // Nobody has waited for a stream that no record_stream names.
  device.fill(device.main, block);
  CHECK_EQ(device.findings(), "race");
  device.allocator.free(block);
  device.allocator.empty_cache();
  block = device.allocate(device.side);
  CHECK_EQ(block, address);
  device.fill(device.side, block);
  CHECK_EQ(device.findings(), "freed too early");
  device.become_idle();
  device.allocator.free(block);
}

TEST(a_child_frees_what_it_inherited_while_others_are_watched) {
  Watched device;
  mtia_device_ptr block = device.allocate(device.main);
  std::atomic<bool> is_done{false};
  std::thread other([&] {
    core::Stream& stream = new_stream();
    mtia_device_ptr own = device.allocate(stream);
    while (!is_done) {
      for (int i = 0; i < 100; ++i) device.fill(stream, own);
      finish(stream);
    }
    device.allocator.free(own);
  });
  constexpr int kChildren = 50;
  int num_children = 0;
  for (int i = 0; i < kChildren; ++i) {
    const bool succeeds = child_succeeds([&] {
      alarm(60);  // ends a child that waits for a thread it does not have
      device.allocator.free(block);
      CHECK(!Sanitizer::is_running());
      Sanitizer::wait();
      Sanitizer::take();
    });
    if (!succeeds) break;
    ++num_children;
  }
  is_done = true;
  other.join();
  CHECK_EQ(num_children, kChildren);
  device.become_idle();
  device.allocator.free(block);
}

}  // namespace
}  // namespace torch_mtia::test

int main(int argc, char** argv) {
  return torch_mtia::test::run_tests_on_device(argc, argv);
}
