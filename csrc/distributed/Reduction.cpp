#include "Reduction.h"

#include <ATen/ops/bitwise_xor.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/view_as_complex.h>
#include <ATen/ops/view_as_real.h>
#include <c10/util/Exception.h>

#include <limits>

#include "../device/Door.h"
#include "EngineTensor.h"

namespace torch_mtia {
namespace {

using c10d::ReduceOp;

// A dtype that the engine reduces. Floating point that is shorter than 32 bits is added in 32, and integers wrap as
// they do in their own dtype.
c10::ScalarType wide_dtype(c10::ScalarType dtype) {
  if (c10::isReducedFloatingType(dtype) || c10::isFloat8Type(dtype)) return c10::kFloat;
  switch (dtype) {
    case c10::kBool:
    case c10::kShort:
    case c10::kUInt16:
      return c10::kInt;
    case c10::kUInt32:
    case c10::kUInt64:
      return c10::kLong;
    case c10::kComplexHalf:
      return c10::kComplexFloat;
    default:
      return dtype;
  }
}

const char* name_of(ReduceOp::RedOpType operation) {
  constexpr const char* kNames[] = {"SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM"};
  return kNames[operation];
}

bool is_defined(ReduceOp::RedOpType operation, c10::ScalarType dtype) {
  switch (operation) {
    case ReduceOp::SUM:
    case ReduceOp::PREMUL_SUM:
      return true;
    case ReduceOp::AVG:
      return c10::isFloatingType(dtype) || c10::isComplexType(dtype);
    case ReduceOp::BAND:
    case ReduceOp::BOR:
    case ReduceOp::BXOR:
      return c10::isIntegralType(dtype, /*includeBool=*/true);
    default:
      return !c10::isComplexType(dtype);
  }
}

const c10d::PreMulSumSupplement& factors_of(const ReduceOp& operation) {
  const auto* supplement = dynamic_cast<const c10d::PreMulSumSupplement*>(operation.supplement_.get());
  TORCH_CHECK_VALUE(supplement != nullptr, "PREMUL_SUM needs a factor");
  return *supplement;
}

}  // namespace

Reduction::Reduction(const c10d::ReduceOp& operation, c10::ScalarType dtype, const EngineDtypes& engine)
    : operation_(operation.op_),
      dtype_(dtype),
      is_direct_(engine.reduces(operation_, dtype)),
      wide_dtype_(wide_dtype(dtype)) {
  TORCH_CHECK_VALUE(operation_ < ReduceOp::UNUSED, "expected an operation of torch.distributed.ReduceOp");
  TORCH_CHECK_TYPE(is_defined(operation_, dtype), name_of(operation_), " is not defined for ", dtype,
                   ": convert the tensor");
  if (operation_ != ReduceOp::PREMUL_SUM) return;
  number_ = factors_of(operation).double_factor;
  const at::Tensor factor = factor_of(operation);
  if (!factor.defined()) return;
  TORCH_CHECK_VALUE(factor.numel() == 1, "the factor of PREMUL_SUM has one element, got ", factor.numel());
  factor_tensor_ = engine_argument(factor, std::nullopt);
}

at::Tensor Reduction::factor_of(const c10d::ReduceOp& operation) {
  return operation.op_ == ReduceOp::PREMUL_SUM ? factors_of(operation).tensor_factor : at::Tensor();
}

bool Reduction::flips_sign() const {
  return dtype_ == c10::kUInt64 && (operation_ == ReduceOp::MIN || operation_ == ReduceOp::MAX);
}

double Reduction::factor() const {
  return factor_tensor_.defined() ? factor_tensor_.item<double>() : number_;
}

c10d::ReduceOp Reduction::engine_operation() const {
  if (operation_ != ReduceOp::PREMUL_SUM) return operation_;
  return is_direct_ ? c10d::makePreMulSum(factor()) : c10d::ReduceOp(ReduceOp::SUM);
}

at::Tensor Reduction::widened(const at::Tensor& tensor) const {
  if (is_direct_) return tensor;
  at::Tensor wide = dtype_ == c10::kUInt64 ? tensor.view(c10::kLong) : tensor.to(wide_dtype_);
  if (flips_sign()) wide = at::bitwise_xor(wide, std::numeric_limits<int64_t>::min());
  if (operation_ == ReduceOp::PREMUL_SUM) {
    wide = at::mul(wide, at::scalar_tensor(factor())).to(wide_dtype_);
  }
  return wide.is_complex() ? at::view_as_real(wide) : wide;
}

void Reduction::narrow(const at::Tensor& wide, const at::Tensor& tensor) const {
  if (is_direct_) return;
  const at::Tensor target = dtype_ == c10::kUInt64 ? tensor.view(c10::kLong) : tensor;
  const at::Tensor result = target.is_complex() ? at::view_as_complex(wide) : wide;
  if (flips_sign()) {
    target.copy_(at::bitwise_xor(result, std::numeric_limits<int64_t>::min()));
  } else if (result.data_ptr() != target.data_ptr()) {
    target.copy_(result);
  }
}

std::vector<at::Tensor> Reduction::widened(const std::vector<at::Tensor>& tensors) const {
  std::vector<at::Tensor> result;
  for (const at::Tensor& tensor : tensors) result.push_back(widened(tensor));
  return result;
}

std::vector<std::vector<at::Tensor>> Reduction::widened(const std::vector<std::vector<at::Tensor>>& lists) const {
  std::vector<std::vector<at::Tensor>> result;
  for (const auto& tensors : lists) result.push_back(widened(tensors));
  return result;
}

void Reduction::narrow(const std::vector<at::Tensor>& wide, const std::vector<at::Tensor>& tensors) const {
  for (size_t i = 0; i < tensors.size(); ++i) narrow(wide[i], tensors[i]);
}

}  // namespace torch_mtia
