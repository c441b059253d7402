// Shapes of losses.
#include <ATen/ExpandUtils.h>
#include <ATen/core/Reduction.h>
#include <ATen/native/LossMulti.h>

#include <numeric>

#include "ShapeFunctions.h"

namespace torch_mtia {
namespace {

bool has_elements(const std::optional<at::Tensor>& weight, int64_t count) {
  return !is_given(weight) || (weight->dim() <= 1 && weight->numel() == count);
}

// The gradient of a loss that was reduced is a number, else it has the loss' sizes.
bool is_gradient_of(const at::Tensor& grad_output, at::IntArrayRef sizes, int64_t reduction) {
  return reduction == at::Reduction::None ? grad_output.sizes() == sizes : grad_output.numel() == 1;
}

// Backward of a pointwise loss: contiguous, of the sizes that all arguments together have.
Shape pointwise_backward(const at::Tensor& grad_output, const at::Tensor& self, const at::Tensor& target) {
  if (!at::are_expandable(self.sizes(), target.sizes())) return std::nullopt;
  const auto sizes = at::infer_size_dimvector(self.sizes(), target.sizes());
  if (!at::are_expandable(grad_output.sizes(), sizes)) return std::nullopt;
  return like(self, at::infer_size_dimvector(sizes, grad_output.sizes()));
}

bool fit_probabilities(const at::Tensor& self, const at::Tensor& target, const std::optional<at::Tensor>& weight) {
  return self.sizes() == target.sizes() && (!is_given(weight) || at::is_expandable_to(weight->sizes(), self.sizes()));
}

bool is_image_of_classes(const at::Tensor& self, const at::Tensor& target, const std::optional<at::Tensor>& weight) {
  return self.dim() == 4 && target.dim() == 3 && target.scalar_type() == at::kLong && self.size(0) == target.size(0) &&
         self.size(2) == target.size(1) && self.size(3) == target.size(2) && has_elements(weight, self.size(1));
}

// A vector or matrix of scores, with classes that fit it.
bool fit_scores(const at::Tensor& self, const at::Tensor& target) {
  return (self.dim() == 0 || (self.dim() <= 2 && self.size(-1) != 0)) && target.sizes() == self.sizes() &&
         target.scalar_type() == at::kLong;
}

bool fit_margin(const at::Tensor& self, const at::Tensor& target, const at::Scalar& p,
                const std::optional<at::Tensor>& weight) {
  if ((p.toDouble() != 1 && p.toDouble() != 2) || target.scalar_type() != at::kLong) return false;
  int64_t rows = 0;
  int64_t classes = 0;
  at::native::multi_margin_loss_shape_check(rows, classes, self.dim(), self, target, weight);
  return true;
}

bool is_alignment(const at::Tensor& log_probs, const at::Tensor& targets, at::IntArrayRef input_lengths,
                  at::IntArrayRef target_lengths, int64_t blank) {
  if (log_probs.dim() != 3 || (targets.scalar_type() != at::kLong && targets.scalar_type() != at::kInt)) return false;
  const auto batch = static_cast<size_t>(log_probs.size(1));
  if (batch == 0 || input_lengths.size() != batch || target_lengths.size() != batch) return false;
  if (blank < 0 || blank >= log_probs.size(2)) return false;
  const auto within = [](at::IntArrayRef lengths, int64_t most) {
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

Shape binary_cross_entropy_shape(const at::Tensor& self, const at::Tensor& target,
                                 const std::optional<at::Tensor>& weight, int64_t reduction) {
  if (!fit_probabilities(self, target, weight)) return std::nullopt;
  return reduction == at::Reduction::None ? with_strides_of(self) : like(self, {});
}

Shape binary_cross_entropy_backward_shape(const at::Tensor& grad_output, const at::Tensor& self,
                                          const at::Tensor& target, const std::optional<at::Tensor>& weight,
                                          int64_t reduction) {
  if (!fit_probabilities(self, target, weight) || !is_gradient_of(grad_output, self.sizes(), reduction)) {
    return std::nullopt;
  }
  return with_strides_of(self);
}

Shape huber_loss_backward_shape(const at::Tensor& grad_output, const at::Tensor& self, const at::Tensor& target,
                                int64_t /*reduction*/, double /*delta*/) {
  return pointwise_backward(grad_output, self, target);
}

Shape smooth_l1_loss_backward_shape(const at::Tensor& grad_output, const at::Tensor& self, const at::Tensor& target,
                                    int64_t /*reduction*/, double /*beta*/) {
  return pointwise_backward(grad_output, self, target);
}

TwoShapes nll_loss2d_forward_shape(const at::Tensor& self, const at::Tensor& target,
                                   const std::optional<at::Tensor>& weight, int64_t reduction,
                                   int64_t /*ignore_index*/) {
  if (!is_image_of_classes(self, target, weight)) return std::nullopt;
  return {reduction == at::Reduction::None ? like(self, target.sizes()) : like(self, {}), like(self, {})};
}

Shape nll_loss2d_backward_shape(const at::Tensor& grad_output, const at::Tensor& self, const at::Tensor& target,
                                const std::optional<at::Tensor>& weight, int64_t reduction, int64_t /*ignore_index*/,
                                const at::Tensor& total_weight) {
  if (!is_image_of_classes(self, target, weight) || !is_gradient_of(grad_output, target.sizes(), reduction) ||
      !self.is_contiguous() || total_weight.numel() != 1) {
    return std::nullopt;
  }
  return like(self);
}

Shape multi_margin_loss_shape(const at::Tensor& self, const at::Tensor& target, const at::Scalar& p,
                              const at::Scalar& /*margin*/, const std::optional<at::Tensor>& weight,
                              int64_t reduction) {
  if (!fit_margin(self, target, p, weight)) return std::nullopt;
  const bool each_row = reduction == at::Reduction::None && target.dim() > 0;
  return each_row ? like(self, target.sizes()) : like(self, {});
}

Shape multi_margin_loss_backward_shape(const at::Tensor& /*grad_output*/, const at::Tensor& self,
                                       const at::Tensor& target, const at::Scalar& p, const at::Scalar& /*margin*/,
                                       const std::optional<at::Tensor>& weight, int64_t /*reduction*/) {
  if (!fit_margin(self, target, p, weight)) return std::nullopt;
  return like(self);
}

TwoShapes multilabel_margin_loss_forward_shape(const at::Tensor& self, const at::Tensor& target, int64_t reduction) {
  if (!fit_scores(self, target)) return std::nullopt;
  const bool each_row = reduction == at::Reduction::None && self.dim() == 2;
  return {each_row ? like(self, self.sizes().slice(0, 1)) : like(self, {}), like(self)};
}

Shape multilabel_margin_loss_backward_shape(const at::Tensor& /*grad_output*/, const at::Tensor& self,
                                            const at::Tensor& target, int64_t /*reduction*/,
                                            const at::Tensor& is_target) {
  if (!fit_scores(self, target) || is_target.sizes() != target.sizes()) return std::nullopt;
  return like(self);
}

TwoShapes ctc_loss_shape(const at::Tensor& log_probs, const at::Tensor& targets, at::IntArrayRef input_lengths,
                         at::IntArrayRef target_lengths, int64_t blank, bool /*zero_infinity*/) {
  if (!is_alignment(log_probs, targets, input_lengths, target_lengths, blank)) return std::nullopt;
  const int64_t longest = *std::max_element(target_lengths.begin(), target_lengths.end());
  return {like(log_probs, {log_probs.size(1)}),
          like(log_probs, {log_probs.size(1), log_probs.size(0), 2 * longest + 1})};
}

Shape ctc_loss_backward_shape(const at::Tensor& /*grad*/, const at::Tensor& log_probs, const at::Tensor& targets,
                              at::IntArrayRef input_lengths, at::IntArrayRef target_lengths,
                              const at::Tensor& /*neg_log_likelihood*/, const at::Tensor& /*log_alpha*/, int64_t blank,
                              bool /*zero_infinity*/) {
  if (!is_alignment(log_probs, targets, input_lengths, target_lengths, blank)) return std::nullopt;
  return like(log_probs);
}

}  // namespace torch_mtia
