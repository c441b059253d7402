// Pointwise operators whose kernels upstream names for each backend, and stubs that take tensors and not an iterator.
#include <ATen/EmptyTensor.h>
#include <ATen/TensorIterator.h>
#include <ATen/native/Activation.h>
#include <ATen/native/BinaryOps.h>
#include <ATen/native/Cross.h>
#include <ATen/native/Resize.h>
#include <ATen/native/TensorCompare.h>
#include <ATen/ops/arange_native.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/logspace_native.h>
#include <ATen/ops/mish_backward.h>
#include <ATen/ops/mish_backward_native.h>
#include <ATen/ops/result_type.h>
#include <ATen/ops/silu_backward.h>
#include <ATen/ops/silu_backward_native.h>
#include <torch/library.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "HostAlias.h"
#include "Launch.h"
#include "MTIANativeFunctions.h"

// Defined by the generated registration: clamp_min on the device, without the dispatcher.
namespace at::mtia {
Tensor clamp_min(const Tensor& self, const Scalar& min);
Tensor& clamp_min_(Tensor& self, const Scalar& min);
}  // namespace at::mtia

namespace at::native {
namespace {

using Tensors = std::vector<Tensor>;

// Runs `run(outputs, inputs)` on host aliases of the tensors, in the current stream of the first output's device.
template <typename Run>
void launch_on_aliases(const char* name, Tensors outputs, Tensors inputs, Run run) {
  torch_mtia::require_host_view(name);
  const auto stream = torch_mtia::current_stream(outputs[0].device());
  uint64_t bytes = 0;
  const auto alias = [&bytes](Tensor& tensor, bool for_write) {
    bytes += tensor.nbytes();
    tensor = torch_mtia::host_alias(tensor, for_write);
  };
  for (auto& output : outputs) alias(output, /*for_write=*/true);
  for (auto& input : inputs) alias(input, /*for_write=*/false);
  torch_mtia::core::WorkInfo info{};
  info.name = name;
  info.cost = torch_mtia::cost_of_bytes(bytes);
  torch_mtia::launch(stream, info, [outputs = std::move(outputs), inputs = std::move(inputs), run = std::move(run)] {
    run(outputs, inputs);
  });
}

// An operand with which a loop says, at the call, whether it is made for the dtype.
Tensor no_elements(IntArrayRef sizes, ScalarType dtype) {
  return at::detail::empty_cpu(sizes, dtype);
}

}  // namespace

// Arithmetic ----------------------------------------------------------------------------------------------------------

TORCH_IMPL_FUNC(add_out_mtia)(const Tensor& /*self*/, const Tensor& /*other*/, const Scalar& alpha, const Tensor& out) {
  add_stub(device_type(), *this, alpha);
  TORCH_INTERNAL_ASSERT_DEBUG_ONLY(out.scalar_type() == output().dtype());
}

TORCH_IMPL_FUNC(sub_out_mtia)(const Tensor& /*self*/, const Tensor& /*other*/, const Scalar& alpha, const Tensor& out) {
  add_stub(device_type(), *this, -alpha);
  TORCH_INTERNAL_ASSERT_DEBUG_ONLY(out.scalar_type() == output().dtype());
}

// Activations ---------------------------------------------------------------------------------------------------------

Tensor relu_mtia(const Tensor& self) {
  TORCH_CHECK(self.scalar_type() != kBool, "Boolean inputs not supported for relu");
  return at::mtia::clamp_min(self, 0);
}

Tensor& relu_mtia_(Tensor& self) {
  TORCH_CHECK(self.scalar_type() != kBool, "Boolean inputs not supported for relu");
  return at::mtia::clamp_min_(self, 0);
}

TORCH_IMPL_FUNC(gelu_out_mtia)(const Tensor& /*self*/, std::string_view approximate, const Tensor& /*out*/) {
  GeluKernel(device_type(), *this, get_gelutype_enum(approximate));
}

TORCH_IMPL_FUNC(gelu_backward_out_mtia)
(const Tensor& /*grad_output*/, const Tensor& /*self*/, std::string_view approximate, const Tensor& /*grad_input*/) {
  GeluBackwardKernel(device_type(), *this, get_gelutype_enum(approximate));
}

std::tuple<Tensor, Tensor> log_sigmoid_forward_mtia(const Tensor& self) {
  const Tensor input = self.contiguous();
  Tensor output = at::empty_like(input);
  Tensor buffer = at::empty_like(input);
  const auto run = [](const Tensors& outputs, const Tensors& inputs) {
    Tensor result = outputs[0];
    Tensor kept = outputs[1];
    log_sigmoid_cpu_stub(kCPU, result, kept, inputs[0]);
  };
  const Tensor nothing = no_elements({0}, self.scalar_type());
  run({nothing, nothing}, {nothing});
  launch_on_aliases("aten::log_sigmoid_forward", {output, buffer}, {input}, run);
  return {output, buffer};
}

std::tuple<Tensor&, Tensor&> log_sigmoid_forward_out_mtia(const Tensor& self, Tensor& output, Tensor& buffer) {
  const auto [result, kept] = log_sigmoid_forward_mtia(self);
  resize_output(output, self.sizes());
  resize_output(buffer, self.sizes());
  output.copy_(result);
  buffer.copy_(kept);
  return {output, buffer};
}

Tensor& log_sigmoid_backward_out_mtia(const Tensor& grad_output, const Tensor& self, const Tensor& buffer,
                                      Tensor& grad_input) {
  auto iter = TensorIteratorConfig()
                  .add_output(grad_input)
                  .add_const_input(self)
                  .add_const_input(buffer)
                  .add_const_input(grad_output)
                  .build();
  log_sigmoid_backward_stub(iter.device_type(), iter);
  return grad_input;
}

Tensor log_sigmoid_backward_mtia(const Tensor& grad_output, const Tensor& self, const Tensor& buffer) {
  Tensor grad_input = at::empty_like(grad_output);
  log_sigmoid_backward_out_mtia(grad_output, self, buffer, grad_input);
  return grad_input;
}

// The dispatcher does not know which backend belongs to AutogradMTIA, and for an operator that has a differentiable
// decomposition too it takes that, always. These take it where it is differentiated.
namespace {

bool is_differentiated(const Tensor& tensor) {
  return (GradMode::is_enabled() && tensor.requires_grad()) || tensor._fw_grad(/*level=*/0).defined();
}

Tensor silu_backward_autograd(const Tensor& grad_output, const Tensor& self) {
  if (is_differentiated(grad_output) || is_differentiated(self)) return math_silu_backward(grad_output, self);
  const at::AutoDispatchBelowADInplaceOrView guard;
  return at::silu_backward(grad_output, self);
}

Tensor mish_backward_autograd(const Tensor& grad_output, const Tensor& self) {
  if (is_differentiated(grad_output) || is_differentiated(self)) return math_mish_backward(grad_output, self);
  const at::AutoDispatchBelowADInplaceOrView guard;
  return at::mish_backward(grad_output, self);
}

TORCH_LIBRARY_IMPL(aten, AutogradMTIA, m) {
  m.impl("silu_backward", TORCH_FN(silu_backward_autograd));
  m.impl("mish_backward", TORCH_FN(mish_backward_autograd));
}

}  // namespace

// Stubs that take tensors ---------------------------------------------------------------------------------------------

namespace {

void cross_on_device(const Tensor& out, const Tensor& self, const Tensor& other, const int64_t dim) {
  const Tensor nothing = no_elements({0, 3}, self.scalar_type());
  cross_stub(kCPU, nothing, nothing, nothing, /*dim=*/1);
  if (out.numel() == 0) return;
  launch_on_aliases("aten::linalg_cross", {out}, {self, other}, [dim](const Tensors& outputs, const Tensors& inputs) {
    cross_stub(kCPU, outputs[0], inputs[0], inputs[1], dim);
  });
}

// Promotes before the launch: a number without dimensions would not be known as one in the work.
void isin_on_device(const Tensor& elements, const Tensor& test_elements, bool invert, const Tensor& out) {
  const ScalarType dtype = at::result_type(elements, test_elements);
  launch_on_aliases("aten::isin", {out}, {elements.to(dtype), test_elements.to(dtype).contiguous()},
                    [invert](const Tensors& outputs, const Tensors& inputs) {
                      isin_default_stub(kCPU, inputs[0], inputs[1], invert, outputs[0]);
                    });
}

}  // namespace

REGISTER_MTIA_DISPATCH(cross_stub, &cross_on_device)
REGISTER_MTIA_DISPATCH(isin_default_stub, &isin_on_device)

// Numbers without operands --------------------------------------------------------------------------------------------

Tensor& arange_mtia_out(const Scalar& start, const Scalar& end, const Scalar& step, Tensor& out) {
  return arange_out(start, end, step, out);
}

Tensor& eye_out_mtia(int64_t n, int64_t m, Tensor& out) {
  TORCH_CHECK(n >= 0, "n must be greater or equal to 0, got ", n);
  TORCH_CHECK(m >= 0, "m must be greater or equal to 0, got ", m);
  out.resize_({n, m});
  out.zero_();
  out.diagonal().fill_(1);
  return out;
}

Tensor& eye_out_mtia(int64_t n, Tensor& out) {
  return eye_out_mtia(n, n, out);
}

Tensor& logspace_out_mtia(const Scalar& start, const Scalar& end, int64_t steps, double base, Tensor& out) {
  // The ends of the range raise here for what the loop could not convert.
  Tensor ends = no_elements({0}, out.scalar_type());
  logspace_out(start, end, std::min<int64_t>(steps, 2), base, ends);
  if (out.numel() != steps) out.resize_({steps});
  if (steps == 0) return out;
  auto run = [start = Scalar(start), end = Scalar(end), steps, base](const Tensors& outputs, const Tensors&) {
    Tensor result = outputs[0];
    logspace_out(start, end, steps, base, result);
  };
  launch_on_aliases("aten::logspace", {out}, {}, std::move(run));
  return out;
}

}  // namespace at::native
