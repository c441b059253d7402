// Engines move the data of a group: backends of c10d that know tensors of the CPU, and whose calls may block.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <chrono>
#include <functional>
#include <string>

namespace torch_mtia {

// (store, rank, size, timeout). All ranks of a group call it together.
using EngineMaker = std::function<c10::intrusive_ptr<c10d::Backend>(const c10::intrusive_ptr<c10d::Store>&, int, int,
                                                                    std::chrono::milliseconds)>;

// Makes the engine that suits where the ranks are: memory that they share on one machine, PyTorch's ProcessGroupGloo
// between machines. Ranks whose `machine` differs are taken to be on different ones.
EngineMaker engine_maker(EngineMaker make_gloo, const std::string& machine);

// Whether an engine takes elements of a dtype as they are, where they are only moved, and where they are reduced.
class EngineDtypes {
 public:
  explicit EngineDtypes(const c10d::Backend& engine);
  bool moves(c10::ScalarType dtype) const;
  bool reduces(c10d::ReduceOp::RedOpType operation, c10::ScalarType dtype) const;

 private:
  bool shares_memory_;
};

}  // namespace torch_mtia
