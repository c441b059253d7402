// Device memory that other processes map too: of symmetric memory, and of tensors that are sent to other processes.
#pragma once

#include <c10/core/StorageImpl.h>
#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>

#include "../collectives/Team.h"
#include "../core/Driver.h"

namespace torch_mtia {

// The memory of a file, at addresses of a device. It is the machine's, not the device's own, and is gone with the last
// process that maps it. The work that the device was given before the last owner of a block goes may use it.
class SharedBlock {
 public:
  // Zeros. Raises torch.OutOfMemoryError if the machine has less.
  static std::shared_ptr<const SharedBlock> create(c10::DeviceIndex device, size_t size);
  // A block that another process, or this one, has created: `descriptor` is its number there. Null: there is none.
  static std::shared_ptr<const SharedBlock> open(c10::DeviceIndex device, pid_t process, int descriptor, size_t size);

  c10::DeviceIndex device() const { return device_; }
  uint64_t address() const { return segment_.address(); }
  int descriptor() const { return memory_.descriptor(); }

  // Of all processes that have the block: how often it was sent, and how often received.
  struct Messages {
    uint64_t name;  // of the block, a random number
    std::atomic<uint64_t> sent;
    std::atomic<uint64_t> received;
  };
  Messages& messages() const { return *reinterpret_cast<Messages*>(memory_.data() + size_ - sizeof(Messages)); }

 private:
  SharedBlock(c10::DeviceIndex device, size_t size, collectives::SharedMemory memory);
  static std::shared_ptr<const SharedBlock> make(c10::DeviceIndex device, size_t size,
                                                 collectives::SharedMemory memory);
  static void destroy_in_stream_order(SharedBlock* block) noexcept;

  const c10::DeviceIndex device_;
  const size_t size_;  // of the file
  const collectives::SharedMemory memory_;
  const core::SharedSegment segment_;
};

// A storage as a message to another process.
struct SharedStorage {
  pid_t process;
  int descriptor;
  uint64_t name;
};

// Sends a storage, which moves into a block unless it is in one. It cannot be resized from then on, and its device has
// done all of its work afterwards. The block stays until it is received. Nothing: the driver has no memory that
// processes share. Raises RuntimeError for memory that a graph may use.
std::optional<SharedStorage> send_storage(c10::StorageImpl* storage);
// Raises RuntimeError if the process that has sent it is gone.
c10::intrusive_ptr<c10::StorageImpl> receive_storage(const SharedStorage& shared, c10::DeviceIndex device, size_t size);
// Another message with a block that this process has received, or sent, before.
void receive_again(const c10::StorageImpl& storage);
// How many blocks that this process has sent have not been received.
size_t num_unreceived();

}  // namespace torch_mtia
