#include "image.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <new>
#include <string>

#include "error.h"
#include "processor.h"

namespace torch_mtia::runtime::host {
namespace {

constexpr uint64_t kPage = 4096;
// Of one call of an entry; more is a damaged header.
constexpr uint64_t kMaxScratch = uint64_t{1} << 40;

[[noreturn]] void damaged(const std::string& what) {
  throw Failure(MTIA_ERROR_INVALID_VALUE, "the kernel image is damaged: " + what);
}

// Whether [offset, offset + count * unit) lies in `size` bytes.
bool fits(uint64_t offset, uint64_t count, uint64_t unit, uint64_t size) {
  return offset <= size && count <= (size - offset) / unit;
}

template <typename T>
T read(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

mtia_kernel_image_header read_header(const std::byte* bytes, uint64_t size) {
  if (size < sizeof(uint64_t) || read<uint64_t>(bytes) != MTIA_KERNEL_IMAGE_MAGIC) {
    throw Failure(MTIA_ERROR_INVALID_VALUE, "these bytes are not a kernel image: they do not begin with its magic");
  }
  if (size < sizeof(mtia_kernel_image_header)) damaged("it ends within its header");
  const auto header = read<mtia_kernel_image_header>(bytes);
  if (header.version != MTIA_KERNEL_IMAGE_VERSION || header.header_size != sizeof(header)) {
    throw Failure(MTIA_ERROR_NOT_SUPPORTED, "the kernel image has version " + std::to_string(header.version) +
                                                " with a header of " + std::to_string(header.header_size) +
                                                " bytes, this driver loads version 1 with " +
                                                std::to_string(sizeof(header)) + "; compile the kernel again");
  }
  return header;
}

void check_layout(const mtia_kernel_image_header& header, uint64_t size) {
  if (header.image_size != size) {
    damaged("it has " + std::to_string(size) + " bytes where its header says " + std::to_string(header.image_size));
  }
  if (header.name[0] == '\0' || std::memchr(header.name, '\0', sizeof(header.name)) == nullptr) {
    damaged("its name is empty or does not end");
  }
  if (header.code_offset % kPage != 0 || header.code_size == 0 || !fits(header.code_offset, header.code_size, 1, size))
    damaged("its code lies outside of it");
  if (header.entry_offset >= header.code_size) damaged("its entry lies outside of the code");
  if (!fits(header.relocations_offset, header.num_relocations, sizeof(uint64_t), size))
    damaged("its relocations lie outside of it");
  if (!fits(header.header_size, header.num_arguments, sizeof(mtia_kernel_argument), size))
    damaged("its arguments lie outside of it");
  if (header.scratch_size > kMaxScratch) damaged("it asks for too much scratch memory");
}

void check_argument(const mtia_kernel_argument& argument, uint64_t packed_end, uint64_t packed_size) {
  const bool size_is_known = argument.size == 1 || argument.size == 2 || argument.size == 4 || argument.size == 8;
  if (argument.kind > MTIA_ARGUMENT_FLOAT || !size_is_known ||
      (argument.kind == MTIA_ARGUMENT_POINTER && argument.size != 8)) {
    damaged("an argument has unknown kind " + std::to_string(argument.kind) + " and size " +
            std::to_string(argument.size));
  }
  if (argument.offset % argument.size != 0 || argument.offset < packed_end ||
      !fits(argument.offset, 1, argument.size, packed_size)) {
    damaged("an argument lies outside of the packed block, or overlaps another");
  }
}

void check_arguments(const mtia_kernel_image_header& header, const std::byte* bytes) {
  uint64_t end = 0;
  for (uint64_t i = 0; i < header.num_arguments; ++i) {
    const auto argument = read<mtia_kernel_argument>(bytes + header.header_size + i * sizeof(mtia_kernel_argument));
    check_argument(argument, end, header.packed_arguments_size);
    end = uint64_t{argument.offset} + argument.size;
  }
  if (end != header.packed_arguments_size) damaged("the packed block does not end with the last argument");
}

void check_machine(const mtia_kernel_image_header& header) {
  if (((header.cpu_features ^ cpu_features()) & MTIA_CPU_AARCH64) != 0) {
    const bool is_for_aarch64 = (header.cpu_features & MTIA_CPU_AARCH64) != 0;
    throw Failure(MTIA_ERROR_NOT_SUPPORTED, "the kernel '" + std::string(header.name) +
                                                "' was compiled for a processor of another kind, " +
                                                (is_for_aarch64 ? "aarch64" : "x86-64") + "; compile it here");
  }
  const uint64_t missing = header.cpu_features & ~cpu_features();
  if (missing == 0) return;
  throw Failure(MTIA_ERROR_NOT_SUPPORTED, "the kernel '" + std::string(header.name) +
                                              "' was compiled for a processor with " + cpu_feature_names(missing) +
                                              ", which this machine lacks; compile it here");
}

// The code with its load address added where the image says so.
void relocate(const mtia_kernel_image_header& header, const std::byte* bytes, std::byte* code) {
  for (uint64_t i = 0; i < header.num_relocations; ++i) {
    const auto offset = read<uint64_t>(bytes + header.relocations_offset + i * sizeof(uint64_t));
    if (!fits(offset, 1, sizeof(uint64_t), header.code_size)) damaged("a relocation lies outside of the code");
    const uint64_t address = read<uint64_t>(code + offset) + reinterpret_cast<uint64_t>(code);
    std::memcpy(code + offset, &address, sizeof(address));
  }
}

mtia_kernel_image_header checked_header(const std::byte* bytes, uint64_t size) {
  const mtia_kernel_image_header header = read_header(bytes, size);
  check_layout(header, size);
  check_arguments(header, bytes);
  check_machine(header);
  return header;
}

}  // namespace

Image::Image(const void* data, uint64_t size) : header_(checked_header(static_cast<const std::byte*>(data), size)) {
  void* mapping = mmap(nullptr, header_.code_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) throw std::bad_alloc();
  code_ = static_cast<std::byte*>(mapping);
  try {
    std::memcpy(code_, static_cast<const std::byte*>(data) + header_.code_offset, header_.code_size);
    relocate(header_, static_cast<const std::byte*>(data), code_);
    auto* const code = reinterpret_cast<char*>(code_);
    __builtin___clear_cache(code, code + header_.code_size);  // aarch64 fetches instructions past the caches of data
    if (mprotect(code_, header_.code_size, PROT_READ | PROT_EXEC) != 0) {
      throw Failure(MTIA_ERROR_NOT_SUPPORTED,
                    std::string("the system does not let this process make memory executable: ") + strerror(errno));
    }
  } catch (...) {
    munmap(code_, header_.code_size);
    throw;
  }
  entry_ = reinterpret_cast<Entry>(code_ + header_.entry_offset);
}

Image::~Image() {
  munmap(code_, header_.code_size);
}

}  // namespace torch_mtia::runtime::host
