// A kernel image, mapped: Note [Kernel image] in mtia_runtime.h.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

#include "mtia_runtime.h"

namespace vendor {

struct ImageError : std::runtime_error {
  ImageError(mtia_status status, const std::string& message) : std::runtime_error(message), status(status) {}
  const mtia_status status;
};

// Throws ImageError: INVALID_VALUE for a damaged image, NOT_SUPPORTED for one of another version or machine.
mtia_kernel_image_header checked_header(const void* bytes, uint64_t size);

class Image {
 public:
  using Entry = void (*)(const void* packed_arguments, const mtia_kernel_context* context, int64_t first_program,
                         int64_t last_program, void* scratch);

  Image(const void* bytes, uint64_t size);  // throws ImageError
  ~Image();
  Image(const Image&) = delete;
  Image& operator=(const Image&) = delete;

  const char* name() const { return header_.name; }
  uint64_t scratch_size() const { return header_.scratch_size; }
  Entry entry() const { return reinterpret_cast<Entry>(code_ + header_.entry_offset); }

 private:
  const mtia_kernel_image_header header_;
  char* code_;
};

}  // namespace vendor
