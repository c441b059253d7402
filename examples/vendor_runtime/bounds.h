// Whether kernels stay inside the live ranges of their launch.
#pragma once

#include "mtia_runtime.h"

namespace vendor {

// Lets no lane go on that would leave them, and reports the first in the error cell.
extern const mtia_kernel_watch bounds_watch;

}  // namespace vendor
