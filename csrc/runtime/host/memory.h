// The memory of all software devices, and copies and fills of it as work items.
//
// Note [Device memory is not host memory]
// Device addresses lie in a range that is mapped without access, so a host that dereferences one faults, as with real
// hardware. The bytes lie in a second mapping of the same size, at one constant distance from the first: the code of
// the device (and whoever asks for the host view) adds that distance. It is the same for all devices.
//
// Note [More addresses than memory]
// A device has many times as many addresses as memory. Allocations lie in the first part of them, so that memory which
// is free in pieces serves a request for all of it; the others can be reserved, and given memory page by page. The
// bytes behind all of them are there from the beginning, but cost nothing until they are touched: to allocate memory is
// to find addresses and to count their bytes.
//
// Note [Memory that the machine has]
// The kernel kills a process that touches memory when there is none left, so what the machine, or the container, has no
// room for is refused before. Available memory is what other processes have left, too; but what this process was given
// and has not touched yet is still part of it, and is owed. What was touched, mincore tells. That takes a while, so it
// is asked only when there would not be enough if nothing given since it was last asked had been touched.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "../machine_memory.h"
#include "../mtia_runtime.h"
#include "work.h"

namespace torch_mtia::runtime::host {

class Stream;

// Thread safe. Lives as long as the process: the mappings are never undone.
class Memory {
 public:
  // Throws Failure when the address space cannot be reserved.
  Memory(int32_t num_devices, uint64_t bytes_per_device);
  ~Memory();

  mtia_device_ptr allocate(int32_t device, uint64_t size);  // throws Failure: OUT_OF_MEMORY, with figures
  void free(int32_t device, mtia_device_ptr address);       // throws Failure: INVALID_VALUE
  // See Note [More addresses than memory]. Throw Failure: OUT_OF_MEMORY, or INVALID_VALUE.
  mtia_device_ptr reserve(int32_t device, uint64_t size);
  void release(int32_t device, mtia_device_ptr address);
  void map(int32_t device, mtia_device_ptr address, uint64_t size);
  void map_shared(int32_t device, mtia_device_ptr address, uint64_t size, int32_t file);
  void unmap(int32_t device, mtia_device_ptr address, uint64_t size);
  void info(int32_t device, uint64_t* free_bytes, uint64_t* total_bytes) const;

  // The device an address belongs to; -1 for any other address.
  int32_t device_of(uint64_t address) const {
    const uint64_t offset = address - device_base_;
    return offset < total_ ? static_cast<int32_t>(offset / addresses_) : -1;
  }
  // Whether the range lies in the memory of one device.
  bool contains(uint64_t address, uint64_t size) const {
    const uint64_t offset = address - device_base_;
    return offset < total_ && size <= addresses_ - offset % addresses_;
  }
  int64_t host_offset() const { return host_offset_; }
  std::byte* host(mtia_device_ptr address) const {
    return reinterpret_cast<std::byte*>(address + static_cast<uint64_t>(host_offset_));
  }
  uint64_t capacity() const { return capacity_; }

 private:
  struct Region;
  Region& region(int32_t device) const { return *regions_[static_cast<size_t>(device)]; }
  uint64_t base(int32_t device) const { return device_base_ + static_cast<uint64_t>(device) * addresses_; }
  uint64_t reservations(int32_t device) const { return base(device) + allocatable_; }

  // Called with `mutex_`, down to `mark_mapped`.
  //
  // Throws Failure unless the device and the machine have `size` bytes more.
  void check_room(int32_t device, uint64_t size);
  void count_used(Region& region, uint64_t size);
  void count_freed(Region& region, uint64_t size);
  // Bytes that are used and have not been touched.
  uint64_t untouched() const;
  // The numbers of the pages of a range that lies in the reservations of the device.
  struct Pages {
    uint64_t first;
    uint64_t end;
  };
  Pages pages(const char* function, int32_t device, mtia_device_ptr address, uint64_t size) const;
  // Throws Failure if one is mapped already.
  void mark_mapped(const char* function, Region& region, Pages pages);

  // Memory of its own, all zeros and untouched, behind addresses that have had a file's.
  void map_own(mtia_device_ptr address, uint64_t size) const;

  // How many times the memory the process gets as addresses of each kind; false: it may not have so many.
  bool map_addresses(uint64_t factor);

  const uint64_t capacity_;  // bytes of memory of one device
  const uint64_t num_devices_;
  const MachineMemory machine_;
  uint64_t allocatable_ = 0;  // of the addresses of one device, those before the ones to reserve
  uint64_t addresses_ = 0;    // of one device
  uint64_t total_ = 0;        // addresses of all
  uint64_t device_base_ = 0;
  int64_t host_offset_ = 0;
  mutable std::mutex mutex_;                      // of what follows
  std::vector<std::unique_ptr<Region>> regions_;  // one per device
  uint64_t owed_ = 0;                             // at least as much as is untouched
};

// The ranges must not overlap. Throws Failure: INVALID_VALUE for an address that does not fit the kind.
mtia_status copy(Stream& stream, const Memory& memory, const Parallelism& parallelism, uint64_t to, uint64_t from,
                 uint64_t size, mtia_copy_kind kind);

mtia_status fill(Stream& stream, const Memory& memory, const Parallelism& parallelism, mtia_device_ptr to,
                 const void* pattern, uint32_t pattern_size, uint64_t count);

}  // namespace torch_mtia::runtime::host
