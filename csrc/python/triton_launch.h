// Launches of Triton kernels from Python: those of Triton's launcher, of generated code, and of prepared calls.
#pragma once

#include <c10/util/SmallVector.h>

#include <array>
#include <cstddef>
#include <memory>
#include <vector>

#include "../device/MTIAKernel.h"
#include "packed_arguments.h"

namespace torch_mtia {

using Grid = std::array<int32_t, 3>;

// A kernel with its grid and its packed arguments. The layout outlives it.
class PreparedLaunch {
 public:
  // Packs one value for each argument of the layout. Raises what ArgumentLayout::pack does.
  PreparedLaunch(const ArgumentLayout& layout, std::shared_ptr<const MTIAKernel> kernel, const Grid& grid,
                 const ArgumentValue* values, size_t count);

  // Gives the GIL up: small kernels run within this call. The stream is of the kernel's device.
  void launch(const MTIAStream& stream) const;
  // The same with other pointers, as in ArgumentLayout::pack_pointers.
  void launch(const MTIAStream& stream, const ArgumentValue* values, const std::vector<Py_ssize_t>& places) const;
  // The same without the GIL. False: nothing is launched, because a pointer is no tensor of the kernel's device, or the
  // stream is of another one.
  bool try_launch(const MTIAStream& stream, const ArgumentValue* values, const std::vector<Py_ssize_t>& places) const;

  // Waits for it, and raises what the kernel reports.
  void launch_watched(const MTIAStream& stream, const mtia_kernel_watch& watch) const;

  const std::shared_ptr<const MTIAKernel>& kernel() const { return kernel_; }

 private:
  struct alignas(16) Chunk {
    std::array<std::byte, 16> bytes;
  };
  using Block = c10::SmallVector<Chunk, 32>;

  c10::Device device() const { return {device_type(), kernel_->device()}; }
  void launch_with(const MTIAStream& stream, const Block& block) const;

  const ArgumentLayout* layout_;
  std::shared_ptr<const MTIAKernel> kernel_;  // another thread may unload it just before a launch
  Grid grid_;
  Block block_;
};

// What `autotuner.run(*values, stream=stream)` of a CachingAutotuner does.
void run_kernel(PyObject* autotuner, const ArgumentValue* values, size_t count, PyObject* stream);

// The launch of a kernel of generated code at one place in it, where only tensors differ between the calls.
class BoundLaunch {
 public:
  // For a call that has just been made. A value of neither kind is a tensor that `launch` is given. Null: the kernel
  // has no builtin launcher, or what was left open is no pointer.
  static std::unique_ptr<const BoundLaunch> make(PyObject* autotuner, const ArgumentValue* values, size_t count);

  // Without the GIL. False: nothing is launched, because a tensor or the stream does not fit; `run_kernel` says why.
  bool launch(const MTIAStream& stream, const ArgumentValue* values) const;

 private:
  friend class LaunchCheck;
  BoundLaunch(pybind11::object launcher, const PreparedLaunch& launch)
      : launcher_(std::move(launcher)), launch_(launch) {}

  const pybind11::object launcher_;
  const PreparedLaunch launch_;
};

// Whether `run` of kernels is what it was, asked once for all launches that no Python code comes between.
class LaunchCheck {
 public:
  LaunchCheck();

  // The builtin function that launches the kernel. Null: its Python method has more to do, as no configuration is
  // chosen yet, or somebody watches launches or has replaced the method.
  pybind11::object launcher_of(PyObject* autotuner);

  // Whether `launch` does what `run_kernel` would.
  bool is_current(PyObject* autotuner, const BoundLaunch& launch);

 private:
  bool is_empty(const pybind11::object& hook);

  bool are_watched_;
  PyTypeObject* type_ = nullptr;    // whose method was asked for last, and is ours
  PyObject* empty_hook_ = nullptr;  // the last that was
};

}  // namespace torch_mtia
