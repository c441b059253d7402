// A kernel image in memory, what its code calls, and its launches as work items.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "../mtia_runtime.h"
#include "stream.h"
#include "work.h"

namespace torch_mtia::runtime::host {

// A kernel image, see Note [Kernel image] in mtia_runtime.h: executable code, mapped. It is never writable and
// executable at the same time.
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

// Whether kernels stay inside the live ranges of their launch: lets no lane go on that would leave them, and reports
// the first in the error cell.
extern const mtia_kernel_watch bounds_watch;

// Shared by its module and by the launches of it that are queued.
class Kernel : public std::enable_shared_from_this<Kernel> {
 public:
  // Throws Failure: see Image.
  Kernel(int32_t device, const void* image, uint64_t size, const Parallelism& parallelism, int64_t host_offset);

  const Image& image() const { return image_; }
  int32_t device() const { return device_; }

  // Returns as Stream::launch does. Throws Failure: INVALID_VALUE.
  mtia_status launch(Stream& stream, const mtia_kernel_launch& launch) const;

 private:
  class Launch;

  // Whether the next launch, with these estimated nanoseconds, is timed: long ones always, short ones now and then, as
  // reading the clock takes as long as some of them.
  bool times_next(uint64_t cost) const;
  // Estimated nanoseconds of one program.
  uint64_t cost_per_program() const { return cost_per_program_.load(std::memory_order_relaxed); }
  void measured(uint64_t nanoseconds, int64_t programs) const;

  const int32_t device_;
  const Image image_;
  const Parallelism parallelism_;
  const int64_t host_offset_;
  mutable std::atomic<uint64_t> cost_per_program_;
  mutable std::atomic<uint32_t> num_short_launches_{0};
};

// What an mtia_module stands for. Its one function is the kernel.
struct Module {
  std::shared_ptr<Kernel> kernel;
};

inline Module* module_of(mtia_module handle) {
  return reinterpret_cast<Module*>(handle);
}
inline mtia_module handle_of(Module* module) {
  return reinterpret_cast<mtia_module>(module);
}
inline Kernel* kernel_of(mtia_function handle) {
  return reinterpret_cast<Kernel*>(handle);
}
inline mtia_function handle_of(Kernel* kernel) {
  return reinterpret_cast<mtia_function>(kernel);
}

}  // namespace torch_mtia::runtime::host
