#include "KernelItem.h"

#include <cstddef>
#include <optional>
#include <utility>

namespace torch_mtia::sanitizer {
namespace {

struct Awaited {
  std::mutex mutex;
  std::vector<Node> nodes;
  size_t missing = 1;  // kernels, and whoever sets them up
  std::function<void(std::vector<Node> nodes)> complete;

  void arrive() {
    {
      const std::lock_guard lock(mutex);
      if (--missing != 0) return;
    }
    complete(std::move(nodes));
  }

  void receive(size_t index, AccessRecorder::Launch launch) {
    {
      const std::lock_guard lock(mutex);
      Node& node = nodes[index];
      node.item.operands = std::move(launch.operands);
      node.item.is_listed = launch.was_followed;
      node.found = std::move(launch.findings);
    }
    arrive();
  }
};

}  // namespace

Watcher::Watcher(const mtia_kernel_launch& launch, bool checks_bounds, bool watches_numbers)
    : KernelWatcher({&access}),
      recorder_(checks_bounds
                    ? std::optional(std::vector(launch.live_ranges, launch.live_ranges + launch.num_live_ranges))
                    : std::nullopt,
                std::vector(static_cast<const std::byte*>(launch.packed_arguments),
                            static_cast<const std::byte*>(launch.packed_arguments) + launch.packed_arguments_size)) {
  if (watches_numbers) recorder_.watch_numbers();
}

// The recorder is used by the thread that runs the launch, and one launch runs at a time.
uint64_t Watcher::access(const mtia_kernel_watch* watch, const mtia_kernel_context* context, const mtia_site* site,
                         int32_t program_x, int32_t program_y, int32_t program_z, uint64_t address, int64_t stride,
                         const uint64_t* addresses, uint64_t lanes, const void* values) {
  auto& self = *static_cast<Watcher*>(const_cast<mtia_kernel_watch*>(watch));
  return self.recorder_.access(*context, site, {program_x, program_y, program_z}, address, stride, addresses, lanes,
                               values);
}

void Watcher::expect(Give give) {
  const std::lock_guard lock(mutex_);
  expected_.push_back(std::move(give));
}

void Watcher::finished() noexcept {
  AccessRecorder::Launch launch;
  try {
    launch = recorder_.take();
  } catch (...) {
    launch = {};  // the host is out of memory: nobody knows what the launch did
  }
  Give give;
  {
    const std::lock_guard lock(mutex_);
    if (expected_.empty()) return;  // launched when nobody watched
    give = std::move(expected_.front());
    expected_.pop_front();
  }
  try {
    give(std::move(launch));
  } catch (...) {
    // The same: what waits for the launch is never checked.
  }
}

void await(std::vector<Node> nodes, std::function<void(std::vector<Node> nodes)> complete) {
  const auto awaited = std::make_shared<Awaited>();
  std::vector<std::shared_ptr<Watcher>> kernels;
  for (const Node& node : nodes) {
    kernels.push_back(node.kernel);
    awaited->missing += node.kernel != nullptr ? 1 : 0;
  }
  awaited->nodes = std::move(nodes);
  awaited->complete = std::move(complete);
  for (size_t index = 0; index < kernels.size(); ++index) {
    if (kernels[index] == nullptr) continue;
    kernels[index]->expect(
        [awaited, index](AccessRecorder::Launch launch) { awaited->receive(index, std::move(launch)); });
  }
  awaited->arrive();
}

}  // namespace torch_mtia::sanitizer
