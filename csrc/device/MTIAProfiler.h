// The device in torch.profiler: kineto's IActivityProfiler.
//
// Each work item becomes two activities: the call that submitted it, on the row of its thread, and its run, on the row
// of its stream. A flow connects the two, and both are linked to the operator (or record_function) that they belong to.
#pragma once

namespace torch_mtia {

// Kineto asks for a profiler of the device when it is first used. Called once, when the backend is loaded.
void register_profiler();

// TORCH_MTIA_LOG=launch: a line on stderr for each work item that is submitted. Called before the device is
// initialized.
void enable_launch_log();

}  // namespace torch_mtia
