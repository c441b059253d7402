// Histograms. ATen's CPU kernel counts floating-point numbers only; CUDA's counts integers too, and models that route
// tokens to experts rely on it.
#include <ATen/Dispatch.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/histc_native.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <limits>

#include "CPUKernels.h"
#include "InFloat32.h"

namespace torch_mtia {
namespace {

// Bins of [least, most], the last of which has `most` too. `Wide` holds bins * (most - least).
template <typename Wide, typename Integer>
void count(const at::Tensor& self, Wide least, Wide most, at::Tensor& hist) {
  const at::Tensor numbers = self.contiguous();
  const at::Tensor counts = at::zeros_like(hist, at::MemoryFormat::Contiguous);
  auto* const totals = counts.mutable_data_ptr<Integer>();
  const int64_t bins = counts.numel();
  for (const Wide number : c10::ArrayRef<Integer>(numbers.const_data_ptr<Integer>(), numbers.numel())) {
    if (number < least || number > most) continue;
    const auto bin = static_cast<int64_t>((number - least) * bins / (most - least));
    auto& total = totals[std::min(bin, bins - 1)];
    // Wraps, as CUDA's do where a dtype is too small for its count.
    total = static_cast<Integer>(static_cast<uint64_t>(total) + 1);
  }
  hist.copy_(counts);
}

}  // namespace

at::Tensor& histc_out(const at::Tensor& self, int64_t bins, const at::Scalar& min, const at::Scalar& max,
                      at::Tensor& hist) {
  if (!at::isIntegralType(self.scalar_type(), /*includeBool=*/false)) {
    const auto run = in_float32([](auto&&... arguments) { at::native::histogram_histc_out(arguments...); });
    run(self, bins, min, max, hist);
    return hist;
  }
  AT_DISPATCH_INTEGRAL_TYPES(self.scalar_type(), "histc", [&] {
    using Limits = std::numeric_limits<int64_t>;
    __int128 least = min.to<int64_t>();
    __int128 most = max.to<int64_t>();
    if (least == most && self.numel() > 0) {
      const auto [smallest, largest] = at::aminmax(self);
      least = smallest.item<int64_t>();
      most = largest.item<int64_t>();
    }
    if (least == most) {
      least -= 1;
      most += 1;
    }
    const bool fits = (most - least) * bins <= Limits::max() && least >= Limits::min() && most <= Limits::max();
    if (fits) return count<int64_t, scalar_t>(self, static_cast<int64_t>(least), static_cast<int64_t>(most), hist);
    count<__int128, scalar_t>(self, least, most, hist);
  });
  return hist;
}

}  // namespace torch_mtia
