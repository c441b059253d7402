// Losses, and the activations that come with them.
#include <ATen/ExpandUtils.h>
#include <ATen/core/Reduction.h>
#include <ATen/native/LossMulti.h>
#include <ATen/native/TensorIterator.h>
#include <ATen/ops/_ctc_loss_backward_native.h>
#include <ATen/ops/_ctc_loss_native.h>
#include <ATen/ops/binary_cross_entropy_backward_native.h>
#include <ATen/ops/binary_cross_entropy_native.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/huber_loss_backward_native.h>
#include <ATen/ops/multi_margin_loss_backward_native.h>
#include <ATen/ops/multi_margin_loss_native.h>
#include <ATen/ops/multilabel_margin_loss_backward_native.h>
#include <ATen/ops/multilabel_margin_loss_forward_native.h>
#include <ATen/ops/nll_loss2d_backward_native.h>
#include <ATen/ops/nll_loss2d_forward_native.h>
#include <ATen/ops/smooth_l1_loss_backward_native.h>

#include <numeric>

#include "HostFunction.h"
#include "MTIANativeFunctions.h"

namespace at::native {
namespace {

using torch_mtia::HostFunction;
using torch_mtia::kLossWeight;
using torch_mtia::new_output;
using torch_mtia::new_output_like;

bool has_elements(const std::optional<Tensor>& weight, int64_t count) {
  return !weight || !weight->defined() || (weight->dim() <= 1 && weight->numel() == count);
}

// The gradient of a loss that was reduced is a number, else it has the loss' sizes.
bool is_gradient_of(const Tensor& grad_output, IntArrayRef sizes, int64_t reduction) {
  return reduction == Reduction::None ? grad_output.sizes() == sizes : grad_output.numel() == 1;
}

bool expand_together(const Tensor& left, const Tensor& right) {
  return are_expandable(left.sizes(), right.sizes());
}

Tensor new_scalar(const Tensor& like) {
  return new_output({}, like.options());
}

}  // namespace

// Pointwise losses

Tensor binary_cross_entropy_mtia(const Tensor& self, const Tensor& target, const std::optional<Tensor>& weight,
                                 int64_t reduction) {
  return HostFunction<&binary_cross_entropy_cpu>::call(
      {"aten::binary_cross_entropy", kLossWeight}, self.sizes() == target.sizes(),
      [&] { return reduction == Reduction::None ? at::empty_like(self) : new_scalar(self); }, self, target, weight,
      reduction);
}

Tensor binary_cross_entropy_backward_mtia(const Tensor& grad_output, const Tensor& self, const Tensor& target,
                                          const std::optional<Tensor>& weight, int64_t reduction) {
  return HostFunction<&binary_cross_entropy_backward_cpu>::call(
      {"aten::binary_cross_entropy_backward", kLossWeight},
      self.sizes() == target.sizes() && is_gradient_of(grad_output, self.sizes(), reduction),
      [&] { return at::empty_like(self); }, grad_output, self, target, weight, reduction);
}

namespace {

// Backward of a pointwise loss: contiguous, of the sizes that all arguments together have.
template <auto Kernel, typename... Parameters>
Tensor pointwise_backward(const torch_mtia::Operator& op, const Tensor& grad_output, const Tensor& self,
                          const Tensor& target, const Parameters&... parameters) {
  const bool fits = expand_together(self, target) &&
                    are_expandable(grad_output.sizes(), infer_size_dimvector(self.sizes(), target.sizes()));
  return HostFunction<Kernel>::call(
      {op, kLossWeight}, fits,
      [&] {
        const auto sizes = infer_size_dimvector(self.sizes(), target.sizes());
        return new_output(infer_size_dimvector(sizes, grad_output.sizes()), self.options());
      },
      grad_output, self, target, parameters...);
}

}  // namespace

Tensor huber_loss_backward_mtia(const Tensor& grad_output, const Tensor& self, const Tensor& target, int64_t reduction,
                                double delta) {
  return pointwise_backward<&huber_loss_backward>("aten::huber_loss_backward", grad_output, self, target, reduction,
                                                  delta);
}

Tensor smooth_l1_loss_backward_mtia(const Tensor& grad_output, const Tensor& self, const Tensor& target,
                                    int64_t reduction, double beta) {
  return pointwise_backward<&smooth_l1_loss_backward>("aten::smooth_l1_loss_backward", grad_output, self, target,
                                                      reduction, beta);
}

// Losses of classes

namespace {

bool is_image_of_classes(const Tensor& self, const Tensor& target, const std::optional<Tensor>& weight) {
  return self.dim() == 4 && target.dim() == 3 && target.scalar_type() == kLong && self.size(0) == target.size(0) &&
         self.size(2) == target.size(1) && self.size(3) == target.size(2) && has_elements(weight, self.size(1));
}

// Vector or matrix of scores.
bool are_scores(const Tensor& self) {
  return self.dim() == 0 || (self.dim() <= 2 && self.size(-1) != 0);
}

}  // namespace

std::tuple<Tensor, Tensor> nll_loss2d_forward_mtia(const Tensor& self, const Tensor& target,
                                                   const std::optional<Tensor>& weight, int64_t reduction,
                                                   int64_t ignore_index) {
  auto [output, total_weight] = HostFunction<&nll_loss2d_forward_cpu>::call(
      {"aten::nll_loss2d_forward"}, is_image_of_classes(self, target, weight),
      [&] {
        return std::array<Tensor, 2>{
            reduction == Reduction::None ? new_output(target.sizes(), self.options()) : new_scalar(self),
            new_scalar(self)};
      },
      self, target, weight, reduction, ignore_index);
  return {output, total_weight};
}

Tensor nll_loss2d_backward_mtia(const Tensor& grad_output, const Tensor& self, const Tensor& target,
                                const std::optional<Tensor>& weight, int64_t reduction, int64_t ignore_index,
                                const Tensor& total_weight) {
  return HostFunction<&nll_loss2d_backward_cpu>::call(
      {"aten::nll_loss2d_backward"},
      is_image_of_classes(self, target, weight) && is_gradient_of(grad_output, target.sizes(), reduction) &&
          self.is_contiguous() && total_weight.numel() == 1,
      [&] { return new_output_like(self); }, grad_output, self, target, weight, reduction, ignore_index, total_weight);
}

Tensor multi_margin_loss_mtia(const Tensor& self, const Tensor& target, const Scalar& p, const Scalar& margin,
                              const std::optional<Tensor>& weight, int64_t reduction) {
  int64_t rows = 0;
  int64_t classes = 0;
  const bool known_norm = p.toDouble() == 1 || p.toDouble() == 2;
  if (known_norm) multi_margin_loss_shape_check(rows, classes, self.dim(), self, target, weight);
  return HostFunction<&multi_margin_loss_cpu>::call(
      {"aten::multi_margin_loss", kLossWeight}, known_norm && target.scalar_type() == kLong,
      [&] {
        return reduction == Reduction::None && target.dim() > 0 ? new_output({rows}, self.options()) : new_scalar(self);
      },
      self, target, p, margin, weight, reduction);
}

Tensor multi_margin_loss_backward_mtia(const Tensor& grad_output, const Tensor& self, const Tensor& target,
                                       const Scalar& p, const Scalar& margin, const std::optional<Tensor>& weight,
                                       int64_t reduction) {
  int64_t rows = 0;
  int64_t classes = 0;
  const bool known_norm = p.toDouble() == 1 || p.toDouble() == 2;
  if (known_norm) multi_margin_loss_shape_check(rows, classes, self.dim(), self, target, weight);
  return HostFunction<&multi_margin_loss_cpu_backward>::call(
      {"aten::multi_margin_loss_backward", kLossWeight}, known_norm && target.scalar_type() == kLong,
      [&] { return new_output_like(self); }, grad_output, self, target, p, margin, weight, reduction);
}

std::tuple<Tensor, Tensor> multilabel_margin_loss_forward_mtia(const Tensor& self, const Tensor& target,
                                                               int64_t reduction) {
  auto [output, is_target] = HostFunction<&multilabel_margin_loss_forward_cpu>::call(
      {"aten::multilabel_margin_loss_forward", kLossWeight},
      are_scores(self) && target.sizes() == self.sizes() && target.scalar_type() == kLong,
      [&] {
        return std::array<Tensor, 2>{reduction == Reduction::None && self.dim() == 2
                                         ? new_output({self.size(0)}, self.options())
                                         : new_scalar(self),
                                     new_output(target.sizes(), self.options())};
      },
      self, target, reduction);
  return {output, is_target};
}

Tensor multilabel_margin_loss_backward_mtia(const Tensor& grad_output, const Tensor& self, const Tensor& target,
                                            int64_t reduction, const Tensor& is_target) {
  return HostFunction<&multilabel_margin_loss_backward_cpu>::call(
      {"aten::multilabel_margin_loss_backward", kLossWeight},
      are_scores(self) && target.sizes() == self.sizes() && is_target.sizes() == target.sizes() &&
          target.scalar_type() == kLong,
      [&] { return new_output_like(self); }, grad_output, self, target, reduction, is_target);
}

// Connectionist temporal classification

namespace {

bool is_alignment(const Tensor& log_probs, const Tensor& targets, IntArrayRef input_lengths, IntArrayRef target_lengths,
                  int64_t blank) {
  if (log_probs.dim() != 3 || (targets.scalar_type() != kLong && targets.scalar_type() != kInt)) return false;
  const auto batch = static_cast<size_t>(log_probs.size(1));
  if (batch == 0 || input_lengths.size() != batch || target_lengths.size() != batch) return false;
  if (blank < 0 || blank >= log_probs.size(2)) return false;
  const auto within = [](IntArrayRef lengths, int64_t most) {
    return std::all_of(lengths.begin(), lengths.end(), [&](int64_t length) { return 0 <= length && length <= most; });
  };
  if (!within(input_lengths, log_probs.size(0))) return false;
  if (targets.dim() == 1) {
    return within(target_lengths, targets.size(0)) &&
           std::accumulate(target_lengths.begin(), target_lengths.end(), int64_t{0}) == targets.size(0);
  }
  return targets.dim() == 2 && targets.size(0) == log_probs.size(1) && within(target_lengths, targets.size(1));
}

}  // namespace

std::tuple<Tensor, Tensor> ctc_loss_mtia(const Tensor& log_probs, const Tensor& targets, IntArrayRef input_lengths,
                                         IntArrayRef target_lengths, int64_t blank, bool zero_infinity) {
  auto [loss, log_alpha] = HostFunction<&ctc_loss_cpu>::call(
      {"aten::_ctc_loss", 16}, is_alignment(log_probs, targets, input_lengths, target_lengths, blank),
      [&] {
        const int64_t longest = *std::max_element(target_lengths.begin(), target_lengths.end());
        return std::array<Tensor, 2>{
            new_output({log_probs.size(1)}, log_probs.options()),
            new_output({log_probs.size(1), log_probs.size(0), 2 * longest + 1}, log_probs.options())};
      },
      log_probs, targets, input_lengths, target_lengths, blank, zero_infinity);
  return {loss, log_alpha};
}

Tensor ctc_loss_backward_mtia(const Tensor& grad, const Tensor& log_probs, const Tensor& targets,
                              IntArrayRef input_lengths, IntArrayRef target_lengths, const Tensor& neg_log_likelihood,
                              const Tensor& log_alpha, int64_t blank, bool zero_infinity) {
  return HostFunction<&ctc_loss_backward_cpu>::call(
      {"aten::_ctc_loss_backward", 16}, is_alignment(log_probs, targets, input_lengths, target_lengths, blank),
      [&] { return new_output_like(log_probs); }, grad, log_probs, targets, input_lengths, target_lengths,
      neg_log_likelihood, log_alpha, blank, zero_infinity);
}

}  // namespace at::native
