// Replays: in which order nodes run, side by side, and a graph that ends while it is launched.
#include <algorithm>
#include <atomic>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "capturing.h"
#include "core/Waits.h"
#include "core/WorkTrace.h"
#include "device_under_test.h"

namespace torch_mtia::test {
namespace {

constexpr core::WorkInfo kBlocks{.name = "blocks", .flags = MTIA_WORK_CAPTURABLE | MTIA_WORK_BLOCKS};

TEST(destroying_waits_for_a_launch_in_flight) {
  core::Stream& stream = new_stream();
  std::atomic<int> done{0};
  Gate gate;
  {
    core::Graph graph;
    capture(graph, stream, [&] {
      for (int i = 0; i < 100; ++i) stream.launch(kLarge, [&](const mtia_work_context&) { ++done; });
    });
    hold(stream, gate);
    graph.launch(stream, nullptr);
    graph.launch(stream, nullptr);
    std::thread opener([&] { gate.open(); });
    graph.destroy();
    CHECK_EQ(done.load(), 200);
    opener.join();
    graph.destroy();  // again: nothing happens
  }
  finish(stream);
}

TEST(a_graph_may_be_destroyed_from_inside_its_own_launch) {
  core::Stream& stream = new_stream();
  auto graph = std::make_unique<core::Graph>();
  bool done = false;
  Gate launched;
  capture(*graph, stream, [&] {
    stream.launch(kLarge, [&](const mtia_work_context&) {
      launched.wait();
      graph.reset();
      done = true;
    });
  });
  graph->launch(stream, nullptr);
  launched.open();
  finish(stream);
  CHECK(done);
}

// The function's stream holds the launch back, so it must not wait for the launch.
TEST(a_graph_that_dies_in_running_work_is_destroyed_by_somebody_else) {
  core::Stream& stream = new_stream();
  core::Stream& other = new_stream();
  auto graph = std::make_unique<core::Graph>();
  std::atomic<int> count{0};
  auto memory = std::make_shared<int>(0);
  const std::weak_ptr<int> watched = memory;
  capture(*graph, stream, [&] { stream.launch(kLarge, [&](const mtia_work_context&) { ++count; }); });
  Gate gate;
  other.launch(kBlocks, [&](const mtia_work_context&) {
    const core::RunningWork running(other);
    gate.wait();
    graph->destroy(std::move(memory));
    graph.reset();
    CHECK(!core::Graph::destroy_late());
  });
  wait_for(stream, other);
  graph->launch(stream, nullptr);
  gate.open();
  finish(other);
  finish(stream);
  CHECK_EQ(count.load(), 1);
  CHECK(!watched.expired());
  CHECK(core::Graph::destroy_late());
  CHECK(watched.expired());
  CHECK(!core::Graph::destroy_late());
}

TEST(independent_branches_run_at_the_same_time) {
  if (std::thread::hardware_concurrency() < 2) return;
  core::Stream& stream = new_stream();
  core::Stream& side = new_stream();
  core::Graph graph;
  std::atomic<int> arrived{0};
  const auto meet = [&](const mtia_work_context&) {
    ++arrived;
    while (arrived % 2 != 0) std::this_thread::yield();  // until the other one is here
  };
  std::vector<int> log;
  capture(graph, stream, [&] {
    append(stream, log, 0);
    wait_for(side, stream);
    stream.launch(kLarge, meet);
    side.launch(kLarge, meet);
    wait_for(stream, side);
    append(stream, log, 1);
  });
  for (int i = 0; i < 50; ++i) graph.launch(stream, nullptr);
  finish(stream);
  CHECK_EQ(arrived.load(), 100);
  CHECK_EQ(log.size(), 100U);
}

// Random forks and joins over four streams: each node checks that its predecessors have run.
TEST(dependencies_hold_whatever_the_shape_of_the_graph) {
  uint32_t random = 1;
  const auto next = [&random](uint32_t bound) {
    random = random * 1664525 + 1013904223;
    return (random >> 8) % bound;
  };
  for (int round = 0; round < 20; ++round) {
    std::vector<core::Stream*> streams;
    for (int i = 0; i < 4; ++i) streams.push_back(&new_stream());
    constexpr size_t kNodes = 200;
    std::vector<std::atomic<int>> runs(kNodes);
    std::atomic<bool> in_order{true};
    core::Graph graph;
    graph.begin_capture(*streams[0]);
    for (int i = 1; i < 4; ++i) wait_for(*streams[static_cast<size_t>(i)], *streams[0]);
    for (size_t node = 0; node < kNodes; ++node) {
      core::Stream& stream = *streams[next(4)];
      if (next(3) == 0) wait_for(stream, *streams[next(4)]);
      stream.launch(next(4) == 0 ? kLarge : kSmall, [&, node, graph = &graph](const mtia_work_context&) {
        (void)graph;
        ++runs[node];
      });
    }
    graph.end_capture();
    const auto nodes = graph.nodes();
    graph.destroy();
    // The same again, now that each node knows what it depends on.
    core::Graph checking;
    checking.begin_capture(*streams[0]);
    std::vector<core::Event> done;
    for (size_t node = 0; node < kNodes; ++node) done.emplace_back(false);
    std::set<const core::Stream*> joined{streams[0]};
    for (size_t node = 0; node < kNodes; ++node) {
      auto& stream = const_cast<core::Stream&>(*nodes[node].stream);
      if (joined.insert(&stream).second) wait_for(stream, *streams[0]);
      for (const uint32_t dependency : nodes[node].dependencies) stream.wait(done[dependency]);
      stream.launch(node % 4 == 0 ? kLarge : kSmall,
                    [&runs, &in_order, node, dependencies = nodes[node].dependencies](const mtia_work_context&) {
                      ++runs[node];
                      for (const uint32_t dependency : dependencies) {
                        if (runs[dependency] != runs[node]) in_order = false;
                      }
                    });
      done[node].record(stream);
    }
    checking.end_capture();
    checking.instantiate();
    for (int launch = 0; launch < 10; ++launch) checking.launch(*streams[0], nullptr);
    finish(*streams[0]);
    CHECK(in_order);
    for (const auto& count : runs) CHECK_EQ(count.load(), 10);
  }
}

TEST(work_that_blocks_does_not_hold_back_a_parallel_branch) {
  core::Stream& stream = new_stream();
  core::Stream& side = new_stream();
  for (const core::WorkInfo& info : {kSmall, kLarge, kBlocks}) {
    core::Graph graph;
    std::atomic<int> opened{0};
    std::atomic<int> passed{0};
    std::vector<int> log;
    capture(graph, stream, [&] {
      append(stream, log, 0);
      wait_for(side, stream);
      side.launch(kBlocks, [&](const mtia_work_context&) {
        while (opened <= passed) std::this_thread::yield();
        ++passed;
      });
      append(side, log, 2);
      stream.launch(info, [&](const mtia_work_context&) { ++opened; });
      wait_for(stream, side);
      append(stream, log, 3);
    });
    for (int launch = 0; launch < 20; ++launch) graph.launch(stream, nullptr);
    finish(stream);
    CHECK_EQ(passed.load(), 20);
    CHECK_EQ(log.size(), 60U);
    for (size_t i = 0; i < log.size(); i += 3) CHECK((log[i] == 0 && log[i + 1] == 2 && log[i + 2] == 3));
  }
}

// Work of random graphs waits for nodes that were captured later and do not depend on it: some order of all nodes is
// right, and it is not that of the capture.
TEST(work_that_blocks_holds_back_only_what_depends_on_it) {
  uint32_t random = 7;
  const auto next = [&random](size_t bound) {
    random = random * 1664525 + 1013904223;
    return static_cast<size_t>(random >> 8) % bound;
  };
  constexpr size_t kNodes = 60;
  constexpr size_t kStreams = 4;
  for (int round = 0; round < 30; ++round) {
    struct Step {
      size_t stream = 0;
      std::vector<size_t> after;  // besides the earlier ones of its stream
      bool blocks = false;
      std::vector<size_t> waits_for;
    };
    std::vector<Step> steps(kNodes);
    std::vector<std::set<size_t>> dependencies(kNodes);
    std::vector<size_t> last(kStreams, kNodes);
    for (size_t node = 0; node < kNodes; ++node) {
      Step& step = steps[node];
      step.stream = node < kStreams ? node : next(kStreams);
      step.blocks = next(3) == 0;
      if (last[step.stream] != kNodes) dependencies[node].insert(last[step.stream]);
      if (node != 0 && next(3) == 0) {
        step.after.push_back(next(node));
        dependencies[node].insert(step.after.back());
      }
      last[step.stream] = node;
    }
    std::vector<size_t> order;
    std::vector<bool> is_done(kNodes, false);
    while (order.size() < kNodes) {
      std::vector<size_t> ready;
      for (size_t node = 0; node < kNodes; ++node) {
        if (!is_done[node] && std::all_of(dependencies[node].begin(), dependencies[node].end(),
                                          [&](size_t dependency) { return is_done[dependency]; })) {
          ready.push_back(node);
        }
      }
      const size_t node = ready[next(ready.size())];
      if (steps[node].blocks && !order.empty()) {
        for (int i = 0; i < 4; ++i) steps[node].waits_for.push_back(order[next(order.size())]);
      }
      is_done[node] = true;
      order.push_back(node);
    }
    std::vector<core::Stream*> streams;
    for (size_t i = 0; i < kStreams; ++i) streams.push_back(&new_stream());
    std::vector<std::atomic<int>> runs(kNodes);
    core::Graph graph;
    graph.begin_capture(*streams[0]);
    for (size_t i = 1; i < kStreams; ++i) wait_for(*streams[i], *streams[0]);
    std::vector<core::Event> done;
    for (size_t node = 0; node < kNodes; ++node) {
      const Step& step = steps[node];
      core::Stream& stream = *streams[step.stream];
      for (const size_t dependency : step.after) stream.wait(done[dependency]);
      const core::WorkInfo& info = step.blocks ? kBlocks : node % 5 == 0 ? kLarge : kSmall;
      stream.launch(info, [&runs, node, waits_for = step.waits_for](const mtia_work_context&) {
        for (const size_t other : waits_for) {
          while (runs[other] <= runs[node]) std::this_thread::yield();
        }
        ++runs[node];
      });
      done.emplace_back(false);
      done.back().record(stream);
    }
    graph.end_capture();
    graph.instantiate();
    for (int launch = 0; launch < 5; ++launch) graph.launch(*streams[0], nullptr);
    finish(*streams[0]);
    for (const auto& count : runs) CHECK_EQ(count.load(), 5);
  }
}

TEST(an_error_of_work_that_blocks_reaches_the_stream_of_the_launch) {
  core::Stream& stream = new_stream();
  core::Stream& side = new_stream();
  core::Graph graph;
  int after = 0;
  capture(graph, stream, [&] {
    wait_for(side, stream);
    side.launch(kBlocks, [](const mtia_work_context&) { throw std::runtime_error("a host function failed"); });
    stream.launch(kBlocks, [](const mtia_work_context&) {});
    wait_for(stream, side);
    stream.launch(kSmall, [&](const mtia_work_context&) { ++after; });
  });
  for (int i = 0; i < 2; ++i) {
    graph.launch(stream, nullptr);
    CHECK_EQ(CHECK_THROWS(std::runtime_error, finish(stream)), "a host function failed");
  }
  finish(side);
  CHECK_EQ(after, 2);
}

TEST(a_node_cannot_launch_its_own_graph_in_its_stream) {
  core::Stream& stream = new_stream();
  core::Graph graph;
  std::string message;
  capture(graph, stream, [&] {
    stream.launch(kLarge, [&](const mtia_work_context&) {
      try {
        graph.launch(stream, nullptr);
      } catch (const runtime::DriverError& error) {
        message = error.what();
      }
    });
  });
  graph.launch(stream, nullptr);
  finish(stream);
  CHECK_CONTAINS(message, "a node of a graph cannot launch the same graph in the stream that it runs in");
}

TEST(a_node_may_launch_its_own_graph_in_another_stream) {
  core::Stream& stream = new_stream();
  core::Stream& other = new_stream();
  core::Graph graph;
  std::atomic<int> count{0};
  capture(graph, stream, [&] {
    stream.launch(kSmall, [&](const mtia_work_context&) {
      if (++count < 5) graph.launch(count % 2 == 0 ? stream : other, nullptr);
    });
  });
  graph.launch(stream, nullptr);
  while (count < 5) std::this_thread::yield();
  finish(stream);
  finish(other);
  CHECK_EQ(count.load(), 5);
}

// Launching never waits, so a small graph is not run by the launching thread while it runs elsewhere.
TEST(a_launch_does_not_wait_for_one_in_another_stream) {
  core::Stream& stream = new_stream();
  core::Stream& other = new_stream();
  core::Graph graph;
  Gate gate;
  std::atomic<int> count{0};
  capture(graph, stream, [&] {
    stream.launch(kSmall, [&](const mtia_work_context&) {
      if (++count == 1) gate.wait();
    });
  });
  Gate before;
  hold(stream, before);  // so the first launch runs on the stream's own thread
  graph.launch(stream, nullptr);
  before.open();
  while (count == 0) std::this_thread::yield();
  graph.launch(other, nullptr);
  CHECK_EQ(count.load(), 1);
  gate.open();
  finish(stream);
  finish(other);
  CHECK_EQ(count.load(), 2);
}

TEST(launches_of_one_graph_in_several_streams_exclude_each_other) {
  core::Stream& one = new_stream();
  core::Stream& other = new_stream();
  core::Graph graph;
  std::atomic<int> inside{0};
  std::atomic<bool> alone{true};
  int sum = 0;  // not atomic: the sanitizers watch
  capture(graph, one, [&] {
    for (int i = 0; i < 10; ++i) {
      one.launch(kLarge, [&](const mtia_work_context&) {
        if (++inside != 1) alone = false;
        ++sum;
        --inside;
      });
    }
  });
  for (int i = 0; i < 50; ++i) graph.launch(i % 2 == 0 ? one : other, nullptr);
  finish(one);
  finish(other);
  CHECK(alone);
  CHECK_EQ(sum, 500);
}

TEST(parameters_are_set_behind_earlier_launches) {
  core::Stream& stream = new_stream();
  core::Graph graph;
  int64_t parameter = 0;
  std::vector<int64_t> seen;
  capture(graph, stream, [&] { stream.launch(kLarge, [&](const mtia_work_context&) { seen.push_back(parameter); }); });
  Gate gate;
  hold(stream, gate);
  for (int64_t i = 0; i < 20; ++i) {
    const mtia_graph_parameters parameters{&parameter, &i, sizeof(i)};
    graph.launch(stream, &parameters);
  }
  gate.open();
  finish(stream);
  for (size_t i = 0; i < 20; ++i) CHECK_EQ(seen[i], static_cast<int64_t>(i));
}

TEST(an_error_of_a_node_reaches_the_stream_of_the_launch) {
  core::Stream& stream = new_stream();
  core::Stream& elsewhere = new_stream();
  core::Graph graph;
  int after = 0;
  capture(graph, stream, [&] {
    stream.launch({.name = "bad"}, [](const mtia_work_context&) { throw std::runtime_error("out of range"); });
    stream.launch(kSmall, [&](const mtia_work_context&) { ++after; });
  });
  for (int i = 0; i < 2; ++i) {
    graph.launch(elsewhere, nullptr);
    CHECK_EQ(CHECK_THROWS(std::runtime_error, finish(elsewhere)), "out of range");
  }
  finish(stream);
  CHECK_EQ(after, 2);
}

TEST(a_launch_reports_each_node_to_the_tracer) {
  core::Stream& stream = new_stream();
  core::Graph graph;
  std::vector<int> log;
  CHECK(core::WorkTrace::start());
  capture(graph, stream, [&] {
    for (int i = 0; i < 5; ++i) append(stream, log, i);
  });
  graph.launch(stream, nullptr);
  graph.launch(stream, nullptr);
  finish(stream);
  const auto records = core::WorkTrace::stop();
  CHECK_EQ(records.size(), 10U);
  for (const auto& record : records) {
    CHECK(record.stream == &stream);
    CHECK(record.start_ns != 0 && record.end_ns >= record.start_ns);
  }
}

}  // namespace
}  // namespace torch_mtia::test

int main(int argc, char** argv) {
  return torch_mtia::test::run_tests_on_device(argc, argv);
}
