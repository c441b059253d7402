// Sparse tensors of the layout torch.sparse_coo: ATen's own SparseTensorImpl over two dense device tensors.
//
// What only looks at the two, or puts them together, is ATen's own code (Sparse.cpp); everything else falls back to the
// CPU's kernels, on sparse CPU tensors over host aliases of the two.
#pragma once

#include <ATen/core/Tensor.h>

#include "../device/DeviceType.h"

namespace torch_mtia {

struct SparseParts {
  at::Tensor indices;
  at::Tensor values;
};

inline c10::DispatchKey sparse_dispatch_key() noexcept {
  return dispatch_key() == c10::DispatchKey::MTIA ? c10::DispatchKey::SparseMTIA : c10::DispatchKey::SparsePrivateUse1;
}

SparseParts parts_of(const at::Tensor& sparse);
// A sparse tensor of these parts, of their dtype, that is otherwise like `model`.
at::Tensor make_sparse(c10::DispatchKey key, const at::Tensor& model, const SparseParts& parts);
// Gives a sparse tensor these parts, and makes it otherwise like `model`.
void set_sparse(const at::Tensor& sparse, const at::Tensor& model, const SparseParts& parts);

}  // namespace torch_mtia
