// The order of a captured graph's nodes, of which kernels are known when they have run.
#include "sanitizer/Log.h"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "check.h"

namespace torch_mtia::test {
namespace {

using namespace sanitizer;

const char kStreams[2] = {};
const void* const kMain = &kStreams[0];
const void* const kSide = &kStreams[1];
const char kEventHandle = 0;
const void* const kEvent = &kEventHandle;
constexpr uint64_t kX = 1 << 20;

Operand touch(uint64_t address, bool writes) {
  return {Region::dense(address, 64), writes, writes ? OldBytes::kOverwritten : OldBytes::kRead, "x"};
}

struct Graph {
  Capture capture;
  uint64_t num_blocks = 0;

  void add(const void* stream, const char* name, std::vector<Operand> operands) {
    capture.add({.item = {.name = name, .stream = stream, .operands = std::move(operands), .context = {}},
                 .num_blocks = std::make_shared<const uint64_t>(num_blocks)});
  }
  void add_kernel(const void* stream) {
    const mtia_kernel_launch launch{};
    const auto watcher = std::make_shared<Watcher>(launch, /*checks_bounds=*/false, /*watches_numbers=*/false);
    capture.add({.item = {.name = "kernel", .stream = stream, .is_listed = false, .operands = {}, .context = {}},
                 .kernel = watcher,
                 .num_blocks = std::make_shared<const uint64_t>(num_blocks)});
  }
  // With what each kernel has touched; none: the kernels have not run.
  std::string check(std::vector<std::vector<Operand>> of_kernels = {}) {
    std::vector<Node> nodes = capture.nodes();
    auto operands = of_kernels.begin();
    for (Node& node : nodes) {
      if (node.kernel == nullptr || operands == of_kernels.end()) continue;
      node.item.operands = *operands++;
      node.item.is_listed = true;
    }
    Detector order;
    std::string text;
    for (const Finding& each : capture.check(nodes, order)) {
      constexpr const char* kNames[] = {"race", "freed too early", "use after free", "uninitialized"};
      text += (text.empty() ? "" : ", ") + each.item->name + ": " + kNames[static_cast<int>(each.kind)];
      if (each.earlier != nullptr) text += " with " + each.earlier->name;
    }
    return text;
  }
};

TEST(branches_race_with_what_kernels_touch_in_a_replay) {
  Graph graph;
  graph.add_kernel(kMain);
  graph.add(kSide, "exp", {touch(kX, false)});
  CHECK_EQ(graph.check(), "");
  CHECK_EQ(graph.check({{touch(2 * kX, true)}}), "");
  CHECK_EQ(graph.check({{touch(kX, true)}}), "exp: race with kernel");
  CHECK_EQ(graph.check({{touch(kX, true)}}), "");  // it was told
}

TEST(events_order_kernels) {
  Graph graph;
  graph.add_kernel(kMain);
  graph.capture.add([](Detector& order) { order.clocks().record(kEvent, kMain); });
  graph.add_kernel(kMain);
  graph.capture.add([](Detector& order) { order.clocks().wait(kSide, kEvent); });
  graph.add(kSide, "exp", {touch(kX, false), touch(2 * kX, false)});
  CHECK_EQ(graph.check({{touch(kX, true)}, {touch(3 * kX, true)}}), "");
  CHECK_EQ(graph.check({{touch(kX, true)}, {touch(2 * kX, true)}}), "exp: race with kernel");
}

TEST(what_operators_do_is_known_when_the_capture_ends) {
  Graph graph;
  graph.add(kMain, "mul", {touch(kX, true)});
  graph.add(kSide, "exp", {touch(kX, false)});
  graph.add_kernel(kSide);
  CHECK_EQ(graph.check(), "exp: race with mul");
  CHECK_EQ(graph.check({{touch(kX, false)}}), "kernel: race with mul");
}

TEST(memory_of_a_capture_is_written_before_kernels_read_it_and_freed_behind_them) {
  Graph graph;
  graph.capture.add([](Detector& order) { order.allocate(kX, 64, false, /*is_written=*/false, nullptr); });
  graph.add_kernel(kMain);
  graph.add(kMain, "add", {touch(kX, false)});
  graph.capture.add([](Detector& order) { order.free(kX, nullptr); });
  graph.add_kernel(kMain);
  CHECK_EQ(graph.check(), "");  // the kernel may have written it
  CHECK_EQ(graph.check({{touch(kX, true)}, {}}), "");
  CHECK_EQ(graph.check({{touch(kX, false)}, {touch(kX, true)}}),
           "kernel: uninitialized, add: uninitialized, kernel: use after free");
}

TEST(a_replay_touches_what_its_nodes_do) {
  Graph graph;
  graph.num_blocks = 3;
  graph.add(kMain, "mul", {touch(kX, true)});
  graph.add_kernel(kMain);
  std::vector<Node> nodes = graph.capture.nodes();
  CHECK(!merge({.name = "graph", .operands = {}, .context = {}}, nodes).is_listed);
  nodes[1].item.is_listed = true;
  nodes[1].item.operands = {touch(kX, false), touch(2 * kX, true)};
  nodes[1].item.operands[0].line = std::make_shared<KernelLine>(KernelLine{"kernel.py", 3, "x"});
  nodes[1].item.operands[1].line = std::make_shared<KernelLine>(KernelLine{"kernel.py", 4, ""});
  const Item replay = merge({.name = "graph", .operands = {}, .context = {}}, nodes);
  CHECK(replay.is_listed);
  CHECK_EQ(replay.operands.size(), size_t{3});
  CHECK_EQ(*replay.operands[0].captured, uint64_t{3});
  CHECK_EQ(*replay.operands[1].captured, uint64_t{3});
  CHECK(replay.operands[2].captured == nullptr);  // the kernel may have it from memory that was changed
}

}  // namespace
}  // namespace torch_mtia::test

int main(int argc, char** argv) {
  return torch_mtia::test::run_tests(argc, argv);
}
