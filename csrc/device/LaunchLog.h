// TORCH_MTIA_LOG=launch: a line on stderr for each work item that is submitted.
#pragma once

namespace torch_mtia {

// Called before the device is initialized.
void enable_launch_log();

}  // namespace torch_mtia
