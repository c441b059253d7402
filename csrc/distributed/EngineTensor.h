// Tensors of the device and of the CPU as the engine of the collectives takes them.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "Engine.h"

namespace torch_mtia {

// What the engine takes in place of an argument. A tensor becomes a CPU tensor over the same bytes. One of the device
// keeps nothing alive, and is valid for work that runs in stream order. With the dtypes of an engine, elements of one
// that it does not know become others of the same size, for calls that only move them; Reduction.h has those that do
// not.
at::Tensor engine_argument(const at::Tensor& tensor, const std::optional<EngineDtypes>& moved_by);
inline auto engine_argument(const auto& options, const std::optional<EngineDtypes>& /*moved_by*/) {
  return options;
}
std::vector<at::Tensor> engine_argument(const std::vector<at::Tensor>& tensors,
                                        const std::optional<EngineDtypes>& moved_by);
std::vector<std::vector<at::Tensor>> engine_argument(const std::vector<std::vector<at::Tensor>>& lists,
                                                     const std::optional<EngineDtypes>& moved_by);

}  // namespace torch_mtia
