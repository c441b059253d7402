// Kernels of @NAME@'s own. Which operator each belongs to is in yaml/native_functions.yaml; the build generates the
// declarations and the registration from there.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch_mtia/device/Extension.h>

#include "registration.h"

// A product of 8-bit integers, summed in 32 bits. Arguments are checked at the call, the work runs in the stream.
at::Tensor int_mm(const at::Tensor& self, const at::Tensor& mat2) {
  TORCH_CHECK(self.dim() == 2 && mat2.dim() == 2 && self.size(1) == mat2.size(0), "_int_mm: cannot multiply ",
              self.sizes(), " and ", mat2.sizes());
  TORCH_CHECK(self.scalar_type() == at::kChar && mat2.scalar_type() == at::kChar, "_int_mm: both must be int8, not ",
              self.scalar_type(), " and ", mat2.scalar_type());
  TORCH_CHECK(self.device() == mat2.device(), "_int_mm: one is on ", self.device(), ", the other on ", mat2.device());
  const int64_t rows = self.size(0), inner = self.size(1), columns = mat2.size(1);
  at::Tensor result = at::empty({rows, columns}, self.options().dtype(at::kInt));

  // Plain data only: a tensor must not be held by work.
  const int8_t* const a = torch_mtia::host_address(self.const_data_ptr<int8_t>());
  const int8_t* const b = torch_mtia::host_address(mat2.const_data_ptr<int8_t>());
  int32_t* const c = torch_mtia::host_address(result.mutable_data_ptr<int32_t>());
  const int64_t a_row = self.stride(0), a_column = self.stride(1), b_row = mat2.stride(0), b_column = mat2.stride(1);

  torch_mtia::core::WorkInfo info{"aten::_int_mm"};
  info.cost = static_cast<uint64_t>(rows * columns * inner);  // nanoseconds on one thread, roughly
  torch_mtia::launch(self.device(), info, [=] {
    at::parallel_for(0, rows, /*grain_size=*/1, [=](int64_t first, int64_t last) {
      for (int64_t row = first; row < last; ++row) {
        for (int64_t column = 0; column < columns; ++column) {
          int32_t sum = 0;
          for (int64_t k = 0; k < inner; ++k) sum += a[row * a_row + k * a_column] * b[k * b_row + column * b_column];
          c[row * columns + column] = sum;
        }
      }
    });
  });
  return result;
}
