// OpenCL's objects with their lifetimes, and its errors as the driver's.
#pragma once

#include <CL/cl.h>

#include <stdexcept>
#include <string>
#include <utility>

#include "mtia_runtime.h"

namespace opencl_driver {

// How a function of the driver fails, on the way to its status and its message.
struct Failure : std::runtime_error {
  Failure(mtia_status status, const std::string& message) : std::runtime_error(message), status(status) {}
  mtia_status status;
};

// Throws Failure for anything but CL_SUCCESS, which the function of OpenCL has returned.
inline void check(cl_int status, const char* function, mtia_status means = MTIA_ERROR_INTERNAL) {
  if (status != CL_SUCCESS)
    throw Failure(means, std::string(function) + " failed with status " + std::to_string(status));
}

// One reference to an object that OpenCL counts the references of.
template <typename Object, auto kRetain, auto kRelease>
class Reference {
 public:
  Reference() = default;
  explicit Reference(Object object) : object_(object) {}  // takes over a reference
  Reference(const Reference& other) : object_(other.object_) {
    if (object_ != nullptr) kRetain(object_);
  }
  Reference(Reference&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Reference& operator=(Reference other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Reference() {
    if (object_ != nullptr) kRelease(object_);
  }

  Object get() const { return object_; }
  const Object* list() const { return &object_; }  // of one
  Object* out() { return &object_; }               // for a function that makes an object; there must be none yet
  explicit operator bool() const { return object_ != nullptr; }

 private:
  Object object_ = nullptr;
};

using Context = Reference<cl_context, clRetainContext, clReleaseContext>;
using Queue = Reference<cl_command_queue, clRetainCommandQueue, clReleaseCommandQueue>;
using Buffer = Reference<cl_mem, clRetainMemObject, clReleaseMemObject>;
using Command = Reference<cl_event, clRetainEvent, clReleaseEvent>;  // a command that was enqueued

}  // namespace opencl_driver
