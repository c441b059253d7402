// A collective of c10d as calls of an engine. Tensors, dtypes, strides and devices end here: engines have bytes.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "../collectives/Engine.h"
#include "../core/Waits.h"
#include "../core/WorkItem.h"
#include "../device/MTIAStream.h"
#include "../runtime/mtia_runtime.h"

namespace torch_mtia {

using Tensors = std::vector<at::Tensor>;

// A tensor of a call, and what the call does with it.
struct Argument {
  at::Tensor tensor;
  bool is_written;
  bool is_reduced = false;  // the bytes that it has before are computed with, and not only passed on
};

// What work reads and writes of the device's memory. Keeps no tensor.
class CollectiveOperands {
 public:
  // Nothing.
  CollectiveOperands() = default;
  explicit CollectiveOperands(const std::vector<Argument>& arguments);

  void list(core::OperandSink& sink) const;

 private:
  struct Each {
    uint64_t address;
    int64_t element_size;
    std::vector<int64_t> sizes, strides;
    const char* dtype;
    bool is_written, is_reduced;
  };
  std::vector<Each> operands_;
};

struct CollectiveWork {
  std::function<void()> function;
  CollectiveOperands operands;

  // An observer sees the operands alone: the stream orders what the function does to memory of the host.
  void operator()(const mtia_work_context& context) const {
    const core::RunningWork running(*static_cast<const core::Stream*>(context.stream_tag));
    function();
  }
  void list_operands(core::OperandSink& sink) const { operands.list(sink); }
};

// Tensors of the CPU that work uses in place of those of a call.
class HostTensors {
 public:
  // Over the same bytes. In place of a tensor of the device it keeps nothing alive, and is valid for work that runs in
  // stream order; of a driver without a host view, it is over pinned memory.
  at::Tensor of(const Argument& argument);

  // That memory is filled before the work, as nobody says what is not read, and copied to what is written after it, in
  // stream order. It stays as long as the stream needs it, so a graph cannot have it: raises NotImplementedError in a
  // capture.
  void copy_in(const MTIAStream& stream) const;
  void copy_out(const MTIAStream& stream) const;

 private:
  struct Staged {
    Argument argument;
    at::Tensor pinned;
  };
  std::vector<Staged> staged_;
};

// Numbers of elements, of the parts of a tensor. Empty: the tensors of a list are the parts.
using Parts = std::vector<int64_t>;

// The memory that an engine has of tensors: their elements, one after the other. It is the tensors' own where it can
// be, and a copy where the elements are in another order or of a dtype that engines do not reduce.
class Dense {
 public:
  explicit Dense(Tensors tensors) : Dense(std::move(tensors), std::nullopt, /*is_copy=*/false) {}
  Dense(Tensors tensors, std::optional<c10::ScalarType> dtype, bool is_copy);

  // The elements to the memory, before the engine reads it, and back, when it has written it.
  void read() const;
  void write() const;

  const Tensors& memory() const { return memory_; }
  std::vector<collectives::Output> parts(const Parts& parts = {}) const;

 private:
  Tensors tensors_;
  Tensors memory_;
};

// How an operation is done on a dtype. What engines do not know, they do on wider copies, which are rounded once.
class Reduction {
 public:
  // Raises for an operation that is not defined for the dtype. `factor` is the tensor of PREMUL_SUM on the host.
  Reduction(const c10d::ReduceOp& operation, c10::ScalarType dtype, at::Tensor factor);

  // The factor of PREMUL_SUM, if it is a tensor; else undefined. Work that runs later reads it.
  static at::Tensor factor_of(const c10d::ReduceOp& operation);

  c10::ScalarType dtype() const { return dtype_; }
  Dense memory_of(const Tensors& tensors) const { return {tensors, wide_, multiplies()}; }
  // The memory's tensors, with what is done to the elements before.
  void read(const Dense& memory) const;
  collectives::Reduction of_engine() const;

 private:
  // The engine has factors for floating point.
  bool multiplies() const { return operation_ == c10d::ReduceOp::PREMUL_SUM && wide_ == c10::kLong; }
  double factor() const;

  c10d::ReduceOp::RedOpType operation_;
  c10::ScalarType dtype_;     // of the tensors
  c10::ScalarType wide_;      // of the engine's memory
  double number_ = 1;         // the factor,
  at::Tensor factor_tensor_;  // or where it is: on the host, as no tensor of the device may die with the work
};

// A call of an engine. Refers to no tensor of the device.
struct Step {
  enum class Kind { kAllReduce, kReduce, kReduceScatter, kBroadcast, kGather, kExchange, kBarrier };

  void run(collectives::Engine& engine, uint64_t number, collectives::Timeout timeout) const;

  Kind kind = Kind::kBarrier;
  const char* name = "barrier";  // in the API
  const char* dtype = "";
  int root = -1;
  Tensors outputs;
  Tensors inputs;  // none: the outputs are the inputs, too, or there is nothing
  Parts output_parts;
  Parts input_parts;
  std::optional<Reduction> reduction;
};

class Collective {
 public:
  Collective(int rank, int size) : rank_(rank), size_(size) {}

  // What all ranks call, in this order. What one rank can know to be wrong is raised.
  void broadcast(const at::Tensor& tensor, int64_t root);
  void all_reduce(const at::Tensor& tensor);
  void reduce(const at::Tensor& tensor, int64_t root);
  void reduce_scatter(const at::Tensor& output, const Tensors& inputs);
  void reduce_scatter(const at::Tensor& output, const at::Tensor& input);
  void all_gather(const char* name, const Tensors& outputs, const at::Tensor& input);
  void all_gather(const at::Tensor& output, const at::Tensor& input);
  void gather(const std::vector<Tensors>& outputs, const Tensors& inputs, int64_t root);
  void scatter(const Tensors& outputs, const std::vector<Tensors>& inputs, int64_t root);
  void all_to_all(const Tensors& outputs, const Tensors& inputs);
  void all_to_all(const at::Tensor& output, const std::vector<int64_t>& output_sizes, const at::Tensor& input,
                  const std::vector<int64_t>& input_sizes);
  void barrier();

  // Of the reductions that follow. Tensors are of the dtype of the first.
  void set_operation(const c10d::ReduceOp& operation, const Tensors& tensors);
  // Lists with a tensor for each rank, which has the part of one.
  void check_lists(const std::vector<Tensors>& lists, const Tensors& parts) const;
  // Of all tensors. Raises ValueError if there is none, or another.
  c10::Device device() const;
  // Notes the tensors. Returns those that work uses in place of them.
  Tensors used(const Tensors& tensors, bool is_written, bool is_reduced = false);

  std::vector<Argument> arguments;
  Tensors results;
  HostTensors host;
  std::vector<Step> steps;

 private:
  void add(Step::Kind kind, const char* name, int64_t root, const Tensors& outputs, const Tensors& inputs = {},
           Parts output_parts = {}, Parts input_parts = {});
  void check_root(int64_t root) const;
  void check_one_for_each(const Tensors& tensors) const;
  // The parts of a tensor that has one for each rank; of its first dimension.
  Parts equal_parts(const at::Tensor& whole, const at::Tensor& part) const;
  Parts rows(const at::Tensor& tensor, const std::vector<int64_t>& sizes) const;

  const int rank_, size_;
  std::optional<Reduction> reduction_;
  int num_factors_ = 0;  // which are the last arguments
};

}  // namespace torch_mtia
