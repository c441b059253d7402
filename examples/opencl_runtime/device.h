// The devices of an OpenCL platform and their memory.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "opencl.h"

namespace opencl_driver {

class Device {
 public:
  Device(const Context& context, cl_device_id id, int32_t index);

  int32_t index() const { return index_; }
  const Context& context() const { return context_; }
  uint64_t total_memory() const { return total_memory_; }
  void describe(mtia_device_properties* properties) const;
  Queue new_queue() const;
  // For commands that are waited for at once: none of its commands waits for another queue.
  const Queue& own_queue() const { return own_queue_; }

 private:
  const Context context_;
  const cl_device_id id_;
  const int32_t index_;
  const uint64_t total_memory_;
  const Queue own_queue_;
};

// All devices are of one context, so that a command of one may wait for an event of another. Throws Failure.
std::vector<std::unique_ptr<Device>> open_devices(size_t at_most);

// Device memory as OpenCL names it.
struct Place {
  Device& device;
  Buffer buffer;
  size_t offset;
};

// Note [Addresses]
// A buffer of OpenCL has no address, and the driver boundary wants one, with arithmetic. So each buffer gets a range of
// numbers that no process has addresses among: bit 60 is set, and none is given twice, so that the use of memory that
// was freed is noticed. A command names the buffer that the range belongs to, and an offset.
class Memory {
 public:
  // Thread safe. They throw Failure, as the functions of the table that are named so return.
  mtia_device_ptr allocate(Device& device, uint64_t size);
  void free(const Device& device, mtia_device_ptr address);
  uint64_t free_bytes(const Device& device);
  // INVALID_VALUE unless the whole range lies in one buffer.
  Place find(mtia_device_ptr address, uint64_t size);

 private:
  struct Allocation {
    Device& device;
    Buffer buffer;
    uint64_t size;
  };
  static constexpr uint64_t kAlignment = 4096;

  std::mutex mutex_;
  mtia_device_ptr next_ = uint64_t{1} << 60;
  std::map<mtia_device_ptr, Allocation> allocations_;
  std::map<int32_t, uint64_t> used_;  // bytes of each device
};

}  // namespace opencl_driver
