// What a software device says about itself.
#pragma once

#include <cstdint>

#include "../mtia_runtime.h"

namespace torch_mtia::runtime::host {

// All fields but struct_size.
mtia_device_properties describe_device(uint64_t memory);

// Cores this process may run on.
int32_t available_cores();

}  // namespace torch_mtia::runtime::host
