#include "SharedBlock.h"

#include <c10/core/DeviceGuard.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <mutex>
#include <random>
#include <utility>
#include <vector>

#include "../core/Hooks.h"
#include "../core/WorkItem.h"
#include "../runtime/forks.h"
#include "../runtime/machine_memory.h"
#include "DeviceType.h"
#include "MTIACachingAllocator.h"
#include "MTIAFunctions.h"
#include "MTIAStream.h"

namespace torch_mtia {
namespace {

// Holds the block until a stream comes to it.
struct Drop {
  std::shared_ptr<const SharedBlock> block;

  void operator()(const mtia_work_context& /*context*/) const {}
  void list_operands(core::OperandSink& /*sink*/) const {}
};

using Owner = std::shared_ptr<const SharedBlock>;

void delete_owner(void* owner) {
  std::unique_ptr<Owner>(static_cast<Owner*>(owner));
}

c10::DataPtr data_of(Owner block) {
  void* const address = reinterpret_cast<void*>(block->address());
  const c10::Device device(device_type(), block->device());
  return {address, std::make_unique<Owner>(std::move(block)).release(), &delete_owner, device};
}

// The file has the block, and its messages at the end.
size_t file_size(size_t size) {
  constexpr size_t kUnit = core::SharedSegment::kGranularity;
  return (size + sizeof(SharedBlock::Messages) + kUnit - 1) / kUnit * kUnit;
}

// The blocks that this process has sent, until they are received. Leaked: streams may run until the process ends.
class Sent {
 public:
  Sent() { runtime::hold_at_forks(runtime::ForkOrder::kTable, mutex_); }

  void add(const Owner& block) {
    const std::lock_guard<std::mutex> lock(mutex_);
    blocks_.push_back(block);
    ++block->messages().sent;
  }
  size_t size() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return blocks_.size();
  }
  void forget_received() {
    std::vector<Owner> received;  // destroyed without the mutex: that launches work
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto first = std::partition(blocks_.begin(), blocks_.end(), [](const Owner& block) {
      return block->messages().received.load() < block->messages().sent.load();
    });
    received.assign(std::make_move_iterator(first), std::make_move_iterator(blocks_.end()));
    blocks_.erase(first, blocks_.end());
  }

  // Held while a storage moves: two threads may send the same one. Not held at forks, because its owner waits for the
  // device.
  std::mutex moving;

 private:
  mutable std::mutex mutex_;
  std::vector<Owner> blocks_;
};

Sent& sent() {
  static auto* const instance = new Sent();
  return *instance;
}

const Owner* owner_of(const c10::StorageImpl& storage) {
  return storage.data_ptr().cast_context<Owner>(&delete_owner);
}

}  // namespace

SharedBlock::SharedBlock(c10::DeviceIndex device, size_t size, collectives::SharedMemory memory)
    : device_(device), size_(size), memory_(std::move(memory)), segment_(device, size, memory_.descriptor()) {}

std::shared_ptr<const SharedBlock> SharedBlock::create(c10::DeviceIndex device, size_t size) {
  const size_t available = runtime::MachineMemory().read().available;
  TORCH_CHECK_WITH(OutOfMemoryError, size <= available, "shared memory of ", size >> 20,
                   " MiB was asked for, and the machine leaves ", available >> 20, " MiB");
  auto block = make(device, file_size(size), collectives::SharedMemory::create(file_size(size)));
  std::random_device random;
  block->messages().name = uint64_t{random()} << 32 | random();
  return block;
}

std::shared_ptr<const SharedBlock> SharedBlock::open(c10::DeviceIndex device, pid_t process, int descriptor,
                                                     size_t size) {
  auto memory = collectives::SharedMemory::open(process, descriptor, file_size(size));
  return memory.data() == nullptr ? nullptr : make(device, file_size(size), std::move(memory));
}

std::shared_ptr<const SharedBlock> SharedBlock::make(c10::DeviceIndex device, size_t size,
                                                     collectives::SharedMemory memory) {
  return {new SharedBlock(device, size, std::move(memory)), destroy_in_stream_order};
}

// The deleter of a block. Work that is queued may use the memory, so the last item of the device's streams destroys it.
// Nothing is waited for and nothing raised: tensors die in host functions, with errors pending, and in forked children,
// which have no streams and leave all as it is.
void SharedBlock::destroy_in_stream_order(SharedBlock* block) noexcept {
  if (runtime::is_forked()) return;
  try {
    std::shared_ptr<const SharedBlock> last(block);
    try {
      core::WorkInfo info{};
      info.name = "free of shared memory";
      for (const MTIAStream& stream : MTIAStream::busy(block->device_)) stream.core().launch(info, Drop{last});
      core::Observer* observer = core::current_observer();
      if (observer == nullptr) return;
      const MTIAStream first = MTIAStream::default_stream(block->device_);
      std::vector<MTIAStream> users = first.others();
      users.push_back(first);
      for (const MTIAStream& user : users) observer->reuse_waits_for(user.core(), last->address(), last->size_);
    } catch (...) {
      new std::shared_ptr<const SharedBlock>(std::move(last));  // leaked: it is not known when the streams are done
    }
  } catch (...) {
    // The host has no memory for it, and the block is leaked or gone.
  }
}

std::optional<SharedStorage> send_storage(c10::StorageImpl* storage) {
  if (!core::driver_info().can(MTIA_CAPABILITY_SHARED_MEMORY)) return std::nullopt;
  const c10::Device device = storage->device();
  const c10::DeviceGuard guard(device);
  MTIAStream::synchronize_all(device.index());  // raises in a host function, for which the mutex's owner may wait
  sent().forget_received();
  const std::lock_guard<std::mutex> lock(sent().moving);
  storage->mutable_data();  // a lazy clone gets memory of its own
  if (owner_of(*storage) == nullptr) {
    MTIAStream::synchronize_all(device.index());  // work that is queued has the address
    TORCH_CHECK(!MTIACachingAllocator::may_be_of_graph(*storage),
                "the tensor is older than the end of a capture, so a graph may use its memory, which would have to "
                "move for other processes to share it: send tensor.clone()");
    const size_t size = storage->nbytes();
    move_storage(storage, data_of(SharedBlock::create(device.index(), size)), size);
    storage->set_resizable(false);
    MTIAStream::synchronize_all(device.index());
  }
  const Owner& block = *owner_of(*storage);
  sent().add(block);
  return SharedStorage{getpid(), block->descriptor(), block->messages().name};
}

c10::intrusive_ptr<c10::StorageImpl> receive_storage(const SharedStorage& shared, c10::DeviceIndex device,
                                                     size_t size) {
  ensure_initialized();
  check_device_index(device);
  auto block = SharedBlock::open(device, shared.process, shared.descriptor, size);
  TORCH_CHECK(block != nullptr && block->messages().name == shared.name, "process ", shared.process,
              ", which has sent a tensor, is gone: it must not end before the tensor is received");
  ++block->messages().received;
  return c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), size, data_of(std::move(block)),
                                               &MTIACachingAllocator::get(), /*resizable=*/false);
}

void receive_again(const c10::StorageImpl& storage) {
  const Owner* block = owner_of(storage);
  if (block != nullptr) ++(*block)->messages().received;
}

size_t num_unreceived() {
  if (runtime::is_forked()) return 0;  // what was sent is the parent's
  sent().forget_received();
  return sent().size();
}

}  // namespace torch_mtia
