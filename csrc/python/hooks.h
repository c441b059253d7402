// The hooks that PyTorch gets: MTIAHooks, and the functions of at::MTIAHooksInterface whose arguments or results are
// Python's.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include "../device/MTIAHooks.h"

namespace torch_mtia {

struct PythonHooks final : public MTIAHooks {
  PyObject* memoryStats(c10::DeviceIndex device) const override;
  PyObject* getDeviceCapability(c10::DeviceIndex device) const override;
  PyObject* getDeviceProperties(c10::DeviceIndex device) const override;

  // The rest is in memory_history.cpp: for PyTorch's memory viewer. Raises ValueError for an `enabled` that is not
  // none, "state" or "all", and `stacks` that are not "python" or "all"; 0 entries: no limit.
  void recordMemoryHistory(const std::optional<std::string>& enabled, const std::string& stacks,
                           size_t max_entries) const override;
  // The dict that torch.cuda._memory_viz reads. With a path it is pickled there too.
  PyObject* memorySnapshot(const std::optional<std::string>& path) const override;
  // `observer(device, requested bytes, total bytes, free bytes)` is called before an OutOfMemoryError is raised.
  void attachOutOfMemoryObserver(PyObject* observer) const override;
};

}  // namespace torch_mtia
