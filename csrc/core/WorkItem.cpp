#include "WorkItem.h"

#include <utility>

#include "Awaited.h"
#include "Stream.h"

namespace torch_mtia::core {

void record_work_error(void* stream_tag, const char* name, std::exception_ptr error) noexcept {
  static_cast<Stream*>(stream_tag)->record_error(name, std::move(error), {});
}

bool give_work_error(uint64_t awaited, const std::exception_ptr& error) noexcept {
  return Awaited::give(awaited, error);
}

}  // namespace torch_mtia::core
