#include "bindings.h"

#include <torch/csrc/utils/pybind.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "../device/MTIAStream.h"
#include "../device/StreamCallback.h"

namespace py = pybind11;

namespace torch_mtia {
namespace {

// Note [Python functions of work items]
// A work item owns no Python object, because it may die on a thread that must not wait for the interpreter lock. So the
// functions are here, and an item has a number. When the last copy of an item dies, its number is noted; the next
// thread that comes by with the lock drops the function.
class HostFunctions {
 public:
  // With the interpreter lock.
  uint64_t add(py::function function) {
    drop_dead();
    functions_.emplace(++last_, std::move(function));
    return last_;
  }

  // On any thread, without the lock.
  void forget(uint64_t number) noexcept {
    const std::lock_guard<std::mutex> lock(mutex_);
    dead_.push_back(number);
  }

  // Takes the lock. Throws what the function raised, as text: a Python exception would be an object of the item.
  void call(uint64_t number) {
    const py::gil_scoped_acquire gil;
    try {
      py::function(functions_.at(number))();
    } catch (py::error_already_set& error) {
      const std::string message = error.what();
      throw std::runtime_error("a host function raised " + message);
    }
  }

 private:
  void drop_dead() {
    std::vector<uint64_t> dead;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      dead.swap(dead_);
    }
    for (const uint64_t number : dead) functions_.erase(number);
  }

  std::unordered_map<uint64_t, py::function> functions_;  // guarded by the interpreter lock
  uint64_t last_ = 0;
  std::mutex mutex_;  // guards dead_
  std::vector<uint64_t> dead_;
};

HostFunctions& host_functions() {
  static auto* const instance = new HostFunctions();  // leaked: items die until the process ends
  return *instance;
}

class Registration {
 public:
  explicit Registration(py::function function) : number_(host_functions().add(std::move(function))) {}
  ~Registration() { host_functions().forget(number_); }
  Registration(const Registration&) = delete;
  Registration& operator=(const Registration&) = delete;
  void call() const { host_functions().call(number_); }

 private:
  const uint64_t number_;
};

void launch_host_function(int64_t stream_id, c10::DeviceIndex device, py::function function) {
  const MTIAStream stream(c10::Stream::unpack3(stream_id, device, device_type()));
  auto registration = std::make_shared<const Registration>(std::move(function));
  const py::gil_scoped_release no_gil;  // with launch blocking, the launch waits for the function
  launch_callback(stream, [registration = std::move(registration)] { registration->call(); });
}

}  // namespace

void bind_host_function(py::module_& module) {
  module.def("_launch_host_function", &launch_host_function, py::arg("stream_id"), py::arg("device"),
             py::arg("function"));
}

}  // namespace torch_mtia
