// Collectives on a driver without a host view: the engine has pinned memory of the host, to which the device's is
// copied before, and from which it is copied after. With a host view, the engine has the device's memory itself.
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

#include "../device/MTIAStream.h"

namespace torch_mtia {

class Staging {
 public:
  // What stands in for an argument: a tensor of the device may have pinned memory.
  at::Tensor of(const at::Tensor& tensor);
  std::vector<at::Tensor> of(const std::vector<at::Tensor>& tensors);
  std::vector<std::vector<at::Tensor>> of(const std::vector<std::vector<at::Tensor>>& lists);
  auto of(const auto& options) { return options; }

  // Copies in stream order: before the call everything, as nobody says what it does not read, and after it what it has
  // written. The pinned memory stays as long as the stream needs it, so a graph cannot have it: raises
  // NotImplementedError in a capture.
  void copy_in(const MTIAStream& stream) const;
  void copy_out(const MTIAStream& stream, const std::vector<at::Tensor>& written) const;

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> staged_;  // of the device, pinned
};

}  // namespace torch_mtia
