// A driver with the defect that the environment variable MTIA_TEST_DEFECT names, for test_loader.cpp.
#include <cstdlib>
#include <string_view>

#include "runtime/mtia_runtime.h"

namespace {

bool has_defect(std::string_view defect) {
  const char* wanted = std::getenv("MTIA_TEST_DEFECT");
  return wanted != nullptr && defect == wanted;
}

const char* last_error_message() {
  return "the fake driver fails its first initialization";
}

mtia_status initialize(const mtia_init_params*) {
  static int calls = 0;
  return ++calls == 1 && has_defect("initialize fails once") ? MTIA_ERROR_DEVICE_LOST : MTIA_SUCCESS;
}

mtia_status device_count(int32_t* count) {
  *count = 7;
  return MTIA_SUCCESS;
}

// Stands for every function that these tests do not call.
template <typename Function>
struct NotCalled;
template <typename... Arguments>
struct NotCalled<mtia_status (*)(Arguments...)> {
  static mtia_status call(Arguments...) { return MTIA_ERROR_NOT_SUPPORTED; }
};

template <typename... Functions>
void fill(Functions&... functions) {
  ((functions = &NotCalled<Functions>::call), ...);
}

mtia_runtime_api make_table() {
  mtia_runtime_api api{};
  api.struct_size = has_defect("short table") ? 64 : sizeof(api);
  api.abi_version = has_defect("other version in the table") ? 99 : MTIA_RUNTIME_ABI_VERSION;
  api.name = "fake";
  api.version = "0";
  fill(api.device_properties, api.device_synchronize, api.memory_allocate, api.memory_free, api.memory_info,
       api.memory_device, api.memory_copy, api.memory_fill, api.stream_priority_range, api.stream_create,
       api.stream_destroy, api.stream_query, api.stream_synchronize, api.stream_wait_event, api.stream_launch,
       api.event_create, api.event_destroy, api.event_record, api.event_query, api.event_synchronize,
       api.event_elapsed_time);
  api.last_error_message = &last_error_message;
  api.initialize = &initialize;
  api.device_count = &device_count;
  if (has_defect("missing functions")) {
    api.memory_copy = nullptr;
    api.event_record = nullptr;
  }
  // Offers a capability and lacks its functions.
  if (has_defect("missing optional function")) api.capabilities = MTIA_CAPABILITY_HOST_VIEW;
  return api;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const mtia_runtime_api* mtia_runtime_get_api(uint32_t) {
  static const mtia_runtime_api table = make_table();
  return has_defect("other version") ? nullptr : &table;
}
