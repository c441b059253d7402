// Where a program allocates, told apart by numbers.
#pragma once

#include <cstdint>

namespace torch_mtia {

// Before the first site: with the GIL. Raises what Python does.
void know_modules();

// The same for the same lines of the program within the same modules: the layers of a deep network are different
// sites, though they share their lines. 0: the thread has no Python code.
uint64_t site_of_caller();

}  // namespace torch_mtia
