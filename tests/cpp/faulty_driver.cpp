// The host driver, with faults: for tests/test_driver_faults.py, which builds it.
//
// MTIA_TEST_DRIVER names the driver to wrap. MTIA_TEST_DEFECT, read once, is a defect of the table itself; faulty_set
// makes one function fail, or give a senseless answer, until it is called again.
#include <dlfcn.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <string>
#include <string_view>

#include "runtime/mtia_runtime.h"

namespace {

const mtia_runtime_api* wrapped = nullptr;

// What fails, and how. Set while nothing else runs.
std::string function_that_fails;
mtia_status status_that_it_returns = MTIA_SUCCESS;
thread_local bool failed_last = false;

template <auto kFunction>
const char* name_of = nullptr;

template <auto kFunction, typename... Arguments>
mtia_status call(Arguments... arguments) {
  failed_last = function_that_fails == name_of<kFunction>;
  if (failed_last && status_that_it_returns != MTIA_SUCCESS) return status_that_it_returns;
  return (wrapped->*kFunction)(arguments...);
}

template <auto kFunction, typename... Arguments>
void wrap(mtia_runtime_api& api, const char* name, mtia_status (*)(Arguments...)) {
  name_of<kFunction> = name;
  api.*kFunction = &call<kFunction, Arguments...>;
}

template <auto kFunction>
void wrap(mtia_runtime_api&, const char*, const char* (*)()) {}  // last_error_message

const char* last_error_message() {
  return failed_last ? "the injected fault" : wrapped->last_error_message();
}

bool has_defect(std::string_view defect) {
  const char* wanted = std::getenv("MTIA_TEST_DEFECT");
  return wanted != nullptr && defect == wanted;
}

bool answers_nonsense(const char* function) {
  return function_that_fails == function && status_that_it_returns == MTIA_SUCCESS;
}

[[noreturn]] mtia_status hang(const mtia_init_params*) {
  for (;;) pause();
}

mtia_status nonsense_count(int32_t* count) {
  *count = -3;
  return MTIA_SUCCESS;
}

mtia_status device_properties(int32_t device, mtia_device_properties* properties) {
  const mtia_status status = call<&mtia_runtime_api::device_properties>(device, properties);
  if (answers_nonsense("device_properties")) properties->multi_processor_count = -1;
  return status;
}

mtia_status memory_info(int32_t device, uint64_t* free_bytes, uint64_t* total_bytes) {
  const mtia_status status = call<&mtia_runtime_api::memory_info>(device, free_bytes, total_bytes);
  if (answers_nonsense("memory_info")) *free_bytes = *total_bytes + 1;
  return status;
}

mtia_status memory_allocate(int32_t device, uint64_t size, mtia_device_ptr* address) {
  if (answers_nonsense("memory_allocate")) {
    *address = 0;
    return MTIA_SUCCESS;
  }
  return call<&mtia_runtime_api::memory_allocate>(device, size, address);
}

mtia_runtime_api make_table() {
  mtia_runtime_api api = *wrapped;
#define WRAP(function, capability) wrap<&mtia_runtime_api::function>(api, #function, wrapped->function);
  MTIA_RUNTIME_FUNCTIONS(WRAP)
#undef WRAP
  api.device_properties = &device_properties;
  api.memory_info = &memory_info;
  api.memory_allocate = &memory_allocate;
  api.last_error_message = &last_error_message;
  if (has_defect("says another version")) api.abi_version = 7;
  if (has_defect("a table without its head")) api.struct_size = 20;
  if (has_defect("a short table")) api.struct_size = offsetof(mtia_runtime_api, initialize);
  if (has_defect("lacks a function")) api.memory_copy = nullptr;
  if (has_defect("lacks a function of a capability")) api.graph_launch = nullptr;
  if (has_defect("hangs")) api.initialize = &hang;
  if (has_defect("a count that makes no sense")) api.device_count = &nonsense_count;
  if (has_defect("no host view")) {
    api.capabilities &= ~MTIA_CAPABILITY_HOST_VIEW;
    api.memory_host_offset = nullptr;
  }
  return api;
}

}  // namespace

// `status` 0: the function answers nonsense, if it can.
extern "C" __attribute__((visibility("default"))) void faulty_set(const char* function, int status) {
  function_that_fails = function;
  status_that_it_returns = static_cast<mtia_status>(status);
}

__attribute__((visibility("default"))) const mtia_runtime_api* mtia_runtime_get_api(uint32_t abi_version) {
  if (has_defect("speaks another version")) return nullptr;
  static const mtia_runtime_api table = [abi_version] {
    void* library = dlopen(std::getenv("MTIA_TEST_DRIVER"), RTLD_NOW | RTLD_LOCAL);
    wrapped = reinterpret_cast<mtia_runtime_get_api_fn>(dlsym(library, "mtia_runtime_get_api"))(abi_version);
    return make_table();
  }();
  return &table;
}
