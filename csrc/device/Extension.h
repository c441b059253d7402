// What a C++ extension needs of the device that c10 does not offer: launching work, and the driver. Installed with the
// package as <torch_mtia/device/Extension.h>; docs/extensions.md shows how to build against it.
//
// The rest is c10's and ATen's: tensors by at::empty, raw memory by c10::GetAllocator(c10::kMTIA), the current stream
// and others by c10::impl::VirtualGuardImpl and c10::Stream, whose native_handle() is the driver's mtia_stream.
#pragma once

#include <ATen/Parallel.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <utility>

#include "../core/WorkItem.h"
#include "../runtime/mtia_runtime.h"

namespace torch_mtia {

// Changes when what is declared here changes. The functions raise RuntimeError for an extension that was built with
// another version.
inline constexpr uint32_t kExtensionVersion = 1;

// The driver's table, with the device initialized. Raises RuntimeError in a process that cannot use the device. An
// extension may know more functions than the table has: see Growth in mtia_runtime.h.
[[gnu::visibility("default")]] const mtia_runtime_api& extension_driver(uint32_t version = kExtensionVersion);

// Submits work to the current stream of the device: see Note [Work item] in mtia_runtime.h. Its errors are raised at
// the stream's next synchronizing call; with launch blocking, here.
[[gnu::visibility("default")]] void submit(c10::Device device, const mtia_work& work,
                                           uint32_t version = kExtensionVersion);

// Calls body(args) with ATen's intra-operator parallelism limited to what the driver granted.
[[gnu::visibility("default")]] void run_with_threads(int32_t num_threads, void (*body)(void* args), void* args);

// Where work finds the bytes at a device address. Raises NotImplementedError if the driver has no host view.
[[gnu::visibility("default")]] void* host_address(const void* device_address, uint32_t version = kExtensionVersion);
template <typename T>
T* host_address(T* device_address) {
  return static_cast<T*>(host_address(static_cast<const void*>(device_address)));
}

// Runs `callable()` in the current stream of the device. The callable holds plain data, such as addresses, sizes and
// numbers, never a tensor; it can run any number of times, and may use at::parallel_for. Memory of tensors that belong
// to the stream stays valid for it, because the next user of that memory submits its work later.
template <typename Callable>
void launch(c10::Device device, core::WorkInfo info, Callable callable) {
  info.num_threads = at::get_num_threads();
  auto run = [callable = std::move(callable)](const mtia_work_context& context) mutable {
    run_with_threads(context.num_threads, [](void* args) { (*static_cast<Callable*>(args))(); }, &callable);
  };
  core::WorkBlock<decltype(run)> block{std::move(run), info.name};
  submit(device, core::make_work(info, block));
}

}  // namespace torch_mtia
