// Autocast for PrivateUse1, by the lists that PyTorch registers for every device type of its own.
#include <ATen/autocast_mode.h>

#include "../device/DeviceType.h"

namespace at::autocast {
namespace {

Tensor binary_cross_entropy_refused(const Tensor&, const Tensor&, const std::optional<Tensor>&, int64_t) {
  TORCH_CHECK(false,
              "binary_cross_entropy and BCELoss are unsafe in autocast: a sigmoid in half precision reaches 0 and 1. "
              "Give binary_cross_entropy_with_logits or BCEWithLogitsLoss the values before the sigmoid, or leave "
              "autocast for this call");
}

}  // namespace

#define KERNEL_LOWER_PRECISION(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define KERNEL_FP32(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
#define KERNEL_FP32_SET_OPT_DTYPE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
#define KERNEL_PROMOTE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)

MTIA_LIBRARY_IMPL(_, kAutocast, m) {
  m.fallback(torch::CppFunction::makeFallthrough());
}

MTIA_LIBRARY_IMPL(aten, kAutocast, m) {
  AT_FORALL_LOWER_PRECISION_FP(KERNEL_LOWER_PRECISION)
  AT_FORALL_FP32(KERNEL_FP32)
  AT_FORALL_FP32_SET_OPT_DTYPE(KERNEL_FP32_SET_OPT_DTYPE)
  AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(KERNEL_DIFFERENT_REDISPATCH_SIGNATURE_PRIVATEUSEONE)
  AT_FORALL_PROMOTE(KERNEL_PROMOTE)
  m.impl("binary_cross_entropy", &binary_cross_entropy_refused);
}

}  // namespace at::autocast
