// Memory history and snapshots for PyTorch's memory viewer, and the observers of running out of memory.
#pragma once

#include <Python.h>

#include <cstdint>
#include <optional>
#include <string>

namespace torch_mtia {

// See torch.mtia.record_memory_history. `enabled`: none, "state" or "all"; `stacks`: "python" or "all"; 0 entries: no
// limit. Raises ValueError for anything else.
void record_memory_history(const std::optional<std::string>& enabled, const std::string& stacks, size_t max_entries);

// The dict that torch.cuda._memory_viz reads, as a new reference. With a path it is pickled there too.
PyObject* memory_snapshot(const std::optional<std::string>& path);

// `observer(device, requested bytes, total bytes, free bytes)` is called before an OutOfMemoryError is raised.
void attach_out_of_memory_observer(PyObject* observer);
void notify_out_of_memory_observers(int64_t device, int64_t requested, int64_t device_total, int64_t device_free);

}  // namespace torch_mtia
