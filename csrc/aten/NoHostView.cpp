// What stands in for kernels that reach the device's memory from the host, with a driver that has no host view, where
// the fallback alone would not do: fills, for which the driver has a function, convolutions, which PyTorch sends to two
// operators that only an out-of-tree device has, histograms of integers, which no operator of the CPU counts, and
// kernels of ours that accumulate in float32.
#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/empty.h>

#include "CPUKernels.h"
#include "Fallback.h"
#include "Launch.h"
#include "ShapeFunctions.h"

namespace torch_mtia {
namespace {

using torch::jit::Stack;

c10::OperatorHandle operator_named(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "");
}

void fill_bytes(const at::Tensor& tensor, const at::Scalar& value) {
  at::Tensor pattern(at::detail::empty_cpu({}, tensor.scalar_type()));
  pattern.fill_(value);
  const auto address = reinterpret_cast<mtia_device_ptr>(tensor.mutable_data_ptr());
  current_stream(tensor.device())
      .core()
      .fill(address, pattern.const_data_ptr(), static_cast<uint32_t>(tensor.itemsize()),
            static_cast<uint64_t>(tensor.numel()));
}

}  // namespace

// fill_.Scalar
void fill(const c10::OperatorHandle& op, Stack* stack) {
  const at::Tensor self = torch::jit::peek(*stack, 0, 2).toTensor();
  if (!self.is_non_overlapping_and_dense()) return fall_back(op, stack);
  if (self.numel() > 0) fill_bytes(self, torch::jit::peek(*stack, 1, 2).toScalar());
  torch::jit::drop(*stack, 2);
  torch::jit::push(*stack, self);
}

void convolution(const c10::OperatorHandle& /*op*/, Stack* stack) {
  static const auto convolution = operator_named("aten::convolution");
  fall_back(convolution, stack);
}

// The CPU's operator also takes the sizes of the bias, as its fourth argument.
void convolution_backward(const c10::OperatorHandle& op, Stack* stack) {
  static const auto convolution_backward = operator_named("aten::convolution_backward");
  const auto arguments = stack->end() - static_cast<std::ptrdiff_t>(op.schema().arguments().size());
  const at::Tensor& grad_output = arguments[0].toTensor();
  const at::Tensor& weight = arguments[2].toTensor();
  const bool transposed = arguments[6].toBool();
  const int64_t groups = arguments[8].toInt();
  const int64_t channels = transposed ? weight.size(1) * groups : weight.size(0);
  TORCH_CHECK(grad_output.dim() > 1 && grad_output.size(1) == channels, "convolution_backward: the gradient has ",
              grad_output.sizes(), ", and ", channels, " channels were expected");
  stack->insert(arguments + 3, c10::IValue(std::vector<int64_t>{channels}));
  fall_back(convolution_backward, stack);
}

// Of integers, and with out=: the CPU's operator takes floating point only.
void histc(const c10::OperatorHandle& op, Stack* stack) {
  const auto count = op.schema().arguments().size();
  const auto arguments = stack->end() - static_cast<std::ptrdiff_t>(count);
  const at::Tensor self = arguments[0].toTensor();
  if (!at::isIntegralType(self.scalar_type(), /*includeBool=*/false)) return fall_back(op, stack);
  const int64_t bins = arguments[1].toInt();
  const at::Scalar min = arguments[2].toScalar();
  const at::Scalar max = arguments[3].toScalar();
  const at::Tensor numbers = self.cpu();
  histc_shape(self, bins, min, max);
  at::Tensor hist = at::empty({bins}, numbers.options());
  histc_out(numbers, bins, min, max, hist);
  at::Tensor result;
  if (op.schema().overload_name() == "out") {
    result = arguments[4].toTensor();
    TORCH_CHECK(result.device() == self.device(), "torch.histc: out must be on ", self.device(), ", as the input is, ",
                "but is on ", result.device());
    TORCH_CHECK(result.scalar_type() == self.scalar_type(), "torch.histc: out must be of dtype ", self.scalar_type(),
                ", as the input is, but is ", result.scalar_type());
    at::native::resize_output(result, hist.sizes());
    result.copy_(hist);
  } else {
    result = hist.to(self.device());
  }
  torch::jit::drop(*stack, count);
  torch::jit::push(*stack, std::move(result));
}

// See Note [Float32 accumulation] in InFloat32.h.
void gradients_of_layer_norm(const c10::OperatorHandle& op, Stack* stack) {
  static const auto kernel = c10::KernelFunction::makeFromUnboxedFunction(TORCH_FN(layer_norm_backward));
  fall_back_to(kernel, op, stack);
}

}  // namespace torch_mtia
