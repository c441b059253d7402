// Products whose elements are summed in one order: see Note [Batch invariance].
//
// Note [The order of a product]
// Summands are added in pieces of kDepth, each from its first to its last in one accumulator, and pieces to a total, in
// float32 (float64 for doubles). So an element depends on its row, its column and nothing else. Tiles, blocks and
// threads are free: operands are packed into panels filled up with zeros, and the same instructions compute full and
// partial tiles.
#include "BatchInvariant.h"

#include <ATen/Dispatch.h>
#include <ATen/EmptyTensor.h>
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/native/ConvUtils.h>
#include <ATen/ops/complex.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/imag.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/real.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "../processor/attributes.h"

namespace torch_mtia {
namespace {

std::atomic<bool> batch_invariant{false};

constexpr int64_t kDepth = 256;  // the promise depends on this number, and on no other below
constexpr int64_t kRows = 6;     // of a tile: AVX2 holds its sums in registers
constexpr int64_t kBlockRows = 32 * kRows;
constexpr int64_t kBlockColumns = 128;
constexpr int64_t kGrain = int64_t{1} << 18;  // multiplications that are worth a thread

template <typename Real>
constexpr int64_t kLanes = 64 / sizeof(Real);  // columns of a tile

// totals[i][j] += the sum over k < depth of left[k][i] * right[k][j]
template <int64_t kCount, typename Real>
[[gnu::always_inline]] inline void add_tile(const Real* left, const Real* right, int64_t depth, Real* totals) {
  typedef Real Vector __attribute__((vector_size(64)));
  Vector sums[kCount] = {};
  for (int64_t k = 0; k < depth; ++k, left += kCount, right += kLanes<Real>) {
    Vector columns;
    std::memcpy(&columns, right, sizeof(columns));
#pragma GCC unroll 6
    for (int64_t i = 0; i < kCount; ++i) sums[i] += left[i] * columns;
  }
#pragma GCC unroll 6
  for (int64_t i = 0; i < kCount; ++i) {
    Vector total;
    std::memcpy(&total, totals + i * kLanes<Real>, sizeof(total));
    total += sums[i];
    std::memcpy(totals + i * kLanes<Real>, &total, sizeof(total));
  }
}

// Of all tiles of a block: rows in panels of `height`, which is kRows or 1.
template <typename Real>
[[gnu::always_inline]] inline void add_tiles(const Real* left, const Real* right, int64_t row_panels, int64_t height,
                                             int64_t column_panels, int64_t depth, Real* totals) {
  for (int64_t j = 0; j < column_panels; ++j) {
    for (int64_t i = 0; i < row_panels; ++i) {
      const Real* const rows = left + i * depth * height;
      const Real* const columns = right + j * depth * kLanes<Real>;
      Real* const tile = totals + (j * row_panels + i) * height * kLanes<Real>;
      height == 1 ? add_tile<1>(rows, columns, depth, tile) : add_tile<kRows>(rows, columns, depth, tile);
    }
  }
}
VECTORIZED void add_tiles_of(const float* left, const float* right, int64_t row_panels, int64_t height,
                             int64_t column_panels, int64_t depth, float* totals) {
  add_tiles(left, right, row_panels, height, column_panels, depth, totals);
}
VECTORIZED void add_tiles_of(const double* left, const double* right, int64_t row_panels, int64_t height,
                             int64_t column_panels, int64_t depth, double* totals) {
  add_tiles(left, right, row_panels, height, column_panels, depth, totals);
}

// `count` rows or columns of an operand, `step` apart, in panels of `width`.
template <typename T, typename Real>
void pack(const T* from, int64_t step, int64_t step_of_depth, int64_t count, int64_t depth, int64_t width, Real* to) {
  for (int64_t first = 0; first < count; first += width) {
    const int64_t filled = std::min(width, count - first);
    for (int64_t k = 0; k < depth; ++k, to += width) {
      const T* const source = from + first * step + k * step_of_depth;
      for (int64_t i = 0; i < filled; ++i) to[i] = static_cast<Real>(source[i * step]);
      std::fill(to + filled, to + width, Real{0});
    }
  }
}

int64_t blocks(int64_t size, int64_t block) {
  return (size + block - 1) / block;
}

template <typename T>
struct Matrices {
  explicit Matrices(const at::Tensor& tensor)
      : data(tensor.const_data_ptr<T>()),
        step_of_batch(tensor.stride(0)),
        step_of_row(tensor.stride(1)),
        step_of_column(tensor.stride(2)) {}
  const T* at(int64_t batch, int64_t row, int64_t column) const {
    return data + batch * step_of_batch + row * step_of_row + column * step_of_column;
  }
  const T* data;
  int64_t step_of_batch;
  int64_t step_of_row;
  int64_t step_of_column;
};

template <typename T>
void multiply_batches_in_order(const at::Tensor& left, const at::Tensor& right, const at::Scalar& alpha_number,
                               const at::Tensor& bias, const at::Scalar& beta_number, const at::Tensor& out) {
  using Real = at::opmath_type<T>;
  const int64_t rows = left.size(1);
  const int64_t inner = left.size(2);
  const int64_t columns = right.size(2);
  const int64_t row_blocks = blocks(rows, kBlockRows);
  const int64_t column_blocks = blocks(columns, kBlockColumns);
  const int64_t height = rows == 1 ? 1 : kRows;
  const int64_t height_of_block = blocks(std::min(rows, kBlockRows), height) * height;
  const int64_t width_of_block = blocks(std::min(columns, kBlockColumns), kLanes<Real>) * kLanes<Real>;
  const Real alpha = alpha_number.to<Real>();
  const Real beta = beta_number.to<Real>();
  const Matrices<T> a(left);
  const Matrices<T> b(right);
  const Matrices<T> added(beta == 0 ? out : bias.expand(out.sizes()));
  const Matrices<T> result(out);
  T* const results = out.mutable_data_ptr<T>();

  const auto run_blocks = [&](int64_t begin, int64_t end) {
    const int64_t depth = std::min(inner, kDepth);
    const int64_t size = height_of_block * width_of_block + (height_of_block + width_of_block) * depth;
    const at::Tensor buffer = at::detail::empty_cpu({size}, c10::CppTypeToScalarType<Real>::value);
    Real* const totals = buffer.mutable_data_ptr<Real>();
    Real* const right_panels = totals + height_of_block * width_of_block;
    Real* const left_panels = right_panels + width_of_block * depth;
    for (int64_t block = begin; block < end; ++block) {
      const int64_t batch = block / (row_blocks * column_blocks);
      const int64_t row = block % row_blocks * kBlockRows;
      const int64_t column = block / row_blocks % column_blocks * kBlockColumns;
      const int64_t num_rows = std::min(rows - row, kBlockRows);
      const int64_t num_columns = std::min(columns - column, kBlockColumns);
      const int64_t row_panels = blocks(num_rows, height);
      std::fill_n(totals, height_of_block * width_of_block, Real{0});
      for (int64_t k = 0; k < inner; k += kDepth) {
        const int64_t length = std::min(inner - k, kDepth);
        pack(a.at(batch, row, k), a.step_of_row, a.step_of_column, num_rows, length, height, left_panels);
        pack(b.at(batch, k, column), b.step_of_column, b.step_of_row, num_columns, length, kLanes<Real>, right_panels);
        add_tiles_of(left_panels, right_panels, row_panels, height, blocks(num_columns, kLanes<Real>), length, totals);
      }
      for (int64_t i = 0; i < num_rows; ++i) {
        const Real* const total = totals + i * kLanes<Real>;  // panels of rows follow each other
        const T* const term = added.at(batch, row + i, column);
        T* const to = results + (result.at(batch, row + i, column) - result.data);
        for (int64_t j = 0; j < num_columns; ++j) {
          const int64_t panel = j / kLanes<Real> * row_panels * height * kLanes<Real>;
          Real value = total[panel + j % kLanes<Real>];
          if (alpha != 1) value *= alpha;
          if (beta != 0) value += beta * static_cast<Real>(term[j * added.step_of_column]);
          to[j * result.step_of_column] = static_cast<T>(value);
        }
      }
    }
  };
  const int64_t work = std::max<int64_t>(1, height_of_block * width_of_block * inner);
  at::parallel_for(0, left.size(0) * row_blocks * column_blocks, std::max<int64_t>(1, kGrain / work), run_blocks);
}

// A complex tensor, or number, as two real tensors.
struct Parts {
  at::Tensor real;
  at::Tensor imaginary;

  Parts operator*(c10::complex<double> factor) const {
    if (factor == c10::complex<double>(1)) return *this;
    return {real * factor.real() - imaginary * factor.imag(), real * factor.imag() + imaginary * factor.real()};
  }
};

Parts parts_of(const at::Tensor& tensor) {
  const at::Tensor resolved = tensor.resolve_conj().resolve_neg();
  return {at::real(resolved), at::imag(resolved)};
}

void multiply_complex_in_order(const at::Tensor& left, const at::Tensor& right, const at::Scalar& alpha,
                               const at::Tensor& bias, const at::Scalar& beta, const at::Tensor& out) {
  const Parts a = parts_of(left);
  const Parts b = parts_of(right);
  const auto multiply = [&](const at::Tensor& a_part, const at::Tensor& b_part) {
    const at::Tensor product = at::empty_like(at::real(out), at::MemoryFormat::Contiguous);
    multiply_in_order(a_part, b_part, 1, product, 0, product);
    return product;
  };
  Parts sums{multiply(a.real, b.real) - multiply(a.imaginary, b.imaginary),
             multiply(a.real, b.imaginary) + multiply(a.imaginary, b.real)};
  sums = sums * alpha.to<c10::complex<double>>();
  if (const auto factor = beta.to<c10::complex<double>>(); factor != c10::complex<double>(0)) {
    const Parts term = parts_of(bias) * factor;
    sums = {sums.real + term.real, sums.imaginary + term.imaginary};
  }
  out.copy_(at::complex(sums.real, sums.imaginary));
}

// A convolution relates an image to maps with a row for each filter: maps = filters @ windows of the image. The forward
// of a transposed convolution is the gradient with respect to the image.
struct Windows {
  Windows(at::IntArrayRef image_sizes, const at::Tensor& weight, at::IntArrayRef stride, at::IntArrayRef padding,
          at::IntArrayRef dilation, int64_t groups, at::IntArrayRef map_sizes)
      : sizes{groups, image_sizes[1] / groups},
        padded{image_sizes[1]},
        stride(stride),
        padding(padding),
        dilation(dilation) {
    const auto kernel = weight.sizes().slice(2);
    sizes.insert(sizes.end(), kernel.begin(), kernel.end());
    sizes.insert(sizes.end(), map_sizes.begin() + 2, map_sizes.end());
    for (size_t i = 0; i < stride.size(); ++i) {
      // Windows may end before the image does.
      const int64_t needed = (map_sizes[i + 2] - 1) * stride[i] + (kernel[i] - 1) * dilation[i] + 1;
      padded.push_back(std::max(image_sizes[i + 2] + 2 * padding[i], needed));
    }
  }

  // Of a padded image of one sample: (groups, channels, kernel..., positions...).
  at::Tensor view(const at::Tensor& image) const {
    std::vector<int64_t> strides{sizes[1] * image.stride(0), image.stride(0)};
    for (size_t i = 0; i < stride.size(); ++i) strides.push_back(image.stride(i + 1) * dilation[i]);
    for (size_t i = 0; i < stride.size(); ++i) strides.push_back(image.stride(i + 1) * stride[i]);
    return image.as_strided(sizes, strides);
  }
  int64_t positions() const { return c10::multiply_integers(at::IntArrayRef(sizes).slice(2 + stride.size())); }

  // The columns of one sample: (groups, channels * kernel, positions).
  at::Tensor gather(const at::Tensor& image) const {
    const at::Tensor whole = at::zeros(padded, image.options());
    inside(whole, image.sizes()).copy_(image);
    return view(whole).reshape({sizes[0], -1, positions()});
  }
  // The image with the sum of the columns at each place, in the order of the kernel.
  void scatter(const at::Tensor& columns, const at::Tensor& image) const {
    const at::Tensor whole = at::zeros(padded, image.options());
    const size_t spatial = stride.size();
    const auto flattened = [&](const at::Tensor& tensor) {
      return tensor.flatten(2, 1 + static_cast<int64_t>(spatial));
    };
    const at::Tensor parts = flattened(columns.reshape(sizes));
    const auto kernel = at::IntArrayRef(sizes).slice(2, spatial);
    for (int64_t place = 0; place < parts.size(2); ++place) {
      at::Tensor target = view(whole);
      int64_t rest = place;
      for (size_t i = spatial; i-- > 0; rest /= kernel[i]) {
        target = target.select(static_cast<int64_t>(2 + i), rest % kernel[i]);
      }
      target.add_(parts.select(2, place));
    }
    image.copy_(inside(whole, image.sizes()));
  }

 private:
  at::Tensor inside(at::Tensor whole, at::IntArrayRef image_sizes) const {
    for (size_t i = 0; i < padding.size(); ++i) {
      whole = whole.narrow(static_cast<int64_t>(i) + 1, padding[i], image_sizes[i + 1]);
    }
    return whole;
  }

  std::vector<int64_t> sizes;
  std::vector<int64_t> padded;
  at::IntArrayRef stride;
  at::IntArrayRef padding;
  at::IntArrayRef dilation;
};

struct Filters {
  Filters(const at::Tensor& weight, int64_t groups) : groups(groups), matrices(of(weight)) {}
  // (groups, filters, channels * kernel)
  at::Tensor of(const at::Tensor& weight) const { return weight.reshape({groups, weight.size(0) / groups, -1}); }
  at::Tensor of_map(const at::Tensor& map) const { return map.reshape({groups, map.size(0) / groups, -1}); }

  int64_t groups;
  at::Tensor matrices;
};

void gather_maps(const Windows& windows, const Filters& filters, const at::Tensor& image, const at::Tensor& bias,
                 const at::Tensor& maps) {
  for (int64_t n = 0; n < image.size(0); ++n) {
    const at::Tensor map = filters.of_map(maps[n]);
    const at::Tensor term = bias.defined() ? bias.reshape({filters.groups, -1, 1}) : map;
    multiply_in_order(filters.matrices, windows.gather(image[n]), 1, term, bias.defined() ? 1 : 0, map);
  }
}

void scatter_maps(const Windows& windows, const Filters& filters, const at::Tensor& maps, const at::Tensor& bias,
                  const at::Tensor& image) {
  for (int64_t n = 0; n < maps.size(0); ++n) {
    const at::Tensor map = filters.of_map(maps[n]);
    const at::Tensor columns = at::zeros({filters.groups, filters.matrices.size(2), map.size(2)}, map.options());
    multiply_in_order(filters.matrices.transpose(1, 2), map, 1, columns, 0, columns);
    windows.scatter(columns, image[n]);
  }
  if (bias.defined()) {
    std::vector<int64_t> sizes(static_cast<size_t>(image.dim()), 1);
    sizes[1] = -1;
    at::Tensor(image).add_(bias.reshape(sizes));
  }
}

}  // namespace

bool is_batch_invariant() noexcept {
  return batch_invariant.load(std::memory_order_relaxed);
}
void set_batch_invariant(bool wanted) noexcept {
  batch_invariant.store(wanted, std::memory_order_relaxed);
}

bool multiplies_in_order(at::ScalarType dtype) noexcept {
  switch (dtype) {
    case at::kFloat:
    case at::kDouble:
    case at::kHalf:
    case at::kBFloat16:
    case at::kComplexFloat:
    case at::kComplexDouble:
      return true;
    default:
      return false;
  }
}

void multiply_in_order(const at::Tensor& left, const at::Tensor& right, const at::Scalar& alpha, const at::Tensor& bias,
                       const at::Scalar& beta, const at::Tensor& out) {
  if (left.dim() == 2) {
    const at::Tensor term = bias.defined() && bias.dim() < 2 ? bias.expand(out.sizes()) : bias;
    return multiply_in_order(left.unsqueeze(0), right.unsqueeze(0), alpha, term.defined() ? term.unsqueeze(0) : term,
                             beta, out.unsqueeze(0));
  }
  if (left.is_complex()) return multiply_complex_in_order(left, right, alpha, bias, beta, out);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, out.scalar_type(), "multiply_in_order", [&] {
    const auto resolved = [](const at::Tensor& tensor) { return tensor.defined() ? tensor.resolve_neg() : tensor; };
    multiply_batches_in_order<scalar_t>(resolved(left), resolved(right), alpha, resolved(bias), beta, out);
  });
}

at::Tensor convolve_in_order(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                             at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
                             at::IntArrayRef output_padding, int64_t groups) {
  const std::vector<int64_t> sizes =
      transposed ? at::native::conv_input_size(input.sizes(), weight.sizes(), padding, output_padding, stride, dilation,
                                               groups)
                 : at::native::conv_output_size(input.sizes(), weight.sizes(), padding, stride, dilation);
  at::Tensor out = at::zeros(sizes, input.options());
  const auto image_sizes = transposed ? out.sizes() : input.sizes();
  const auto map_sizes = transposed ? input.sizes() : out.sizes();
  const Windows windows(image_sizes, weight, stride, padding, dilation, groups, map_sizes);
  const Filters filters(weight, groups);
  const at::Tensor term = bias.value_or(at::Tensor());
  transposed ? scatter_maps(windows, filters, input, term, out) : gather_maps(windows, filters, input, term, out);
  return out;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> differentiate_convolution_in_order(
    const at::Tensor& grad_output, const at::Tensor& input, const at::Tensor& weight,
    at::OptionalIntArrayRef /*bias_sizes*/, at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation,
    bool transposed, at::IntArrayRef /*output_padding*/, int64_t groups, std::array<bool, 3> output_mask) {
  const at::Tensor& image = transposed ? grad_output : input;
  const at::Tensor& maps = transposed ? input : grad_output;
  const Windows windows(image.sizes(), weight, stride, padding, dilation, groups, maps.sizes());
  const Filters filters(weight, groups);
  at::Tensor grad_input, grad_weight, grad_bias;
  if (output_mask[0]) {
    grad_input = at::zeros(input.sizes(), input.options());
    const at::Tensor no_bias;
    transposed ? gather_maps(windows, filters, grad_output, no_bias, grad_input)
               : scatter_maps(windows, filters, grad_output, no_bias, grad_input);
  }
  if (output_mask[1]) {
    grad_weight = at::zeros(weight.sizes(), weight.options());
    const at::Tensor matrices = filters.of(grad_weight);
    for (int64_t n = 0; n < maps.size(0); ++n) {
      multiply_in_order(filters.of_map(maps[n]), windows.gather(image[n]).transpose(1, 2), 1, matrices, 1, matrices);
    }
  }
  if (output_mask[2]) {
    grad_bias = at::zeros({grad_output.size(1)}, grad_output.options());
    const at::Tensor sums = grad_bias.unsqueeze(1);
    for (int64_t n = 0; n < grad_output.size(0); ++n) {
      const at::Tensor rows = grad_output[n].flatten(1);
      multiply_in_order(rows, at::ones({rows.size(1), 1}, rows.options()), 1, sums, 1, sums);
    }
  }
  return {grad_input, grad_weight, grad_bias};
}

}  // namespace torch_mtia
