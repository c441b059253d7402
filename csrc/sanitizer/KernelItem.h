// Work that kernels are part of: it is complete when they have run. No PyTorch.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "../core/Observer.h"
#include "AccessRecorder.h"

namespace torch_mtia::sanitizer {

// Watches the launches of one kernel, each of which is part of an item.
class Watcher final : public core::KernelWatcher {
 public:
  // Where what a launch has done goes.
  using Give = std::function<void(AccessRecorder::Launch launch)>;

  // `checks_bounds`: lanes stop that leave the live range of the launch which their argument belongs to.
  Watcher(const mtia_kernel_launch& launch, bool checks_bounds, bool watches_numbers);

  // Of the next launch that nobody expects yet.
  void expect(Give give);
  void finished() noexcept override;

 private:
  static uint64_t access(const mtia_kernel_watch* watch, const mtia_kernel_context* context, const mtia_site* site,
                         int32_t program_x, int32_t program_y, int32_t program_z, uint64_t address, int64_t stride,
                         const uint64_t* addresses, uint64_t lanes, const void* values);

  AccessRecorder recorder_;
  std::mutex mutex_;
  std::deque<Give> expected_;
};

// An item of work, or a part of it. What a kernel touches, and what was found in it, is known when it has run.
struct Node {
  Item item;
  std::shared_ptr<Watcher> kernel = nullptr;
  std::vector<KernelFinding> found = {};
};

// Calls `complete` when all kernels among the nodes have run, on any thread. A kernel that nobody could follow is not
// listed then.
void await(std::vector<Node> nodes, std::function<void(std::vector<Node> nodes)> complete);

}  // namespace torch_mtia::sanitizer
