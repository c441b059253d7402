// Samplers whose elements take as many random words as they happen to need, and draws from sets: see
// Note [Philox words]. What only the data shows to be wrong is raised at the next synchronizing call.
#include <ATen/Dispatch.h>
#include <ATen/ExpandUtils.h>
#include <ATen/TensorUtils.h>
#include <ATen/native/Distributions.h>
#include <ATen/native/Resize.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/empty.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "MTIANativeFunctions.h"
#include "Random.h"

namespace torch_mtia {
namespace {

double poisson(PhiloxEngine& engine, double rate) {
  if (rate == 0) return 0;
  if (rate < 10) {
    // The events of a unit of time, one waiting time after the other: products of uniform numbers.
    const double limit = std::exp(-rate);
    double events = 0;
    for (double product = engine.uniform(); product > limit; product *= engine.uniform()) ++events;
    return events;
  }
  // Transformed rejection with squeeze: Hörmann, "The transformed rejection method for generating Poisson random
  // variables", 1993, algorithm PTRS.
  const double b = 0.931 + 2.53 * std::sqrt(rate);
  const double a = -0.059 + 0.02483 * b;
  const double inverse_alpha = 1.1239 + 1.1328 / (b - 3.4);
  const double squeeze = 0.9277 - 3.6224 / (b - 2);
  const double log_rate = std::log(rate);
  while (true) {
    const double u = engine.uniform() - 0.5;
    const double v = engine.uniform();
    const double us = 0.5 - std::abs(u);
    const double k = std::floor((2 * a / us + b) * u + rate + 0.43);
    if (us >= 0.07 && v <= squeeze) return k;
    if (k < 0 || (us < 0.013 && v > us)) continue;
    if (std::log(v * inverse_alpha / (a / (us * us) + b)) <= k * log_rate - rate - std::lgamma(k + 1)) return k;
  }
}

// ATen's samplers take their uniform and normal numbers from callables.
double gamma(PhiloxEngine& engine, double alpha) {
  if (!(alpha >= 0)) return std::numeric_limits<double>::quiet_NaN();
  auto uniform = [&engine] { return engine.uniform(); };
  auto normal = [&engine] { return engine.normal(); };
  BaseSampler<double, decltype(uniform)> standard_uniform(uniform);
  BaseSampler<double, decltype(normal)> standard_normal(normal);
  return sample_gamma<double, double>(alpha, standard_uniform, standard_normal);
}

double binomial(PhiloxEngine& engine, double count, double prob) {
  if (std::isnan(count) || std::isnan(prob)) return std::numeric_limits<double>::quiet_NaN();
  auto uniform = [&engine] { return engine.uniform(); };
  BaseSampler<double, decltype(uniform)> standard_uniform(uniform);
  return sample_binomial<double>(count, prob, standard_uniform);
}

// Operand 0 is the result; Sample: double(PhiloxEngine&, double for each further operand).
template <typename T, int Inputs, auto Sample>
struct SampleEach {
  void operator()(const PhiloxState& state, const StridedElements& elements, int64_t begin, int64_t end) const {
    for (int64_t i = begin; i < end; ++i) {
      PhiloxEngine engine(state, i);
      T buffer;
      const auto first = static_cast<double>(*elements.read(1, i, 1, &buffer));
      double value;
      if constexpr (Inputs == 1) {
        value = Sample(engine, first);
      } else {
        value = Sample(engine, first, static_cast<double>(*elements.read(2, i, 1, &buffer)));
      }
      const auto result = static_cast<T>(value);
      elements.write(0, i, 1, &result);
    }
  }
};

double checked_poisson(PhiloxEngine& engine, double rate) {
  TORCH_CHECK(rate >= 0, "invalid Poisson rate, expected rate to be non-negative");
  return poisson(engine, rate);
}

template <typename T>
double positive_gamma(PhiloxEngine& engine, double alpha) {
  const double value = gamma(engine, alpha);
  return value < std::numeric_limits<T>::min() ? std::numeric_limits<T>::min() : value;
}

// Pieces are rows. Operand 0 is the result, operand 1 has the concentrations.
template <typename T>
struct Dirichlet {
  int64_t num_categories;

  void operator()(const PhiloxState& state, const StridedElements& elements, int64_t begin, int64_t end) const {
    constexpr double kLeast = std::numeric_limits<T>::min();
    constexpr double kLargest = 1 - std::numeric_limits<T>::epsilon() / 2;
    std::vector<double> values(num_categories);
    for (int64_t row = begin; row < end; ++row) {
      double sum = 0;
      for (int64_t k = 0; k < num_categories; ++k) {
        const int64_t i = row * num_categories + k;
        PhiloxEngine engine(state, i);
        T buffer;
        values[k] = std::max(gamma(engine, static_cast<double>(*elements.read(1, i, 1, &buffer))), kLeast);
        sum += values[k];
      }
      for (int64_t k = 0; k < num_categories; ++k) {
        const auto value = static_cast<T>(std::min(std::max(values[k] / sum, kLeast), kLargest));
        elements.write(0, row * num_categories + k, 1, &value);
      }
    }
  }
};

// One piece. Fisher and Yates's shuffle: place i gets one of those from i on.
template <typename T>
struct Permutation {
  void operator()(const PhiloxState& state, const StridedElements& out, int64_t /*begin*/, int64_t /*end*/) const {
    const int64_t n = out.numel();
    std::vector<T> buffer(out.contiguous() ? 0 : n);
    T* values = out.contiguous() ? out.at<T>(0, 0) : buffer.data();
    for (int64_t i = 0; i < n; ++i) values[i] = static_cast<T>(i);
    constexpr int64_t kValues = kTileValues<uint64_t>;
    for_each_tile(state, n, kValues, 0, (n + kValues - 1) / kValues,
                  [&](const uint32_t* words, int64_t first, int64_t count) {
                    for (int64_t k = 0; k < count; ++k) {
                      const auto rest = static_cast<uint64_t>(n - first - k);
                      const auto step = static_cast<int64_t>((unsigned __int128){wide_word(words, k)} * rest >> 64);
                      std::swap(values[first + k], values[first + k + step]);
                    }
                  });
    if (!out.contiguous()) out.write(0, 0, n, values);
  }
};

// Draws from rows of weights.
template <typename T>
struct Multinomial {
  PhiloxSource source;
  StridedElements result;
  StridedElements weights;
  int64_t num_rows;
  int64_t num_categories;
  int64_t num_samples;
  bool each_for_itself;  // with replacement

  void operator()() const {
    const PhiloxState state = source.get();
    const int64_t grain = std::max<int64_t>(1, kGrainElements / (num_categories + num_samples));
    at::parallel_for(0, num_rows, grain, [&](int64_t begin, int64_t end) {
      std::vector<double> row(num_categories);
      std::vector<int64_t> order(each_for_itself ? num_samples : num_categories);
      for (int64_t r = begin; r < end; ++r) {
        read_row(r, row);
        each_for_itself ? draw_each(state, r, row, order) : draw_set(state, r, row, order);
        result.write(0, r * num_samples, num_samples, order.data());
      }
    });
  }

  void list_operands(core::OperandSink& sink) const {
    result.list_operands(sink);
    weights.list_operands(sink);
  }

 private:
  void read_row(int64_t r, std::vector<double>& row) const {
    double sum = 0;
    for (int64_t k = 0; k < num_categories; ++k) {
      T buffer;
      row[k] = static_cast<double>(*weights.read(0, r * num_categories + k, 1, &buffer));
      if (each_for_itself) {
        TORCH_CHECK(row[k] >= 0, "invalid multinomial distribution (encountering probability entry < 0)");
        TORCH_CHECK(std::isfinite(row[k]),
                    "invalid multinomial distribution (encountering probability entry = infinity or NaN)");
      } else {
        TORCH_CHECK(row[k] >= 0 && std::isfinite(row[k]),
                    "probability tensor contains either `inf`, `nan` or element < 0");
      }
      sum += row[k];
    }
    TORCH_CHECK(sum > 0, "invalid multinomial distribution (sum of probabilities <= 0)");
  }

  // Where a uniform number falls among the sums of the weights.
  void draw_each(const PhiloxState& state, int64_t r, std::vector<double>& row, std::vector<int64_t>& samples) const {
    std::partial_sum(row.begin(), row.end(), row.begin());
    // Rounding may take a number to the end: that is the last category that has a weight.
    const auto last = std::lower_bound(row.begin(), row.end(), row.back());
    for (int64_t s = 0; s < num_samples; ++s) {
      PhiloxEngine engine(state, r * num_samples + s);
      samples[s] = std::upper_bound(row.begin(), last, engine.uniform() * row.back()) - row.begin();
    }
  }

  // The categories whose events are the first to happen, at the rates of the weights.
  void draw_set(const PhiloxState& state, int64_t r, std::vector<double>& row, std::vector<int64_t>& order) const {
    for (int64_t k = 0; k < num_categories; ++k) {
      PhiloxEngine engine(state, r * num_categories + k);
      row[k] = -std::log(engine.uniform()) / row[k];
    }
    std::iota(order.begin(), order.end(), 0);
    std::partial_sort(order.begin(), order.begin() + num_samples, order.end(),
                      [&row](int64_t a, int64_t b) { return row[a] != row[b] ? row[a] < row[b] : a < b; });
  }
};

}  // namespace
}  // namespace torch_mtia

namespace at::native {
namespace {

using torch_mtia::DrawInfo;
using torch_mtia::StridedElements;
using OptionalGenerator = std::optional<Generator>;

constexpr DrawInfo kPoisson{"aten::poisson", 60};
constexpr DrawInfo kBinomial{"aten::binomial", 100};
constexpr DrawInfo kGamma{"aten::_standard_gamma", 100};
constexpr DrawInfo kDirichlet{"aten::_sample_dirichlet", 110};
constexpr DrawInfo kRandperm{"aten::randperm", 4};
constexpr DrawInfo kMultinomial{"aten::multinomial", 30};

constexpr int64_t kMaxCategories = int64_t{1} << 24;

}  // namespace

Tensor poisson_mtia(const Tensor& self, OptionalGenerator generator) {
  Tensor result = at::empty(self.sizes(), self.options());
  AT_DISPATCH_FLOATING_TYPES_AND2(kHalf, kBFloat16, self.scalar_type(), "poisson_cpu", [&] {
    torch_mtia::launch_samples(kPoisson, generator, self.device(), StridedElements({&result, &self}, 1),
                               torch_mtia::SampleEach<scalar_t, 1, torch_mtia::checked_poisson>());
  });
  return result;
}

Tensor binomial_mtia(const Tensor& count, const Tensor& prob, OptionalGenerator generator) {
  TORCH_CHECK_VALUE(isFloatingType(count.scalar_type()),
                    "binomial only supports floating-point dtypes for count, got: ", count.scalar_type());
  TORCH_CHECK_VALUE(isFloatingType(prob.scalar_type()),
                    "binomial only supports floating-point dtypes for prob, got: ", prob.scalar_type());
  TORCH_CHECK(prob.scalar_type() == count.scalar_type(), "Found dtype ", prob.scalar_type(), " but expected ",
              count.scalar_type());
  Tensor result = at::empty(infer_size(count.sizes(), prob.sizes()), count.options());
  const Tensor counts = count.expand(result.sizes());
  const Tensor probs = prob.expand(result.sizes());
  AT_DISPATCH_FLOATING_TYPES(count.scalar_type(), "binomial_cpu", [&] {
    torch_mtia::launch_samples(kBinomial, generator, count.device(), StridedElements({&result, &counts, &probs}, 1),
                               torch_mtia::SampleEach<scalar_t, 2, torch_mtia::binomial>());
  });
  return result;
}

Tensor _standard_gamma_mtia(const Tensor& self, OptionalGenerator generator) {
  Tensor result = at::empty(self.sizes(), self.options());
  AT_DISPATCH_FLOATING_TYPES(self.scalar_type(), "gamma_cpu", [&] {
    torch_mtia::launch_samples(kGamma, generator, self.device(), StridedElements({&result, &self}, 1),
                               torch_mtia::SampleEach<scalar_t, 1, torch_mtia::positive_gamma<scalar_t>>());
  });
  return result;
}

Tensor _sample_dirichlet_mtia(const Tensor& self, OptionalGenerator generator) {
  Tensor result = at::empty(self.sizes(), self.options());
  AT_DISPATCH_FLOATING_TYPES(self.scalar_type(), "dirichlet", [&] {
    const int64_t num_categories = self.dim() == 0 ? 1 : self.size(-1);
    if (self.numel() == 0) return;
    torch_mtia::require_host_view(kDirichlet.name);
    using Body = torch_mtia::Dirichlet<scalar_t>;
    auto source = torch_mtia::reserve_words(generator, self.device(), 4 * self.numel());
    torch_mtia::launch_random<Body>(
        kDirichlet, self.device(),
        {std::move(source), StridedElements({&result, &self}, 1), self.numel() / num_categories,
         std::max<int64_t>(1, 512 / num_categories), Body{num_categories}});
  });
  return result;
}

Tensor& randperm_out_mtia(int64_t n, OptionalGenerator generator, Tensor& result) {
  TORCH_CHECK(n >= 0, "n must be non-negative, got", n);
  // On the host, because it makes a tensor of the largest number.
  if (result.scalar_type() != kLong) {
    check_supported_max_int_with_precision(n, at::empty({0}, at::device(kCPU).dtype(result.scalar_type())));
  }
  result.resize_({n});
  if (n == 0) return result;
  AT_DISPATCH_ALL_TYPES_AND2(kHalf, kBFloat16, result.scalar_type(), "randperm", [&] {
    torch_mtia::require_host_view(kRandperm.name);
    using Body = torch_mtia::Permutation<scalar_t>;
    constexpr int64_t kValues = torch_mtia::kTileValues<uint64_t>;
    const auto words = (n + kValues - 1) / kValues * torch_mtia::kTileWords;
    auto source = torch_mtia::reserve_words(generator, result.device(), words);
    torch_mtia::launch_random<Body>(
        kRandperm, result.device(),
        {std::move(source), StridedElements({&result}, 1), /*num_pieces=*/1, /*grain=*/1, Body()});
  });
  return result;
}

Tensor& multinomial_out_mtia(const Tensor& self, int64_t num_samples, bool replacement, OptionalGenerator generator,
                             Tensor& result) {
  TORCH_CHECK(result.device() == self.device(), "multinomial arguments must have the same device");
  TORCH_CHECK(self.dim() > 0 && self.dim() <= 2, "prob_dist must be 1 or 2 dim");
  TORCH_CHECK(isFloatingType(self.scalar_type()),
              "multinomial only supports floating-point dtypes for input, got: ", self.scalar_type());
  TORCH_CHECK(result.scalar_type() == kLong, "multinomial expects Long tensor out, got: ", result.scalar_type());
  TORCH_CHECK(num_samples > 0, "cannot sample n_sample <= 0 samples");
  const int64_t num_categories = self.size(-1);
  TORCH_CHECK(replacement || num_samples <= num_categories,
              "cannot sample n_sample > prob_dist.size(-1) samples without replacement");
  TORCH_CHECK(num_categories <= kMaxCategories, "number of categories cannot exceed 2^24");
  const int64_t num_rows = self.dim() == 1 ? 1 : self.size(0);
  self.dim() == 1 ? result.resize_({num_samples}) : result.resize_({num_rows, num_samples});
  if (result.numel() == 0) return result;
  torch_mtia::require_host_view(kMultinomial.name);
  const bool each_for_itself = replacement && num_samples > 1;
  const int64_t num_draws = num_rows * (each_for_itself ? num_samples : num_categories);
  AT_DISPATCH_FLOATING_TYPES_AND2(kHalf, kBFloat16, self.scalar_type(), "multinomial", [&] {
    auto source = torch_mtia::reserve_words(generator, self.device(), 4 * num_draws);
    torch_mtia::core::WorkInfo info{};
    info.name = kMultinomial.name;
    info.cost = static_cast<uint64_t>(static_cast<double>(num_draws) * kMultinomial.nanoseconds_per_element);
    torch_mtia::launch(
        torch_mtia::current_stream(self.device()), info,
        torch_mtia::Multinomial<scalar_t>{std::move(source), StridedElements({&result}, 1), StridedElements({&self}, 0),
                                          num_rows, num_categories, num_samples, each_for_itself});
  });
  return result;
}

Tensor multinomial_mtia(const Tensor& self, int64_t num_samples, bool replacement, OptionalGenerator generator) {
  Tensor result = at::empty({0}, self.options().dtype(kLong));
  return multinomial_out_mtia(self, num_samples, replacement, std::move(generator), result);
}

}  // namespace at::native
