#include "Extension.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>

#include "HostView.h"
#include "IntraOpThreads.h"
#include "MTIAStream.h"

namespace torch_mtia {
namespace {

void check_version(uint32_t version) {
  TORCH_CHECK(version == kExtensionVersion, "the C++ extension was built with version ", version,
              " of torch_mtia/device/Extension.h, and the installed torch_mtia has version ", kExtensionVersion,
              ": build the extension again");
}

}  // namespace

const mtia_runtime_api& extension_driver(uint32_t version) {
  check_version(version);
  ensure_initialized();
  return runtime::driver();
}

void submit(c10::Device device, const mtia_work& work, uint32_t version) {
  check_version(version);
  TORCH_CHECK_VALUE(work.struct_size >= MTIA_WORK_SIZE_1, "struct_size of the mtia_work is ", work.struct_size,
                    ", and must be sizeof(mtia_work), which is ", MTIA_WORK_SIZE_1, " or more");
  TORCH_CHECK(is_ours(device), "expected a device of type ", device_name(), ", got ", device);
  const c10::DeviceIndex index = device.has_index() ? device.index() : current_device();
  check_device_index(index);
  ensure_initialized();
  mtia_work known{};  // as this header has it
  std::memcpy(&known, &work, std::min<size_t>(work.struct_size, sizeof(known)));
  known.struct_size = sizeof(known);
  MTIAStream::current(index).core().launch(known);
}

void run_with_threads(int32_t num_threads, void (*body)(void* args), void* args) {
  const IntraOpThreads threads(num_threads);
  body(args);
}

void* host_address(const void* device_address, uint32_t version) {
  check_version(version);
  TORCH_CHECK_NOT_IMPLEMENTED(HostView::available(), "the driver offers the host no view of the device's memory");
  return HostView::to_host(device_address);
}

}  // namespace torch_mtia
