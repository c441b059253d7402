// Symmetric memory: each rank's is mapped in the device memory of all ranks on the machine, so that kernels of one read
// what another has written. See c10d/symm_mem/SymmetricMemory.hpp for what the functions promise.
#pragma once

#include <torch/csrc/distributed/c10d/symm_mem/SymmetricMemory.hpp>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "../collectives/SharedMemory.h"
#include "../core/Driver.h"

namespace torch_mtia {

// A rank's memory as one process sees it: the buffer, and behind it the signal pad. Stays until the work that the
// device was given before the last owner went is done.
struct SymmetricBlock {
  SymmetricBlock(c10::DeviceIndex device, size_t size, collectives::SharedMemory memory);

  const c10::DeviceIndex device;
  const size_t size;  // of the buffer
  const collectives::SharedMemory memory;
  const core::SharedSegment segment;

  static size_t total(size_t size);
  uint64_t buffer() const { return segment.address(); }
  uint64_t signal_pad() const;
};

class SymmetricMemory final : public c10d::symmetric_memory::SymmetricMemory {
 public:
  // `blocks` are those of the ranks.
  SymmetricMemory(std::vector<std::shared_ptr<SymmetricBlock>> blocks, int rank, size_t offset);

  std::vector<void*> get_buffer_ptrs() override;
  std::vector<void*> get_signal_pad_ptrs() override;
  void** get_buffer_ptrs_dev() override { return static_cast<void**>(buffers_on_device_.mutable_data_ptr()); }
  void** get_signal_pad_ptrs_dev() override { return static_cast<void**>(signal_pads_on_device_.mutable_data_ptr()); }
  size_t get_buffer_size() override { return blocks_[rank_]->size; }
  size_t get_offset() override { return offset_; }
  bool has_multicast_support() override { return false; }
  void* get_multicast_ptr() override { return nullptr; }

  // In the current stream, for which they block. `timeout_ms` 0: a minute.
  void barrier(int channel, size_t timeout_ms) override;
  void put_signal(int dst_rank, int channel, size_t timeout_ms) override;
  void wait_signal(int src_rank, int channel, size_t timeout_ms) override;

  int get_rank() override { return rank_; }
  int get_world_size() override { return static_cast<int>(blocks_.size()); }
  c10::Device get_device() override;
  const std::vector<int>& get_rank_to_global_rank() override { return ranks_; }
  bool world_within_direct_access() override { return true; }

 private:
  struct Signals;
  // Puts a signal for each of `to` and waits for one of each of `from`.
  void signal(const char* name, std::vector<int> to, std::vector<int> from, int channel, size_t timeout_ms);

  const std::vector<std::shared_ptr<SymmetricBlock>> blocks_;
  const int rank_;
  const size_t offset_;
  std::vector<int> ranks_;
  at::Tensor buffers_on_device_;
  at::Tensor signal_pads_on_device_;
};

class SymmetricAllocator final : public c10d::symmetric_memory::SymmetricMemoryAllocator {
 public:
  void* alloc(size_t size, int device_idx, const std::optional<std::string>& group_name) override;
  void free(void* ptr) override;
  size_t get_alloc_size(void* ptr) override;
  c10::intrusive_ptr<c10d::symmetric_memory::SymmetricMemory> rendezvous(
      void* ptr, const std::optional<std::string>& group_name) override;
  bool has_multicast_support(int /*device_idx*/) override { return false; }
  c10::DeviceType supported_device_type() override;
  std::string name() override;
  bool has_allocation(void* ptr) override;

  // Makes it known to c10d. Again, when another door opens.
  static void make_known();

 private:
  struct Allocation {
    std::shared_ptr<SymmetricBlock> block;
    std::optional<std::string> group_name;
    // By the name and the offset of the address.
    std::map<std::pair<std::string, size_t>, c10::intrusive_ptr<SymmetricMemory>> of_groups;
  };
  using Allocations = std::map<uint64_t, Allocation>;
  // Of which the address is a part. With allocations_mutex().
  Allocations::iterator find(void* ptr);

  Allocations allocations_;  // by address
  std::map<std::string, int> num_rendezvous_;
};

}  // namespace torch_mtia
