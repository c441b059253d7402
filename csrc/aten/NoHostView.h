// What rows of yaml/native_functions.yaml may name as `without_host_view`: boxed functions that serve with a driver
// that has no host view, in place of a general kernel of ATen's that cannot: one that needs a dispatch stub, that knows
// no such device, that lacks dtypes, or that rounds to 16 bits after each of its parts.
#pragma once

#include "Fallback.h"

namespace torch_mtia {

// Beside these, fall_back.
void fill(const c10::OperatorHandle& op, torch::jit::Stack* stack);
void convolution(const c10::OperatorHandle& op, torch::jit::Stack* stack);
void convolution_backward(const c10::OperatorHandle& op, torch::jit::Stack* stack);
void histc(const c10::OperatorHandle& op, torch::jit::Stack* stack);
void gradients_of_layer_norm(const c10::OperatorHandle& op, torch::jit::Stack* stack);

}  // namespace torch_mtia
