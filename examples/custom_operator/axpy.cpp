// An operator of one's own for the device: example::axpy(a, x, y) = a * x + y.
//
// It does what the device's own operators do: checks its arguments and makes the result at the call, and submits the
// computation to the current stream.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>
#include <torch_mtia/device/Extension.h>

namespace {

at::Tensor axpy(double a, const at::Tensor& x, const at::Tensor& y) {
  TORCH_CHECK(x.sizes() == y.sizes(), "axpy: x has shape ", x.sizes(), " and y ", y.sizes());
  TORCH_CHECK(x.device() == y.device(), "axpy: x is on ", x.device(), " and y on ", y.device());
  TORCH_CHECK(x.scalar_type() == at::kFloat && y.scalar_type() == at::kFloat, "axpy: x and y must be float32");
  TORCH_CHECK(x.is_contiguous() && y.is_contiguous(), "axpy: x and y must be contiguous");
  at::Tensor result = at::empty_like(x);

  // Host addresses of device memory, for the work alone: this function must not look behind them.
  const float* const xs = torch_mtia::host_address(x.const_data_ptr<float>());
  const float* const ys = torch_mtia::host_address(y.const_data_ptr<float>());
  float* const results = torch_mtia::host_address(result.mutable_data_ptr<float>());
  const int64_t count = x.numel();
  const auto factor = static_cast<float>(a);

  torch_mtia::core::WorkInfo info{"example::axpy"};
  info.cost = static_cast<uint64_t>(count) / 8;  // nanoseconds, roughly: what is small may run at once
  torch_mtia::launch(x.device(), info, [=] {
    at::parallel_for(0, count, /*grain_size=*/32768, [=](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) results[i] = factor * xs[i] + ys[i];
    });
  });
  return result;
}

}  // namespace

TORCH_LIBRARY(example, library) {
  library.def("axpy(float a, Tensor x, Tensor y) -> Tensor");
}
TORCH_LIBRARY_IMPL(example, MTIA, library) {
  library.impl("axpy", axpy);
}
