#include "capture.h"

#include <algorithm>
#include <atomic>
#include <iterator>
#include <string>
#include <utility>

#include "device.h"
#include "error.h"
#include "stream.h"

namespace torch_mtia::runtime::host {
namespace {

uint64_t next_id() {
  static constinit std::atomic<uint64_t> last{0};
  return ++last;
}

std::string describe(const Stream& stream) {
  return "stream " + std::to_string(stream.index()) + " of device " + std::to_string(stream.device().index());
}

}  // namespace

Capture::Capture(Stream& origin) : id_(next_id()), origin_(origin), tails_{{&origin, {}}} {}

void Capture::begin(Stream& origin) {
  std::shared_ptr<Capture> capture(new Capture(origin));
  const std::lock_guard lock(capture->mutex_);
  if (origin.begin_capture(capture) != capture) {
    throw Failure(MTIA_ERROR_INVALID_VALUE, "stream_begin_capture: " + describe(origin) + " is being captured already");
  }
}

std::shared_ptr<Graph> Capture::end(Stream& origin) {
  const std::shared_ptr<Capture> capture = origin.capture();
  std::unique_lock<std::mutex> lock;
  if (capture != nullptr) lock = std::unique_lock(capture->mutex_);
  // It may have ended since the stream was asked.
  if (capture == nullptr || &capture->origin_ != &origin || capture->graph_ == nullptr) {
    throw Failure(MTIA_ERROR_INVALID_VALUE, "stream_end_capture: no capture began with " + describe(origin));
  }
  for (const auto& [stream, tail] : capture->tails_) stream->end_capture();
  capture->tails_.clear();
  capture->graph_->seal();
  return std::exchange(capture->graph_, nullptr);
}

mtia_status Capture::record(Stream& stream, const mtia_work& work) {
  if ((work.flags & MTIA_WORK_CAPTURABLE) == 0) {
    throw Failure(MTIA_ERROR_NOT_SUPPORTED,
                  std::string(work.name != nullptr ? work.name : "the work") + " cannot be captured in a graph");
  }
  const std::lock_guard lock(mutex_);
  const auto found = tails_.find(&stream);
  if (found == tails_.end()) {
    throw Failure(MTIA_ERROR_INVALID_VALUE, "the capture of " + describe(stream) + " ended while work was submitted");
  }
  const uint32_t node = graph_->add(work, stream, found->second);
  found->second.assign(1, node);
  return MTIA_SUCCESS;
}

Tail Capture::tail(Stream& stream) {
  const std::lock_guard lock(mutex_);
  const auto found = tails_.find(&stream);
  return found == tails_.end() ? Tail{} : found->second;
}

void Capture::join(Stream& stream, const Tail& tail) {
  const std::lock_guard lock(mutex_);
  if (graph_ == nullptr) {
    throw Failure(MTIA_ERROR_INVALID_VALUE,
                  "stream_wait_event: the event was last recorded in a capture that has ended; record it again");
  }
  const bool is_new = tails_.try_emplace(&stream).second;
  if (stream.begin_capture(shared_from_this()).get() != this) {
    if (is_new) tails_.erase(&stream);
    throw Failure(MTIA_ERROR_INVALID_VALUE,
                  "stream_wait_event: " + describe(stream) + " and the event are parts of different captures");
  }
  Tail& own = tails_[&stream];
  Tail both;
  std::set_union(own.begin(), own.end(), tail.begin(), tail.end(), std::back_inserter(both));
  // A node of the stream itself comes after all earlier ones, so one of them is enough.
  uint32_t latest = 0;
  bool has_own = false;
  for (const uint32_t node : both) {
    if (graph_->node(node).stream == &stream) {
      latest = node;
      has_own = true;
    }
  }
  own.clear();
  for (const uint32_t node : both) {
    if (!has_own || graph_->node(node).stream != &stream || node == latest) own.push_back(node);
  }
}

}  // namespace torch_mtia::runtime::host
