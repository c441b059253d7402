// Products with weights of 4 bits, in the shapes and with the scales of CUDA's kernels. The order within a packed
// weight is the device's own: that of the weight which it is made of.
#include <ATen/core/Tensor.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/stack.h>

#include "MTIANativeFunctions.h"

namespace at::native {

// `self` is a matrix of bytes (n, k / 2): the high halves are the even columns of the weight.
Tensor convert_weight_to_int4pack_mtia(const Tensor& self, int64_t inner_k_tiles) {
  TORCH_CHECK(self.dim() == 2 && self.scalar_type() == kByte,
              "_convert_weight_to_int4pack: expected a uint8 matrix, got ", self.scalar_type(), " of shape ",
              self.sizes());
  TORCH_CHECK(inner_k_tiles == 2 || inner_k_tiles == 4 || inner_k_tiles == 8,
              "_convert_weight_to_int4pack: innerKTiles must be 2, 4 or 8, got ", inner_k_tiles);
  const int64_t n = self.size(0);
  const int64_t k = self.size(1) * 2;
  TORCH_CHECK(n % 8 == 0 && k % (inner_k_tiles * 16) == 0,
              "_convert_weight_to_int4pack: the weight must be a multiple of 8 by innerKTiles * 16, got ", n, " by ",
              k);
  return self.clone(MemoryFormat::Contiguous).view(kInt).view({n / 8, k / (inner_k_tiles * 16), 32, inner_k_tiles / 2});
}

// `self` (m, k); `packed` is what the function above made of a weight (n, k), of which every `group` columns of a row
// share a scale and a zero point: `scales_and_zeros` (k / group, n, 2). A weight is (number - 8) * scale + zero.
Tensor weight_int4pack_mm_mtia(const Tensor& self, const Tensor& packed, int64_t group,
                               const Tensor& scales_and_zeros) {
  TORCH_CHECK(self.dim() == 2 && packed.dim() == 4 && packed.scalar_type() == kInt,
              "_weight_int4pack_mm: expected a matrix and a weight of _convert_weight_to_int4pack");
  const int64_t n = packed.size(0) * 8;
  const int64_t k = self.size(1);
  TORCH_CHECK(packed.numel() * 8 == n * k, "_weight_int4pack_mm: a matrix of ", k, " columns does not fit a weight of ",
              packed.numel() * 8 / std::max<int64_t>(n, 1));
  TORCH_CHECK(group == 32 || group == 64 || group == 128 || group == 256,
              "_weight_int4pack_mm: qGroupSize must be 32, 64, 128 or 256, got ", group);
  TORCH_CHECK(k % group == 0 && scales_and_zeros.sizes() == IntArrayRef({k / group, n, 2}),
              "_weight_int4pack_mm: expected scales and zero points of shape (", k / group, ", ", n, ", 2), got ",
              scales_and_zeros.sizes());
  const Tensor bytes = packed.contiguous().view(kByte).view({n, k / 2});
  const Tensor numbers =
      at::stack({bytes.bitwise_right_shift(4), bytes.bitwise_and(15)}, -1).view({n, k / group, group});
  const Tensor scales = scales_and_zeros.transpose(0, 1).unsqueeze(2).to(kFloat);  // (n, k / group, 1, 2)
  const Tensor weight = numbers.to(kFloat).sub(8).mul(scales.select(-1, 0)).add(scales.select(-1, 1));
  return self.mm(weight.view({n, k}).to(self.scalar_type()).t());
}

}  // namespace at::native
