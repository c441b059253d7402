// The dispatch stubs of ATen that run on the device: a row each, with the name that errors and the profiler give the
// work. To add one, include its header and add a row; the operators that use it come from yaml/native_functions.yaml.
#include <ATen/Dispatch_v2.h>
#include <ATen/native/Activation.h>
#include <ATen/native/BinaryOps.h>
#include <ATen/native/Fill.h>
#include <ATen/native/IndexKernel.h>
#include <ATen/native/TensorCompare.h>
#include <ATen/native/UnaryOps.h>
#include <ATen/ops/clamp_min.h>

#include "MTIANativeFunctions.h"
#include "Pointwise.h"

namespace at::native {
namespace {

template <auto& Stub>
constexpr auto named(const char* name) {
  torch_mtia::OnDevice<Stub>::name = name;
  return &torch_mtia::OnDevice<Stub>::call;
}

// Raises for a value that does not fit the tensor's dtype at the call, where the loop would raise in the stream.
void fill_on_device(TensorIterator& iter, const Scalar& value) {
  AT_DISPATCH_V2(iter.dtype(), "fill_", AT_WRAP([&] { (void)value.to<scalar_t>(); }),
                 AT_EXPAND(AT_ALL_TYPES_AND_COMPLEX), AT_EXPAND(AT_BAREBONES_UNSIGNED_TYPES),
                 AT_EXPAND(AT_FLOAT8_TYPES), kBool, kHalf, kBFloat16, kComplexHalf);
  named<fill_stub>("aten::fill_")(iter, value);
}

}  // namespace

REGISTER_MTIA_DISPATCH(add_stub, named<add_stub>("aten::add"))
REGISTER_MTIA_DISPATCH(clamp_min_scalar_stub, named<clamp_min_scalar_stub>("aten::clamp_min"))
REGISTER_MTIA_DISPATCH(index_stub, named<index_stub>("aten::index"))
REGISTER_MTIA_DISPATCH(fill_stub, &fill_on_device)
REGISTER_MTIA_DISPATCH(mul_stub, named<mul_stub>("aten::mul"))
REGISTER_MTIA_DISPATCH(threshold_stub, named<threshold_stub>("aten::threshold"))

TORCH_IMPL_FUNC(add_out_mtia)(const Tensor& /*self*/, const Tensor& /*other*/, const Scalar& alpha, const Tensor& out) {
  add_stub(device_type(), *this, alpha);
  TORCH_INTERNAL_ASSERT_DEBUG_ONLY(out.scalar_type() == output().dtype());
}

TORCH_IMPL_FUNC(sub_out_mtia)(const Tensor& /*self*/, const Tensor& /*other*/, const Scalar& alpha, const Tensor& out) {
  add_stub(device_type(), *this, -alpha);
  TORCH_INTERNAL_ASSERT_DEBUG_ONLY(out.scalar_type() == output().dtype());
}

Tensor relu_mtia(const Tensor& self) {
  TORCH_CHECK(self.scalar_type() != kBool, "Boolean inputs not supported for relu");
  return at::clamp_min(self, 0);
}

Tensor& relu_mtia_(Tensor& self) {
  TORCH_CHECK(self.scalar_type() != kBool, "Boolean inputs not supported for relu");
  return at::clamp_min_(self, 0);
}

}  // namespace at::native
