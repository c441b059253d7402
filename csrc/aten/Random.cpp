// Distributions that fill a tensor. ATen's own functions check the arguments; the stubs here are what they call. The
// names in errors about dtypes are those of the CPU's kernels. Low precision is computed in float.
#include "Random.h"

#include <ATen/Dispatch.h>
#include <ATen/Dispatch_v2.h>
#include <ATen/ExpandUtils.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/OpMathType.h>
#include <ATen/TensorIterator.h>
#include <ATen/native/Resize.h>
#include <ATen/native/UnaryOps.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "../device/DeviceType.h"
#include "../device/HostView.h"
#include "../device/MTIAGenerator.h"
#include "../device/MTIAGraph.h"
#include "../device/ScalarTypes.h"
#include "MTIANativeFunctions.h"

namespace torch_mtia {

StridedElements::StridedElements(std::initializer_list<const at::TensorBase*> tensors, int num_outputs)
    : numel_((*tensors.begin())->numel()), num_operands_(static_cast<int>(tensors.size())), num_outputs_(num_outputs) {
  TORCH_INTERNAL_ASSERT_DEBUG_ONLY(tensors.size() <= kMaxOperands);
  bool all_contiguous = true;
  int operand = 0;
  for (const at::TensorBase* tensor : tensors) {
    const void* data = operand < num_outputs ? tensor->mutable_data_ptr() : tensor->const_data_ptr();
    operands_[operand++] = {HostView::to_host(data), static_cast<int64_t>(tensor->element_size()),
                            tensor->scalar_type()};
    all_contiguous = all_contiguous && tensor->is_contiguous();
  }
  if (all_contiguous) return;
  const auto sizes = (*tensors.begin())->sizes();
  sizes_.assign(sizes.begin(), sizes.end());
  strides_.reserve(tensors.size() * sizes.size());
  for (const at::TensorBase* tensor : tensors) {
    for (const int64_t stride : tensor->strides()) strides_.push_back(stride * tensor->element_size());
  }
}

void StridedElements::list_operands(core::OperandSink& sink) const {
  for (int operand = 0; operand < num_operands_; ++operand) {
    const Operand& of = operands_[operand];
    const auto address = reinterpret_cast<uint64_t>(HostView::to_device(of.data));
    const auto size = static_cast<uint64_t>(of.element_size);
    const bool writes = operand < num_outputs_;
    const auto old_bytes = writes ? core::OldBytes::kOverwritten : core::OldBytes::kRead;
    if (contiguous()) {
      sink.add({address, size, {&numel_, 1}, {&of.element_size, 1}, 1, writes, old_bytes, dtype_name(of.dtype)});
    } else {
      const std::span strides(strides_.data() + operand * sizes_.size(), sizes_.size());
      sink.add({address, size, sizes_, strides, 1, writes, old_bytes, dtype_name(of.dtype)});
    }
  }
}

PhiloxSource reserve_words(const std::optional<at::Generator>& generator, c10::Device device, uint64_t words) {
  const at::Generator& used =
      generator.has_value() && generator->defined() ? *generator : default_generator(device.index());
  TORCH_CHECK(used.device().type() == device_type(), "Expected a '", device_type(),
              "' device type for generator but found '", used.device().type(), "'");
  TORCH_CHECK(used.device() == device, "Expected a '", device, "' generator device but found '", used.device(), "'");
  if (MTIAGraph* graph = MTIAGraph::of(current_stream(device))) return graph->reserve_words(used, words);
  return reserve(used, words);
}

namespace {

// The largest number of the type below `bound`.
template <typename T>
T largest_below(double bound) {
  using Bits = std::conditional_t<sizeof(T) == 2, uint16_t, std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>>;
  T value = static_cast<T>(bound);
  if (static_cast<double>(value) < bound) return value;
  if (static_cast<double>(value) == 0)
    return static_cast<T>(-static_cast<double>(std::numeric_limits<T>::denorm_min()));
  auto bits = __builtin_bit_cast(Bits, value);
  static_cast<double>(value) > 0 ? --bits : ++bits;
  return __builtin_bit_cast(T, bits);
}

// Base + a number below `range`, where 0 stands for 2^64: the product with a random fraction. The numbers differ in
// probability by a part of range / 2^32, or range / 2^64.
template <typename T>
void fill_range(const DrawInfo& info, const std::optional<at::Generator>& generator, const at::TensorBase& out,
                uint64_t range, int64_t base) {
  constexpr uint64_t kNarrowRange = uint64_t{1} << 20;
  if (range != 0 && range <= kNarrowRange) {
    fill_tiles<T, T, kTileWords>(info, generator, out, [range, base](const uint32_t* words, T* values) {
      for (int64_t i = 0; i < kTileWords; ++i) {
        values[i] = static_cast<T>(static_cast<int64_t>(words[i] * range >> 32) + base);
      }
    });
    return;
  }
  constexpr int64_t kValues = kTileValues<uint64_t>;
  fill_tiles<T, T, kValues>(info, generator, out, [range, base](const uint32_t* words, T* values) {
    for (int64_t i = 0; i < kValues; ++i) {
      const uint64_t word = wide_word(words, i);
      const uint64_t number = range == 0 ? word : static_cast<uint64_t>((unsigned __int128){word} * range >> 64);
      values[i] = static_cast<T>(static_cast<int64_t>(number + static_cast<uint64_t>(base)));
    }
  });
}

// bernoulli_.Tensor: operand 0 is the result, operand 1 has the probabilities.
template <typename scalar_t, typename p_t>
struct BernoulliEach {
  void operator()(const PhiloxState& state, const StridedElements& elements, int64_t begin, int64_t end) const {
    for_each_tile(state, elements.numel(), kTileWords, begin, end,
                  [&](const uint32_t* words, int64_t first, int64_t count) {
                    p_t buffer[kTileWords];
                    scalar_t values[kTileWords];
                    const p_t* p = elements.read(1, first, count, buffer);
                    bool valid = true;
                    for (int64_t i = 0; i < count; ++i) {
                      const auto probability = static_cast<double>(p[i]);
                      valid &= probability >= 0 && probability <= 1;
                      values[i] = static_cast<scalar_t>(static_cast<double>(words[i]) * 0x1p-32 < probability);
                    }
                    TORCH_CHECK(valid, "bernoulli_ expects all elements of p to be in [0, 1]");
                    elements.write(0, first, count, values);
                  });
  }
};

// normal with tensors of the result's dtype. Operand 0 is the result; where given, 1 is the mean and the last the std.
template <typename scalar_t>
struct NormalEach {
  using value_type = at::opmath_type<scalar_t>;
  static constexpr int64_t kValues = kTileValues<value_type>;

  bool has_mean;
  bool has_std;
  value_type mean;
  value_type std;

  void operator()(const PhiloxState& state, const StridedElements& elements, int64_t begin, int64_t end) const {
    for_each_tile(state, elements.numel(), kValues, begin, end,
                  [&](const uint32_t* words, int64_t first, int64_t count) {
                    value_type values[kValues];
                    scalar_t buffer[kValues];
                    normal_variates(words, value_type{0}, std, values);
                    if (has_std) {
                      const scalar_t* stds = elements.read(has_mean ? 2 : 1, first, count, buffer);
                      bool valid = true;
                      for (int64_t i = 0; i < count; ++i) {
                        valid &= static_cast<value_type>(stds[i]) >= 0;
                        values[i] *= static_cast<value_type>(stds[i]);
                      }
                      TORCH_CHECK(valid, "normal expects all elements of std >= 0.0");
                    }
                    if (has_mean) {
                      const scalar_t* means = elements.read(1, first, count, buffer);
                      for (int64_t i = 0; i < count; ++i) values[i] += static_cast<value_type>(means[i]);
                    } else {
                      for (int64_t i = 0; i < count; ++i) values[i] += mean;
                    }
                    for (int64_t i = 0; i < count; ++i) buffer[i] = static_cast<scalar_t>(values[i]);
                    elements.write(0, first, count, buffer);
                  });
  }
};

}  // namespace
}  // namespace torch_mtia

namespace at::native {
namespace {

using torch_mtia::DrawInfo;
using torch_mtia::fill_tiles;
using torch_mtia::kTileValues;
using torch_mtia::kTileWords;
using torch_mtia::StridedElements;
using OptionalGenerator = std::optional<Generator>;

// How long an element takes was measured on one core with AVX-512.
constexpr DrawInfo kUniform{"aten::uniform_", 0.8};
constexpr DrawInfo kNormal{"aten::normal_", 1.5};
constexpr DrawInfo kNormalEach{"aten::normal", 2};
constexpr DrawInfo kLogNormal{"aten::log_normal_", 6};
constexpr DrawInfo kExponential{"aten::exponential_", 1.5};
constexpr DrawInfo kCauchy{"aten::cauchy_", 1.5};
constexpr DrawInfo kGeometric{"aten::geometric_", 4};
constexpr DrawInfo kBernoulli{"aten::bernoulli_", 0.8};
constexpr DrawInfo kRandom{"aten::random_", 1.5};

void uniform_kernel(TensorIteratorBase& iter, double from, double to, OptionalGenerator generator) {
  AT_DISPATCH_FLOATING_TYPES_AND2(kHalf, kBFloat16, iter.dtype(), "uniform_kernel_cpu", [&] {
    using value_type = opmath_type<scalar_t>;
    const auto least = static_cast<value_type>(static_cast<scalar_t>(from));
    const value_type range = static_cast<value_type>(to) - least;
    // Rounding must not reach the upper bound.
    const value_type largest = std::max(least, static_cast<value_type>(torch_mtia::largest_below<scalar_t>(to)));
    fill_tiles<scalar_t, value_type>(
        kUniform, generator, iter.tensor_base(0), [=](const uint32_t* words, value_type* values) {
          torch_mtia::uniform_variates(words, std::numeric_limits<value_type>::digits, least, range, largest, values);
        });
  });
}

void normal_kernel(const TensorBase& self, double mean, double std, OptionalGenerator generator) {
  assert_no_internal_overlap(self);
  AT_DISPATCH_FLOATING_TYPES_AND2(kHalf, kBFloat16, self.scalar_type(), "normal_kernel_cpu", [&] {
    using value_type = opmath_type<scalar_t>;
    fill_tiles<scalar_t, value_type>(kNormal, generator, self, [=](const uint32_t* words, value_type* values) {
      torch_mtia::normal_variates(words, static_cast<value_type>(mean), static_cast<value_type>(std), values);
    });
  });
}

void log_normal_kernel(TensorIteratorBase& iter, double mean, double std, OptionalGenerator generator) {
  AT_DISPATCH_FLOATING_TYPES_AND2(kHalf, kBFloat16, iter.dtype(), "log_normal_cpu", [&] {
    using value_type = opmath_type<scalar_t>;
    const auto sample = [=](const uint32_t* words, value_type* values) {
      torch_mtia::normal_variates(words, static_cast<value_type>(mean), static_cast<value_type>(std), values);
      for (int64_t i = 0; i < kTileValues<value_type>; ++i) values[i] = std::exp(values[i]);
    };
    fill_tiles<scalar_t, value_type>(kLogNormal, generator, iter.tensor_base(0), sample);
  });
}

void exponential_kernel(TensorIteratorBase& iter, double lambda, OptionalGenerator generator) {
  TORCH_CHECK(isFloatingType(iter.dtype()),
              "Exponential distribution is a continuous probability distribution. dtype must be a floating point but "
              "you specified ",
              iter.dtype());
  AT_DISPATCH_FLOATING_TYPES_AND2(kHalf, kBFloat16, iter.dtype(), "exponential_cpu", [&] {
    using value_type = opmath_type<scalar_t>;
    const auto scale = static_cast<value_type>(1 / lambda);
    const auto sample = [scale](const uint32_t* words, value_type* values) {
      torch_mtia::exponential_variates(words, values);
      const auto least =
          static_cast<value_type>(std::numeric_limits<scalar_t>::denorm_min());  // not 0 in 16 bits either
      for (int64_t i = 0; i < kTileValues<value_type>; ++i) values[i] = std::max(values[i], least) * scale;
    };
    fill_tiles<scalar_t, value_type>(kExponential, generator, iter.tensor_base(0), sample);
  });
}

void cauchy_kernel(TensorIteratorBase& iter, double median, double sigma, OptionalGenerator generator) {
  AT_DISPATCH_FLOATING_TYPES_AND2(kHalf, kBFloat16, iter.dtype(), "cauchy_cpu", [&] {
    using value_type = opmath_type<scalar_t>;
    const auto middle = static_cast<value_type>(median);
    const auto scale = static_cast<value_type>(sigma);
    const auto sample = [middle, scale](const uint32_t* words, value_type* values) {
      torch_mtia::cauchy_variates(words, values);
      for (int64_t i = 0; i < kTileValues<value_type>; ++i) values[i] = middle + scale * values[i];
    };
    fill_tiles<scalar_t, value_type>(kCauchy, generator, iter.tensor_base(0), sample);
  });
}

// The number of trials until the first success: an exponential variate, rounded up.
void geometric_kernel(TensorIteratorBase& iter, double p, OptionalGenerator generator) {
  AT_DISPATCH_ALL_TYPES_AND2(kHalf, kBFloat16, iter.dtype(), "geometric_cpu", [&] {
    // The largest int64_t is no double: the next lower one.
    constexpr bool kIsLong = std::is_same_v<scalar_t, int64_t>;
    const double largest = kIsLong ? 0x1.fffffffffffffp62 : static_cast<double>(std::numeric_limits<scalar_t>::max());
    const auto sample = [largest, scale = -1 / std::log1p(-p)](const uint32_t* words, double* values) {
      torch_mtia::exponential_variates(words, values);
      for (int64_t i = 0; i < kTileValues<double>; ++i) {
        values[i] = std::min(std::max(std::ceil(values[i] * scale), 1.0), largest);
      }
    };
    fill_tiles<scalar_t, double>(kGeometric, generator, iter.tensor_base(0), sample);
  });
}

void bernoulli_scalar_kernel(const TensorBase& self, double p, OptionalGenerator generator) {
  AT_DISPATCH_ALL_TYPES_AND3(kBool, kHalf, kBFloat16, self.scalar_type(), "bernoulli_scalar_cpu_", [&] {
    // 1 for words up to `last`, if there are any: there are none for p = 0.
    const auto count = static_cast<uint64_t>(std::ceil(p * 0x1p32));
    const auto last = static_cast<uint32_t>(count - 1);
    const auto sample = [last, any = count != 0](const uint32_t* words, scalar_t* values) {
      bool success[kTileWords];
      torch_mtia::bernoulli_variates(words, last, success);
      for (int64_t i = 0; i < kTileWords; ++i) values[i] = static_cast<scalar_t>(success[i] & any);
    };
    fill_tiles<scalar_t, scalar_t, kTileWords>(kBernoulli, generator, self, sample);
  });
}

void bernoulli_tensor_kernel(const TensorBase& self, const TensorBase& p, OptionalGenerator generator) {
  assert_no_partial_overlap(self, p);
  // As float32, for half as many kernels.
  const ScalarType dtype = isReducedFloatingType(p.scalar_type()) ? kFloat : p.scalar_type();
  const Tensor on_device = Tensor(p).to(self.device(), dtype);
  const auto expanded = expand_inplace(Tensor(self), on_device);
  AT_DISPATCH_ALL_TYPES_AND3(kBool, kHalf, kBFloat16, self.scalar_type(), "bernoulli_tensor_cpu_self_", [&] {
    using self_t = scalar_t;
    AT_DISPATCH_FLOATING_TYPES(dtype, "bernoulli_tensor_cpu_p_", [&] {
      torch_mtia::launch_tiles(kBernoulli, generator, self.device(), StridedElements({&self, &*expanded}, 1),
                               kTileWords, torch_mtia::BernoulliEach<self_t, scalar_t>());
    });
  });
}

void random_from_to_kernel(TensorIteratorBase& iter, uint64_t range, int64_t base, OptionalGenerator generator) {
  AT_DISPATCH_V2(iter.dtype(), "random_from_to_kernel_cpu", AT_WRAP([&] {
                   torch_mtia::fill_range<scalar_t>(kRandom, generator, iter.tensor_base(0), range, base);
                 }),
                 AT_EXPAND(AT_ALL_TYPES), AT_EXPAND(AT_BAREBONES_UNSIGNED_TYPES), kBool, kHalf, kBFloat16);
}

void random_full_64_bits_range_kernel(TensorIteratorBase& iter, OptionalGenerator generator) {
  AT_DISPATCH_ALL_TYPES_AND(kBFloat16, iter.dtype(), "random_full_64_bits_range_kernel_cpu", [&] {
    if constexpr (std::is_same_v<scalar_t, int64_t> || std::is_same_v<scalar_t, double> ||
                  std::is_same_v<scalar_t, float> || std::is_same_v<scalar_t, BFloat16>) {
      torch_mtia::fill_range<scalar_t>(kRandom, generator, iter.tensor_base(0), /*range=*/0, /*base=*/0);
    } else {
      TORCH_CHECK(false, "random_full_64_bits_range_kernel_cpu handles only int64, double, float and bfloat16");
    }
  });
}

// From 0 to the largest integer up to which the type has all.
void random_kernel(TensorIteratorBase& iter, OptionalGenerator generator) {
  AT_DISPATCH_ALL_TYPES_AND3(kBool, kHalf, kBFloat16, iter.dtype(), "random_kernel_cpu", [&] {
    constexpr int kDigits = std::numeric_limits<scalar_t>::digits;
    const uint64_t range = (uint64_t{1} << kDigits) + (isFloatingType(iter.dtype()) ? 1 : 0);
    torch_mtia::fill_range<scalar_t>(kRandom, generator, iter.tensor_base(0), range, /*base=*/0);
  });
}

Tensor& normal_each_(Tensor& output, const Tensor* mean, double scalar_mean, const Tensor* std, double scalar_std,
                     const OptionalGenerator& generator) {
  const IntArrayRef sizes = output.sizes();
  const Tensor means = mean != nullptr ? mean->expand(sizes) : Tensor();
  const Tensor stds = std != nullptr ? std->expand(sizes) : Tensor();
  AT_DISPATCH_FLOATING_TYPES_AND2(kHalf, kBFloat16, output.scalar_type(), "normal_kernel_cpu", [&] {
    using value_type = opmath_type<scalar_t>;
    const torch_mtia::NormalEach<scalar_t> body{mean != nullptr, std != nullptr, static_cast<value_type>(scalar_mean),
                                                static_cast<value_type>(scalar_std)};
    auto launch = [&](const StridedElements& elements) {
      torch_mtia::launch_tiles(kNormalEach, generator, output.device(), elements, body.kValues, body);
    };
    if (mean == nullptr) {
      launch(StridedElements({&output, &stds}, 1));
    } else if (std == nullptr) {
      launch(StridedElements({&output, &means}, 1));
    } else {
      launch(StridedElements({&output, &means, &stds}, 1));
    }
  });
  return output;
}

// The arguments that a form of normal lacks are null, with the number in their place.
Tensor& normal_out_of(Tensor& output, const Tensor* mean, double scalar_mean, const Tensor* std, double scalar_std,
                      const OptionalGenerator& generator) {
  if (std == nullptr) {
    TORCH_CHECK(scalar_std >= 0.0, "normal expects std >= 0.0, but found std ", scalar_std);
  } else {
    TORCH_CHECK(!std->is_complex(), "normal expects standard deviation to be non-complex");
  }
  // With a mean alone, ATen lets the sizes of the output take part.
  const auto sizes =
      mean == nullptr ? std->sizes().vec() : infer_size(mean->sizes(), std == nullptr ? output.sizes() : std->sizes());
  resize_output(output, sizes);
  assert_no_internal_overlap(output);
  for (const Tensor* input : {mean, std}) {
    if (input != nullptr) assert_no_partial_overlap(output, *input);
  }
  if (output.numel() == 0) return output;
  auto has_dtype = [&](const Tensor* tensor) {
    return tensor == nullptr || (tensor->scalar_type() == output.scalar_type() && tensor->device() == output.device());
  };
  if (has_dtype(mean) && has_dtype(std) && isFloatingType(output.scalar_type())) {
    return normal_each_(output, mean, scalar_mean, std, scalar_std, generator);
  }
  output.normal_(0, std == nullptr ? scalar_std : 1.0, generator);
  if (std != nullptr) {
    // A work item that does nothing but check: half a draw of its own.
    const Tensor checked = std->to(output.device()).to(c10::toRealValueType(output.scalar_type()));
    Tensor scale = at::empty(std->sizes(), checked.options());
    normal_each_(scale, nullptr, 0.0, &checked, 0.0, generator);
    output.mul_(*std);
  }
  return mean != nullptr ? output.add_(*mean) : output.add_(scalar_mean);
}

}  // namespace

REGISTER_DEVICE_DISPATCH(uniform_stub, &uniform_kernel)
REGISTER_DEVICE_DISPATCH(normal_stub, &normal_kernel)
REGISTER_DEVICE_DISPATCH(log_normal_stub, &log_normal_kernel)
REGISTER_DEVICE_DISPATCH(exponential_stub, &exponential_kernel)
REGISTER_DEVICE_DISPATCH(cauchy_stub, &cauchy_kernel)
REGISTER_DEVICE_DISPATCH(geometric_stub, &geometric_kernel)
REGISTER_DEVICE_DISPATCH(bernoulli_scalar_stub, &bernoulli_scalar_kernel)
REGISTER_DEVICE_DISPATCH(bernoulli_tensor_stub, &bernoulli_tensor_kernel)
REGISTER_DEVICE_DISPATCH(random_from_to_stub, &random_from_to_kernel)
REGISTER_DEVICE_DISPATCH(random_full_64_bits_range_stub, &random_full_64_bits_range_kernel)
REGISTER_DEVICE_DISPATCH(random_stub, &random_kernel)

Tensor& normal_out_mtia(const Tensor& mean, double std, OptionalGenerator generator, Tensor& out) {
  return normal_out_of(out, &mean, 0, nullptr, std, generator);
}

Tensor& normal_out_mtia(double mean, const Tensor& std, OptionalGenerator generator, Tensor& out) {
  return normal_out_of(out, nullptr, mean, &std, 1, generator);
}

Tensor& normal_out_mtia(const Tensor& mean, const Tensor& std, OptionalGenerator generator, Tensor& out) {
  return normal_out_of(out, &mean, 0, &std, 1, generator);
}

Tensor normal_mtia(const Tensor& mean, double std, OptionalGenerator generator) {
  Tensor out = at::empty_like(mean, MemoryFormat::Contiguous);
  return normal_out_of(out, &mean, 0, nullptr, std, generator);
}

Tensor normal_mtia(double mean, const Tensor& std, OptionalGenerator generator) {
  Tensor out = at::empty_like(std, MemoryFormat::Contiguous);
  return normal_out_of(out, nullptr, mean, &std, 1, generator);
}

Tensor normal_mtia(const Tensor& mean, const Tensor& std, OptionalGenerator generator) {
  Tensor out = at::empty(infer_size(mean.sizes(), std.sizes()), mean.options(), MemoryFormat::Contiguous);
  return normal_out_of(out, &mean, 0, &std, 1, generator);
}

}  // namespace at::native
