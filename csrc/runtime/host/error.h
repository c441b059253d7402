// How a failure inside the driver becomes a status and a message at the C boundary.
#pragma once

#include <stdexcept>
#include <string>

#include "../mtia_runtime.h"

namespace torch_mtia::runtime::host {

// Thrown anywhere in the driver; turned into `status` and a message by `guarded`.
class Failure : public std::runtime_error {
 public:
  Failure(mtia_status status, const std::string& message) : std::runtime_error(message), status(status) {}
  const mtia_status status;
};

// The calling thread's message. Destructors of the thread's other variables may fail, too, when the message is gone:
// theirs is empty.
const char* last_error_message() noexcept;
void set_last_error_message(const char* message) noexcept;

// To be called in a catch block: stores the exception's message for the thread and returns its status.
mtia_status report_current_exception() noexcept;

// The only way from the C table into C++: no exception passes it.
template <typename Body>
mtia_status guarded(Body&& body) noexcept {
  try {
    return body();
  } catch (...) {
    return report_current_exception();
  }
}

// "1.50 GiB"
std::string format_bytes(uint64_t bytes);

}  // namespace torch_mtia::runtime::host
