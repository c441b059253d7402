// Launching kernels of generated code.
#pragma once

#include <ATen/core/Tensor.h>
#include <pybind11/pybind11.h>

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "../device/MTIAKernel.h"
#include "packed_arguments.h"
#include "triton_launcher.h"

namespace torch_mtia {

// What `autotuner.run(*values, stream=stream)` of a CachingAutotuner does. Raises in Python, or as C++ does, and
// returns false for what does not fit.
bool run_kernel(PyObject* autotuner, const ArgumentValue* values, size_t count, PyObject* stream);

// What `run_kernel` does when it is called again and only tensors may be others: the numbers are packed, and the grid
// is known. It can be carried out without the GIL, and is destroyed with it.
class BoundLaunch {
 public:
  // For a call that has just been made. A value of neither kind is a tensor that `launch` is given. Null: the kernel
  // has no builtin launcher, or the values do not fit.
  static std::unique_ptr<const BoundLaunch> make(PyObject* autotuner, const ArgumentValue* values, size_t count);

  // One tensor for each value that was left open, in their order. False: nothing is launched, because one of them or
  // the stream does not fit; `run_kernel` says why.
  bool launch(const MTIAStream& stream, const at::Tensor* const* tensors) const;

  const pybind11::object& launcher() const { return launcher_; }
  // The kernel has not been unloaded.
  bool is_loaded() const { return loaded_kernel(function_) == kernel_; }

 private:
  BoundLaunch() = default;

  pybind11::object launcher_;  // keeps the rest
  PyObject* function_ = nullptr;
  std::shared_ptr<const MTIAKernel> kernel_;  // another thread may unload it just before a launch
  Grid grid_{};
  std::vector<std::byte> packed_;
  std::vector<std::pair<uint32_t, size_t>> pointers_;  // where in the block they lie, and which tensors they are of
};

// Whether `run` of kernels is what it was, asked once for all launches that no Python code comes between.
class LaunchCheck {
 public:
  LaunchCheck();

  // The builtin function that launches the kernel. Null: its Python method has more to do, as no configuration is
  // chosen yet, or somebody watches launches or has replaced the method.
  pybind11::object launcher_of(PyObject* autotuner);

  // Whether `launch` does what `run_kernel` would.
  bool is_current(PyObject* autotuner, const BoundLaunch& launch) {
    return launcher_of(autotuner).is(launch.launcher()) && launch.is_loaded();
  }

 private:
  bool is_empty(const pybind11::object& hook);

  bool are_watched_;
  PyTypeObject* type_ = nullptr;    // whose method was asked for last, and is ours
  PyObject* empty_hook_ = nullptr;  // the last that was
};

}  // namespace torch_mtia
