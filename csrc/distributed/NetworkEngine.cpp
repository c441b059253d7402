#include "NetworkEngine.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/bitwise_and.h>
#include <ATen/ops/bitwise_or.h>
#include <ATen/ops/bitwise_xor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/div.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <map>
#include <utility>

#include "DenseTensors.h"

namespace torch_mtia {
namespace {

using c10d::ReduceOp;
using Tensors = NetworkEngine::Tensors;
using WorkPtr = NetworkEngine::WorkPtr;

// An average is a sum until all machines' are added.
ReduceOp summed(const ReduceOp& operation) {
  return operation == ReduceOp::AVG ? ReduceOp(ReduceOp::SUM) : operation;
}

at::Tensor combined(ReduceOp::RedOpType operation, const at::Tensor& left, const at::Tensor& right) {
  switch (operation) {
    case ReduceOp::PRODUCT:
      return left * right;
    case ReduceOp::MIN:
      return at::minimum(left, right);
    case ReduceOp::MAX:
      return at::maximum(left, right);
    case ReduceOp::BAND:
      return at::bitwise_and(left, right);
    case ReduceOp::BOR:
      return at::bitwise_or(left, right);
    case ReduceOp::BXOR:
      return at::bitwise_xor(left, right);
    default:
      return left + right;
  }
}

// The work of a call that has waited for all that it did.
WorkPtr completed() {
  auto future = c10::make_intrusive<c10::ivalue::Future>(c10::NoneType::get());
  future->markCompleted();
  return c10d::Work::create_from_future(future);
}

// A message whose memory is kept, and copied where it belongs, when it has arrived.
class DenseWork final : public c10d::Work {
 public:
  DenseWork(WorkPtr work, DenseResults memory) : work_(std::move(work)), memory_(std::move(memory)) {}
  int sourceRank() const override { return work_->sourceRank(); }
  bool wait(std::chrono::milliseconds timeout) override {
    work_->wait(timeout);
    memory_.finish();
    return true;
  }

 private:
  const WorkPtr work_;
  const DenseResults memory_;
};

}  // namespace

NetworkEngine::NetworkEngine(int rank, std::vector<int> machines, BackendPtr within, BackendPtr between, BackendPtr all)
    : Backend(rank, static_cast<int>(machines.size())),
      within_(std::move(within)),
      between_(std::move(between)),
      all_(std::move(all)) {
  std::map<int, int> numbers;  // of machines, by their first ranks
  for (const int first : machines) {
    const auto [number, is_new] = numbers.emplace(first, static_cast<int>(numbers.size()));
    if (is_new) members_of_.emplace_back();
    members_of_[number->second].push_back(static_cast<int>(machine_of_.size()));
    machine_of_.push_back(number->second);
  }
  machine_ = machine_of_[rank];
  index_ = static_cast<int>(std::find(members().begin(), members().end(), rank) - members().begin());
}

void NetworkEngine::setTimeout(std::chrono::milliseconds timeout) {
  within_->setTimeout(timeout);
  if (is_first()) between_->setTimeout(timeout);
  all_->setTimeout(timeout);
}

void NetworkEngine::broadcast_within(const at::Tensor& tensor, int root, std::chrono::milliseconds timeout) {
  Tensors tensors{tensor};
  within_->broadcast(tensors, {.rootRank = root, .timeout = timeout})->wait();
}

WorkPtr NetworkEngine::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  const int root = static_cast<int>(options.rootRank), home = machine_of_.at(root);
  for (at::Tensor& tensor : tensors) {
    const auto& at_home = members_of_[home];
    const auto root_index = static_cast<int>(std::find(at_home.begin(), at_home.end(), root) - at_home.begin());
    if (machine_ == home) broadcast_within(tensor, root_index, options.timeout);
    Tensors list{tensor.contiguous()};
    if (is_first()) between_->broadcast(list, {.rootRank = home, .timeout = options.timeout})->wait();
    if (!list[0].is_same(tensor)) tensor.copy_(list[0]);
    if (machine_ != home) broadcast_within(tensor, 0, options.timeout);
  }
  return completed();
}

WorkPtr NetworkEngine::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  for (at::Tensor& tensor : tensors) {
    const at::Tensor sum = tensor.contiguous();
    Tensors list{sum};
    within_->reduce(list, {.reduceOp = summed(options.reduceOp), .rootRank = 0, .timeout = options.timeout})->wait();
    if (is_first()) {
      between_->allreduce(list, {.reduceOp = summed(options.reduceOp), .timeout = options.timeout})->wait();
      if (options.reduceOp == ReduceOp::AVG) sum.div_(getSize());
    }
    broadcast_within(sum, 0, options.timeout);
    if (!sum.is_same(tensor)) tensor.copy_(sum);
  }
  return completed();
}

WorkPtr NetworkEngine::allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  return allreduce(tensors, options);
}

WorkPtr NetworkEngine::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  for (const at::Tensor& tensor : tensors) {
    Tensors results{tensor.clone()};
    allreduce(results, {.reduceOp = options.reduceOp, .timeout = options.timeout});
    if (getRank() == options.rootRank) tensor.copy_(results[0]);
  }
  return completed();
}

WorkPtr NetworkEngine::_allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) {
  const at::Tensor mine = input.contiguous().view({1, -1});
  TORCH_CHECK_VALUE(output.numel() == input.numel() * getSize(), "the output of ", getSize(), " ranks has ",
                    output.numel(), " elements, their inputs have ", input.numel(), " each");
  // Machines with fewer ranks than others have rows that nobody reads.
  size_t most = 0;
  for (const auto& members : members_of_) most = std::max(most, members.size());
  const auto rows = [&](size_t count) {
    return at::empty({static_cast<int64_t>(count), mine.size(1)}, mine.options());
  };
  at::Tensor own = rows(is_first() ? most : 0), all = rows(is_first() ? most * members_of_.size() : 0);
  std::vector<Tensors> gathered;
  if (is_first()) gathered = {own.narrow(0, 0, static_cast<int64_t>(members().size())).unbind()};
  Tensors given{mine[0]};
  within_->gather(gathered, given, {.rootRank = 0, .timeout = options.timeout})->wait();
  at::Tensor result = rows(getSize());
  if (is_first()) {
    between_->_allgather_base(all, own, options)->wait();
    for (size_t machine = 0; machine < members_of_.size(); ++machine) {
      for (size_t i = 0; i < members_of_[machine].size(); ++i) {
        result[members_of_[machine][i]].copy_(all[static_cast<int64_t>(machine * most + i)]);
      }
    }
  }
  broadcast_within(result, 0, options.timeout);
  output.copy_(result.view(output.sizes()));
  return completed();
}

WorkPtr NetworkEngine::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                 const c10d::AllgatherOptions& options) {
  for (size_t i = 0; i < inputs.size(); ++i) {
    at::Tensor rows = at::empty({getSize(), inputs[i].numel()}, inputs[i].options());
    _allgather_base(rows, inputs[i], options);
    for (int rank = 0; rank < getSize(); ++rank) {
      const at::Tensor& output = outputs.at(i).at(rank);
      output.copy_(rows[rank].view(output.sizes()));
    }
  }
  return completed();
}

WorkPtr NetworkEngine::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                           const c10d::AllgatherOptions& options) {
  return all_->allgather_coalesced(outputs, inputs, options);
}

WorkPtr NetworkEngine::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                       const c10d::AllgatherOptions& options) {
  for (size_t i = 0; i < inputs.size(); ++i) _allgather_base(outputs.at(i), inputs[i], options);
  return completed();
}

WorkPtr NetworkEngine::gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& options) {
  Tensors given = dense(inputs);
  const DenseResults results(outputs.empty() ? Tensors{} : outputs[0]);
  std::vector<Tensors> taken;
  if (!outputs.empty()) taken.push_back(results.dense());
  all_->gather(taken, given, options)->wait();
  results.finish();
  return completed();
}

WorkPtr NetworkEngine::scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& options) {
  const DenseResults results(outputs);
  Tensors taken = results.dense();
  std::vector<Tensors> given;
  for (const Tensors& tensors : inputs) given.push_back(dense(tensors));
  all_->scatter(taken, given, options)->wait();
  results.finish();
  return completed();
}

// The first rank of a machine gets from each other one the rows of its machine's ranks, reduced there.
at::Tensor NetworkEngine::reduced_row(const at::Tensor& rows, const c10d::ReduceScatterOptions& options) {
  Tensors list{rows};
  within_->reduce(list, {.reduceOp = summed(options.reduceOp), .rootRank = 0, .timeout = options.timeout})->wait();
  at::Tensor row = at::empty({rows.size(1)}, rows.options());
  std::vector<Tensors> own;
  if (is_first()) {
    const auto num_own = static_cast<int64_t>(members().size()),
               num_machines = static_cast<int64_t>(members_of_.size());
    Tensors in_order;
    std::vector<int64_t> input_sizes;
    for (const auto& ranks : members_of_) {
      for (const int rank : ranks) in_order.push_back(rows[rank]);
      input_sizes.push_back(static_cast<int64_t>(ranks.size()));
    }
    at::Tensor given = at::stack(in_order), taken = at::empty({num_machines * num_own, rows.size(1)}, rows.options());
    std::vector<int64_t> output_sizes(num_machines, num_own);
    between_->alltoall_base(taken, given, output_sizes, input_sizes, {.timeout = options.timeout})->wait();
    at::Tensor result = taken.narrow(0, 0, num_own);
    for (int64_t machine = 1; machine < num_machines; ++machine) {
      result = combined(options.reduceOp.op_, result, taken.narrow(0, machine * num_own, num_own));
    }
    if (options.reduceOp == ReduceOp::AVG) result = at::div(result, getSize());
    own = {result.unbind()};
  }
  Tensors mine{row};
  within_->scatter(mine, own, {.rootRank = 0, .timeout = options.timeout})->wait();
  return row;
}

WorkPtr NetworkEngine::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                            const c10d::ReduceScatterOptions& options) {
  TORCH_CHECK_VALUE(input.numel() == output.numel() * getSize(), "the input for ", getSize(), " ranks has ",
                    input.numel(), " elements, their outputs have ", output.numel(), " each");
  // A copy: the reduction leaves sums there that nobody asked for.
  const at::Tensor rows = input.clone(at::MemoryFormat::Contiguous).view({getSize(), -1});
  output.copy_(reduced_row(rows, options).view(output.sizes()));
  return completed();
}

WorkPtr NetworkEngine::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                      const c10d::ReduceScatterOptions& options) {
  for (size_t i = 0; i < outputs.size(); ++i) {
    // Parts of different sizes have the size of the largest while they are on their way.
    int64_t most = 0;
    for (const at::Tensor& part : inputs.at(i)) most = std::max(most, part.numel());
    at::Tensor rows = at::zeros({getSize(), most}, outputs[i].options());
    for (int rank = 0; rank < getSize(); ++rank) {
      const at::Tensor& part = inputs[i].at(rank);
      rows[rank].narrow(0, 0, part.numel()).copy_(part.reshape({-1}));
    }
    outputs[i].copy_(reduced_row(rows, options).narrow(0, 0, outputs[i].numel()).view(outputs[i].sizes()));
  }
  return completed();
}

WorkPtr NetworkEngine::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                       const c10d::ReduceScatterOptions& options) {
  for (size_t i = 0; i < outputs.size(); ++i) _reduce_scatter_base(outputs[i], inputs.at(i), options);
  return completed();
}

WorkPtr NetworkEngine::alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_sizes,
                                     std::vector<int64_t>& input_sizes, const c10d::AllToAllOptions& options) {
  const DenseResults result({output});
  at::Tensor taken = result.dense()[0], given = input.contiguous();
  all_->alltoall_base(taken, given, output_sizes, input_sizes, options)->wait();
  result.finish();
  return completed();
}

// As one tensor: gloo's own takes lists of one size only.
WorkPtr NetworkEngine::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) {
  std::vector<int64_t> output_sizes, input_sizes;
  Tensors flat;
  for (const at::Tensor& tensor : inputs) {
    flat.push_back(tensor.reshape({-1}));
    input_sizes.push_back(tensor.numel());
  }
  int64_t count = 0;
  for (const at::Tensor& tensor : outputs) {
    output_sizes.push_back(tensor.numel());
    count += tensor.numel();
  }
  at::Tensor given = at::cat(flat), taken = at::empty({count}, given.options());
  const Tensors parts = taken.split_with_sizes(output_sizes);  // before gloo, which moves from the sizes
  all_->alltoall_base(taken, given, output_sizes, input_sizes, options)->wait();
  for (size_t i = 0; i < outputs.size(); ++i) outputs[i].copy_(parts[i].view(outputs[i].sizes()));
  return completed();
}

WorkPtr NetworkEngine::send(Tensors& tensors, int destination, int tag) {
  DenseResults memory(dense(tensors));
  Tensors given = memory.dense();
  return c10::make_intrusive<DenseWork>(all_->send(given, destination, tag), std::move(memory));
}

WorkPtr NetworkEngine::recv(Tensors& tensors, int source, int tag) {
  DenseResults memory(tensors);
  Tensors taken = memory.dense();
  return c10::make_intrusive<DenseWork>(all_->recv(taken, source, tag), std::move(memory));
}

WorkPtr NetworkEngine::recvAnysource(Tensors& tensors, int tag) {
  DenseResults memory(tensors);
  Tensors taken = memory.dense();
  return c10::make_intrusive<DenseWork>(all_->recvAnysource(taken, tag), std::move(memory));
}

WorkPtr NetworkEngine::barrier(const c10d::BarrierOptions& options) {
  return all_->barrier(options);
}

void NetworkEngine::abort() {
  within_->abort();
  if (is_first()) between_->abort();
  all_->abort();
}

void NetworkEngine::shutdown() {
  within_->shutdown();
  if (is_first()) between_->shutdown();
  all_->shutdown();
}

}  // namespace torch_mtia
