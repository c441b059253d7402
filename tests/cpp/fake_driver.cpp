// A driver with the defect that the environment variable MTIA_TEST_DEFECT names, for test_loader.cpp.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
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

// Takes until the file MTIA_TEST_RELEASE has a byte or is closed; it has said so in MTIA_TEST_STARTED.
void initialize_slowly() {
  char byte = 0;
  (void)!write(std::atoi(std::getenv("MTIA_TEST_STARTED")), &byte, 1);
  (void)!read(std::atoi(std::getenv("MTIA_TEST_RELEASE")), &byte, 1);
}

mtia_status initialize(const mtia_init_params*) {
  static int calls = 0;
  if (has_defect("initialize is slow")) initialize_slowly();
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

template <typename Function>
void fill(Function& function) {
  function = &NotCalled<Function>::call;
}
void fill(const char* (*&function)()) {
  function = &last_error_message;
}

// Ends where MTIA_TEST_TABLE_SIZE says, and so does the memory that may be read.
const mtia_runtime_api* make_table() {
  mtia_runtime_api api{};
  const char* size = std::getenv("MTIA_TEST_TABLE_SIZE");
  api.struct_size = size != nullptr ? static_cast<uint32_t>(std::strtoul(size, nullptr, 10)) : sizeof(api);
  api.abi_version = has_defect("other version in the table") ? 99 : MTIA_RUNTIME_ABI_VERSION;
  api.name = has_defect("no name") ? nullptr : "fake";
  api.version = has_defect("no version") ? nullptr : "0";
#define FILL(function, capability) \
  if (capability == MTIA_REQUIRED) fill(api.function);
  MTIA_RUNTIME_FUNCTIONS(FILL)
#undef FILL
  api.initialize = &initialize;
  api.device_count = &device_count;
  if (has_defect("missing functions")) {
    api.memory_copy = nullptr;
    api.event_record = nullptr;
  }
  // Offers a capability and lacks its functions.
  if (has_defect("missing optional function")) api.capabilities = MTIA_CAPABILITY_HOST_VIEW;
  // At the end of a page that no readable one follows.
  constexpr size_t kPage = 4096;
  auto* pages =
      static_cast<std::byte*>(mmap(nullptr, 2 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  mprotect(pages + kPage, kPage, PROT_NONE);
  // A newer driver's functions lie behind those known here.
  const size_t there = std::clamp<size_t>(api.struct_size, sizeof(api.struct_size), kPage);
  std::byte* table = pages + kPage - (there + 7) / 8 * 8;
  std::memcpy(table, &api, std::min(there, sizeof(api)));
  return reinterpret_cast<const mtia_runtime_api*>(table);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const mtia_runtime_api* mtia_runtime_get_api(uint32_t) {
  static const mtia_runtime_api* table = make_table();
  return has_defect("other version") ? nullptr : table;
}
