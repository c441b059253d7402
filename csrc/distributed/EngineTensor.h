// Tensors of the device as the engine of the collectives takes them.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace torch_mtia {

// Whether an operation computes with the elements.
enum class ElementUse { kMoved, kReduced };

// What the engine takes in place of an argument. A tensor becomes a CPU tensor over the same bytes, which keeps nothing
// alive, and is valid for work that runs in stream order; the engine knows fewer dtypes than PyTorch, so what is only
// moved has one of the same size. Reduction.h has what it reduces.
at::Tensor engine_argument(const at::Tensor& tensor, ElementUse use);
inline auto engine_argument(const auto& options, ElementUse /*use*/) {
  return options;
}
std::vector<at::Tensor> engine_argument(const std::vector<at::Tensor>& tensors, ElementUse use);
std::vector<std::vector<at::Tensor>> engine_argument(const std::vector<std::vector<at::Tensor>>& lists, ElementUse use);

}  // namespace torch_mtia
