// The engine of ranks on several machines: gloo between the machines, and shared memory within each. What is reduced or
// given to all goes over the network once for each machine, by its first rank; what has a receiver of its own goes to
// it through gloo. Gloo moves bytes, and collectives/Reduce.h reduces them.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "../collectives/Engine.h"

namespace torch_mtia {

// Both: (store, rank, size, timeout). All ranks of a group call it together.
using GlooMaker = std::function<c10::intrusive_ptr<c10d::Backend>(const c10::intrusive_ptr<c10d::Store>&, int, int,
                                                                  std::chrono::milliseconds)>;
using EngineMaker = std::function<std::shared_ptr<collectives::Engine>(const c10::intrusive_ptr<c10d::Store>&, int, int,
                                                                       std::chrono::milliseconds)>;

// Makes the engine that suits where the ranks are: memory that they share on one machine, or this one. Ranks whose
// `machine` differs are taken to be on different ones.
EngineMaker engine_maker(GlooMaker make_gloo, const std::string& machine);

}  // namespace torch_mtia
