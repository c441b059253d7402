#include "Kernel.h"

#include "../runtime/loader.h"

namespace torch_mtia::core {

Kernel::Kernel(int32_t device, const std::string& name, std::string_view image) {
  runtime::call(&mtia_runtime_api::module_load, device, image.data(), image.size(), &module_);
  const std::string name_in_image = name.substr(0, sizeof(mtia_kernel_image_header::name) - 1);  // what fits
  const mtia_runtime_api& driver = runtime::driver();
  const mtia_status status = driver.module_get_function(module_, name_in_image.c_str(), &function_);
  if (status != MTIA_SUCCESS) {
    const auto error = runtime::last_error(status, &mtia_runtime_api::module_get_function);
    driver.module_unload(module_);
    throw error;
  }
}

Kernel::~Kernel() {
  runtime::driver().module_unload(module_);  // cannot fail but in a forked child, where nothing is left to free
}

}  // namespace torch_mtia::core
