// Tensors of the device as the engine of the collectives takes them.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace torch_mtia {

// For what an operation does with the elements.
enum class Elements { kMoved, kReduced };

// A CPU tensor over the same bytes. It keeps nothing alive, and is valid for work that runs in stream order. The engine
// knows fewer dtypes than PyTorch: what is only moved has one of the same size. Raises for what cannot be reduced.
at::Tensor engine_tensor(const at::Tensor& tensor, Elements elements);
std::vector<at::Tensor> engine_tensors(const std::vector<at::Tensor>& tensors, Elements elements);
std::vector<std::vector<at::Tensor>> engine_tensors(const std::vector<std::vector<at::Tensor>>& lists,
                                                    Elements elements);

}  // namespace torch_mtia
