// A driver that was built when mtia_runtime.h was as it is beside this file. MTIA_TEST_DRIVER names a driver that does
// its work.
#include <dlfcn.h>

#include <cstdlib>
#include <cstring>

#include "mtia_runtime.h"

namespace {

mtia_runtime_api make_table(uint32_t abi_version) {
  void* library = dlopen(std::getenv("MTIA_TEST_DRIVER"), RTLD_NOW | RTLD_LOCAL);
  const auto get_api = reinterpret_cast<mtia_runtime_get_api_fn>(dlsym(library, "mtia_runtime_get_api"));
  mtia_runtime_api api;
  std::memcpy(&api, get_api(abi_version), sizeof(api));
  api.struct_size = sizeof(api);
  api.capabilities = MTIA_CAPABILITY_HOST_VIEW | MTIA_CAPABILITY_KERNELS | MTIA_CAPABILITY_GRAPHS |
                     MTIA_CAPABILITY_RARE_FUNCTIONS | MTIA_CAPABILITY_VIRTUAL_MEMORY;
  api.name = "older";
  return api;
}

}  // namespace

__attribute__((visibility("default"))) const mtia_runtime_api* mtia_runtime_get_api(uint32_t abi_version) {
  static const mtia_runtime_api table = make_table(abi_version);
  return abi_version == MTIA_RUNTIME_ABI_VERSION ? &table : nullptr;
}
