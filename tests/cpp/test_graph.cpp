// Captures: what is recorded, what is refused, and when things are freed.
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "capturing.h"
#include "device_under_test.h"

namespace torch_mtia::test {
namespace {

TEST(captured_work_runs_at_each_launch_in_order_and_not_before) {
  for (const core::WorkInfo& info : {kSmall, kLarge}) {
    core::Stream& stream = new_stream();
    core::Graph graph;
    std::vector<int> log;
    capture(graph, stream, [&] {
      for (int i = 0; i < 1000; ++i) append(stream, log, i, info);
    });
    finish(stream);
    CHECK(log.empty());
    for (int launch = 0; launch < 3; ++launch) graph.launch(stream, nullptr);
    append(stream, log, -1);
    finish(stream);
    CHECK_EQ(log.size(), 3001U);
    for (int i = 0; i < 3000; ++i) CHECK_EQ(log[static_cast<size_t>(i)], i % 1000);
    CHECK_EQ(log.back(), -1);
  }
}

TEST(work_before_a_capture_still_runs_during_it) {
  core::Stream& stream = new_stream();
  Gate gate;
  hold(stream, gate);
  std::vector<int> log;
  append(stream, log, 0);
  core::Graph graph;
  graph.begin_capture(stream);
  append(stream, log, 1);
  gate.open();
  graph.end_capture();
  finish(stream);
  CHECK_EQ(log.size(), 1U);
}

TEST(an_empty_graph_can_be_launched) {
  core::Stream& stream = new_stream();
  core::Graph graph;
  capture(graph, stream, [] {});
  graph.launch(stream, nullptr);
  finish(stream);
}

TEST(argument_blocks_are_moved_once_and_destroyed_with_the_graph) {
  core::Stream& stream = new_stream();
  const auto owned = std::make_shared<int>(0);
  {
    core::Graph graph;
    capture(graph, stream, [&] {
      for (int i = 0; i < 10; ++i) stream.launch(kSmall, [owned](const mtia_work_context&) { ++*owned; });
    });
    CHECK_EQ(owned.use_count(), 11);
    graph.launch(stream, nullptr);
    graph.launch(stream, nullptr);
    finish(stream);
    CHECK_EQ(owned.use_count(), 11);
    CHECK_EQ(*owned, 20);
  }
  CHECK_EQ(owned.use_count(), 1);
}

TEST(what_is_instantiated_does_not_need_the_graph) {
  core::Stream& stream = new_stream();
  core::Graph graph;
  std::vector<int> log;
  capture(graph, stream, [&] { append(stream, log, 7); });
  graph.forget_nodes();
  graph.launch(stream, nullptr);
  finish(stream);
  CHECK_EQ(log.size(), 1U);
}

TEST(destroying_a_graph_during_its_capture_releases_the_streams) {
  core::Stream& stream = new_stream();
  core::Stream& side = new_stream();
  std::vector<int> log;
  {
    core::Graph graph;
    graph.begin_capture(stream);
    wait_for(side, stream);
    append(side, log, 1);
  }
  append(stream, log, 2);
  append(side, log, 3);
  finish(stream);
  finish(side);
  CHECK_EQ(log.size(), 2U);
}

TEST(work_that_is_not_capturable_is_refused_and_named) {
  core::Stream& stream = new_stream();
  core::Graph graph;
  std::vector<int> log;
  capture(graph, stream, [&] {
    append(stream, log, 1);
    const auto message = CHECK_THROWS(runtime::DriverError, append(stream, log, 2, {.name = "aten::item", .flags = 0}));
    CHECK_CONTAINS(message, "aten::item cannot be captured");
    append(stream, log, 3);
  });
  graph.launch(stream, nullptr);
  finish(stream);
  CHECK((log == std::vector<int>{1, 3}));
}

TEST(a_stream_under_capture_can_be_neither_queried_nor_synchronized) {
  core::Stream& stream = new_stream();
  core::Graph graph;
  graph.begin_capture(stream);
  CHECK_CONTAINS(CHECK_THROWS(runtime::DriverError, stream.query()), "being captured");
  CHECK_CONTAINS(CHECK_THROWS(runtime::DriverError, stream.wait_until_idle()), "being captured");
  graph.end_capture();
  CHECK(stream.query());
}

TEST(an_event_of_a_capture_stands_for_no_time) {
  core::Stream& stream = new_stream();
  core::Graph graph;
  core::Event event(true);
  graph.begin_capture(stream);
  event.record(stream);
  CHECK(graph.invalid_reason().empty());
  CHECK_CONTAINS(CHECK_THROWS(runtime::DriverError, event.query()), "captured");
  CHECK_CONTAINS(graph.invalid_reason(), "event_query");
  CHECK_CONTAINS(CHECK_THROWS(runtime::DriverError, event.synchronize()), "captured");
  graph.end_capture();
  core::Graph later;
  later.begin_capture(stream);
  CHECK_CONTAINS(CHECK_THROWS(runtime::DriverError, event.query()), "captured");
  CHECK(later.invalid_reason().empty());  // the event stands for a point in another graph
  later.end_capture();
  CHECK_CONTAINS(CHECK_THROWS(runtime::DriverError, event.elapsed_time(event)), "captured");
  CHECK_CONTAINS(CHECK_THROWS(runtime::DriverError, stream.wait(event)), "capture that has ended");
  event.record(stream);
  CHECK(event.query());
}

TEST(a_capture_cannot_wait_for_work_outside) {
  core::Stream& stream = new_stream();
  core::Stream& other = new_stream();
  core::Event event(false);
  event.record(other);
  core::Graph graph;
  graph.begin_capture(stream);
  CHECK_CONTAINS(CHECK_THROWS(runtime::DriverError, stream.wait(event)), "outside the capture");
  graph.end_capture();
}

TEST(captures_do_not_mix) {
  core::Stream& one = new_stream();
  core::Stream& other = new_stream();
  core::Graph first;
  core::Graph second;
  first.begin_capture(one);
  second.begin_capture(other);
  CHECK_CONTAINS(CHECK_THROWS(runtime::DriverError, core::Graph().begin_capture(one)), "captured already");
  core::Event event(false);
  event.record(one);
  CHECK_CONTAINS(CHECK_THROWS(runtime::DriverError, other.wait(event)), "different captures");
  second.end_capture();
  first.end_capture();
}

TEST(streams_join_by_events_and_leave_with_the_capture) {
  core::Stream& stream = new_stream();
  core::Stream& side = new_stream(/*device=*/1);
  core::Graph graph;
  std::vector<int> devices;
  const auto log_device = [&](const mtia_work_context& context) { devices.push_back(context.device); };
  capture(graph, stream, [&] {
    stream.launch(kSmall, log_device);
    CHECK(side.graph() == nullptr);
    wait_for(side, stream);
    CHECK(side.graph() == &graph);
    side.launch(kSmall, log_device);
    wait_for(stream, side);
    stream.launch(kSmall, log_device);
  });
  CHECK(stream.graph() == nullptr);
  CHECK(side.graph() == nullptr);
  graph.launch(stream, nullptr);
  finish(stream);
  CHECK((devices == std::vector<int>{0, 1, 0}));
}

TEST(a_stream_has_joined_a_capture_before_it_leaves_it) {
  struct SlowToJoin final : core::Graph {
    void stream_joined(core::Stream& stream) override {
      if (&stream != side) return;
      joins = true;
      gate.wait();
      joined = true;
    }
    void stream_left(core::Stream& stream) noexcept override {
      if (&stream != side) return;
      joined_before = joined.load();
      left = true;
    }
    core::Stream* side = nullptr;
    Gate gate;
    std::atomic<bool> joins{false};
    std::atomic<bool> joined{false};
    std::atomic<bool> joined_before{false};
    std::atomic<bool> left{false};
  } graph;
  core::Stream& stream = new_stream();
  core::Stream& side = new_stream();
  graph.side = &side;
  graph.begin_capture(stream);
  std::thread joining([&] { wait_for(side, stream); });
  while (!graph.joins) std::this_thread::yield();
  std::thread ending([&] { graph.end_capture(); });
  for (int i = 0; i < 1000 && !graph.left; ++i) std::this_thread::yield();
  graph.gate.open();
  joining.join();
  ending.join();
  CHECK(graph.joined_before);
  CHECK(side.graph() == nullptr);
}

TEST(nodes_tell_names_streams_and_dependencies) {
  core::Stream& stream = new_stream();
  core::Stream& side = new_stream();
  core::Graph graph;
  const auto nothing = [](const mtia_work_context&) {};
  capture(graph, stream, [&] {
    stream.launch({.name = "a"}, nothing);
    wait_for(side, stream);
    stream.launch({.name = "b"}, nothing);
    side.launch({.name = "c"}, nothing);
    wait_for(stream, side);
    wait_for(stream, side);  // twice is once
    stream.launch({.name = "d", .cost = 5}, nothing);
  });
  const auto nodes = graph.nodes();
  CHECK_EQ(nodes.size(), 4U);
  CHECK_EQ(nodes[3].name, "d");
  CHECK_EQ(nodes[3].cost, 5U);
  CHECK(nodes[2].stream == &side);
  CHECK(nodes[0].dependencies.empty());
  CHECK((nodes[1].dependencies == std::vector<uint32_t>{0}));
  CHECK((nodes[2].dependencies == std::vector<uint32_t>{0}));
  CHECK((nodes[3].dependencies == std::vector<uint32_t>{1, 2}));
}

TEST(of_threads_that_capture_one_stream_one_succeeds) {
  core::Stream& stream = new_stream();
  for (int round = 0; round < 200; ++round) {
    std::atomic<int> waiting{0};
    std::atomic<int> succeeded{0};
    core::Graph graphs[2];
    std::vector<std::thread> threads;
    for (core::Graph& graph : graphs) {
      threads.emplace_back([&] {
        ++waiting;
        while (waiting < 2) std::this_thread::yield();
        try {
          graph.begin_capture(stream);
          ++succeeded;
        } catch (const runtime::DriverError&) {
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK_EQ(succeeded.load(), 1);
    for (core::Graph& graph : graphs) {
      if (graph.is_capturing()) graph.end_capture();
    }
    CHECK(stream.query());
  }
}

TEST(a_graph_that_lacks_what_its_stream_refused_is_invalid) {
  core::Stream& stream = new_stream();
  core::Graph inner;
  capture(inner, stream, [] {});
  core::Event outside(false);
  outside.record(new_stream());
  mtia_work work{};
  work.struct_size = sizeof(work);
  const mtia_kernel_launch kernel{};
  const auto refused = [&](const auto& submit) {
    core::Graph graph;
    graph.begin_capture(stream);
    const std::string why = CHECK_THROWS(runtime::DriverError, submit());
    graph.end_capture();
    CHECK_EQ(graph.invalid_reason(), why);
    return why;
  };
  CHECK_CONTAINS(refused([&] { stream.launch(work); }), "stream_launch");
  CHECK_CONTAINS(refused([&] { stream.copy(0, 0, 1, MTIA_COPY_DEVICE_TO_DEVICE); }), "memory_copy");
  CHECK_CONTAINS(refused([&] { stream.fill(0, "", 1, 1); }), "memory_fill");
  CHECK_CONTAINS(refused([&] { stream.launch_kernel("kernel", kernel); }), "stream_launch_kernel");
  CHECK_CONTAINS(refused([&] { inner.launch(stream, nullptr); }), "launch of another one");
  CHECK_CONTAINS(refused([&] { stream.wait(outside); }), "outside the capture");
}

TEST(threads_capture_on_different_streams) {
  std::vector<std::thread> threads;
  std::atomic<int> total{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      core::Stream& stream = new_stream();
      core::Stream& side = new_stream();
      for (int round = 0; round < 20; ++round) {
        core::Graph graph;
        int own = 0;
        capture(graph, stream, [&] {
          for (int i = 0; i < 50; ++i) stream.launch(kSmall, [&](const mtia_work_context&) { ++own; });
          wait_for(side, stream);
          for (int i = 0; i < 50; ++i) side.launch(kSmall, [&](const mtia_work_context&) { ++own; });
          wait_for(stream, side);
        });
        for (int i = 0; i < 3; ++i) graph.launch(stream, nullptr);
        finish(stream);
        total += own;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(total.load(), 4 * 20 * 300);
}

TEST(copies_fills_and_pinned_copies_are_captured) {
  core::Stream& stream = new_stream();
  auto& allocator = new_allocator();
  mtia_device_ptr from = allocator.allocate(4096, &stream);
  mtia_device_ptr to = allocator.allocate(4096, &stream);
  std::vector<std::byte> host(4096, std::byte{0});
  core::Graph graph;
  capture(graph, stream, [&] {
    const std::byte pattern{7};
    const mtia_stream handle = stream.handle();
    const auto host_address = reinterpret_cast<uint64_t>(host.data());
    runtime::call(&mtia_runtime_api::memory_fill, handle, from, &pattern, 1, 2048);
    runtime::call(&mtia_runtime_api::memory_copy, handle, to, from, 4096, MTIA_COPY_DEVICE_TO_DEVICE);
    runtime::call(&mtia_runtime_api::memory_copy, handle, host_address, to, 4096, MTIA_COPY_DEVICE_TO_HOST);
  });
  CHECK(host[0] == std::byte{0});
  graph.launch(stream, nullptr);
  finish(stream);
  CHECK(host[2047] == std::byte{7});
  CHECK(host[2048] == std::byte{0});
  allocator.free(from);
  allocator.free(to);
}

}  // namespace
}  // namespace torch_mtia::test

int main(int argc, char** argv) {
  return torch_mtia::test::run_tests_on_device(argc, argv);
}
