// For kernels that leave some calls to the CPU's: see Note [Fallback] in Fallback.cpp.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace torch_mtia {

// What an operator without a kernel does.
void fall_back(const c10::OperatorHandle& op, torch::jit::Stack* stack);
// The same, with a kernel of ours on host aliases in place of the CPU's.
void fall_back_to(const c10::KernelFunction& kernel, const c10::OperatorHandle& op, torch::jit::Stack* stack);
// fall_back with sparse arguments.
void fall_back_sparse(const c10::OperatorHandle& op, torch::jit::Stack* stack);

// fall_back as a part of another operator: not counted, and not denied. The device is in use.
void run_on_copies(const c10::OperatorHandle& op, torch::jit::Stack* stack);

// Rows of yaml/native_functions.yaml name fall_back, or one of these, as `without_host_view`: it serves with a driver
// that has no host view, in place of a general kernel of ATen's that cannot: one that needs a dispatch stub, that knows
// no such device, that lacks dtypes, or that rounds to 16 bits after each of its parts. They are in NoHostView.cpp.
void fill(const c10::OperatorHandle& op, torch::jit::Stack* stack);
void convolution(const c10::OperatorHandle& op, torch::jit::Stack* stack);
void convolution_backward(const c10::OperatorHandle& op, torch::jit::Stack* stack);
void histc(const c10::OperatorHandle& op, torch::jit::Stack* stack);
void gradients_of_layer_norm(const c10::OperatorHandle& op, torch::jit::Stack* stack);

// Which operators fell back to the CPU, and which may. The C++ side of torch_mtia.fallback.
//
// Thread safe; process-wide, because autograd runs operators on threads of its own.
class FallbackControl {
 public:
  enum class Warn { kNever, kOnce, kAlways };

  // Counts one fallback of the operator and warns of it, as the settings say. Raises NotImplementedError if the
  // operator is denied or fallbacks are forbidden.
  static void enter(const c10::OperatorHandle& op);

  static std::map<std::string, int64_t> stats();  // "aten::name.overload" -> calls since the last reset
  static void reset();
  static void set_warn(Warn mode);
  static void set_denied(const std::vector<std::string>& names);  // "aten::name", "aten::name.overload" or "all"
  static void forbid(bool enable);                                // counted: as many false as true

  // The operators that fall back although they have a kernel; replaces those of the last call. Not while another thread
  // calls any of them: the dispatcher reads its tables without a lock.
  static void set_forced(const std::vector<c10::OperatorName>& operators);
};

}  // namespace torch_mtia
