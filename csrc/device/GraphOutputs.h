// The results of graphs that torch.compile records.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace torch_mtia {

// Note [Results of graphs]
// A replay writes its results where the capture did. What it hands out are tensors over that memory, with storages of
// their own. Before memory is written again, a storage that is still in use gets a copy elsewhere: all tensors over it
// find their values there, and nobody notices. In a training loop nothing is in use any more by then, and nothing is
// copied.
//
// Graphs of one pool share what is free in it. So a replay writes over results of its own graph, and it may write over
// those of graphs that were captured later: their memory may have been this graph's, for what lives only inside a
// replay. It does not write over results of graphs captured earlier, whose memory was taken.
//
// One thread at a time may call these functions, the constructor and the destructor, and no other may look for the
// memory of what was handed out meanwhile: the caller holds the interpreter lock.
class GraphOutputs {
 public:
  // The results of the capture, whose memory is of the pool.
  GraphOutputs(std::vector<at::Tensor> tensors, c10::MempoolId_t pool);
  ~GraphOutputs();
  GraphOutputs(const GraphOutputs&) = delete;
  GraphOutputs& operator=(const GraphOutputs&) = delete;

  // To be called before a replay: what earlier ones handed out moves away. The current stream is that of the replay.
  void move_away() const;

  // The results of the replay that was submitted last.
  std::vector<at::Tensor> hand_out() const;

  // If the tensor lies where a graph writes its results: one that stays there, of the same bytes.
  static std::optional<at::Tensor> captured(const at::Tensor& tensor);

 private:
  struct Result {
    at::Tensor tensor;  // of the capture
    size_t memory;
  };

  const c10::MempoolId_t pool_;
  const uint64_t order_;  // of captures
  std::vector<c10::Storage> memories_;
  std::vector<Result> results_;
};

}  // namespace torch_mtia
