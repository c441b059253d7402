#include "WorkItem.h"

#include <utility>

#include "Stream.h"

namespace torch_mtia::core {

void record_work_error(void* stream_tag, const char* name, std::exception_ptr error) noexcept {
  static_cast<Stream*>(stream_tag)->record_error(name, std::move(error), {});
}

}  // namespace torch_mtia::core
