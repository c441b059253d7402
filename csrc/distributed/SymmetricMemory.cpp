#include "SymmetricMemory.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/tensor.h>
#include <sys/types.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <atomic>
#include <chrono>
#include <mutex>
#include <numeric>
#include <sstream>
#include <thread>
#include <utility>
#include <vector>

#include "../collectives/Deadline.h"
#include "../core/Observer.h"
#include "../core/WorkItem.h"
#include "../device/DeviceIndex.h"
#include "../device/Door.h"
#include "../device/HostView.h"
#include "../device/MTIAFunctions.h"
#include "../device/MTIAStream.h"
#include "../runtime/forks.h"
#include "../runtime/machine_memory.h"

namespace torch_mtia {
namespace {

namespace symmetric_memory = c10d::symmetric_memory;

size_t round_up(size_t size, size_t granularity) {
  return (size + granularity - 1) / granularity * granularity;
}

void check_rank(const char* name, int rank, int size) {
  TORCH_CHECK_VALUE(rank >= 0 && rank < size, "expected ", name, " to be a rank of the group, below ", size, ", got ",
                    rank);
}

at::Tensor on_device(const std::vector<void*>& addresses, c10::Device device) {
  std::vector<int64_t> numbers;
  for (void* const address : addresses) numbers.push_back(reinterpret_cast<int64_t>(address));
  return at::tensor(numbers, at::kLong).to(device);
}

struct Drop {
  std::shared_ptr<const SymmetricBlock> block;

  void operator()(const mtia_work_context& /*context*/) const {}
  void list_operands(core::OperandSink& /*sink*/) const {}
};

// The deleter of a block. Work that is queued may use the memory, so the last item of the device's streams destroys it.
// Nothing is waited for and nothing raised: tensors die in host functions, with errors pending, and in forked children,
// which have no streams and leave all as it is.
void destroy_in_stream_order(SymmetricBlock* block) noexcept {
  if (runtime::is_forked()) return;
  try {
    std::shared_ptr<const SymmetricBlock> last(block);
    try {
      core::WorkInfo info{};
      info.name = "symm_mem::free";
      for (const MTIAStream& stream : MTIAStream::busy(block->device)) stream.core().launch(info, Drop{last});
      core::AllocatorObserver* observer = core::allocator_observer.load(std::memory_order_acquire);
      if (observer == nullptr) return;
      const MTIAStream first = MTIAStream::default_stream(block->device);
      std::vector<MTIAStream> users = first.others();
      users.push_back(first);
      for (const MTIAStream& user : users) observer->reuse_waits_for(user.core(), last->buffer(), last->size);
    } catch (...) {
      new std::shared_ptr<const SymmetricBlock>(std::move(last));  // leaked: it is not known when the streams are done
    }
  } catch (...) {
    // The host has no memory for it, and the block is leaked or gone.
  }
}

std::shared_ptr<SymmetricBlock> make_block(c10::DeviceIndex device, size_t size, collectives::SharedMemory memory) {
  return {new SymmetricBlock(device, size, std::move(memory)), destroy_in_stream_order};
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

}  // namespace

SymmetricBlock::SymmetricBlock(c10::DeviceIndex device, size_t size, collectives::SharedMemory memory)
    : device(device), size(size), memory(std::move(memory)), segment(device, total(size), this->memory.descriptor()) {}

size_t SymmetricBlock::total(size_t size) {
  const size_t with_pad = round_up(size, 64) + symmetric_memory::get_signal_pad_size();
  return round_up(with_pad, core::SharedSegment::kGranularity);
}

uint64_t SymmetricBlock::signal_pad() const {
  return buffer() + round_up(size, 64);
}

SymmetricMemory::SymmetricMemory(std::vector<std::shared_ptr<SymmetricBlock>> blocks, int rank, size_t offset)
    : blocks_(std::move(blocks)), rank_(rank), offset_(offset), ranks_(blocks_.size()) {
  std::iota(ranks_.begin(), ranks_.end(), 0);
  buffers_on_device_ = on_device(get_buffer_ptrs(), get_device());
  signal_pads_on_device_ = on_device(get_signal_pad_ptrs(), get_device());
}

c10::Device SymmetricMemory::get_device() {
  return {device_type(), blocks_[rank_]->device};
}

std::vector<void*> SymmetricMemory::get_buffer_ptrs() {
  std::vector<void*> result;
  for (const auto& block : blocks_) result.push_back(reinterpret_cast<void*>(block->buffer()));
  return result;
}

std::vector<void*> SymmetricMemory::get_signal_pad_ptrs() {
  std::vector<void*> result;
  for (const auto& block : blocks_) result.push_back(reinterpret_cast<void*>(block->signal_pad()));
  return result;
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
        static_cast<Signals::Number*>(HostView::to_host(reinterpret_cast<void*>(blocks_.at(at)->signal_pad())));
    return pad + channel * size + of;
  };
  constexpr size_t kMinute = 60'000;
  Signals signals{{}, {}, std::chrono::milliseconds(timeout_ms == 0 ? kMinute : timeout_ms)};
  for (const int rank : to) signals.to.push_back(number(rank, rank_));
  for (const int rank : from) signals.from.push_back(number(rank_, rank));
  core::WorkInfo info{};
  info.name = name;
  info.flags = MTIA_WORK_CAPTURABLE | MTIA_WORK_BLOCKS;
  MTIAStream::current(blocks_[rank_]->device)
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
  // It is not the device's own, and counts as the machine's.
  const size_t available = runtime::MachineMemory().read().available;
  TORCH_CHECK_WITH(OutOfMemoryError, size <= available, "symmetric memory of ", size >> 20,
                   " MiB was asked for, and the machine leaves ", available >> 20, " MiB");
  auto block = make_block(index_or_current(to_device_index(device_idx)), size,
                          collectives::SharedMemory::create(SymmetricBlock::total(size)));
  const uint64_t address = block->buffer();
  const std::lock_guard<std::mutex> lock(allocations_mutex());
  allocations_.emplace(address, Allocation{std::move(block), group_name, {}});
  return reinterpret_cast<void*>(address);
}

SymmetricAllocator::Allocations::iterator SymmetricAllocator::find(void* ptr) {
  const auto address = reinterpret_cast<uint64_t>(ptr);
  auto next = allocations_.upper_bound(address);
  if (next == allocations_.begin()) return allocations_.end();
  const auto found = std::prev(next);
  return address - found->first < std::max<size_t>(found->second.block->size, 1) ? found : allocations_.end();
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
  return found->second.block->size;
}

bool SymmetricAllocator::has_allocation(void* ptr) {
  const std::lock_guard<std::mutex> lock(allocations_mutex());
  return find(ptr) != allocations_.end();
}

c10::intrusive_ptr<symmetric_memory::SymmetricMemory> SymmetricAllocator::rendezvous(
    void* ptr, const std::optional<std::string>& group_name) {
  std::shared_ptr<SymmetricBlock> own;
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
  const std::string mine = c10::str(getpid(), " ", own->memory.descriptor(), " ", own->size);
  store->set(key(group->getRank()), std::vector<uint8_t>(mine.begin(), mine.end()));
  std::vector<std::shared_ptr<SymmetricBlock>> blocks;
  for (int rank = 0; rank < group->getSize(); ++rank) {
    if (rank == group->getRank()) {
      blocks.push_back(own);
      continue;
    }
    pid_t process = 0;
    int descriptor = -1;
    size_t size = 0;
    std::istringstream(text(store->get(key(rank)))) >> process >> descriptor >> size;
    TORCH_CHECK_VALUE(size == own->size, "symmetric memory has one size on all ranks, got ", own->size, " on rank ",
                      group->getRank(), " and ", size, " on rank ", rank);
    auto memory = collectives::SharedMemory::open(process, descriptor, SymmetricBlock::total(size));
    TORCH_CHECK(memory.data() != nullptr, "symmetric memory is for ranks of one machine: rank ", group->getRank(),
                " cannot open the memory of rank ", rank);
    blocks.push_back(make_block(own->device, size, std::move(memory)));
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

c10::DeviceType SymmetricAllocator::supported_device_type() {
  return device_type();
}

std::string SymmetricAllocator::name() {
  return device_name();
}

void SymmetricAllocator::make_known() {
  const auto allocator = c10::make_intrusive<SymmetricAllocator>();
  symmetric_memory::register_allocator(device_type(), allocator);
}

}  // namespace torch_mtia
