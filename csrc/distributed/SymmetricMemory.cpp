// Symmetric memory: each rank's is mapped in the device memory of all ranks on the machine, so that kernels of one read
// what another has written. See c10d/symm_mem/SymmetricMemory.hpp for what the functions promise.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/tensor.h>
#include <sys/types.h>
#include <torch/library.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/symm_mem/SymmetricMemory.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "../collectives/Team.h"
#include "../core/WorkItem.h"
#include "../device/DeviceType.h"
#include "../device/HostView.h"
#include "../device/MTIAFunctions.h"
#include "../device/MTIAStream.h"
#include "../device/SharedBlock.h"
#include "../runtime/forks.h"

namespace torch_mtia {
namespace {

namespace symmetric_memory = c10d::symmetric_memory;

size_t round_up(size_t size, size_t granularity) {
  return (size + granularity - 1) / granularity * granularity;
}

// A rank's memory as one process sees it: the buffer, followed by the signal pad.
struct SymmetricBlock {
  std::shared_ptr<const SharedBlock> shared;
  size_t size;  // of the buffer

  static size_t total(size_t size) { return round_up(size, 64) + symmetric_memory::get_signal_pad_size(); }
  c10::DeviceIndex device() const { return shared->device(); }
  uint64_t buffer() const { return shared->address(); }
  uint64_t signal_pad() const { return buffer() + round_up(size, 64); }
};

void check_rank(const char* name, int rank, int size) {
  TORCH_CHECK_VALUE(rank >= 0 && rank < size, "expected ", name, " to be a rank of the group, below ", size, ", got ",
                    rank);
}

at::Tensor on_device(const std::vector<void*>& addresses, c10::Device device) {
  std::vector<int64_t> numbers;
  for (void* const address : addresses) numbers.push_back(reinterpret_cast<int64_t>(address));
  return at::tensor(numbers, at::kLong).to(device);
}

// Guards the allocations. Held at forks: a child drops tensors, too.
std::mutex& allocations_mutex() {
  static auto* const instance = [] {
    auto* const mutex = new std::mutex();
    runtime::hold_at_forks(runtime::ForkOrder::kTable, *mutex);
    return mutex;
  }();
  return *instance;
}

std::string text(const std::vector<uint8_t>& bytes) {
  return {bytes.begin(), bytes.end()};
}

class SymmetricMemory final : public symmetric_memory::SymmetricMemory {
 public:
  // `blocks` are those of the ranks.
  SymmetricMemory(std::vector<SymmetricBlock> blocks, int rank, size_t offset);

  std::vector<void*> get_buffer_ptrs() override { return addresses(&SymmetricBlock::buffer); }
  std::vector<void*> get_signal_pad_ptrs() override { return addresses(&SymmetricBlock::signal_pad); }
  void** get_buffer_ptrs_dev() override { return static_cast<void**>(buffers_on_device_.mutable_data_ptr()); }
  void** get_signal_pad_ptrs_dev() override { return static_cast<void**>(signal_pads_on_device_.mutable_data_ptr()); }
  size_t get_buffer_size() override { return blocks_[rank_].size; }
  size_t get_offset() override { return offset_; }
  bool has_multicast_support() override { return false; }
  void* get_multicast_ptr() override { return nullptr; }

  // In the current stream, for which they block. `timeout_ms` 0: a minute.
  void barrier(int channel, size_t timeout_ms) override;
  void put_signal(int dst_rank, int channel, size_t timeout_ms) override;
  void wait_signal(int src_rank, int channel, size_t timeout_ms) override;

  int get_rank() override { return rank_; }
  int get_world_size() override { return static_cast<int>(blocks_.size()); }
  c10::Device get_device() override { return {device_type(), blocks_[rank_].device()}; }
  const std::vector<int>& get_rank_to_global_rank() override { return ranks_; }
  bool world_within_direct_access() override { return true; }

 private:
  struct Signals;
  std::vector<void*> addresses(uint64_t (SymmetricBlock::*address)() const) const {
    std::vector<void*> result;
    for (const auto& block : blocks_) result.push_back(reinterpret_cast<void*>((block.*address)()));
    return result;
  }
  // Puts a signal for each of `to` and waits for one of each of `from`.
  void signal(const char* name, std::vector<int> to, std::vector<int> from, int channel, size_t timeout_ms);

  const std::vector<SymmetricBlock> blocks_;
  const int rank_;
  const size_t offset_;
  std::vector<int> ranks_;
  at::Tensor buffers_on_device_;
  at::Tensor signal_pads_on_device_;
};

class SymmetricAllocator final : public symmetric_memory::SymmetricMemoryAllocator {
 public:
  void* alloc(size_t size, int device_idx, const std::optional<std::string>& group_name) override;
  void free(void* ptr) override;
  size_t get_alloc_size(void* ptr) override;
  c10::intrusive_ptr<symmetric_memory::SymmetricMemory> rendezvous(
      void* ptr, const std::optional<std::string>& group_name) override;
  bool has_multicast_support(int /*device_idx*/) override { return false; }
  c10::DeviceType supported_device_type() override { return device_type(); }
  std::string name() override { return device_name(); }
  bool has_allocation(void* ptr) override;

 private:
  struct Allocation {
    SymmetricBlock block;
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

SymmetricMemory::SymmetricMemory(std::vector<SymmetricBlock> blocks, int rank, size_t offset)
    : blocks_(std::move(blocks)), rank_(rank), offset_(offset), ranks_(blocks_.size()) {
  std::iota(ranks_.begin(), ranks_.end(), 0);
  buffers_on_device_ = on_device(get_buffer_ptrs(), get_device());
  signal_pads_on_device_ = on_device(get_signal_pad_ptrs(), get_device());
}

// The pad of a rank has, for each channel, a number for each rank that signals to it: 1 from the signal until that is
// waited for.
struct SymmetricMemory::Signals {
  using Number = std::atomic<uint32_t>;

  std::vector<Number*> to;
  std::vector<Number*> from;
  std::chrono::milliseconds timeout;

  // Waits until it can change the number.
  void change(Number& number, uint32_t before, uint32_t after, const char* what) const {
    const collectives::Deadline deadline(timeout);
    uint32_t expected = before;
    while (!number.compare_exchange_weak(expected, after)) {
      expected = before;
      TORCH_CHECK_WITH(DistBackendError, !deadline.is_over(), "symmetric memory: ", what, " within the timeout of ",
                       timeout.count(), " ms");
      std::this_thread::sleep_for(std::chrono::microseconds(10));
    }
  }
  void exchange() const {
    for (Number* const number : to) change(*number, 0, 1, "a rank has not waited for the signal before this one");
    for (Number* const number : from) change(*number, 1, 0, "a rank has not signalled");
  }
};

void SymmetricMemory::signal(const char* name, std::vector<int> to, std::vector<int> from, int channel,
                             size_t timeout_ms) {
  const int size = get_world_size();
  const size_t num_channels = symmetric_memory::get_signal_pad_size() / sizeof(Signals::Number) / size;
  TORCH_CHECK_VALUE(channel >= 0 && static_cast<size_t>(channel) < num_channels, "expected a channel below ",
                    num_channels, ", got ", channel);
  const auto number = [&](int at, int of) {
    auto* const pad =
        static_cast<Signals::Number*>(HostView::to_host(reinterpret_cast<void*>(blocks_.at(at).signal_pad())));
    return pad + channel * size + of;
  };
  constexpr size_t kMinute = 60'000;
  Signals signals{{}, {}, std::chrono::milliseconds(timeout_ms == 0 ? kMinute : timeout_ms)};
  for (const int rank : to) signals.to.push_back(number(rank, rank_));
  for (const int rank : from) signals.from.push_back(number(rank_, rank));
  core::WorkInfo info{};
  info.name = name;
  info.flags = MTIA_WORK_CAPTURABLE | MTIA_WORK_BLOCKS;
  MTIAStream::current(blocks_[rank_].device())
      .core()
      .launch(info, [blocks = blocks_, signals = std::move(signals)](const mtia_work_context&) { signals.exchange(); });
}

void SymmetricMemory::barrier(int channel, size_t timeout_ms) {
  std::vector<int> others;
  for (int rank = 0; rank < get_world_size(); ++rank) {
    if (rank != rank_) others.push_back(rank);
  }
  signal("symm_mem::barrier", others, others, channel, timeout_ms);
}

void SymmetricMemory::put_signal(int dst_rank, int channel, size_t timeout_ms) {
  check_rank("dst_rank", dst_rank, get_world_size());
  signal("symm_mem::put_signal", {dst_rank}, {}, channel, timeout_ms);
}

void SymmetricMemory::wait_signal(int src_rank, int channel, size_t timeout_ms) {
  check_rank("src_rank", src_rank, get_world_size());
  signal("symm_mem::wait_signal", {}, {src_rank}, channel, timeout_ms);
}

void* SymmetricAllocator::alloc(size_t size, int device_idx, const std::optional<std::string>& group_name) {
  ensure_initialized();
  TORCH_CHECK_NOT_IMPLEMENTED(HostView::available(),
                              "symmetric memory needs a driver with a host view of its memory, and with shared memory");
  const c10::DeviceIndex device = index_or_current(to_device_index(device_idx));
  SymmetricBlock block{SharedBlock::create(device, SymmetricBlock::total(size)), size};
  const uint64_t address = block.buffer();
  const std::lock_guard<std::mutex> lock(allocations_mutex());
  allocations_.emplace(address, Allocation{std::move(block), group_name, {}});
  return reinterpret_cast<void*>(address);
}

SymmetricAllocator::Allocations::iterator SymmetricAllocator::find(void* ptr) {
  const auto address = reinterpret_cast<uint64_t>(ptr);
  auto next = allocations_.upper_bound(address);
  if (next == allocations_.begin()) return allocations_.end();
  const auto found = std::prev(next);
  return address - found->first < std::max<size_t>(found->second.block.size, 1) ? found : allocations_.end();
}

void SymmetricAllocator::free(void* ptr) {
  Allocations::node_type allocation;  // is destroyed without the mutex
  const std::lock_guard<std::mutex> lock(allocations_mutex());
  const auto found = find(ptr);
  if (found != allocations_.end()) allocation = allocations_.extract(found);
}

size_t SymmetricAllocator::get_alloc_size(void* ptr) {
  const std::lock_guard<std::mutex> lock(allocations_mutex());
  const auto found = find(ptr);
  TORCH_CHECK_VALUE(found != allocations_.end(), "expected symmetric memory");
  return found->second.block.size;
}

bool SymmetricAllocator::has_allocation(void* ptr) {
  const std::lock_guard<std::mutex> lock(allocations_mutex());
  return find(ptr) != allocations_.end();
}

c10::intrusive_ptr<symmetric_memory::SymmetricMemory> SymmetricAllocator::rendezvous(
    void* ptr, const std::optional<std::string>& group_name) {
  SymmetricBlock own;
  std::string name;
  size_t offset = 0;
  int number = 0;
  {
    const std::lock_guard<std::mutex> lock(allocations_mutex());
    const auto found = find(ptr);
    if (found == allocations_.end()) return nullptr;
    Allocation& allocation = found->second;
    TORCH_CHECK_VALUE(group_name || allocation.group_name, "the rendezvous of symmetric memory needs a group");
    name = group_name.value_or(allocation.group_name.value_or(""));
    offset = reinterpret_cast<uint64_t>(ptr) - found->first;
    if (const auto known = allocation.of_groups.find({name, offset}); known != allocation.of_groups.end())
      return known->second;
    own = allocation.block;
    number = num_rendezvous_[name]++;
  }
  const auto group = c10d::resolve_process_group(name);
  const auto store = group->getStore();
  const auto key = [&](int rank) { return c10::str("symmetric_memory/", name, "/", number, "/", rank); };
  const std::string mine = c10::str(getpid(), " ", own.shared->descriptor(), " ", own.size);
  store->set(key(group->getRank()), std::vector<uint8_t>(mine.begin(), mine.end()));
  std::vector<SymmetricBlock> blocks;
  for (int rank = 0; rank < group->getSize(); ++rank) {
    if (rank == group->getRank()) {
      blocks.push_back(own);
      continue;
    }
    pid_t process = 0;
    int descriptor = -1;
    size_t size = 0;
    std::istringstream(text(store->get(key(rank)))) >> process >> descriptor >> size;
    TORCH_CHECK_VALUE(size == own.size, "symmetric memory has one size on all ranks, got ", own.size, " on rank ",
                      group->getRank(), " and ", size, " on rank ", rank);
    auto shared = SharedBlock::open(own.device(), process, descriptor, SymmetricBlock::total(size));
    TORCH_CHECK(shared != nullptr, "symmetric memory is for ranks of one machine: rank ", group->getRank(),
                " cannot open the memory of rank ", rank);
    blocks.push_back({std::move(shared), size});
  }
  // The descriptors have to stay open until all have opened them.
  const std::string done = c10::str(key(group->getRank()), "/done");
  store->set(done, std::vector<uint8_t>{1});
  for (int rank = 0; rank < group->getSize(); ++rank) store->get(c10::str(key(rank), "/done"));

  auto result = c10::make_intrusive<SymmetricMemory>(std::move(blocks), group->getRank(), offset);
  const std::lock_guard<std::mutex> lock(allocations_mutex());
  find(ptr)->second.of_groups.emplace(std::pair(name, offset), result);
  return result;
}

// The operators of symm_mem that reduce, as PyTorch has them for CUDA
// (torch/csrc/distributed/c10d/symm_mem/CUDA*Ops.cu): all ranks read what the others have in symmetric memory. Sums are
// made in the order of the ranks, those of short floating point in float32, and rounded once, so all ranks have the
// same bits.

using Handle = c10::intrusive_ptr<symmetric_memory::SymmetricMemory>;

Handle handle_of(const at::Tensor& input, const std::string& reduction, const std::string& group_name) {
  TORCH_CHECK_VALUE(reduction == "sum", "symmetric memory is reduced by sum, got ", reduction);
  TORCH_CHECK_VALUE(input.is_contiguous(), "expected a contiguous tensor in symmetric memory");
  Handle handle = symmetric_memory::rendezvous(input, group_name);
  TORCH_CHECK_VALUE(handle, "expected a tensor of torch.distributed._symmetric_memory.empty");
  return handle;
}

// The input of each rank, as one dimension.
std::vector<at::Tensor> inputs_of(const Handle& handle, const at::Tensor& input) {
  const auto first = static_cast<int64_t>(handle->get_offset() / input.element_size()) + input.storage_offset();
  std::vector<at::Tensor> inputs;
  for (int rank = 0; rank < handle->get_world_size(); ++rank) {
    inputs.push_back(handle->get_buffer(rank, {input.numel()}, input.scalar_type(), first));
  }
  return inputs;
}

at::Tensor sum_of(const std::vector<at::Tensor>& tensors) {
  const c10::ScalarType dtype = tensors[0].scalar_type();
  at::Tensor sum = tensors[0].to(c10::isReducedFloatingType(dtype) ? at::kFloat : dtype, false, /*copy=*/true);
  for (size_t i = 1; i < tensors.size(); ++i) sum.add_(tensors[i]);
  return sum.to(dtype);
}

at::Tensor one_shot_all_reduce_out(const at::Tensor& input, std::string reduction, std::string group_name,
                                   at::Tensor out) {
  const Handle handle = handle_of(input, reduction, group_name);
  handle->barrier(0, 0);
  out.copy_(sum_of(inputs_of(handle, input)).view(out.sizes()));
  handle->barrier(0, 0);  // from here on the inputs may be written again
  return out;
}

at::Tensor one_shot_all_reduce(const at::Tensor& input, std::string reduction, std::string group_name) {
  return one_shot_all_reduce_out(input, std::move(reduction), std::move(group_name), at::empty_like(input));
}

// `symm_buffer` is the input once `local_input` is in it.
at::Tensor one_shot_all_reduce_copy_out(const at::Tensor& symm_buffer, const at::Tensor& local_input,
                                        std::string reduction, std::string group_name, at::Tensor out) {
  TORCH_CHECK_VALUE(
      local_input.numel() <= symm_buffer.numel() && local_input.scalar_type() == symm_buffer.scalar_type(),
      "expected local_input to fit into symm_buffer and to have its dtype");
  at::Tensor input = symm_buffer.view({-1}).narrow(0, 0, local_input.numel()).view(local_input.sizes());
  input.copy_(local_input);
  return one_shot_all_reduce_out(input, std::move(reduction), std::move(group_name), std::move(out));
}

at::Tensor one_shot_all_reduce_copy(const at::Tensor& symm_buffer, const at::Tensor& local_input, std::string reduction,
                                    std::string group_name) {
  return one_shot_all_reduce_copy_out(symm_buffer, local_input, std::move(reduction), std::move(group_name),
                                      at::empty_like(local_input));
}

at::Tensor two_shot_all_reduce_(at::Tensor input, std::string reduction, std::string group_name) {
  const Handle handle = handle_of(input, reduction, group_name);
  const std::vector<at::Tensor> inputs = inputs_of(handle, input);
  const int64_t size = handle->get_world_size(), count = (input.numel() + size - 1) / size;
  const auto part = [&](const at::Tensor& tensor, int64_t rank) {
    const int64_t first = std::min(rank * count, tensor.numel());
    return tensor.narrow(0, first, std::min(count, tensor.numel() - first));
  };
  const int rank = handle->get_rank();
  handle->barrier(0, 0);
  std::vector<at::Tensor> own_parts;
  for (const at::Tensor& each : inputs) own_parts.push_back(part(each, rank));
  own_parts[rank].copy_(sum_of(own_parts));  // nobody else reads this part before the barrier
  handle->barrier(0, 0);
  for (int64_t other = 0; other < size; ++other) {
    if (other != rank) part(inputs[rank], other).copy_(part(inputs[other], other));
  }
  handle->barrier(0, 0);
  return input;
}

at::Tensor two_shot_all_reduce_out(at::Tensor input, std::string reduction, std::string group_name, at::Tensor output) {
  return output.copy_(two_shot_all_reduce_(std::move(input), std::move(reduction), std::move(group_name)));
}

const DeviceTypeRegistration symmetric_allocator([](const RegisteredType& /*registered*/, bool active) {
  if (active) symmetric_memory::register_allocator(device_type(), c10::make_intrusive<SymmetricAllocator>());
});

}  // namespace

MTIA_LIBRARY_IMPL(symm_mem, kBackend, m) {
  m.impl("one_shot_all_reduce", one_shot_all_reduce);
  m.impl("one_shot_all_reduce_copy", one_shot_all_reduce_copy);
  m.impl("one_shot_all_reduce_copy_out", one_shot_all_reduce_copy_out);
  m.impl("one_shot_all_reduce_out", one_shot_all_reduce_out);
  m.impl("two_shot_all_reduce_", two_shot_all_reduce_);
  m.impl("two_shot_all_reduce_out", two_shot_all_reduce_out);
}

}  // namespace torch_mtia
