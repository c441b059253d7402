// Items of work that kernels are part of: they are complete when the kernels have run. No PyTorch.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
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

// A part of an item: what an operator touches, or a kernel.
struct Node {
  std::string name;
  bool is_listed = true;
  std::vector<Operand> operands;
  std::shared_ptr<Watcher> kernel = nullptr;
};

// Calls `complete` when all kernels of the item have run, on any thread: with the operands of all its nodes in their
// order, what was found in them, and the names of those that nobody could follow.
void await(
    Item item, std::span<const Node> nodes,
    std::function<void(Item item, std::vector<KernelFinding> found, std::vector<std::string> unfollowed)> complete);

}  // namespace torch_mtia::sanitizer
