// Errors of the shims in their own types: a package can only pass on that one failed, and its message.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include <exception>

namespace torch_mtia {

// Keeps the exception for the runner of the package, on this thread, and gives libtorch its message.
AOTITorchError keep_shim_error(std::exception_ptr error);

// What was kept last on this thread, or null; kept no longer.
std::exception_ptr take_shim_error();

// The body of a shim. Without autograd, which has no part in packages: results would be bound to what made them, and
// operators that write into memory refuse what requires gradients.
template <typename Body>
AOTITorchError run_shim(const Body& body) {
  try {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    body();
    return AOTI_TORCH_SUCCESS;
  } catch (...) {
    return keep_shim_error(std::current_exception());
  }
}

}  // namespace torch_mtia
