// Operators that multiply by random numbers: dropout and the randomized leaky relu.
#include <ATen/Dispatch.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/OpMathType.h>
#include <ATen/native/Resize.h>
#include <ATen/native/mtia/EmptyTensor.h>
#include <ATen/ops/dropout_native.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/leaky_relu.h>
#include <ATen/ops/native_dropout.h>
#include <ATen/ops/native_dropout_backward_native.h>
#include <ATen/ops/ones_like.h>
#include <torch/library.h>

#include <cmath>

#include "../device/DeviceType.h"
#include "MTIANativeFunctions.h"
#include "Random.h"

namespace torch_mtia {
namespace {

// What elements that are kept, or not, are multiplied by. Not a choice between results, as 0 times a NaN is a NaN.
template <typename T>
using Factor = typename c10::scalar_value_type<at::opmath_type<T>>::type;

// Operands: output, mask, input.
template <typename T>
struct Dropout {
  uint32_t last;  // words up to this keep their element
  Factor<T> scale;

  void operator()(const PhiloxState& state, const StridedElements& elements, int64_t begin, int64_t end) const {
    for_each_tile(state, elements.numel(), kTileWords, begin, end,
                  [&](const uint32_t* words, int64_t first, int64_t count) {
                    if (elements.contiguous() && count == kTileWords) {
                      apply(words, elements.at<T>(2, first), elements.at<T>(0, first), elements.at<bool>(1, first));
                      return;
                    }
                    T input[kTileWords] = {};
                    T output[kTileWords];
                    bool mask[kTileWords];
                    const T* from = elements.read(2, first, count, input);
                    if (from != input) std::copy_n(from, count, input);
                    apply(words, input, output, mask);
                    elements.write(0, first, count, output);
                    elements.write(1, first, count, mask);
                  });
  }

  void apply(const uint32_t* __restrict words, const T* __restrict input, T* __restrict output,
             bool* __restrict mask) const {
    bernoulli_variates(words, last, mask);
    for (int64_t i = 0; i < kTileWords; ++i) {
      const Factor<T> factor = static_cast<Factor<T>>(mask[i]) * scale;
      output[i] = static_cast<T>(static_cast<at::opmath_type<T>>(input[i]) * factor);
    }
  }
};

// Operands: gradient of the input, gradient of the output, mask.
template <typename T>
struct DropoutBackward {
  Factor<T> scale;

  void operator()(const PhiloxState& /*state*/, const StridedElements& elements, int64_t begin, int64_t end) const {
    for (int64_t first = begin; first < end; first += kTileWords) {
      const int64_t count = std::min(kTileWords, end - first);
      T grad_buffer[kTileWords];
      bool mask_buffer[kTileWords];
      T result[kTileWords];
      const T* grad = elements.read(1, first, count, grad_buffer);
      const bool* mask = elements.read(2, first, count, mask_buffer);
      for (int64_t i = 0; i < count; ++i) {
        result[i] =
            static_cast<T>(static_cast<at::opmath_type<T>>(grad[i]) * (static_cast<Factor<T>>(mask[i]) * scale));
      }
      elements.write(0, first, count, result);
    }
  }
};

// Operands: output, noise, input.
template <typename T>
struct RandomizedLeakyRelu {
  at::opmath_type<T> lower;
  at::opmath_type<T> range;
  at::opmath_type<T> upper;

  void operator()(const PhiloxState& state, const StridedElements& elements, int64_t begin, int64_t end) const {
    using value_type = at::opmath_type<T>;
    constexpr int64_t kValues = kTileValues<value_type>;
    for_each_tile(state, elements.numel(), kValues, begin, end,
                  [&](const uint32_t* words, int64_t first, int64_t count) {
                    value_type slopes[kValues];
                    T input[kValues];
                    T output[kValues];
                    T noise[kValues];
                    uniform_variates(words, std::numeric_limits<value_type>::digits, lower, range, upper, slopes);
                    const T* from = elements.read(2, first, count, input);
                    for (int64_t i = 0; i < count; ++i) {
                      noise[i] = static_cast<T>(from[i] <= 0 ? slopes[i] : value_type{1});
                      output[i] = from[i] * noise[i];
                    }
                    elements.write(1, first, count, noise);
                    elements.write(0, first, count, output);
                  });
  }
};

// A new tensor with the sizes of `tensor`, and its strides where they are dense.
at::Tensor empty_with_dtype(const at::Tensor& tensor, at::ScalarType dtype) {
  const auto options = tensor.options().dtype(dtype);
  return tensor.is_contiguous() ? at::Tensor(at::detail::empty_mtia(tensor.sizes(), options))
                                : at::empty_like(tensor, options);
}

// Work on elements that draws nothing.
template <typename Body>
void launch_elements(const DrawInfo& info, c10::Device device, StridedElements elements, Body body) {
  require_host_view(info.name);
  const int64_t numel = elements.numel();
  if (numel > 0) launch_random<Body>(info, device, {{}, std::move(elements), numel, kGrainElements, std::move(body)});
}

}  // namespace
}  // namespace torch_mtia

namespace at::native {
namespace {

using torch_mtia::DrawInfo;
using torch_mtia::StridedElements;

constexpr DrawInfo kDropout{"aten::native_dropout", 1};
constexpr DrawInfo kDropoutBackward{"aten::native_dropout_backward", 0.6};
constexpr DrawInfo kRrelu{"aten::rrelu_with_noise", 2};

// ATen's, but for the devices whose fused kernel ATen knows of: mtia is not among them.
Tensor dropout_mtia(const Tensor& input, double p, bool train) {
  if (train && p > 0 && p < 1 && input.sym_numel() > 0) return std::get<0>(at::native_dropout(input, p, train));
  return at::native::dropout(input, p, train);
}

}  // namespace

std::tuple<Tensor, Tensor> native_dropout_mtia(const Tensor& input, double p, std::optional<bool> train) {
  if (input.numel() == 0) return {input, at::empty_like(input)};
  if (!train.value_or(true)) return {input.clone(), at::ones_like(input, input.options().dtype(kBool))};
  const double kept = 1 - p;
  TORCH_CHECK(0 <= kept && kept <= 1, "bernoulli_ expects p to be in [0, 1], but got p=", kept);
  TORCH_CHECK(!isIntegralType(input.scalar_type(), /*includeBool=*/true),
              "result type Float can't be cast to the desired output type ", input.scalar_type());
  const double scale = kept == 0 ? 0 : 1 / kept;
  const Tensor output = torch_mtia::empty_with_dtype(input, input.scalar_type());
  const Tensor mask = torch_mtia::empty_with_dtype(input, kBool);
  // Where nothing is kept, no bound keeps nothing, but the mask is 0 all the same.
  if (kept == 0) {
    mask.zero_();
    output.zero_();
    return {output, mask};
  }
  const auto last = static_cast<uint32_t>(static_cast<uint64_t>(std::ceil(kept * 0x1p32)) - 1);
  AT_DISPATCH_FLOATING_AND_COMPLEX_TYPES_AND3(kHalf, kBFloat16, kComplexHalf, input.scalar_type(), "dropout", [&] {
    torch_mtia::launch_tiles(kDropout, std::nullopt, input.device(), StridedElements({&output, &mask, &input}, 2),
                             torch_mtia::kTileWords,
                             torch_mtia::Dropout<scalar_t>{last, static_cast<torch_mtia::Factor<scalar_t>>(scale)});
  });
  return {output, mask};
}

Tensor native_dropout_backward_mtia(const Tensor& grad_output, const Tensor& mask, double scale) {
  const bool same = mask.scalar_type() == kBool && mask.sizes() == grad_output.sizes();
  if (!same || isIntegralType(grad_output.scalar_type(), /*includeBool=*/true)) {
    return at::native::native_dropout_backward(grad_output, mask, scale);
  }
  const Tensor grad_input = torch_mtia::empty_with_dtype(grad_output, grad_output.scalar_type());
  AT_DISPATCH_FLOATING_AND_COMPLEX_TYPES_AND3(
      kHalf, kBFloat16, kComplexHalf, grad_output.scalar_type(), "dropout_backward", [&] {
        // Rounded to the gradient's dtype first, as where mask and scale are multiplied in it.
        using Factor = torch_mtia::Factor<scalar_t>;
        const auto rounded = static_cast<Factor>(static_cast<typename c10::scalar_value_type<scalar_t>::type>(scale));
        torch_mtia::launch_elements(kDropoutBackward, grad_output.device(),
                                    StridedElements({&grad_input, &grad_output, &mask}, 1),
                                    torch_mtia::DropoutBackward<scalar_t>{rounded});
      });
  return grad_input;
}

Tensor& rrelu_with_noise_out_mtia(const Tensor& self, Tensor& noise, const Scalar& lower, const Scalar& upper,
                                  bool training, std::optional<Generator> generator, Tensor& output) {
  TORCH_CHECK(self.sizes() == noise.sizes(),
              "noise tensor shape must match self tensor shape. Got self.shape = ", self.sizes(),
              " noise.shape = ", noise.sizes());
  const auto from = lower.to<double>();
  const auto to = upper.to<double>();
  if (training) {
    AT_DISPATCH_FLOATING_TYPES_AND(kBFloat16, self.scalar_type(), "rrelu_with_noise_out_cpu", [&] {
      for (const Tensor* other : std::initializer_list<const Tensor*>{&noise, &output}) {
        TORCH_CHECK(other->scalar_type() == self.scalar_type(), "expected scalar type ", self.scalar_type(),
                    " but found ", other->scalar_type());
      }
      resize_output(output, self.sizes());
      if (self.numel() == 0) return;
      assert_no_internal_overlap(noise);
      assert_no_internal_overlap(output);
      using value_type = opmath_type<scalar_t>;
      torch_mtia::launch_tiles(
          kRrelu, generator, self.device(), StridedElements({&output, &noise, &self}, 2),
          torch_mtia::kTileValues<value_type>,
          torch_mtia::RandomizedLeakyRelu<scalar_t>{static_cast<value_type>(from), static_cast<value_type>(to - from),
                                                    static_cast<value_type>(to)});
    });
    return output;
  }
  return at::leaky_relu_out(output, self, (from + to) / 2);
}

Tensor rrelu_with_noise_mtia(const Tensor& self, Tensor& noise, const Scalar& lower, const Scalar& upper, bool training,
                             std::optional<Generator> generator) {
  Tensor output = at::empty_like(self, MemoryFormat::Contiguous);
  return rrelu_with_noise_out_mtia(self, noise, lower, upper, training, std::move(generator), output);
}

Tensor& rrelu_with_noise_mtia_(Tensor& self, Tensor& noise, const Scalar& lower, const Scalar& upper, bool training,
                               std::optional<Generator> generator) {
  return rrelu_with_noise_out_mtia(self, noise, lower, upper, training, std::move(generator), self);
}

}  // namespace at::native

// dropout is made of other operators, and autograd differentiates those: hence a kernel that calls them, under both
// keys.
MTIA_LIBRARY_IMPL(aten, kAutograd, m) {
  m.impl("dropout", &at::native::dropout_mtia);
}
MTIA_LIBRARY_IMPL(aten, kBackend, m) {
  m.impl("dropout", &at::native::dropout_mtia);
}
