#include "memory.h"

#include <malloc.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <exception>
#include <string>
#include <utility>

#include "error.h"

namespace torch_mtia::runtime::host {
namespace {

// Of addresses to allocate from, and of those to reserve, as many as this times the memory. First fit finds room for
// whatever the memory has room for if there are as many as that times the number of doublings from the smallest segment
// to all. Fewer where devices have so much memory that the address space of the process (47 bits, and all is mapped
// twice) would end.
constexpr uint64_t kAddressFactor = 16;
constexpr uint64_t kMaxAddresses = uint64_t{1} << 45;

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
  const uint64_t most = kMaxAddresses / num_devices_ / capacity_ / 2;
  // A process that may have little address space (ulimit -v, valgrind) does without the further addresses.
  if (!map_addresses(std::min(kAddressFactor, most)) && !map_addresses(0)) {
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
    regions_.push_back(std::make_unique<Region>(allocatable_, addresses_ - allocatable_));
  }
}

bool Memory::map_addresses(uint64_t factor) {
  allocatable_ = capacity_ * std::max<uint64_t>(factor, 1);
  addresses_ = factor == 0 ? allocatable_ : 2 * allocatable_;
  total_ = addresses_ * num_devices_;
  AddressSpace device(total_, PROT_NONE);
  AddressSpace host(total_, PROT_READ | PROT_WRITE);
  if (device.failed() || host.failed()) return false;
  device_base_ = device.keep();
  host_offset_ = static_cast<int64_t>(host.keep() - device_base_);
  return true;
}

void Memory::check_room(int32_t device, uint64_t size) {
  const uint64_t free = capacity_ - region(device).used;
  if (size > free) {
    throw Failure(MTIA_ERROR_OUT_OF_MEMORY, "device " + std::to_string(device) +
                                                " is out of memory: " + format_bytes(size) + " requested, " +
                                                format_bytes(free) + " of " + format_bytes(capacity_) + " free");
  }
  MachineMemory::Figures figures = machine_.read();
  const auto fits = [&] { return figures.for_devices() >= owed_ && size <= figures.for_devices() - owed_; };
  if (fits()) return;
  owed_ = untouched();
  if (fits()) return;
  malloc_trim(0);  // what the C library keeps of the host memory that this process freed
  figures = machine_.read();
  if (fits()) return;
  throw Failure(MTIA_ERROR_OUT_OF_MEMORY,
                std::string(figures.container ? "the container's limit" : "the machine") +
                    " leaves no room for device " + std::to_string(device) + ": " + format_bytes(size) +
                    " requested, " + format_bytes(figures.available) + " of " + format_bytes(figures.total) +
                    " available, of which " + format_bytes(owed_) + " are promised to memory in use and " +
                    format_bytes(figures.reserve()) + " kept for the host; " +
                    (figures.container ? "raise the container's memory limit, or end processes in it"
                                       : "end other processes, or use a machine with more memory"));
}

void Memory::count_used(Region& region, uint64_t size) {
  region.used += size;
  owed_ += size;
}

void Memory::count_freed(Region& region, uint64_t size) {
  region.used -= size;
  uint64_t used = 0;
  for (const auto& each : regions_) used += each->used;
  owed_ = std::min(owed_, used);
}

uint64_t Memory::untouched() const {
  constexpr uint64_t kAtOnce = 16384;  // pages
  std::vector<unsigned char> is_touched(kAtOnce);
  uint64_t pages = 0;
  const auto count = [&](uint64_t address, uint64_t size) {
    for (uint64_t done = 0; done < size; done += kAtOnce * kSmallPage) {
      const uint64_t length = std::min(size - done, kAtOnce * kSmallPage);
      if (mincore(host(address + done), length, is_touched.data()) != 0) continue;
      const auto end = is_touched.begin() + static_cast<std::ptrdiff_t>(length / kSmallPage);
      pages += static_cast<uint64_t>(std::count_if(is_touched.begin(), end, [](auto page) { return (page & 1) == 0; }));
    }
  };
  for (int32_t device = 0; device < static_cast<int32_t>(num_devices_); ++device) {
    const Region& of_device = region(device);
    for (const auto& [offset, size] : of_device.ranges.allocated()) count(base(device) + offset, size);
    for (const uint64_t page : of_device.mapped_pages) {
      if (of_device.shared_pages.contains(page)) continue;
      count(reservations(device) + page * kHugePage, kHugePage);
    }
  }
  return pages * kSmallPage;
}

mtia_device_ptr Memory::allocate(int32_t device, uint64_t size) {
  if (size == 0) throw Failure(MTIA_ERROR_INVALID_VALUE, "memory_allocate: the size is 0");
  const uint64_t rounded = size <= capacity_ ? round_to_pages(size) : size;
  const std::lock_guard lock(mutex_);
  check_room(device, rounded);
  Region& of_device = region(device);
  const auto offset = of_device.ranges.allocate(size);
  if (!offset) {
    throw Failure(MTIA_ERROR_OUT_OF_MEMORY, "device " + std::to_string(device) + " has memory, but no " +
                                                format_bytes(size) + " of addresses in one piece");
  }
  count_used(of_device, rounded);
  return base(device) + *offset;
}

void Memory::free(int32_t device, mtia_device_ptr address) {
  Region& of_device = region(device);
  const uint64_t offset = address - base(device);
  uint64_t size = 0;
  {
    const std::lock_guard lock(mutex_);
    size = of_device.ranges.release(offset);
  }
  if (size == 0) {
    throw Failure(MTIA_ERROR_INVALID_VALUE,
                  "memory_free: no allocation of device " + std::to_string(device) + " begins at the given address");
  }
  // Between the two steps nobody else can have the range. Dropping many pages takes long, so it is done unlocked.
  madvise(host(address), size, MADV_DONTNEED);
  const std::lock_guard lock(mutex_);
  of_device.ranges.recycle(offset, size);
  count_freed(of_device, size);
}

mtia_device_ptr Memory::reserve(int32_t device, uint64_t size) {
  if (size == 0 || size % kHugePage != 0) {
    throw Failure(MTIA_ERROR_INVALID_VALUE, "memory_reserve: the size is not a multiple of 2 MiB");
  }
  Region& of_device = region(device);
  const std::lock_guard lock(mutex_);
  if (const auto offset = of_device.reservations.allocate(size)) return reservations(device) + *offset;
  throw Failure(MTIA_ERROR_OUT_OF_MEMORY,
                "device " + std::to_string(device) + " has no " + format_bytes(size) + " of addresses left to reserve");
}

void Memory::release(int32_t device, mtia_device_ptr address) {
  Region& of_device = region(device);
  const uint64_t offset = address - reservations(device);
  const std::lock_guard lock(mutex_);
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
  const uint64_t offset = address - reservations(device);
  if (size == 0 || size % kHugePage != 0 || offset % kHugePage != 0 ||
      !region(device).reservations.contains(offset, size)) {
    throw Failure(MTIA_ERROR_INVALID_VALUE,
                  std::string(function) + ": the range does not consist of 2 MiB pages of a reservation of device " +
                      std::to_string(device));
  }
  return {offset / kHugePage, (offset + size) / kHugePage};
}

void Memory::mark_mapped(const char* function, Region& region, Pages pages) {
  for (uint64_t page = pages.first; page < pages.end; ++page) {
    if (region.mapped_pages.insert(page).second) continue;
    while (page-- > pages.first) region.mapped_pages.erase(page);
    throw Failure(MTIA_ERROR_INVALID_VALUE, std::string(function) + ": part of the range is mapped already");
  }
}

void Memory::map(int32_t device, mtia_device_ptr address, uint64_t size) {
  const std::lock_guard lock(mutex_);
  const Pages range = pages("memory_map", device, address, size);
  check_room(device, size);
  mark_mapped("memory_map", region(device), range);
  count_used(region(device), size);
}

void Memory::map_shared(int32_t device, mtia_device_ptr address, uint64_t size, int32_t file) {
  struct stat status{};
  if (fstat(file, &status) != 0 || static_cast<uint64_t>(status.st_size) < size) {
    throw Failure(MTIA_ERROR_INVALID_VALUE,
                  "memory_map_shared: the file does not have " + std::to_string(size) + " bytes");
  }
  const std::lock_guard lock(mutex_);
  const Pages range = pages("memory_map_shared", device, address, size);
  Region& of_device = region(device);
  mark_mapped("memory_map_shared", of_device, range);
  if (mmap(host(address), size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) == MAP_FAILED) {
    for (uint64_t page = range.first; page < range.end; ++page) of_device.mapped_pages.erase(page);
    throw Failure(MTIA_ERROR_INVALID_VALUE,
                  std::string("memory_map_shared: the file cannot be mapped: ") + strerror(errno));
  }
  madvise(host(address), size, MADV_DONTFORK);
  for (uint64_t page = range.first; page < range.end; ++page) of_device.shared_pages.insert(page);
}

void Memory::map_own(mtia_device_ptr address, uint64_t size) const {
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
  if (mmap(host(address), size, PROT_READ | PROT_WRITE, kFlags, -1, 0) == MAP_FAILED) {
    throw Failure(MTIA_ERROR_OUT_OF_MEMORY, std::string("memory_unmap: ") + strerror(errno));
  }
  madvise(host(address), size, MADV_HUGEPAGE);
  madvise(host(address), size, MADV_DONTFORK);
}

void Memory::unmap(int32_t device, mtia_device_ptr address, uint64_t size) {
  Region& of_device = region(device);
  Pages range{};
  bool is_shared = false;  // any of it
  {
    const std::lock_guard lock(mutex_);
    range = pages("memory_unmap", device, address, size);
    for (uint64_t page = range.first; page < range.end; ++page) {
      is_shared |= of_device.shared_pages.contains(page);
      if (!of_device.mapped_pages.contains(page) || of_device.leaving_pages.contains(page)) {
        throw Failure(MTIA_ERROR_INVALID_VALUE, "memory_unmap: part of the range is not mapped");
      }
    }
    for (uint64_t page = range.first; page < range.end; ++page) of_device.leaving_pages.insert(page);
  }
  // As in free; the pages count as mapped and used until they are dropped, and nobody else can unmap them meanwhile.
  std::exception_ptr failure;
  try {
    if (is_shared) {
      map_own(address, size);
    } else {
      madvise(host(address), size, MADV_DONTNEED);
    }
  } catch (...) {
    failure = std::current_exception();
  }
  const std::lock_guard lock(mutex_);
  uint64_t freed = 0;
  for (uint64_t page = range.first; page < range.end; ++page) {
    of_device.leaving_pages.erase(page);
    if (failure) continue;
    of_device.mapped_pages.erase(page);
    if (of_device.shared_pages.erase(page) == 0) freed += kHugePage;
  }
  if (failure) std::rethrow_exception(failure);
  count_freed(of_device, freed);
}

void Memory::info(int32_t device, uint64_t* free_bytes, uint64_t* total_bytes) const {
  const std::lock_guard lock(mutex_);
  *free_bytes = capacity_ - region(device).used;
  *total_bytes = capacity_;
}

}  // namespace torch_mtia::runtime::host
