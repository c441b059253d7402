// An operand as findings keep it. No PyTorch.
#pragma once

#include "../core/Operands.h"
#include "Findings.h"

namespace torch_mtia::sanitizer {

inline Operand name(const core::Operand& operand) {
  std::vector<int64_t> strides(operand.strides.begin(), operand.strides.end());
  for (int64_t& stride : strides) stride *= operand.stride_unit;
  std::string type = std::to_string(operand.element_size) + " bytes";
  if (operand.dtype[0] != '\0') {
    type = std::string(operand.dtype) + '[';
    const auto shape = operand.shape.empty() ? operand.sizes : operand.shape;
    for (size_t d = 0; d < shape.size(); ++d) type += (d == 0 ? "" : ", ") + std::to_string(shape[d]);
    type += ']';
  }
  return {.region = Region(operand.address, operand.element_size, operand.sizes, strides),
          .writes = operand.writes,
          .old_bytes = operand.old_bytes,
          .type = std::move(type)};
}

}  // namespace torch_mtia::sanitizer
