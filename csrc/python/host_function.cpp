#include "bindings.h"

#include <torch/csrc/utils/pybind.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "../device/MTIAStream.h"
#include "../runtime/forks.h"

namespace py = pybind11;

namespace torch_mtia {
namespace {

// Note [Python functions of work items]
// A work item owns no Python object, because it may die on a thread that must not wait for the interpreter lock. So the
// functions are here, and an item has a number. When the last copy of an item dies, its number is noted; the next
// thread that comes by with the lock drops the function.
//
// A thread that asks for the lock of an interpreter that ends never comes back, which the driver's threads may not do
// inside an item. So the functions end before the interpreter does: `close`.
class HostFunctions {
 public:
  HostFunctions() { runtime::hold_at_forks(runtime::ForkOrder::kTable, mutex_); }

  // With the interpreter lock. Raises RuntimeError once they have ended.
  uint64_t add(py::function function) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      TORCH_CHECK(!closed_, "the interpreter ends, and no host function can be launched any more");
    }
    drop_dead();
    const uint64_t number = ++last_;
    functions_.emplace(number, std::move(function));
    return number;
  }

  // On any thread: how many there have been.
  uint64_t num_added() const { return last_; }

  // On any thread, without the lock.
  void forget(uint64_t number) noexcept {
    try {
      const std::lock_guard<std::mutex> lock(mutex_);
      dead_.push_back(number);
    } catch (const std::bad_alloc&) {
      // The function is kept.
    }
  }

  // Takes the lock. Throws what the function raised, as text: a Python exception would be an object of the item.
  void call(uint64_t number) {
    const Call under_way(*this);
    const py::gil_scoped_acquire gil;
    try {
      py::function(functions_.at(number))();
    } catch (py::error_already_set& error) {
      const std::string message = error.what();
      throw std::runtime_error("a host function raised " + message);
    }
  }

  // Without the interpreter lock: waits for the calls that are under way. From now on there are none.
  void close() {
    std::unique_lock<std::mutex> lock(mutex_);
    closed_ = true;
    ended_.wait(lock, [this] { return num_calls_ == 0; });
  }

 private:
  // Counts a call, until it has given the interpreter lock back.
  class Call {
   public:
    explicit Call(HostFunctions& all) : all_(all) {
      const std::lock_guard<std::mutex> lock(all_.mutex_);
      if (all_.closed_) throw std::runtime_error("a host function did not run, because the interpreter has ended");
      ++all_.num_calls_;
    }
    ~Call() {
      const std::lock_guard<std::mutex> lock(all_.mutex_);
      if (--all_.num_calls_ == 0) all_.ended_.notify_all();
    }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

   private:
    HostFunctions& all_;
  };

  void drop_dead() {
    std::vector<uint64_t> dead;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      dead.swap(dead_);
    }
    for (const uint64_t number : dead) functions_.erase(number);
  }

  std::unordered_map<uint64_t, py::function> functions_;  // guarded by the interpreter lock
  std::atomic<uint64_t> last_ = 0;
  std::mutex mutex_;  // guards what follows
  std::vector<uint64_t> dead_;
  std::condition_variable ended_;
  int num_calls_ = 0;  // under way
  bool closed_ = false;
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

// Errors of work stay with their streams.
void finish(c10::DeviceIndex device) {
  const MTIAStream stream = MTIAStream::default_stream(device);
  stream.core().wait_unless_captured();
  for (const MTIAStream& other : stream.others()) other.core().wait_unless_captured();
}

// For an exit handler: what is queued runs before, and what that launches, but for a function that launches itself
// again and again. Does not raise.
void finish_host_functions() {
  constexpr int kMostRounds = 1000;
  if (runtime::is_forked()) return;  // the threads that run them are not here
  const py::gil_scoped_release no_gil;
  uint64_t num_added;
  int round = 0;
  do {
    num_added = host_functions().num_added();
    for (c10::DeviceIndex device = 0; device < device_count(); ++device) {
      try {
        finish(device);
      } catch (const std::exception&) {
        // It is lost, and runs nothing more.
      }
    }
  } while (num_added != host_functions().num_added() && ++round < kMostRounds);
  host_functions().close();
}

}  // namespace

void bind_host_function(py::module_& module) {
  module.def("_launch_host_function", &launch_host_function, py::arg("stream_id"), py::arg("device"),
             py::arg("function"));
  module.def("_finish_host_functions", &finish_host_functions);
}

}  // namespace torch_mtia
