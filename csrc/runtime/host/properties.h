// What a software device says about itself.
#pragma once

#include <cstdint>

#include "../mtia_runtime.h"

namespace torch_mtia::runtime::host {

// Fills all fields but struct_size.
void describe_device(uint64_t memory, mtia_device_properties* properties);

// Cores this process may run on.
int32_t available_cores();

}  // namespace torch_mtia::runtime::host
