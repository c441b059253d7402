#include "SharedMemoryEngine.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <span>
#include <utility>

#include "DenseTensors.h"

namespace torch_mtia {
namespace {

using c10d::ReduceOp;
using collectives::ElementType;
using collectives::Input;
using collectives::Operation;
using collectives::Output;
using collectives::Signature;
using Tensors = SharedMemoryEngine::Tensors;
using WorkPtr = SharedMemoryEngine::WorkPtr;

class CompletedWork final : public c10d::Work {
 public:
  using Work::Work;
  bool isCompleted() override { return true; }
  bool isSuccess() const override { return true; }
  void synchronize() override {}
  bool wait(std::chrono::milliseconds /*timeout*/) override { return true; }
};

WorkPtr completed(c10d::OpType type) {
  return c10::make_intrusive<CompletedWork>(-1, type);
}

Input input_of(const at::Tensor& dense) {
  return {static_cast<const std::byte*>(dense.const_data_ptr()), dense.nbytes()};
}

Output output_of(const at::Tensor& dense) {
  return {static_cast<std::byte*>(dense.mutable_data_ptr()), dense.nbytes()};
}

std::byte* data_of(const at::Tensor& dense) {
  return output_of(dense).data;
}

// A message whose memory is kept until it has arrived.
class MessageWork final : public c10d::Work {
 public:
  MessageWork(c10d::OpType type, std::shared_ptr<collectives::Messages> messages,
              std::shared_ptr<collectives::Messages::Message> message, DenseResults memory,
              std::chrono::milliseconds timeout)
      : Work(-1, type),
        messages_(std::move(messages)),
        message_(std::move(message)),
        memory_(std::move(memory)),
        timeout_(timeout) {}

  int sourceRank() const override { return source_; }
  bool wait(std::chrono::milliseconds timeout) override {
    source_ = messages_->wait(*message_, timeout == kNoTimeout ? timeout_ : timeout);
    memory_.finish();
    return true;
  }

 private:
  const std::shared_ptr<collectives::Messages> messages_;
  const std::shared_ptr<collectives::Messages::Message> message_;
  const DenseResults memory_;
  const std::chrono::milliseconds timeout_;
  int source_ = -1;
};

// Bool is a byte, and complex numbers are two real ones.
ElementType element_type(c10::ScalarType dtype) {
  switch (c10::toRealValueType(dtype)) {
    case c10::kDouble:
      return ElementType::kFloat64;
    case c10::kFloat:
      return ElementType::kFloat32;
    case c10::kHalf:
      return ElementType::kFloat16;
    case c10::kBFloat16:
      return ElementType::kBFloat16;
    case c10::kLong:
      return ElementType::kInt64;
    case c10::kInt:
      return ElementType::kInt32;
    case c10::kShort:
      return ElementType::kInt16;
    case c10::kChar:
      return ElementType::kInt8;
    case c10::kUInt64:
      return ElementType::kUInt64;
    case c10::kUInt32:
      return ElementType::kUInt32;
    case c10::kUInt16:
      return ElementType::kUInt16;
    case c10::kByte:
    case c10::kBool:
      return ElementType::kUInt8;
    default:
      TORCH_CHECK_TYPE(false, "elements of ", dtype, " are not reduced");
  }
}

Operation operation_of(ReduceOp::RedOpType operation, c10::ScalarType dtype) {
  const bool is_bool = dtype == c10::kBool;
  switch (operation) {
    case ReduceOp::SUM:
    case ReduceOp::PREMUL_SUM:
      return is_bool ? Operation::kOr : Operation::kSum;
    case ReduceOp::AVG:
      return Operation::kAverage;
    case ReduceOp::PRODUCT:
      return is_bool ? Operation::kAnd : Operation::kProduct;
    case ReduceOp::MIN:
      return Operation::kMin;
    case ReduceOp::MAX:
      return Operation::kMax;
    case ReduceOp::BAND:
      return Operation::kAnd;
    case ReduceOp::BOR:
      return Operation::kOr;
    case ReduceOp::BXOR:
      return Operation::kXor;
    default:
      TORCH_CHECK_VALUE(false, "expected an operation of torch.distributed.ReduceOp");
  }
}

collectives::Reduction reduction_of(const ReduceOp& operation, c10::ScalarType dtype) {
  collectives::Reduction reduction{element_type(dtype), operation_of(operation.op_, dtype)};
  if (operation.op_ == ReduceOp::PREMUL_SUM) {
    reduction.factor = dynamic_cast<const c10d::PreMulSumSupplement&>(*operation.supplement_).double_factor;
  }
  return reduction;
}

// The parts of a tensor that has one for each rank.
Tensors parts_of(const at::Tensor& tensor, int size) {
  TORCH_CHECK_VALUE(tensor.numel() % size == 0, "expected as many elements for each of ", size, " ranks, got ",
                    tensor.numel());
  const int64_t count = tensor.numel() / size;
  Tensors parts;
  for (int rank = 0; rank < size; ++rank) parts.push_back(tensor.view({-1}).narrow(0, rank * count, count));
  return parts;
}

// Of the first dimension, `sizes` for the ranks, or the same for each.
Tensors rows_of(const at::Tensor& tensor, const std::vector<int64_t>& sizes, int size) {
  if (sizes.empty()) {
    TORCH_CHECK_VALUE(tensor.size(0) % size == 0, "the first dimension, of size ", tensor.size(0),
                      ", is not divisible by the ", size, " ranks");
    return parts_of(tensor, size);
  }
  TORCH_CHECK_VALUE(static_cast<int>(sizes.size()) == size, "expected a size for each of ", size, " ranks, got ",
                    sizes.size());
  const int64_t sum = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  TORCH_CHECK_VALUE(sum == tensor.size(0), "the sizes add up to ", sum, ", the first dimension has ", tensor.size(0));
  Tensors parts;
  int64_t start = 0;
  for (const int64_t count : sizes) {
    parts.push_back(tensor.narrow(0, start, count));
    start += count;
  }
  return parts;
}

void check_one_for_each(const Tensors& tensors, int size) {
  TORCH_CHECK_VALUE(static_cast<int>(tensors.size()) == size, "expected a tensor for each of ", size, " ranks, got ",
                    tensors.size());
}

}  // namespace

size_t SharedMemoryEngine::room(int size) {
  return collectives::Communicator::room(size) + collectives::Messages::room(size);
}

bool SharedMemoryEngine::reduces(ReduceOp::RedOpType operation, c10::ScalarType dtype) {
  if (c10::isFloat8Type(dtype)) return false;
  return operation != ReduceOp::PREMUL_SUM || !c10::isIntegralType(dtype, /*includeBool=*/true);
}

SharedMemoryEngine::SharedMemoryEngine(std::shared_ptr<const collectives::Team> team, std::chrono::milliseconds timeout)
    : Backend(team->index(), team->size()),
      team_(team),
      communicator_(team),
      messages_(std::make_shared<collectives::Messages>(team, collectives::Communicator::room(team->size()))),
      timeout_(timeout) {}

SharedMemoryEngine::~SharedMemoryEngine() {
  team_->give_up("it has left the group");
}

void SharedMemoryEngine::abort() {
  team_->give_up("aborted");
}

Signature SharedMemoryEngine::signature_of(const char* name, const at::Tensor& tensor, int64_t root) const {
  Signature signature;
  std::strncpy(signature.collective, name, sizeof(signature.collective) - 1);
  std::strncpy(signature.dtype, c10::toString(tensor.scalar_type()), sizeof(signature.dtype) - 1);
  signature.root = static_cast<int32_t>(root);
  signature.number = num_calls_;
  return signature;
}

WorkPtr SharedMemoryEngine::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  ++num_calls_;
  const int root = static_cast<int>(options.rootRank);
  for (const at::Tensor& tensor : tensors) {
    const bool is_root = getRank() == root;
    const DenseResults result(is_root ? Tensors{} : Tensors{tensor});
    const at::Tensor memory = is_root ? tensor.contiguous() : result.dense()[0];
    std::vector<uint64_t> to(getSize(), is_root ? memory.nbytes() : 0);
    std::vector<Output> outputs(getSize());
    outputs[root] = output_of(memory);
    communicator_.multicast(signature_of("broadcast", tensor, root), input_of(memory), to, outputs,
                            timeout_of(options));
    result.finish();
  }
  return completed(c10d::OpType::BROADCAST);
}

WorkPtr SharedMemoryEngine::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  ++num_calls_;
  for (const at::Tensor& tensor : tensors) {
    const at::Tensor memory = tensor.contiguous();
    communicator_.all_reduce(signature_of("all_reduce", tensor), reduction_of(options.reduceOp, tensor.scalar_type()),
                             input_of(memory), data_of(memory), timeout_of(options));
    if (!memory.is_same(tensor)) tensor.copy_(memory);
  }
  return completed(c10d::OpType::ALLREDUCE);
}

WorkPtr SharedMemoryEngine::allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  return allreduce(tensors, options);
}

WorkPtr SharedMemoryEngine::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  ++num_calls_;
  for (const at::Tensor& tensor : tensors) {
    const at::Tensor memory = tensor.contiguous();
    communicator_.reduce(signature_of("reduce", tensor, options.rootRank),
                         reduction_of(options.reduceOp, tensor.scalar_type()), input_of(memory), data_of(memory),
                         timeout_of(options));
    if (getRank() == options.rootRank && !memory.is_same(tensor)) tensor.copy_(memory);
  }
  return completed(c10d::OpType::REDUCE);
}

void SharedMemoryEngine::gather_all(const char* name, const Tensors& outputs, const at::Tensor& input,
                                    std::chrono::milliseconds timeout) {
  check_one_for_each(outputs, getSize());
  const DenseResults results(outputs);
  std::vector<Output> memory;
  for (const at::Tensor& tensor : results.dense()) memory.push_back(output_of(tensor));
  const at::Tensor given = input.contiguous();
  const std::vector<uint64_t> to(getSize(), given.nbytes());
  communicator_.multicast(signature_of(name, input), input_of(given), to, memory, timeout);
  results.finish();
}

WorkPtr SharedMemoryEngine::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                      const c10d::AllgatherOptions& options) {
  ++num_calls_;
  for (size_t i = 0; i < inputs.size(); ++i) gather_all("all_gather", outputs.at(i), inputs[i], timeout_of(options));
  return completed(c10d::OpType::ALLGATHER);
}

WorkPtr SharedMemoryEngine::_allgather_base(at::Tensor& output, at::Tensor& input,
                                            const c10d::AllgatherOptions& options) {
  ++num_calls_;
  const DenseResults result({output});
  gather_all("all_gather_into_tensor", parts_of(result.dense()[0], getSize()), input, timeout_of(options));
  result.finish();
  return completed(c10d::OpType::_ALLGATHER_BASE);
}

WorkPtr SharedMemoryEngine::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                                const c10d::AllgatherOptions& options) {
  ++num_calls_;
  // The lists are those of the ranks.
  for (size_t i = 0; i < inputs.size(); ++i) {
    Tensors of_input;
    for (const Tensors& of_rank : outputs) of_input.push_back(of_rank.at(i));
    gather_all("all_gather_coalesced", of_input, inputs[i], timeout_of(options));
  }
  return completed(c10d::OpType::ALLGATHER_COALESCED);
}

WorkPtr SharedMemoryEngine::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                            const c10d::AllgatherOptions& options) {
  ++num_calls_;
  for (size_t i = 0; i < inputs.size(); ++i) _allgather_base(outputs.at(i), inputs[i], options);
  return completed(c10d::OpType::ALLGATHER_COALESCED);
}

WorkPtr SharedMemoryEngine::gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& options) {
  ++num_calls_;
  const int root = static_cast<int>(options.rootRank);
  const at::Tensor given = inputs.at(0).contiguous();
  const bool is_root = getRank() == root;
  if (is_root) check_one_for_each(outputs.at(0), getSize());
  const DenseResults results(is_root ? outputs[0] : Tensors{});
  std::vector<uint64_t> to(getSize(), 0);
  to[root] = given.nbytes();
  std::vector<Output> memory(getSize());
  for (size_t i = 0; i < results.dense().size(); ++i) memory[i] = output_of(results.dense()[i]);
  communicator_.multicast(signature_of("gather", given, root), input_of(given), to, memory, timeout_of(options));
  results.finish();
  return completed(c10d::OpType::GATHER);
}

void SharedMemoryEngine::exchange(const char* name, int root, const Tensors& outputs, const Tensors& inputs,
                                  std::chrono::milliseconds timeout) {
  const DenseResults results(outputs);
  const Tensors given = dense(inputs);
  std::vector<Output> memory(getSize());
  std::vector<Input> memory_given(getSize());
  // A root that alone gives has the only output there.
  const bool has_one_giver = root >= 0;
  for (size_t i = 0; i < outputs.size(); ++i) memory[has_one_giver ? root : i] = output_of(results.dense()[i]);
  for (size_t i = 0; i < given.size(); ++i) memory_given[i] = input_of(given[i]);
  communicator_.exchange(signature_of(name, outputs.at(0), root), memory_given, memory, timeout);
  results.finish();
}

WorkPtr SharedMemoryEngine::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                    const c10d::ScatterOptions& options) {
  ++num_calls_;
  const int root = static_cast<int>(options.rootRank);
  const bool is_root = getRank() == root;
  if (is_root) check_one_for_each(inputs.at(0), getSize());
  exchange("scatter", root, {outputs.at(0)}, is_root ? inputs[0] : Tensors{}, timeout_of(options));
  return completed(c10d::OpType::SCATTER);
}

void SharedMemoryEngine::reduce_parts(const char* name, const at::Tensor& output, const Tensors& inputs,
                                      const c10d::ReduceScatterOptions& options) {
  check_one_for_each(inputs, getSize());
  const at::Tensor& own = inputs[getRank()];
  TORCH_CHECK_VALUE(own.numel() == output.numel(), "the part of rank ", getRank(), " has ", own.numel(),
                    " elements, the output ", output.numel());
  const DenseResults result({output});
  const Tensors given = dense(inputs);
  std::vector<Input> memory;
  for (const at::Tensor& tensor : given) memory.push_back(input_of(tensor));
  communicator_.reduce_scatter(signature_of(name, output), reduction_of(options.reduceOp, output.scalar_type()), memory,
                               data_of(result.dense()[0]), timeout_of(options));
  result.finish();
}

WorkPtr SharedMemoryEngine::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                           const c10d::ReduceScatterOptions& options) {
  ++num_calls_;
  for (size_t i = 0; i < outputs.size(); ++i) reduce_parts("reduce_scatter", outputs[i], inputs.at(i), options);
  return completed(c10d::OpType::REDUCE_SCATTER);
}

WorkPtr SharedMemoryEngine::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                 const c10d::ReduceScatterOptions& options) {
  ++num_calls_;
  reduce_parts("reduce_scatter_tensor", output, parts_of(input.contiguous(), getSize()), options);
  return completed(c10d::OpType::_REDUCE_SCATTER_BASE);
}

WorkPtr SharedMemoryEngine::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                            const c10d::ReduceScatterOptions& options) {
  ++num_calls_;
  for (size_t i = 0; i < outputs.size(); ++i) _reduce_scatter_base(outputs[i], inputs.at(i), options);
  return completed(c10d::OpType::REDUCE_SCATTER_TENSOR_COALESCED);
}

WorkPtr SharedMemoryEngine::alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_sizes,
                                          std::vector<int64_t>& input_sizes, const c10d::AllToAllOptions& options) {
  ++num_calls_;
  const DenseResults result({output});
  exchange("all_to_all_single", -1, rows_of(result.dense()[0], output_sizes, getSize()),
           rows_of(input.contiguous(), input_sizes, getSize()), timeout_of(options));
  result.finish();
  return completed(c10d::OpType::ALLTOALL_BASE);
}

WorkPtr SharedMemoryEngine::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) {
  ++num_calls_;
  check_one_for_each(outputs, getSize());
  check_one_for_each(inputs, getSize());
  exchange("all_to_all", -1, outputs, inputs, timeout_of(options));
  return completed(c10d::OpType::ALLTOALL);
}

WorkPtr SharedMemoryEngine::send(Tensors& tensors, int destination, int tag) {
  DenseResults memory(dense(tensors));
  auto message = messages_->send(input_of(memory.dense().at(0)), destination, tag);
  return c10::make_intrusive<MessageWork>(c10d::OpType::SEND, messages_, std::move(message), std::move(memory),
                                          timeout_);
}

WorkPtr SharedMemoryEngine::recv(Tensors& tensors, int source, int tag) {
  DenseResults memory(tensors);
  auto message = messages_->receive(output_of(memory.dense().at(0)), source, tag);
  return c10::make_intrusive<MessageWork>(c10d::OpType::RECV, messages_, std::move(message), std::move(memory),
                                          timeout_);
}

WorkPtr SharedMemoryEngine::recvAnysource(Tensors& tensors, int tag) {
  return recv(tensors, collectives::kAnyRank, tag);
}

WorkPtr SharedMemoryEngine::barrier(const c10d::BarrierOptions& options) {
  ++num_calls_;
  communicator_.barrier(timeout_of(options), num_calls_);
  return completed(c10d::OpType::BARRIER);
}

}  // namespace torch_mtia
