// For kernels that leave some calls to the CPU's: see Note [Fallback] in Fallback.cpp.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace torch_mtia {

// What an operator without a kernel does.
void fall_back(const c10::OperatorHandle& op, torch::jit::Stack* stack);
// The same, with a kernel of ours on host aliases in place of the CPU's.
void fall_back_to(const c10::KernelFunction& kernel, const c10::OperatorHandle& op, torch::jit::Stack* stack);
// fall_back with sparse arguments.
void fall_back_sparse(const c10::OperatorHandle& op, torch::jit::Stack* stack);

// fall_back as a part of another operator: not counted, and not denied. The device is in use.
void run_on_copies(const c10::OperatorHandle& op, torch::jit::Stack* stack);

}  // namespace torch_mtia
