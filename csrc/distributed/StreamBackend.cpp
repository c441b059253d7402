#include "StreamBackend.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/util/StringUtil.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "../core/Waits.h"
#include "../core/WorkItem.h"
#include "../device/MTIAFunctions.h"
#include "../device/MTIAGraph.h"

namespace torch_mtia {
namespace {

// An exception of `function` is also stored in the state, for those who wait for the work in other streams.
template <typename Function>
void launch(const MTIAStream& stream, const char* name, std::shared_ptr<WorkState> state, Function function,
            CollectiveOperands operands = {}) {
  core::WorkInfo info{};
  info.name = name;
  info.flags = MTIA_WORK_CAPTURABLE | MTIA_WORK_BLOCKS;  // it waits for peers
  auto run = [state = std::move(state), function = std::move(function)] {
    try {
      function(*state);
    } catch (...) {
      state->fail();
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

std::optional<MTIAStream> LastStreams::exchange(const MTIAStream& stream) {
  std::erase_if(captured_, [](const Captured& each) { return MTIAGraph::of(each.stream) != each.graph; });
  const MTIAGraph* const graph = MTIAGraph::of(stream);
  if (graph == nullptr) {
    const auto previous = std::exchange(eager_, stream);
    return previous && MTIAGraph::of(*previous) == nullptr ? previous : std::nullopt;
  }
  const auto last =
      std::find_if(captured_.begin(), captured_.end(), [&](const Captured& each) { return each.graph == graph; });
  if (last != captured_.end()) return std::exchange(last->stream, stream);
  captured_.push_back({graph, stream});
  return std::nullopt;
}

Channel::Channel(std::shared_ptr<collectives::Engine> engine, std::string tensors, std::chrono::milliseconds timeout,
                 std::shared_ptr<FirstFailure> failures)
    : timeout(timeout), engine_(std::move(engine)), tensors_(std::move(tensors)), failures_(std::move(failures)) {}

void Channel::abort(const char* why) const noexcept {
  engine_->abort(failures_->after(why));
}

void Channel::run(const std::vector<Step>& steps, std::chrono::milliseconds timeout, const Channel& other) {
  ++num_calls_;  // before anything can fail
  const auto limit = timeout == c10d::kUnsetTimeout ? this->timeout.load() : timeout;
  for (const Step& step : steps) {
    const collectives::Deadline deadline(limit);
    try {
      step.run(*engine_, num_calls_, limit);
    } catch (const collectives::GroupError& error) {
      const std::string awaited = deadline.is_over() ? other.engine_->awaited() : "";
      if (awaited.empty()) throw;
      throw collectives::GroupError(c10::str(error.what(), ". This rank has called ", step.name,
                                             *step.dtype != 0 ? " of " : "", step.dtype, " for tensors of ", tensors_,
                                             "; meanwhile ranks wait for it in calls for tensors of ", other.tensors_,
                                             awaited));
    }
  }
}

StreamBackend::StreamBackend(EngineMaker make_engine, c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                             std::string name, std::chrono::milliseconds timeout)
    : Backend(rank, size),
      make_engine_(std::move(make_engine)),
      store_(std::move(store)),
      device_(std::make_shared<Channel>(make_engine_(store_, rank, size, timeout), device_name(), timeout, failures_)),
      host_(std::make_shared<Channel>(
          make_engine_(c10::make_intrusive<c10d::PrefixStore>("host", store_), rank, size, timeout), "cpu", timeout,
          failures_)),
      name_(std::move(name)),
      options_(c10::make_intrusive<Options>(name_, timeout)) {}

// The threads end when their calls have, and nobody waits for these any more.
StreamBackend::~StreamBackend() {
  host_->abort("aborted");
  for (const auto& [device, streams] : streams_) {
    for (const auto& stream : streams) {
      if (stream) stream->release_owned();
    }
  }
}

void StreamBackend::check_process() const {
  TORCH_CHECK(getpid() == process_id_,
              "the group belongs to the process that was forked: start one of its own in this process");
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
  device_->timeout = host_->timeout = timeout;
  options_->timeout = timeout;
}

MTIAStream StreamBackend::stream_of(c10::DeviceIndex device, Use use) {
  ensure_initialized();
  const std::lock_guard<std::mutex> lock(mutex_);
  auto& stream = streams_[device][use];
  if (!stream) stream = MTIAStream::acquire_owned(device);
  return *stream;
}

void StreamBackend::follow(LastStreams& last, const MTIAStream& stream) {
  const auto previous = last.exchange(stream);
  if (previous && previous->device() != stream.device()) stream.wait_for(*previous);
}

std::shared_ptr<WorkState> StreamBackend::next_state(const char* name, const std::vector<Argument>& arguments) {
  constexpr size_t kMaxRecords = 2000;
  CallRecord call{name, getRank(), getSize(), 0, {}, ""};
  for (const auto& [tensor, is_written, is_reduced] : arguments) call.sizes.push_back(tensor.sizes().vec());
  if (!arguments.empty()) call.dtype = c10::toString(arguments[0].tensor.scalar_type());
  const std::lock_guard<std::mutex> lock(mutex_);
  call.sequence_number = ++number_;
  records_.push_back(std::make_shared<WorkState>(std::move(call), failures_));
  if (records_.size() > kMaxRecords) records_.pop_front();
  return records_.back();
}

std::vector<std::shared_ptr<const WorkState>> StreamBackend::records() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return {records_.begin(), records_.end()};
}

StreamBackend::WorkPtr StreamBackend::work_of(c10d::OpType type, const MTIAStream& stream,
                                              std::shared_ptr<WorkState> state, Tensors outputs) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (Coalesced* calls = coalesced_on(stream.unwrap().device())) {
      calls->states.push_back(state);
      const auto is_same = [&](const MTIAStream& each) { return &each.core() == &stream.core(); };
      if (std::none_of(calls->streams.begin(), calls->streams.end(), is_same)) calls->streams.push_back(stream);
    }
  }
  return c10::make_intrusive<StreamWork>(getRank(), type, stream, std::move(state), std::move(outputs));
}

StreamBackend::WorkPtr StreamBackend::host_work_of(c10d::OpType type, std::shared_ptr<WorkState> state, Tensors outputs,
                                                   std::function<void()> call, bool is_message) {
  auto work = c10::make_intrusive<HostWork>(getRank(), type, std::move(state), std::move(outputs), std::move(call),
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
    return host_work_of(c10d::OpType::COALESCED, next_state("c10d::coalesced"), {}, wait_for_all,
                        /*is_message=*/true);
  }
  const c10::DeviceIndex device = calls.device ? calls.device->index() : current_device();
  const MTIAStream ends = stream_of(device, kEnds);
  if (calls.streams.empty()) calls.streams.push_back(MTIAStream::current(device));
  for (const MTIAStream& stream : calls.streams) ends.wait_for(stream);
  auto state = next_state("c10d::coalesced");
  launch(ends, "c10d::coalesced", state, [calls = std::move(calls.states)](WorkState& result) {
    result.begin();
    for (const auto& call : calls) {
      if (const auto error = call->error()) std::rethrow_exception(error);
    }
    result.end();
  });
  return c10::make_intrusive<StreamWork>(getRank(), c10d::OpType::COALESCED, ends, std::move(state), Tensors{});
}

uint64_t StreamBackend::getSequenceNumberForGroup() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return number_;
}

StreamBackend::WorkPtr StreamBackend::noting_failures(const char* name, const std::function<WorkPtr()>& function) {
  try {
    return function();
  } catch (const std::exception& error) {
    failures_->note(c10::str(name, ": ", message_of(error)));
    throw;
  }
}

StreamBackend::WorkPtr StreamBackend::collective(c10d::OpType type, const char* name, std::chrono::milliseconds timeout,
                                                 const std::function<void(Collective&)>& describe,
                                                 std::optional<c10::Device> device) {
  return noting_failures(name, [&]() -> WorkPtr {
    Collective call(getRank(), getSize());
    describe(call);
    if (!device) device = call.device();
    check_coalesced(*device);
    if (device->is_cpu()) {
      check_process();
      const auto run = [channel = host_, other = device_, steps = std::move(call.steps), timeout] {
        const auto lock = channel->lock();
        channel->run(steps, timeout, *other);
      };
      return host_work_of(type, next_state(name, call.arguments), std::move(call.results), run,
                          /*is_message=*/false);
    }
    const MTIAStream stream = stream_of(device->index(), kCollectives);
    for (const Argument& each : call.arguments) each.tensor.record_stream(stream.unwrap());
    const core::WithoutGil without_gil;  // who has the lock may want the GIL
    const std::lock_guard<std::mutex> lock(order_mutex_);
    stream.wait_for(MTIAStream::current(device->index()));
    follow(last_collective_, stream);
    wait_for_the_one_captured_before(stream);
    auto state = next_state(name, call.arguments);
    call.host.copy_in(stream);
    auto run = [channel = device_, other = host_, steps = std::move(call.steps), timeout](WorkState& result) {
      const auto lock = channel->lock();
      result.begin();
      channel->run(steps, timeout, *other);
      result.end();
    };
    launch(stream, name, state, std::move(run), CollectiveOperands(call.arguments));
    call.host.copy_out(stream);
    return work_of(type, stream, std::move(state), std::move(call.results));
  });
}

StreamBackend::WorkPtr StreamBackend::message(c10d::OpType type, const char* name, const Tensors& tensors, int peer,
                                              int tag) {
  return noting_failures(name, [&]() -> WorkPtr {
    const bool sends = type == c10d::OpType::SEND;
    if (type != c10d::OpType::RECVANYSOURCE) {
      TORCH_CHECK_VALUE(peer >= 0 && peer < getSize(), "expected the ", sends ? "destination" : "source",
                        " to be a rank of the group, below ", getSize(), ", got ", peer);
    }
    Collective call(getRank(), getSize());
    const Tensors memory = call.used(tensors, /*is_written=*/!sends);
    const c10::Device device = call.device();
    check_coalesced(device);

    struct Posted {
      Dense memory;
      std::shared_ptr<collectives::Message> message;
    };
    const auto channel = device.is_cpu() ? host_ : device_;
    const auto post = [channel, memory, sends, peer, tag] {
      Dense dense(memory);
      if (sends) dense.read();
      const collectives::Output bytes = dense.parts().at(0);
      auto message = sends ? channel->engine().send({bytes.data, bytes.num_bytes}, peer, tag)
                           : channel->engine().receive(bytes, peer, tag);
      return Posted{std::move(dense), std::move(message)};
    };
    const auto wait = [channel, type](const Posted& posted, WorkState& result) {
      const int source = posted.message->wait(channel->timeout);
      if (type == c10d::OpType::RECVANYSOURCE) result.source_rank = source;
      if (type != c10d::OpType::SEND) posted.memory.write();
    };
    if (device.is_cpu()) {
      check_process();
      auto state = next_state(name, call.arguments);
      return host_work_of(
          type, state, sends ? Tensors{} : tensors,
          [wait, posted = std::make_shared<Posted>(post()), state] { wait(*posted, *state); },
          /*is_message=*/true);
    }
    const MTIAStream posts = stream_of(device.index(), kPosts), arrivals = stream_of(device.index(), kArrivals);
    for (const at::Tensor& tensor : tensors) tensor.record_stream(arrivals.unwrap());
    const core::WithoutGil without_gil;  // who has the lock may want the GIL
    const std::lock_guard<std::mutex> lock(order_mutex_);
    posts.wait_for(MTIAStream::current(device.index()));
    follow(last_post_, posts);
    auto state = next_state(name, call.arguments);
    auto posted = std::make_shared<std::optional<Posted>>();
    call.host.copy_in(posts);
    launch(posts, name, state, [post, posted](WorkState& result) {
      result.begin();
      posted->reset();
      posted->emplace(post());
    });
    arrivals.wait_for(posts);
    const auto arrive = [wait, posted](WorkState& result) {
      if (!*posted) return;  // the other item has said why
      wait(**posted, result);
      posted->reset();
      result.end();
    };
    launch(arrivals, name, state, arrive, CollectiveOperands(call.arguments));
    call.host.copy_out(arrivals);
    return work_of(type, arrivals, std::move(state), sends ? Tensors{} : tensors);
  });
}

StreamBackend::WorkPtr StreamBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  if (tensors.size() == 1 && tensors[0].layout() == at::kSparse) return allreduce_sparse_coo(tensors[0], options);
  return collective(c10d::OpType::ALLREDUCE, "c10d::allreduce", options.timeout, [&](Collective& call) {
    call.set_operation(options.reduceOp, tensors);
    for (const at::Tensor& tensor : tensors) call.all_reduce(tensor);
  });
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
        c10d::OpType::_ALLREDUCE_SPARSE, next_state("c10d::allreduce_sparse"), {tensor}, [] {},
        /*is_message=*/false);
  }
  return work_of(c10d::OpType::_ALLREDUCE_SPARSE, MTIAStream::current(tensor.get_device()),
                 next_state("c10d::allreduce_sparse"), {tensor});
}

StreamBackend::WorkPtr StreamBackend::barrier(const c10d::BarrierOptions& options) {
  constexpr const char* kName = "c10d::barrier";
  return noting_failures(kName, [&] {
    c10::DeviceIndex device = current_device();
    if (options.device) device = index_or_current(options.device->index());
    if (!options.device_ids.empty()) device = index_or_current(to_device_index(options.device_ids[0]));
    if (!options.asyncOp) {
      MTIAGraph::refuse(MTIAStream::current(device), "torch.distributed.barrier()",
                        "it blocks the host. Call it before the capture, or with async_op=True");
    }
    return collective(
        c10d::OpType::BARRIER, kName, options.timeout, [](Collective& call) { call.barrier(); },
        c10::Device(device_type(), device));
  });
}

void StreamBackend::abort() {
  device_->abort("aborted");
  host_->abort("aborted");
}

void StreamBackend::shutdown() {
  if (getpid() != process_id_) return abort();  // a forked child, which has no streams
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
                       [&](const auto& state) { return state->has_run_for(kPatience); });
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
