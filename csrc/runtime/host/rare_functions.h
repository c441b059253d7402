// The table that kernels call rare mathematical functions through: see mtia_rare_function.
#pragma once

namespace torch_mtia::runtime::host {

const void* const* rare_functions();

}  // namespace torch_mtia::runtime::host
