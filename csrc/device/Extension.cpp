#include "Extension.h"

#include <c10/util/Exception.h>

#include "HostView.h"
#include "IntraOpThreads.h"
#include "MTIAStream.h"

namespace torch_mtia {

const mtia_runtime_api& extension_driver() {
  ensure_initialized();
  return runtime::driver();
}

void submit(c10::Device device, const mtia_work& work) {
  TORCH_CHECK(is_ours(device), "expected a device of type ", device_name(), ", got ", device);
  const c10::DeviceIndex index = device.has_index() ? device.index() : current_device();
  check_device_index(index);
  ensure_initialized();
  MTIAStream::current(index).core().launch(work);
}

void run_with_threads(int32_t num_threads, void (*body)(void* args), void* args) {
  const IntraOpThreads threads(num_threads);
  body(args);
}

void* host_address(const void* device_address) {
  TORCH_CHECK_NOT_IMPLEMENTED(HostView::available(), "the driver offers the host no view of the device's memory");
  return HostView::to_host(device_address);
}

}  // namespace torch_mtia
