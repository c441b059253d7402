// Loops whose body takes less time than a line of Python: see native_loops.py.
#include <c10/core/Allocator.h>
#include <torch/library.h>
#include <torch_mtia/device/Extension.h>

namespace {

// Submits `count` empty work items to the current stream.
void launch(c10::Device device, int64_t count, bool may_run_inline) {
  torch_mtia::core::WorkInfo info{"empty"};
  info.flags = may_run_inline ? MTIA_WORK_MAY_RUN_INLINE : 0;
  for (int64_t i = 0; i < count; ++i) torch_mtia::launch(device, info, [] {});
}

// Allocates `bytes` with c10's allocator for the device and frees them untouched, `count` times.
void allocate(c10::Device device, int64_t bytes, int64_t count) {
  c10::Allocator* const allocator = c10::GetAllocator(device.type());
  for (int64_t i = 0; i < count; ++i) const c10::DataPtr memory = allocator->allocate(static_cast<size_t>(bytes));
}

}  // namespace

TORCH_LIBRARY(mtia_benchmarks, library) {
  library.def("launch(Device device, int count, bool may_run_inline) -> ()", launch);
  library.def("allocate(Device device, int bytes, int count) -> ()", allocate);
}
