// The memory of graphs: private pools, what stays while a graph may use it, the cache around a capture.
#include <atomic>

#include "core/Graph.h"
#include "core/Waits.h"
#include "device_under_test.h"

namespace torch_mtia::test {
namespace {

core::PoolId new_pool() {
  static std::atomic<uint64_t> last{0};
  return {++last, 0};
}

TEST(private_pools_are_returned_to_the_byte) {
  core::Stream& stream = new_stream();
  auto& allocator = new_allocator();
  const core::PoolId pool = new_pool();
  const auto before = allocator.stats().reserved_bytes[core::kAll].current;
  {
    core::Graph graph;
    allocator.use_pool(pool);
    graph.begin_capture(stream);
    allocator.direct_to_pool(&stream, pool);
    mtia_device_ptr kept = allocator.allocate(3 << 20, &stream);
    allocator.free(allocator.allocate(5000, &stream));
    graph.end_capture();
    allocator.direct_to_default_pool(&stream);
    allocator.free(kept);
    allocator.empty_cache();
    CHECK(allocator.stats().reserved_bytes[core::kAll].current > before);  // the graph's still
  }
  allocator.release_pool(pool);
  allocator.empty_cache();
  CHECK_EQ(allocator.stats().reserved_bytes[core::kAll].current, before);
  CHECK_EQ(allocator.stats().active_bytes[core::kAll].current, 0);
}

TEST(memory_of_a_pool_stays_while_a_stream_is_busy_that_its_graphs_were_launched_in) {
  core::Stream& stream = new_stream();
  core::Stream& launched_in = new_stream();
  auto& allocator = new_allocator();
  const core::PoolId pool = new_pool();
  allocator.use_pool(pool);
  allocator.direct_to_pool(&stream, pool);
  mtia_device_ptr result = allocator.allocate(3 << 20, &stream);
  allocator.direct_to_default_pool(&stream);
  allocator.use_pool_in(pool, &launched_in);
  Gate gate;
  hold(launched_in, gate);
  allocator.free(result);
  allocator.release_pool(pool);
  {
    const core::RunningWork running(new_stream());  // which does not wait
    allocator.empty_cache();
  }
  CHECK(allocator.stats().reserved_bytes[core::kAll].current > 0);
  gate.open();
  finish(launched_in);
  allocator.empty_cache();
  CHECK_EQ(allocator.stats().reserved_bytes[core::kAll].current, 0);
}

TEST(memory_that_a_side_stream_uses_is_not_used_again_within_the_capture) {
  core::Stream& stream = new_stream();
  core::Stream& side = new_stream();
  auto& allocator = new_allocator();
  const core::PoolId pool = new_pool();
  allocator.use_pool(pool);
  core::Graph graph;
  graph.begin_capture(stream);
  allocator.direct_to_pool(&stream, pool);
  wait_for(side, stream);
  mtia_device_ptr block = allocator.allocate(1000, &stream);
  const mtia_device_ptr address = block;
  allocator.record_stream(block, &side);
  allocator.free(block);
  mtia_device_ptr second = allocator.allocate(1000, &stream);
  CHECK(second != address);
  graph.end_capture();
  allocator.direct_to_default_pool(&stream);
  allocator.direct_to_default_pool(&side);
  CHECK_EQ(allocator.stats().active[core::kAll].current, 1);
  allocator.free(second);
  graph.destroy();
  allocator.release_pool(pool);
}

TEST(the_cache_is_emptied_around_a_capture) {
  core::Stream& stream = new_stream();
  core::Stream& other = new_stream();
  auto& allocator = new_allocator();
  allocator.free(allocator.allocate(1000, &stream));
  allocator.free(allocator.allocate(1000, &other));
  core::Graph graph;
  graph.begin_capture(stream);
  allocator.empty_cache();  // without waiting for the stream that is captured
  CHECK_EQ(allocator.stats().segment[core::kAll].current, 1);
  graph.end_capture();
  allocator.empty_cache();
  CHECK_EQ(allocator.stats().segment[core::kAll].current, 0);
}

}  // namespace
}  // namespace torch_mtia::test

int main(int argc, char** argv) {
  return torch_mtia::test::run_tests_on_device(argc, argv);
}
