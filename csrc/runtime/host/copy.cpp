#include "copy.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>

#include "cost.h"
#include "error.h"
#include "work.h"

namespace torch_mtia::runtime::host {
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
