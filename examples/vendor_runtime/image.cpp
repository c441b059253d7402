#include "image.h"

#include <sys/mman.h>

#include <cstring>

namespace vendor {
namespace {

void require(bool holds, mtia_status status, const char* message) {
  if (!holds) throw ImageError(status, message);
}

// Whether `count` pieces of `unit` bytes from `offset` on lie in `size` bytes.
bool fits(uint64_t offset, uint64_t count, uint64_t unit, uint64_t size) {
  return offset <= size && count <= (size - offset) / unit;
}

// AVX-512 has parts; what the compiler may use beyond these, this device does not offer.
uint64_t machine_features() {
  __builtin_cpu_init();
  uint64_t features = 0;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) features |= MTIA_CPU_AVX2_FMA;
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512cd")) {
    features |= MTIA_CPU_AVX512_SKX;
  }
  if (__builtin_cpu_supports("avx512bf16")) features |= MTIA_CPU_AVX512_BF16;
  if (__builtin_cpu_supports("avx512vnni")) features |= MTIA_CPU_AVX512_VNNI;
  return features;
}

}  // namespace

mtia_kernel_image_header checked_header(const void* bytes, uint64_t size) {
  mtia_kernel_image_header header{};
  const mtia_status damaged = MTIA_ERROR_INVALID_VALUE;
  require(bytes != nullptr && size >= sizeof(header), damaged, "the kernel image is shorter than its header");
  std::memcpy(&header, bytes, sizeof(header));
  require(header.magic == MTIA_KERNEL_IMAGE_MAGIC, damaged, "these bytes are not a kernel image");
  require(header.version == 1 && header.header_size == sizeof(header), MTIA_ERROR_NOT_SUPPORTED,
          "the kernel image has a version that this driver does not load");
  require(header.image_size == size && std::memchr(header.name, 0, sizeof(header.name)) != nullptr &&
              header.code_size > 0 && header.entry_offset < header.code_size &&
              fits(header.code_offset, header.code_size, 1, size) &&
              fits(header.relocations_offset, header.num_relocations, sizeof(uint64_t), size) &&
              header.scratch_size < uint64_t{1} << 40,
          damaged, "the kernel image is damaged");
  require((header.cpu_features & ~machine_features()) == 0, MTIA_ERROR_NOT_SUPPORTED,
          "the kernel was compiled for a processor with features that this machine lacks");
  return header;
}

Image::Image(const void* bytes, uint64_t size) : header_(checked_header(bytes, size)) {
  const char* image = static_cast<const char*>(bytes);
  void* mapping = mmap(nullptr, header_.code_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) throw std::bad_alloc();
  code_ = static_cast<char*>(mapping);
  std::memcpy(code_, image + header_.code_offset, header_.code_size);
  for (uint64_t i = 0; i < header_.num_relocations; ++i) {
    uint64_t offset = 0;
    std::memcpy(&offset, image + header_.relocations_offset + i * sizeof(offset), sizeof(offset));
    if (!fits(offset, 1, sizeof(uint64_t), header_.code_size)) {
      munmap(code_, header_.code_size);
      throw ImageError(MTIA_ERROR_INVALID_VALUE, "the kernel image is damaged");
    }
    uint64_t word = 0;
    std::memcpy(&word, code_ + offset, sizeof(word));
    word += reinterpret_cast<uint64_t>(code_);
    std::memcpy(code_ + offset, &word, sizeof(word));
  }
  mprotect(code_, header_.code_size, PROT_READ | PROT_EXEC);
}

Image::~Image() {
  munmap(code_, header_.code_size);
}

}  // namespace vendor
