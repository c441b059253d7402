// Operators that packages call by their schema, through libtorch's executor. It gives those that take a device one of
// CUDA, whatever the package says, and has no place for another. So the call passes through a boxed kernel that puts
// the model's device in its place; at a key that upstream keeps for tests of exactly that, because none is for it.
#include <ATen/core/stack.h>
#include <torch/library.h>

#include "../device/MTIAFunctions.h"
#include "shim.h"

namespace torch_mtia {
namespace {

constexpr auto kKey = c10::DispatchKey::TESTING_ONLY_GenericMode;

void with_device_of_model(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard once(kKey);
  const auto count = static_cast<std::ptrdiff_t>(op.schema().arguments().size());
  for (auto argument = stack->end() - count; argument != stack->end(); ++argument) {
    if (argument->isDevice() && argument->toDevice().is_cuda()) {
      *argument = c10::Device(device_type(), current_device());
    }
  }
  op.callBoxed(stack);
}

}  // namespace

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&with_device_of_model>());
}

}  // namespace torch_mtia

AOTITorchError aoti_torch_mtia_proxy_executor_call_function(AOTIProxyExecutorHandle proxy_executor,
                                                            int extern_node_index, int num_ints,
                                                            int64_t* flatten_int_args, int num_tensors,
                                                            AtenTensorHandle* flatten_tensor_args) {
  const c10::impl::IncludeDispatchKeyGuard through(torch_mtia::kKey);
  return aoti_torch_proxy_executor_call_function(proxy_executor, extern_node_index, num_ints, flatten_int_args,
                                                 num_tensors, flatten_tensor_args);
}
