// For programs without Python. Installed with the package as <torch_mtia/device/Program.h>; docs/packages.md shows one.
#pragma once

namespace torch_mtia {

// Makes the devices known to PyTorch, as `import torch_mtia` does in Python. Call it once, before anything else of
// PyTorch that concerns devices. Reads the settings of docs/environment.md that concern devices from the environment:
// TORCH_MTIA_DEVICES, MEMORY, LAUNCH_BLOCKING, DELAY, CHECK_BOUNDS, RUNTIME and LOG; what they do not allow raises
// c10::ValueError. The driver is the one in this library's folder unless TORCH_MTIA_RUNTIME gives a path.
[[gnu::visibility("default")]] void initialize_program();

}  // namespace torch_mtia
