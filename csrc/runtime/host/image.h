// A kernel image in memory: see Note [Kernel image] in mtia_runtime.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "../mtia_runtime.h"

namespace torch_mtia::runtime::host {

// Executable code, mapped. It is never writable and executable at the same time.
class Image {
 public:
  using Entry = void (*)(const void* packed_arguments, const mtia_kernel_context* context, int64_t first_program,
                         int64_t last_program, void* scratch);

  // Checks all of the image and maps a copy of its code. Throws Failure: INVALID_VALUE for an image that is damaged,
  // NOT_SUPPORTED for one of another version or for another machine.
  Image(const void* bytes, uint64_t size);
  ~Image();
  Image(const Image&) = delete;
  Image& operator=(const Image&) = delete;

  const char* name() const { return header_.name; }
  Entry entry() const { return entry_; }
  uint32_t packed_arguments_size() const { return header_.packed_arguments_size; }
  uint32_t cost_per_program() const { return header_.cost_per_program; }  // estimated nanoseconds; 0: unknown
  uint64_t scratch_size() const { return header_.scratch_size; }

 private:
  const mtia_kernel_image_header header_;
  std::byte* code_ = nullptr;
  Entry entry_ = nullptr;
};

}  // namespace torch_mtia::runtime::host
