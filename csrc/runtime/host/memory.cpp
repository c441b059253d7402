#include "memory.h"

#include <malloc.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <exception>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>

#include "error.h"
#include "stream.h"

namespace torch_mtia::runtime::host {

// Addresses -----------------------------------------------------------------------------------------------------------

namespace {

// A range of 2 MiB or more is cut and aligned in huge pages, a smaller one in small pages.
constexpr uint64_t kSmallPage = uint64_t{4} << 10;
constexpr uint64_t kHugePage = uint64_t{2} << 20;

constexpr uint64_t round_up(uint64_t value, uint64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

constexpr uint64_t round_to_pages(uint64_t size) {
  return round_up(size, size >= kHugePage ? kHugePage : kSmallPage);
}

}  // namespace

// First-fit allocation of ranges of [0, capacity). Knows nothing of memory: offsets only. Not thread safe.
class RangeAllocator {
 public:
  explicit RangeAllocator(uint64_t capacity) : capacity_(capacity) {
    if (capacity != 0) free_.emplace(0, capacity);
  }

  // The offset of a new range of at least `size` bytes; nothing when no free range is large enough.
  std::optional<uint64_t> allocate(uint64_t size) {
    if (size > capacity_) return std::nullopt;
    const uint64_t page = size >= kHugePage ? kHugePage : kSmallPage;
    size = round_to_pages(size);
    for (auto range = free_.begin(); range != free_.end(); ++range) {
      const uint64_t begin = range->first;
      const uint64_t end = begin + range->second;
      const uint64_t offset = round_up(begin, page);
      if (offset + size > end) continue;
      allocated_.emplace(offset, size);
      if (offset + size < end) free_.emplace(offset + size, end - offset - size);
      if (begin < offset) {
        range->second = offset - begin;
      } else {
        free_.erase(range);
      }
      return offset;
    }
    return std::nullopt;
  }

  // The size of the range at `offset`; 0: there is none.
  uint64_t size_of(uint64_t offset) const {
    const auto allocation = allocated_.find(offset);
    return allocation == allocated_.end() ? 0 : allocation->second;
  }

  // Whether one allocated range contains all of this one.
  bool contains(uint64_t offset, uint64_t size) const {
    const auto behind = allocated_.upper_bound(offset);
    if (behind == allocated_.begin()) return false;
    const auto& [begin, length] = *std::prev(behind);
    return offset - begin < length && size <= length - (offset - begin);
  }

  // Giving back takes two steps, so that the caller can drop the pages between them: `release` forgets the allocation
  // and returns its size (0: there is none at `offset`), `recycle` makes the range available, merged with its
  // neighbours.
  uint64_t release(uint64_t offset) {
    const uint64_t size = size_of(offset);
    allocated_.erase(offset);
    return size;
  }
  void recycle(uint64_t offset, uint64_t size) {
    const auto next = free_.lower_bound(offset);
    if (next != free_.end() && offset + size == next->first) {
      size += next->second;
      free_.erase(next);
    }
    const auto after = free_.lower_bound(offset);
    if (after != free_.begin()) {
      const auto previous = std::prev(after);
      if (previous->first + previous->second == offset) {
        previous->second += size;
        return;
      }
    }
    free_.emplace_hint(after, offset, size);
  }

  const std::map<uint64_t, uint64_t>& allocated() const { return allocated_; }  // offset -> size

 private:
  const uint64_t capacity_;
  std::map<uint64_t, uint64_t> free_;       // offset -> size, no two adjacent
  std::map<uint64_t, uint64_t> allocated_;  // likewise
};

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

struct Memory::Region {
  Region(uint64_t allocatable, uint64_t reservable) : ranges(allocatable), reservations(reservable) {}

  RangeAllocator ranges;
  RangeAllocator reservations;                 // offsets from the end of `ranges`
  std::unordered_set<uint64_t> mapped_pages;   // huge pages of the reservations, by their number
  std::unordered_set<uint64_t> shared_pages;   // of those, the ones that map a file
  std::unordered_set<uint64_t> leaving_pages;  // of those, the ones that a thread is about to drop
  uint64_t used = 0;                           // bytes of `ranges` and of mapped pages, until they are dropped
};

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

Memory::~Memory() = default;

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
  malloc_trim(0);  // returns what the C library caches of freed host memory
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

// Copies and fills ----------------------------------------------------------------------------------------------------

namespace {

// From this size on several threads share the work, in pieces of at least `kPiece`.
constexpr uint64_t kParallelBytes = uint64_t{4} << 20;
constexpr int64_t kPiece = int64_t{1} << 20;

// Runs body(first, last) over [0, size) with the threads that the item was granted.
template <typename Body>
void for_pieces(uint64_t size, const mtia_work_context& context, mtia_parallel_for parallel_for, Body body) noexcept {
  const auto end = static_cast<int64_t>(size);
  if (context.num_threads <= 1 || size < kParallelBytes) return body(0, end);
  parallel_for(
      0, end, kPiece, context.num_threads,
      [](void* args, int64_t first, int64_t last) { (*static_cast<Body*>(args))(first, last); }, &body);
}

// A pattern repeated to a length that is copied quickly and stays in the first-level cache.
class PatternTile {
 public:
  // `size`: what is to be written in all; the tile is no longer than that.
  PatternTile(const std::byte* pattern, size_t pattern_size, uint64_t size) noexcept {
    const size_t length = std::min<uint64_t>(size, bytes_.size());
    std::memcpy(bytes_.data(), pattern, pattern_size);
    for (size_t done = pattern_size; done < length;) {
      const size_t piece = std::min(done, length - done);
      std::memcpy(&bytes_[done], bytes_.data(), piece);
      done += piece;
    }
  }
  // Bytes [first, last) of the endless repetition, whose period divides the size of the tile.
  void write(std::byte* to, int64_t first, int64_t last) const noexcept {
    while (first < last) {
      const int64_t phase = first % static_cast<int64_t>(bytes_.size());
      const int64_t piece = std::min(static_cast<int64_t>(bytes_.size()) - phase, last - first);
      std::memcpy(to + first, &bytes_[static_cast<size_t>(phase)], static_cast<size_t>(piece));
      first += piece;
    }
  }

 private:
  alignas(64) std::array<std::byte, 4096> bytes_;
};

void require(bool condition, const char* message) {
  if (!condition) throw Failure(MTIA_ERROR_INVALID_VALUE, message);
}

mtia_status launch(Stream& stream, uint64_t size, const Parallelism& parallelism, const char* name, auto&& body) {
  OwnWork work{std::move(body)};
  const int32_t num_threads = size < kParallelBytes ? 1 : parallelism.wanted_threads();
  return stream.launch(
      work.describe(name, MTIA_WORK_MAY_RUN_INLINE | MTIA_WORK_CAPTURABLE, size / kBytesPerNs, num_threads));
}

}  // namespace

mtia_status copy(Stream& stream, const Memory& memory, const Parallelism& parallelism, uint64_t to, uint64_t from,
                 uint64_t size, mtia_copy_kind kind) {
  if (size == 0) return MTIA_SUCCESS;
  const bool to_device = kind != MTIA_COPY_DEVICE_TO_HOST;
  const bool from_device = kind != MTIA_COPY_HOST_TO_DEVICE;
  require(kind >= MTIA_COPY_HOST_TO_DEVICE && kind <= MTIA_COPY_DEVICE_TO_DEVICE, "memory_copy: unknown copy kind");
  require(to_device ? memory.contains(to, size) : to != 0 && memory.device_of(to) < 0,
          to_device ? "memory_copy: the destination is not device memory"
                    : "memory_copy: the destination is not host memory");
  require(from_device ? memory.contains(from, size) : from != 0 && memory.device_of(from) < 0,
          from_device ? "memory_copy: the source is not device memory" : "memory_copy: the source is not host memory");

  auto* target = to_device ? memory.host(to) : reinterpret_cast<std::byte*>(to);
  const auto* source = from_device ? memory.host(from) : reinterpret_cast<const std::byte*>(from);
  return launch(
      stream, size, parallelism, "mtia::memory_copy",
      [target, source, size, parallel_for = parallelism.parallel_for](const mtia_work_context& context) noexcept {
        for_pieces(size, context, parallel_for, [target, source](int64_t first, int64_t last) noexcept {
          std::memcpy(target + first, source + first, static_cast<size_t>(last - first));
        });
      });
}

mtia_status fill(Stream& stream, const Memory& memory, const Parallelism& parallelism, mtia_device_ptr to,
                 const void* pattern, uint32_t pattern_size, uint64_t count) {
  if (count == 0) return MTIA_SUCCESS;
  require(pattern_size != 0 && pattern_size <= 16 && (pattern_size & (pattern_size - 1)) == 0,
          "memory_fill: a pattern has 1, 2, 4, 8 or 16 bytes");
  require(pattern != nullptr, "memory_fill: the pattern is null");
  require(count <= memory.capacity() / pattern_size && memory.contains(to, count * pattern_size),
          "memory_fill: the destination is not device memory");

  const uint64_t size = count * pattern_size;
  std::byte* target = memory.host(to);
  std::array<std::byte, 16> bytes{};
  std::memcpy(bytes.data(), pattern, pattern_size);
  const bool one_byte = std::all_of(bytes.begin() + 1, bytes.begin() + pattern_size,
                                    [&](std::byte byte) { return byte == bytes.front(); });
  return launch(stream, size, parallelism, "mtia::memory_fill",
                [target, size, bytes, pattern_size, one_byte,
                 parallel_for = parallelism.parallel_for](const mtia_work_context& context) noexcept {
                  if (one_byte) {
                    return for_pieces(size, context, parallel_for, [&](int64_t first, int64_t last) noexcept {
                      std::memset(target + first, std::to_integer<int>(bytes.front()),
                                  static_cast<size_t>(last - first));
                    });
                  }
                  const PatternTile tile(bytes.data(), pattern_size, size);
                  for_pieces(size, context, parallel_for,
                             [&](int64_t first, int64_t last) noexcept { tile.write(target, first, last); });
                });
}

}  // namespace torch_mtia::runtime::host
