#include "memory.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "error.h"

namespace torch_mtia::runtime::host {
namespace {

// Reserves `size` bytes of address space, aligned to a huge page, without committing memory.
uint64_t reserve(uint64_t size, int protection, const char* purpose) {
  void* mapping = mmap(nullptr, size + kHugePage, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) {
    throw Failure(MTIA_ERROR_INTERNAL, "cannot reserve " + format_bytes(size) + " of address space for " + purpose +
                                           ": " + std::strerror(errno) +
                                           "; ask for less memory per device or raise the limit (ulimit -v)");
  }
  return round_up(reinterpret_cast<uint64_t>(mapping), kHugePage);
}

}  // namespace

Memory::Memory(int32_t num_devices, uint64_t bytes_per_device)
    : capacity_(round_up(bytes_per_device, kHugePage)), total_(capacity_ * static_cast<uint64_t>(num_devices)) {
  device_base_ = reserve(total_, PROT_NONE, "device addresses");
  const uint64_t host_base = reserve(total_, PROT_READ | PROT_WRITE, "device memory");
  host_offset_ = static_cast<int64_t>(host_base - device_base_);
  // Advice only, so failures do not matter. A forked child cannot use the device; without its memory the fork is quick
  // and the parent pays no copy-on-write afterwards.
  madvise(reinterpret_cast<void*>(host_base), total_, MADV_HUGEPAGE);
  madvise(reinterpret_cast<void*>(host_base), total_, MADV_DONTFORK);
  for (int32_t device = 0; device < num_devices; ++device) regions_.push_back(std::make_unique<Region>(capacity_));
}

mtia_device_ptr Memory::allocate(int32_t device, uint64_t size) {
  if (size == 0) throw Failure(MTIA_ERROR_INVALID_VALUE, "memory_allocate: the size is 0");
  Region& region = *regions_[static_cast<size_t>(device)];
  const std::lock_guard lock(region.mutex);
  if (const auto offset = region.ranges.allocate(size)) {
    return device_base_ + static_cast<uint64_t>(device) * capacity_ + *offset;
  }
  throw Failure(MTIA_ERROR_OUT_OF_MEMORY,
                "device " + std::to_string(device) + " is out of memory: " + format_bytes(size) + " requested, " +
                    format_bytes(region.ranges.free_bytes()) + " of " + format_bytes(capacity_) +
                    " free, the largest free range is " + format_bytes(region.ranges.largest_free_range()));
}

void Memory::free(int32_t device, mtia_device_ptr address) {
  Region& region = *regions_[static_cast<size_t>(device)];
  const uint64_t offset = address - device_base_ - static_cast<uint64_t>(device) * capacity_;
  uint64_t size = 0;
  {
    const std::lock_guard lock(region.mutex);
    size = region.ranges.release(offset);
  }
  if (size == 0) {
    throw Failure(MTIA_ERROR_INVALID_VALUE,
                  "memory_free: no allocation of device " + std::to_string(device) + " begins at the given address");
  }
  // Between the two steps nobody else can have the range. Dropping many pages takes long, so it is done unlocked.
  madvise(host(address), size, MADV_DONTNEED);
  const std::lock_guard lock(region.mutex);
  region.ranges.recycle(offset, size);
}

void Memory::info(int32_t device, uint64_t* free_bytes, uint64_t* total_bytes) const {
  const Region& region = *regions_[static_cast<size_t>(device)];
  const std::lock_guard lock(region.mutex);
  *free_bytes = region.ranges.free_bytes();
  *total_bytes = capacity_;
}

}  // namespace torch_mtia::runtime::host
