// Pointwise operators whose kernels upstream names for each backend, and stubs that take tensors and not an iterator.
#include <ATen/EmptyTensor.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/TensorIterator.h>
#include <ATen/native/Activation.h>
#include <ATen/native/BinaryOps.h>
#include <ATen/native/Cross.h>
#include <ATen/native/TensorCompare.h>
#include <ATen/ops/gelu_backward_cpu_dispatch.h>
#include <ATen/ops/gelu_cpu_dispatch.h>
#include <ATen/ops/logspace_native.h>
#include <ATen/ops/mish_backward.h>
#include <ATen/ops/mish_backward_native.h>
#include <ATen/ops/result_type.h>
#include <ATen/ops/silu_backward.h>
#include <ATen/ops/silu_backward_native.h>
#include <torch/library.h>

#include <algorithm>
#include <type_traits>
#include <utility>

#include "../device/DeviceType.h"
#include "CPUKernelLaunch.h"
#include "MTIANativeFunctions.h"

// Defined by the generated registration: clamp_min on the device, without the dispatcher.
namespace at::mtia {
Tensor clamp_min(const Tensor& self, const Scalar& min);
Tensor& clamp_min_(Tensor& self, const Scalar& min);
}  // namespace at::mtia

namespace at::native {
namespace {

using torch_mtia::own;
using torch_mtia::own_output;
using torch_mtia::run_cpu_kernel;

constexpr uint64_t kActivationWeight = 4;

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

// Whether the CPU may have oneDNN compute it, which is faster than the loops of the stub and has other bits. A result
// with other strides it writes to memory of its own, and ATen leaves it there.
static bool gelu_may_be_in_onednn(const Tensor& self, GeluType formula, const Tensor& result) {
#if defined(__aarch64__)
  const bool has_formula = true;
#else
  const bool has_formula = formula == GeluType::None;
#endif
  return has_formula && self.scalar_type() != kDouble && self.is_contiguous() && result.is_contiguous();
}

TORCH_IMPL_FUNC(gelu_out_mtia)(const Tensor& self, std::string_view approximate, const Tensor& out) {
  const GeluType formula = get_gelutype_enum(approximate);
  if (!gelu_may_be_in_onednn(self, formula, out)) {
    GeluKernel(device_type(), *this, formula);
    return;
  }
  const auto run = formula == GeluType::None
                       ? +[](Tensor& out, const Tensor& self) { at::cpu::gelu_out(out, self, "none"); }
                       : +[](Tensor& out, const Tensor& self) { at::cpu::gelu_out(out, self, "tanh"); };
  run_cpu_kernel({"aten::gelu", kActivationWeight}, out.device(), run, own_output(out), own(self));
}

TORCH_IMPL_FUNC(gelu_backward_out_mtia)
(const Tensor& grad_output, const Tensor& self, std::string_view approximate, const Tensor& grad_input) {
  const GeluType formula = get_gelutype_enum(approximate);
  if (formula != GeluType::None || !gelu_may_be_in_onednn(self, formula, grad_input)) {
    GeluBackwardKernel(device_type(), *this, formula);
    return;
  }
  const auto run = [](Tensor& grad_input, const Tensor& grad_output, const Tensor& self) {
    at::cpu::gelu_backward_out(grad_input, grad_output, self, "none");
  };
  run_cpu_kernel({"aten::gelu_backward", kActivationWeight}, grad_input.device(), run, own_output(grad_input),
                 own(grad_output), own(self));
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

MTIA_LIBRARY_IMPL(aten, kAutograd, m) {
  m.impl("silu_backward", TORCH_FN(silu_backward_autograd));
  m.impl("mish_backward", TORCH_FN(mish_backward_autograd));
}

}  // namespace

// Stubs that take tensors ---------------------------------------------------------------------------------------------

namespace {

void cross_on_device(const Tensor& out, const Tensor& self, const Tensor& other, const int64_t dim) {
  if (out.numel() == 0) return;
  const auto run = [dim](const Tensor& out, const Tensor& self, const Tensor& other) {
    cross_stub(kCPU, out, self, other, dim);
  };
  run_cpu_kernel({"aten::linalg_cross"}, out.device(), run, own_output(out), own(self), own(other));
}

// Promotes before the launch: a number without dimensions would not be known as one in the work.
void isin_on_device(const Tensor& elements, const Tensor& test_elements, bool invert, const Tensor& out) {
  const ScalarType dtype = at::result_type(elements, test_elements);
  const auto run = [invert](const Tensor& elements, const Tensor& test_elements, const Tensor& out) {
    isin_default_stub(kCPU, elements, test_elements, invert, out);
  };
  run_cpu_kernel({"aten::isin"}, out.device(), run, own(elements.to(dtype)), own(test_elements.to(dtype).contiguous()),
                 own_output(out));
}

template <auto& Stub>
void extremum_on_device(const Tensor& values, const Tensor& indices, const Tensor& self, int64_t dim, bool keepdim) {
  constexpr const char* kName = std::is_same_v<decltype(Stub), decltype(max_stub)&> ? "aten::max" : "aten::min";
  const auto run = [dim, keepdim](const Tensor& values, const Tensor& indices, const Tensor& self) {
    Stub(kCPU, values, indices, self, dim, keepdim);
  };
  run_cpu_kernel({kName}, self.device(), run, own_output(values), own_output(indices), own(self));
}

}  // namespace

REGISTER_DEVICE_DISPATCH(cross_stub, &cross_on_device)
REGISTER_DEVICE_DISPATCH(isin_default_stub, &isin_on_device)
REGISTER_DEVICE_DISPATCH(max_stub, &extremum_on_device<max_stub>)
REGISTER_DEVICE_DISPATCH(min_stub, &extremum_on_device<min_stub>)

// Numbers without operands --------------------------------------------------------------------------------------------

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
  Tensor ends = at::detail::empty_cpu({0}, out.scalar_type());
  logspace_out(start, end, std::min<int64_t>(steps, 2), base, ends);
  if (out.numel() != steps) out.resize_({steps});
  if (steps == 0) return out;
  assert_no_internal_overlap(out);
  const auto run = [start = Scalar(start), end = Scalar(end), steps, base](Tensor& result) {
    logspace_out(start, end, steps, base, result);
  };
  run_cpu_kernel({"aten::logspace"}, out.device(), run, own_output(out));
  return out;
}

}  // namespace at::native
