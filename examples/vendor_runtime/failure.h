// How a function of the driver fails, on the way to its status and its message.
#pragma once

#include <stdexcept>
#include <string>

#include "mtia_runtime.h"

namespace vendor {

struct Failure : std::runtime_error {
  Failure(mtia_status status, const std::string& message) : std::runtime_error(message), status(status) {}
  mtia_status status;
};

}  // namespace vendor
