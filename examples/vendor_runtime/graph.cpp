#include "graph.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <iterator>
#include <utility>

namespace vendor {
namespace {

uint64_t next_id() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

}  // namespace

Capture::Capture(Stream& origin) : id_(next_id()), origin_(origin), tails_{{&origin, {}}} {}

void Capture::begin(Stream& origin) {
  if (origin.capture() != nullptr) {
    throw Failure(MTIA_ERROR_INVALID_VALUE, "stream_begin_capture: the stream is being captured already");
  }
  origin.set_capture(std::shared_ptr<Capture>(new Capture(origin)));
}

std::shared_ptr<Graph> Capture::end(Stream& origin) {
  const auto capture = origin.capture();
  if (capture == nullptr || &capture->origin_ != &origin) {
    throw Failure(MTIA_ERROR_INVALID_VALUE, "stream_end_capture: no capture began with this stream");
  }
  const std::lock_guard lock(capture->mutex_);
  for (const auto& [stream, tail] : capture->tails_) stream->set_capture(nullptr);
  return std::exchange(capture->graph_, nullptr);
}

void Capture::add(Stream& stream, Item item) {
  if (!item.capturable) throw Failure(MTIA_ERROR_NOT_SUPPORTED, item.name + " cannot be captured in a graph");
  const std::lock_guard lock(mutex_);
  if (graph_ == nullptr) throw Failure(MTIA_ERROR_INVALID_VALUE, "the capture ended while work was submitted");
  Tail& tail = tails_[&stream];
  graph_->nodes.push_back({std::move(item), stream.device(), stream.tag(), tail});
  tail = {static_cast<uint32_t>(graph_->nodes.size() - 1)};
}

Tail Capture::tail(Stream& stream) {
  const std::lock_guard lock(mutex_);
  return tails_[&stream];
}

void Capture::join(Stream& stream, const Tail& tail) {
  const auto other = stream.capture();
  if (other != nullptr && other.get() != this) {
    throw Failure(MTIA_ERROR_INVALID_VALUE, "stream_wait_event: stream and event are parts of different captures");
  }
  const std::lock_guard lock(mutex_);
  if (graph_ == nullptr) {
    throw Failure(MTIA_ERROR_INVALID_VALUE, "stream_wait_event: the event was recorded in a capture that has ended");
  }
  if (other == nullptr) stream.set_capture(shared_from_this());
  Tail both;
  Tail& own = tails_[&stream];
  std::set_union(own.begin(), own.end(), tail.begin(), tail.end(), std::back_inserter(both));
  own = std::move(both);
}

void GraphExec::launch(Stream& stream, const mtia_graph_parameters* parameters) {
  if (stream.capture() != nullptr) {
    throw Failure(MTIA_ERROR_NOT_SUPPORTED, "graph_launch: a graph cannot contain the launch of another one");
  }
  void* to = nullptr;
  std::vector<char> bytes;
  if (parameters != nullptr && parameters->size != 0) {
    if (parameters->to == nullptr || parameters->from == nullptr) {
      throw Failure(MTIA_ERROR_INVALID_VALUE, "graph_launch: an address of the parameters is null");
    }
    const char* from = static_cast<const char*>(parameters->from);
    to = parameters->to;
    bytes.assign(from, from + parameters->size);
  }
  {
    const std::lock_guard lock(mutex_);
    ++launches_;
  }
  // Finishes the launch when the item is gone, whether it ran or could not be submitted.
  const std::shared_ptr<void> launch(nullptr, [exec = shared_from_this()](void*) {
    const std::lock_guard lock(exec->mutex_);
    --exec->launches_;
    exec->changed_.notify_all();
  });
  stream.submit({"graph_launch", [exec = shared_from_this(), launch, to, bytes = std::move(bytes)](Stream& runs_in) {
                   const std::lock_guard one_at_a_time(exec->running_);
                   if (!bytes.empty()) std::memcpy(to, bytes.data(), bytes.size());
                   for (const Node& node : exec->graph_->nodes) node.item.run(runs_in);
                 }});
}

void GraphExec::wait_for_launches() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return launches_ == 0; });
}

}  // namespace vendor
