#include "StreamBackend.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/StringUtil.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <chrono>
#include <thread>
#include <tuple>
#include <utility>

#include "../collectives/Deadline.h"
#include "../core/Waits.h"
#include "../core/WorkItem.h"
#include "../device/DeviceIndex.h"
#include "../device/MTIAFunctions.h"
#include "../device/MTIAGraph.h"
#include "CollectiveArguments.h"
#include "EngineTensor.h"
#include "Reduction.h"
#include "Staging.h"

namespace torch_mtia {
namespace {

// With the arguments as the engine takes them, any number of times: copies of them, which the engine may move from.
template <typename Function, typename... Arguments>
auto engine_call(const EngineDtypes& dtypes, Function function, const Arguments&... arguments) {
  return [function, kept = std::make_tuple(engine_argument(arguments, dtypes)...)](c10d::Backend& engine) {
    return std::apply([&](auto... each) { return (engine.*function)(each...); }, kept);
  };
}

// The same for a function that reduces, and writes its first argument. It waits for the engine.
template <typename Function, typename First, typename... Rest>
auto engine_reduction(Function function, const Reduction& reduction, const First& first, const Rest&... rest) {
  return [function, reduction, written = engine_argument(first, std::nullopt),
          kept = std::make_tuple(engine_argument(rest, std::nullopt)...)](c10d::Backend& engine) {
    auto result = reduction.widened(written);
    std::apply(
        [&](const auto&... each) {
          auto arguments = std::make_tuple(reduction.widened(each)...);
          std::apply([&](auto&... wide) { (engine.*function)(result, wide...)->wait(); }, arguments);
        },
        kept);
    reduction.narrow(result, written);
  };
}

// Of a tensor for all ranks only the number of elements counts, and engines split its first dimension.
at::Tensor flat(const at::Tensor& tensor) {
  return tensor.is_contiguous() ? tensor.view({-1}) : tensor;
}

// Who sends the tensors only reads them.
bool is_sender(const c10d::BroadcastOptions& options, int rank) {
  return options.rootRank == rank;
}
template <typename Other>
bool is_sender(const Other& /*argument*/, int /*rank*/) {
  return false;
}

// `function` raises what is kept in the outcome, too, for those who wait for the work in other streams.
template <typename Function>
void launch(const MTIAStream& stream, const char* name, std::shared_ptr<Outcome> outcome, Function function,
            CollectiveOperands operands = {}) {
  core::WorkInfo info{};
  info.name = name;
  info.flags = MTIA_WORK_CAPTURABLE | MTIA_WORK_BLOCKS;  // it waits for peers
  auto run = [outcome = std::move(outcome), function = std::move(function)] {
    try {
      function(*outcome);
    } catch (...) {
      outcome->fail();
    }
  };
  stream.core().launch(info, CollectiveWork{std::move(run), std::move(operands)});
}

// The collectives of a graph run in the order in which they were called, those of other groups, too: side by side, two
// ranks might each replay first what the other one replays last.
void wait_for_the_one_captured_before(const MTIAStream& stream) {
  static std::mutex mutex;
  static LastStreams last;
  if (MTIAGraph::of(stream) == nullptr) return;
  const std::lock_guard<std::mutex> lock(mutex);
  if (const auto previous = last.exchange(stream)) stream.wait_for(*previous);
}

}  // namespace

StreamBackend::StreamBackend(EngineMaker make_engine, c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                             std::string name, std::chrono::milliseconds timeout)
    : Backend(rank, size),
      make_engine_(std::move(make_engine)),
      store_(std::move(store)),
      engine_(make_engine_(store_, rank, size, timeout)),
      host_engine_(make_engine_(c10::make_intrusive<c10d::PrefixStore>("host", store_), rank, size, timeout)),
      engine_dtypes_(*engine_),
      name_(std::move(name)),
      options_(c10::make_intrusive<Options>(name_, timeout)) {}

// The threads end when their calls have, and nobody waits for these any more.
StreamBackend::~StreamBackend() {
  host_engine_->abort();
  for (const auto& [device, streams] : streams_) {
    for (const auto& stream : streams) {
      if (stream) stream->give_back();
    }
  }
}

void StreamBackend::check_process() const {
  TORCH_CHECK(getpid() == process_id_,
              "the group belongs to the process that was forked: start one of its own in this process");
}

void StreamBackend::check_peer(const char* name, int rank) const {
  TORCH_CHECK_VALUE(rank >= 0 && rank < getSize(), "expected ", name, " to be a rank of the group, below ", getSize(),
                    ", got ", rank);
}

c10::intrusive_ptr<c10d::Backend> StreamBackend::split(const c10::intrusive_ptr<c10d::Store>& /*store*/,
                                                       const std::vector<int>& ranks,
                                                       const c10::intrusive_ptr<Options>& options) {
  const auto mine = std::find(ranks.begin(), ranks.end(), getRank());
  if (mine == ranks.end()) return nullptr;
  // Not the store that was given: its prefix has a number of groups in it, which ranks that are in different ones do
  // not agree on. They do on how often they have been split off together.
  uint64_t number = 0;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    number = num_splits_[ranks]++;
  }
  const auto own_store = c10::make_intrusive<c10d::PrefixStore>(c10::str("split/", ranks, "/", number), store_);
  return c10::make_intrusive<StreamBackend>(make_engine_, own_store, static_cast<int>(mine - ranks.begin()),
                                            static_cast<int>(ranks.size()), name_,
                                            options ? options->timeout : options_->timeout);
}

void StreamBackend::setTimeout(std::chrono::milliseconds timeout) {
  engine_->setTimeout(timeout);
  host_engine_->setTimeout(timeout);
  options_->timeout = timeout;
}

MTIAStream StreamBackend::stream_of(c10::DeviceIndex device, Use use) {
  ensure_initialized();
  const std::lock_guard<std::mutex> lock(mutex_);
  auto& stream = streams_[device][use];
  if (!stream) stream = MTIAStream::take_owned(device);
  return *stream;
}

void StreamBackend::follow(LastStreams& last, const MTIAStream& stream) {
  const auto previous = last.exchange(stream);
  if (previous && previous->device() != stream.device()) stream.wait_for(*previous);
}

std::shared_ptr<Outcome> StreamBackend::next_outcome(const char* name, const Tensors& tensors) {
  constexpr size_t kMaxRecords = 2000;
  CallRecord call{name, getRank(), getSize(), 0, {}, ""};
  for (const at::Tensor& tensor : tensors) call.sizes.push_back(tensor.sizes().vec());
  if (!tensors.empty()) call.dtype = c10::toString(tensors[0].scalar_type());
  const std::lock_guard<std::mutex> lock(mutex_);
  call.sequence_number = ++number_;
  records_.push_back(std::make_shared<Outcome>(std::move(call)));
  if (records_.size() > kMaxRecords) records_.pop_front();
  return records_.back();
}

std::vector<std::shared_ptr<const Outcome>> StreamBackend::records() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return {records_.begin(), records_.end()};
}

StreamBackend::WorkPtr StreamBackend::work_of(c10d::OpType type, const MTIAStream& stream,
                                              std::shared_ptr<Outcome> outcome, Tensors outputs) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (Coalesced* calls = coalesced_on(stream.unwrap().device())) {
      calls->outcomes.push_back(outcome);
      const auto is_same = [&](const MTIAStream& each) { return &each.core() == &stream.core(); };
      if (std::none_of(calls->streams.begin(), calls->streams.end(), is_same)) calls->streams.push_back(stream);
    }
  }
  return c10::make_intrusive<StreamWork>(getRank(), type, stream, std::move(outcome), std::move(outputs));
}

StreamBackend::WorkPtr StreamBackend::host_work_of(c10d::OpType type, std::shared_ptr<Outcome> outcome, Tensors outputs,
                                                   std::function<void()> call, bool is_message) {
  auto work = c10::make_intrusive<HostWork>(getRank(), type, std::move(outcome), std::move(outputs), std::move(call),
                                            is_message ? HostWork::Runs::kAlsoInWait : HostWork::Runs::kQueued);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (Coalesced* calls = coalesced_on(at::kCPU)) calls->works.push_back(work);
  }
  (is_message ? host_messages_ : host_collectives_).push([work] { work->run(); });
  return work;
}

void StreamBackend::check_coalesced(c10::Device device) {
  const std::lock_guard<std::mutex> lock(mutex_);
  coalesced_on(device);
}

StreamBackend::Coalesced* StreamBackend::coalesced_on(c10::Device device) {
  if (!coalesced_) return nullptr;
  const c10::Device first = coalesced_->device.value_or(device);
  if (first != device) coalesced_.reset();
  TORCH_CHECK_VALUE(first == device, "calls that are coalesced are of one device, got ", first, " and ", device);
  coalesced_->device = device;
  return &*coalesced_;
}

void StreamBackend::startCoalescing() {
  const std::lock_guard<std::mutex> lock(mutex_);
  coalesced_.emplace();
}

StreamBackend::WorkPtr StreamBackend::endCoalescing() {
  Coalesced calls;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (coalesced_) calls = std::move(*coalesced_);
    coalesced_.reset();
  }
  if (calls.device && calls.device->is_cpu()) {
    const auto wait_for_all = [works = std::move(calls.works)] {
      for (const WorkPtr& work : works) work->wait();
    };
    return host_work_of(c10d::OpType::COALESCED, next_outcome("c10d::coalesced", {}), {}, wait_for_all,
                        /*is_message=*/true);
  }
  const c10::DeviceIndex device = calls.device ? calls.device->index() : current_device();
  const MTIAStream ends = stream_of(device, kEnds);
  if (calls.streams.empty()) calls.streams.push_back(MTIAStream::current(device));
  for (const MTIAStream& stream : calls.streams) ends.wait_for(stream);
  auto outcome = next_outcome("c10d::coalesced", {});
  launch(ends, "c10d::coalesced", outcome, [calls = std::move(calls.outcomes)](Outcome& result) {
    result.begin();
    for (const auto& call : calls) {
      if (const auto error = call->error()) std::rethrow_exception(error);
    }
    result.end();
  });
  return c10::make_intrusive<StreamWork>(getRank(), c10d::OpType::COALESCED, ends, std::move(outcome), Tensors{});
}

uint64_t StreamBackend::getSequenceNumberForGroup() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return number_;
}

StreamBackend::WorkPtr StreamBackend::collective(c10d::OpType type, const char* name, c10::Device device,
                                                 const Tensors& used, Tensors outputs, Call call,
                                                 const Staging& staging, CollectiveOperands operands) {
  check_coalesced(device);
  if (device.is_cpu()) {
    check_process();
    const auto run = [engine = host_engine_, call = std::move(call)] { call(*engine); };
    return host_work_of(type, next_outcome(name, used), std::move(outputs), run, /*is_message=*/false);
  }
  const MTIAStream stream = stream_of(device.index(), kCollectives);
  for (const at::Tensor& tensor : used) tensor.record_stream(stream.unwrap());
  const core::WithoutGil without_gil;  // who has the lock may want the GIL
  const std::lock_guard<std::mutex> lock(order_mutex_);
  stream.wait_for(MTIAStream::current(device.index()));
  follow(last_collective_, stream);
  wait_for_the_one_captured_before(stream);
  auto outcome = next_outcome(name, used);
  staging.copy_in(stream);
  const auto run = [engine = engine_, mutex = engine_mutex_, call = std::move(call)](Outcome& result) {
    const std::lock_guard<std::mutex> lock(*mutex);
    result.begin();
    call(*engine);
    result.end();
  };
  launch(stream, name, outcome, run, std::move(operands));
  staging.copy_out(stream, outputs);
  return work_of(type, stream, std::move(outcome), std::move(outputs));
}

template <typename... Parameters, typename... Arguments>
StreamBackend::WorkPtr StreamBackend::collective(c10d::OpType type, const char* name, Function<Parameters...> function,
                                                 const Arguments&... arguments) {
  const Tensors used = tensors_of(arguments...);
  const auto outputs = [](const auto& first, const auto&... /*others*/) { return tensors_of(first); };
  const bool sends = (is_sender(arguments, getRank()) || ...);
  Staging staging;
  auto call = engine_call(engine_dtypes_, function, staging.of(arguments)...);
  return collective(
      type, name, device_of(used), used, outputs(arguments...),
      [call = std::move(call)](c10d::Backend& engine) { call(engine)->wait(); }, staging,
      CollectiveOperands(used, sends ? Tensors{} : outputs(arguments...)));
}

template <typename... Parameters, typename... Arguments>
StreamBackend::WorkPtr StreamBackend::reduction(c10d::OpType type, const char* name, Function<Parameters...> function,
                                                const c10d::ReduceOp& operation, const Arguments&... arguments) {
  Tensors used = tensors_of(arguments...);
  const c10::Device device = device_of(used);
  const auto outputs = [](const auto& first, const auto&... /*others*/) { return tensors_of(first); };
  for (const at::Tensor& tensor : used) {
    TORCH_CHECK_TYPE(tensor.scalar_type() == used[0].scalar_type(), "the tensors of a reduction have one dtype, got ",
                     used[0].scalar_type(), " and ", tensor.scalar_type());
  }
  const Reduction reduction(operation, used[0].scalar_type(), engine_dtypes_);
  const Tensors written = outputs(arguments...);
  const bool in_place = used.size() == written.size();
  if (const at::Tensor factor = Reduction::factor_of(operation); factor.defined()) {
    TORCH_CHECK_VALUE(factor.device() == device, "expected the factor of PREMUL_SUM to be on ", device,
                      ", as the tensors are, got one on ", factor.device());
    used.push_back(factor);
  }
  Staging staging;
  auto call = engine_reduction(function, reduction, staging.of(arguments)...);
  Tensors reduced;
  for (const at::Tensor& tensor : used) {
    if (in_place || !is_among(tensor, written)) reduced.push_back(tensor);
  }
  return collective(type, name, device, used, written, std::move(call), staging,
                    CollectiveOperands(used, written, reduced));
}

StreamBackend::WorkPtr StreamBackend::message(c10d::OpType type, const char* name, const Tensors& tensors, Post post,
                                              const Staging& staging) {
  const c10::Device device = device_of(tensors);
  check_coalesced(device);
  const Tensors outputs = type == c10d::OpType::SEND ? Tensors{} : tensors;
  if (device.is_cpu()) {
    check_process();
    auto outcome = next_outcome(name, tensors);
    const auto wait = [posted = post(*host_engine_), type, outcome] {
      posted->wait();
      if (type == c10d::OpType::RECVANYSOURCE) outcome->set_source_rank(posted->sourceRank());
    };
    return host_work_of(type, outcome, outputs, wait, /*is_message=*/true);
  }
  const MTIAStream posts = stream_of(device.index(), kPosts), arrivals = stream_of(device.index(), kArrivals);
  for (const at::Tensor& tensor : tensors) tensor.record_stream(arrivals.unwrap());
  const core::WithoutGil without_gil;  // who has the lock may want the GIL
  const std::lock_guard<std::mutex> lock(order_mutex_);
  posts.wait_for(MTIAStream::current(device.index()));
  follow(last_post_, posts);
  auto outcome = next_outcome(name, tensors);
  auto posted = std::make_shared<WorkPtr>();
  staging.copy_in(posts);
  launch(posts, name, outcome, [engine = engine_, post = std::move(post), posted](Outcome& result) {
    result.begin();
    posted->reset();
    *posted = post(*engine);
  });
  arrivals.wait_for(posts);
  const auto wait = [posted, type](Outcome& result) {
    if (!*posted) return;  // the other item has said why
    (*posted)->wait();
    if (type == c10d::OpType::RECVANYSOURCE) result.set_source_rank((*posted)->sourceRank());
    posted->reset();
    result.end();
  };
  launch(arrivals, name, outcome, wait, CollectiveOperands(tensors, outputs));
  staging.copy_out(arrivals, outputs);
  return work_of(type, arrivals, std::move(outcome), outputs);
}

StreamBackend::WorkPtr StreamBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  check_root(options.rootRank, getSize());
  return collective(c10d::OpType::BROADCAST, "c10d::broadcast", &c10d::Backend::broadcast, tensors, options);
}

StreamBackend::WorkPtr StreamBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  if (tensors.size() == 1 && tensors[0].layout() == at::kSparse) return allreduce_sparse_coo(tensors[0], options);
  return reduction(c10d::OpType::ALLREDUCE, "c10d::allreduce", &c10d::Backend::allreduce, options.reduceOp, tensors,
                   options);
}

// The sum has the elements of all. How many each has, the host has to know, and waits for.
StreamBackend::WorkPtr StreamBackend::allreduce_sparse_coo(const at::Tensor& tensor,
                                                           const c10d::AllreduceOptions& options) {
  TORCH_CHECK_NOT_IMPLEMENTED(options.reduceOp == c10d::ReduceOp::SUM, "sparse tensors are reduced by SUM only");
  const at::Tensor mine = tensor.coalesce();
  const auto gathered = [&](const at::Tensor& part) {
    at::Tensor input = part.contiguous();
    std::vector<int64_t> sizes = part.sizes().vec();
    sizes.insert(sizes.begin(), getSize());
    at::Tensor output = at::empty(sizes, part.options());
    c10d::AllgatherOptions gather;
    gather.timeout = options.timeout;
    _allgather_base(output, input, gather)->wait();
    return output;
  };
  const auto count_options = at::TensorOptions(at::kLong).device(tensor.device());
  const at::Tensor counts = gathered(at::full({1}, mine._nnz(), count_options)).cpu();
  const int64_t most = counts.max().item<int64_t>();
  const auto padded = [&](const at::Tensor& part) {
    std::vector<int64_t> sizes = part.sizes().vec();
    sizes[0] = most - mine._nnz();
    return at::cat({part, at::zeros(sizes, part.options())});
  };
  const at::Tensor indices = gathered(padded(mine.indices().t()));
  const at::Tensor values = gathered(padded(mine.values()));
  Tensors all_indices, all_values;
  for (int rank = 0; rank < getSize(); ++rank) {
    const auto count = counts[rank].item<int64_t>();
    all_indices.push_back(indices[rank].narrow(0, 0, count));
    all_values.push_back(values[rank].narrow(0, 0, count));
  }
  const at::Tensor sum =
      at::sparse_coo_tensor(at::cat(all_indices).t(), at::cat(all_values), tensor.sizes()).coalesce();
  tensor.copy_(sum);
  if (tensor.is_cpu()) {
    return host_work_of(
        c10d::OpType::_ALLREDUCE_SPARSE, next_outcome("c10d::allreduce_sparse", {}), {tensor}, [] {},
        /*is_message=*/false);
  }
  return work_of(c10d::OpType::_ALLREDUCE_SPARSE, MTIAStream::current(tensor.get_device()),
                 next_outcome("c10d::allreduce_sparse", {}), {tensor});
}

StreamBackend::WorkPtr StreamBackend::allreduce_coalesced(Tensors& tensors,
                                                          const c10d::AllreduceCoalescedOptions& options) {
  return reduction(c10d::OpType::ALLREDUCE_COALESCED, "c10d::allreduce_coalesced", &c10d::Backend::allreduce_coalesced,
                   options.reduceOp, tensors, options);
}

StreamBackend::WorkPtr StreamBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  check_root(options.rootRank, getSize());
  return reduction(c10d::OpType::REDUCE, "c10d::reduce", &c10d::Backend::reduce, options.reduceOp, tensors, options);
}

StreamBackend::WorkPtr StreamBackend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                                const c10d::AllgatherOptions& options) {
  check_lists(outputs, inputs, getSize());
  return collective(c10d::OpType::ALLGATHER, "c10d::allgather", &c10d::Backend::allgather, outputs, inputs, options);
}

StreamBackend::WorkPtr StreamBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                      const c10d::AllgatherOptions& options) {
  check_whole(output, input, getSize());
  at::Tensor to = flat(output), from = flat(input);
  return collective(c10d::OpType::_ALLGATHER_BASE, "c10d::_allgather_base", &c10d::Backend::_allgather_base, to, from,
                    options);
}

StreamBackend::WorkPtr StreamBackend::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                                          const c10d::AllgatherOptions& options) {
  return collective(c10d::OpType::ALLGATHER_COALESCED, "c10d::allgather_coalesced", &c10d::Backend::allgather_coalesced,
                    outputs, inputs, options);
}

StreamBackend::WorkPtr StreamBackend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                      const c10d::AllgatherOptions& options) {
  return collective(c10d::OpType::COALESCED, "c10d::allgather_into_tensor_coalesced",
                    &c10d::Backend::allgather_into_tensor_coalesced, outputs, inputs, options);
}

StreamBackend::WorkPtr StreamBackend::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                             const c10d::GatherOptions& options) {
  check_root(options.rootRank, getSize());
  if (options.rootRank == getRank()) check_lists(outputs, inputs, getSize());
  return collective(c10d::OpType::GATHER, "c10d::gather", &c10d::Backend::gather, outputs, inputs, options);
}

StreamBackend::WorkPtr StreamBackend::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                              const c10d::ScatterOptions& options) {
  check_root(options.rootRank, getSize());
  if (options.rootRank == getRank()) check_lists(inputs, outputs, getSize());
  return collective(c10d::OpType::SCATTER, "c10d::scatter", &c10d::Backend::scatter, outputs, inputs, options);
}

StreamBackend::WorkPtr StreamBackend::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                                     const c10d::ReduceScatterOptions& options) {
  check_lists(inputs, outputs, getSize());
  return reduction(c10d::OpType::REDUCE_SCATTER, "c10d::reduce_scatter", &c10d::Backend::reduce_scatter,
                   options.reduceOp, outputs, inputs, options);
}

StreamBackend::WorkPtr StreamBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                           const c10d::ReduceScatterOptions& options) {
  check_whole(input, output, getSize());
  at::Tensor to = flat(output), from = flat(input);
  return reduction(c10d::OpType::_REDUCE_SCATTER_BASE, "c10d::_reduce_scatter_base",
                   &c10d::Backend::_reduce_scatter_base, options.reduceOp, to, from, options);
}

StreamBackend::WorkPtr StreamBackend::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                      const c10d::ReduceScatterOptions& options) {
  return reduction(c10d::OpType::REDUCE_SCATTER_TENSOR_COALESCED, "c10d::reduce_scatter_tensor_coalesced",
                   &c10d::Backend::reduce_scatter_tensor_coalesced, options.reduceOp, outputs, inputs, options);
}

StreamBackend::WorkPtr StreamBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                    std::vector<int64_t>& output_sizes,
                                                    std::vector<int64_t>& input_sizes,
                                                    const c10d::AllToAllOptions& options) {
  check_dtype(output, input);
  check_splits(output, output_sizes, getSize());
  check_splits(input, input_sizes, getSize());
  return collective(c10d::OpType::ALLTOALL_BASE, "c10d::alltoall_base", &c10d::Backend::alltoall_base, output, input,
                    output_sizes, input_sizes, options);
}

StreamBackend::WorkPtr StreamBackend::alltoall(Tensors& outputs, Tensors& inputs,
                                               const c10d::AllToAllOptions& options) {
  return collective(c10d::OpType::ALLTOALL, "c10d::alltoall", &c10d::Backend::alltoall, outputs, inputs, options);
}

StreamBackend::WorkPtr StreamBackend::send(Tensors& tensors, int destination, int tag) {
  check_peer("the destination", destination);
  Staging staging;
  auto post = engine_call(engine_dtypes_, &c10d::Backend::send, staging.of(tensors), destination, tag);
  return message(c10d::OpType::SEND, "c10d::send", tensors, std::move(post), staging);
}

StreamBackend::WorkPtr StreamBackend::recv(Tensors& tensors, int source, int tag) {
  check_peer("the source", source);
  Staging staging;
  auto post = engine_call(engine_dtypes_, &c10d::Backend::recv, staging.of(tensors), source, tag);
  return message(c10d::OpType::RECV, "c10d::recv", tensors, std::move(post), staging);
}

StreamBackend::WorkPtr StreamBackend::recvAnysource(Tensors& tensors, int tag) {
  Staging staging;
  auto post = engine_call(engine_dtypes_, &c10d::Backend::recvAnysource, staging.of(tensors), tag);
  return message(c10d::OpType::RECVANYSOURCE, "c10d::recv_any_source", tensors, std::move(post), staging);
}

StreamBackend::WorkPtr StreamBackend::barrier(const c10d::BarrierOptions& options) {
  c10::DeviceIndex device = current_device();
  if (options.device) device = index_or_current(options.device->index());
  if (!options.device_ids.empty()) device = index_or_current(to_device_index(options.device_ids[0]));
  if (!options.asyncOp) {
    MTIAGraph::refuse(MTIAStream::current(device), "torch.distributed.barrier()",
                      "it blocks the host. Call it before the capture, or with async_op=True");
  }
  return collective(
      c10d::OpType::BARRIER, "c10d::barrier", c10::Device(device_type(), device), {}, {},
      [options](c10d::Backend& engine) { engine.barrier(options)->wait(); }, Staging(), CollectiveOperands());
}

void StreamBackend::abort() {
  engine_->abort();
  host_engine_->abort();
}

void StreamBackend::shutdown() {
  constexpr std::chrono::seconds kPatience(5);
  const auto is_idle = [&] {
    const std::lock_guard<std::mutex> lock(mutex_);
    return std::all_of(streams_.begin(), streams_.end(), [](const auto& of_device) {
      const Streams& streams = of_device.second;
      return std::all_of(streams.begin(), streams.end(), [](const auto& stream) {
        return !stream || MTIAGraph::of(*stream) || stream->core().query();
      });
    });
  };
  const auto is_stuck = [&] {
    const std::lock_guard<std::mutex> lock(mutex_);
    return std::any_of(records_.begin(), records_.end(),
                       [&](const auto& outcome) { return outcome->has_run_for(kPatience); });
  };
  while (!is_idle() && !is_stuck()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  abort();
}

void StreamBackend::monitoredBarrier(const c10d::BarrierOptions& options, bool /*wait_all_ranks*/) {
  const auto timeout = options.timeout == c10d::kUnsetTimeout ? options_->timeout : options.timeout;
  const collectives::Deadline deadline(timeout);
  const auto left = [&] {
    const auto time =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline.time - std::chrono::steady_clock::now());
    return std::max(time, std::chrono::milliseconds(1));
  };
  std::string prefix;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    prefix = c10::str("monitored_barrier/", num_monitored_barriers_++, "/");
  }
  const auto key = [&](int rank) { return c10::str(prefix, rank); };
  store_->set(key(getRank()), std::string("here"));
  std::vector<int> absent;
  for (int rank = 0; rank < getSize(); ++rank) {
    try {
      store_->wait({key(rank)}, left());
    } catch (const std::exception&) {
      absent.push_back(rank);
    }
  }
  // In gloo's words, which scripts look for.
  TORCH_CHECK_WITH(DistBackendError, absent.empty(), "Rank ", getRank(),
                   " timed out in monitoredBarrier: ", absent.size() == 1 ? "Rank " : "Ranks ", c10::Join(", ", absent),
                   " failed to pass monitoredBarrier in ", timeout.count(), " ms");
}

}  // namespace torch_mtia
