#include "memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "error.h"

namespace torch_mtia::runtime::host {
namespace {

// Of addresses that can be reserved, as many as this times the memory; fewer where devices have so much memory that the
// address space of the process (47 bits, and all is mapped twice) would end.
constexpr uint64_t kReservableFactor = 16;
constexpr uint64_t kMaxAddresses = uint64_t{1} << 45;

uint64_t addresses_of_device(uint64_t capacity, uint64_t num_devices) {
  const uint64_t most = kMaxAddresses / num_devices / kHugePage * kHugePage;
  return std::max(capacity, std::min(capacity * (1 + kReservableFactor), most));
}

// Reserves `size` bytes of address space, aligned to a huge page, without committing memory.
struct AddressSpace {
  AddressSpace(uint64_t size, int protection)
      : mapped_size(size + kHugePage),
        mapping(mmap(nullptr, mapped_size, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {}
  ~AddressSpace() {
    if (mapping != MAP_FAILED) munmap(mapping, mapped_size);
  }
  AddressSpace(const AddressSpace&) = delete;
  AddressSpace& operator=(const AddressSpace&) = delete;

  bool failed() const { return mapping == MAP_FAILED; }
  uint64_t keep() { return round_up(reinterpret_cast<uint64_t>(std::exchange(mapping, MAP_FAILED)), kHugePage); }

  const uint64_t mapped_size;
  void* mapping;
};

}  // namespace

Memory::Memory(int32_t num_devices, uint64_t bytes_per_device)
    : capacity_(round_up(bytes_per_device, kHugePage)), num_devices_(static_cast<uint64_t>(num_devices)) {
  // A process that may have little address space (ulimit -v, valgrind) does without the addresses to reserve.
  if (!map_addresses(addresses_of_device(capacity_, num_devices_)) && !map_addresses(capacity_)) {
    throw Failure(MTIA_ERROR_INTERNAL, "cannot reserve twice " + format_bytes(total_) +
                                           " of address space for device memory: " + std::strerror(errno) +
                                           "; ask for less memory per device or raise the limit (ulimit -v)");
  }
  const uint64_t host_base = device_base_ + static_cast<uint64_t>(host_offset_);
  // Advice only, so failures do not matter. A forked child cannot use the device; without its memory the fork is quick
  // and the parent pays no copy-on-write afterwards.
  madvise(reinterpret_cast<void*>(host_base), total_, MADV_HUGEPAGE);
  madvise(reinterpret_cast<void*>(host_base), total_, MADV_DONTFORK);
  for (int32_t device = 0; device < num_devices; ++device) {
    regions_.push_back(std::make_unique<Region>(capacity_, addresses_));
  }
}

bool Memory::map_addresses(uint64_t addresses) {
  addresses_ = addresses;
  total_ = addresses * num_devices_;
  AddressSpace device(total_, PROT_NONE);
  AddressSpace host(total_, PROT_READ | PROT_WRITE);
  if (device.failed() || host.failed()) return false;
  device_base_ = device.keep();
  host_offset_ = static_cast<int64_t>(host.keep() - device_base_);
  return true;
}

uint64_t Memory::Region::free_bytes() const {
  return ranges.free_bytes() - mapped_pages.size() * kHugePage;
}

void Memory::fail_out_of_memory(int32_t device, uint64_t size, const Region& region) const {
  throw Failure(MTIA_ERROR_OUT_OF_MEMORY,
                "device " + std::to_string(device) + " is out of memory: " + format_bytes(size) + " requested, " +
                    format_bytes(region.free_bytes()) + " of " + format_bytes(capacity_) +
                    " free, the largest free range is " +
                    format_bytes(std::min(region.free_bytes(), region.ranges.largest_free_range())));
}

mtia_device_ptr Memory::allocate(int32_t device, uint64_t size) {
  if (size == 0) throw Failure(MTIA_ERROR_INVALID_VALUE, "memory_allocate: the size is 0");
  Region& of_device = region(device);
  const std::lock_guard lock(of_device.mutex);
  if (size <= capacity_ && round_to_pages(size) <= of_device.free_bytes()) {
    if (const auto offset = of_device.ranges.allocate(size)) return base(device) + *offset;
  }
  fail_out_of_memory(device, size, of_device);
}

void Memory::free(int32_t device, mtia_device_ptr address) {
  Region& of_device = region(device);
  const uint64_t offset = address - base(device);
  uint64_t size = 0;
  {
    const std::lock_guard lock(of_device.mutex);
    size = of_device.ranges.release(offset);
  }
  if (size == 0) {
    throw Failure(MTIA_ERROR_INVALID_VALUE,
                  "memory_free: no allocation of device " + std::to_string(device) + " begins at the given address");
  }
  // Between the two steps nobody else can have the range. Dropping many pages takes long, so it is done unlocked.
  madvise(host(address), size, MADV_DONTNEED);
  const std::lock_guard lock(of_device.mutex);
  of_device.ranges.recycle(offset, size);
}

mtia_device_ptr Memory::reserve(int32_t device, uint64_t size) {
  if (size == 0 || size % kHugePage != 0) {
    throw Failure(MTIA_ERROR_INVALID_VALUE, "memory_reserve: the size is not a multiple of 2 MiB");
  }
  Region& of_device = region(device);
  const std::lock_guard lock(of_device.mutex);
  if (const auto offset = of_device.reservations.allocate(size)) return base(device) + capacity_ + *offset;
  throw Failure(MTIA_ERROR_OUT_OF_MEMORY,
                "device " + std::to_string(device) + " has no " + format_bytes(size) + " of addresses left to reserve");
}

void Memory::release(int32_t device, mtia_device_ptr address) {
  Region& of_device = region(device);
  const uint64_t offset = address - base(device) - capacity_;
  const std::lock_guard lock(of_device.mutex);
  const uint64_t size = of_device.reservations.size_of(offset);
  if (size == 0) {
    throw Failure(MTIA_ERROR_INVALID_VALUE, "memory_release: no reservation of device " + std::to_string(device) +
                                                " begins at the given address");
  }
  for (uint64_t page = offset / kHugePage; page < (offset + size) / kHugePage; ++page) {
    if (of_device.mapped_pages.contains(page)) {
      throw Failure(MTIA_ERROR_INVALID_VALUE, "memory_release: memory is mapped in the reservation; unmap it first");
    }
  }
  of_device.reservations.recycle(offset, of_device.reservations.release(offset));
}

Memory::Pages Memory::pages(const char* function, int32_t device, mtia_device_ptr address, uint64_t size) const {
  const uint64_t offset = address - base(device) - capacity_;
  const uint64_t reservable = addresses_ - capacity_;
  if (size == 0 || size % kHugePage != 0 || offset % kHugePage != 0 || offset >= reservable ||
      size > reservable - offset) {
    throw Failure(MTIA_ERROR_INVALID_VALUE,
                  std::string(function) + ": the range does not consist of 2 MiB pages of a reservation of device " +
                      std::to_string(device));
  }
  return {offset / kHugePage, (offset + size) / kHugePage};
}

void Memory::map(int32_t device, mtia_device_ptr address, uint64_t size) {
  const auto [first, end] = pages("memory_map", device, address, size);
  Region& of_device = region(device);
  const std::lock_guard lock(of_device.mutex);
  if (size > of_device.free_bytes()) fail_out_of_memory(device, size, of_device);
  for (uint64_t page = first; page < end; ++page) {
    if (of_device.mapped_pages.insert(page).second) continue;
    while (page-- > first) of_device.mapped_pages.erase(page);
    throw Failure(MTIA_ERROR_INVALID_VALUE, "memory_map: part of the range is mapped already");
  }
}

void Memory::unmap(int32_t device, mtia_device_ptr address, uint64_t size) {
  const auto [first, end] = pages("memory_unmap", device, address, size);
  Region& of_device = region(device);
  {
    const std::lock_guard lock(of_device.mutex);
    for (uint64_t page = first; page < end; ++page) {
      if (!of_device.mapped_pages.contains(page)) {
        throw Failure(MTIA_ERROR_INVALID_VALUE, "memory_unmap: part of the range is not mapped");
      }
    }
  }
  // As in free; the pages count as used until they are dropped.
  madvise(host(address), size, MADV_DONTNEED);
  const std::lock_guard lock(of_device.mutex);
  for (uint64_t page = first; page < end; ++page) of_device.mapped_pages.erase(page);
}

void Memory::info(int32_t device, uint64_t* free_bytes, uint64_t* total_bytes) const {
  const Region& of_device = region(device);
  const std::lock_guard lock(of_device.mutex);
  *free_bytes = of_device.free_bytes();
  *total_bytes = capacity_;
}

}  // namespace torch_mtia::runtime::host
