#pragma once

namespace vendor {

// The table of mtia_kernel_context.rare_functions: the C library's.
const void* const* rare_functions();

}  // namespace vendor
