#include "event.h"

#include "error.h"
#include "work.h"

namespace torch_mtia::runtime::host {

void Record::complete() noexcept {
  time_ns_ = now_ns();
  const std::lock_guard lock(mutex_);
  complete_.store(true, std::memory_order_release);
  completed_.wake_all();
}

void Record::wait() noexcept {
  if (is_complete() || stream_.runs_on_this_thread()) return;
  stream_.expedite();
  std::unique_lock lock(mutex_);
  while (!is_complete()) completed_.wait(lock);
}

void Event::record(Stream& stream) {
  Last now;
  now.exists = true;
  if (stream.runs_on_this_thread()) {
    now.time_ns = timing_ ? now_ns() : 0;
  } else if (auto capture = stream.capture()) {
    now.tail = capture->tail(stream);
    now.capture = std::move(capture);
  } else if (stream.is_idle()) {
    now.time_ns = timing_ ? now_ns() : 0;
  } else {
    now.pending = std::make_shared<Record>(stream);
  }
  const std::lock_guard lock(mutex_);
  if (now.pending != nullptr) {
    OwnWork marker{[record = now.pending](const mtia_work_context&) noexcept { record->complete(); }};
    stream.enqueue(marker.describe("mtia::event_record", 0, 0, 1));
  }
  last_ = std::move(now);
}

Event::Last Event::last() const {
  const std::lock_guard lock(mutex_);
  return last_;
}

Event::Last Event::last_outside_captures(const char* function) const {
  Last last = this->last();
  if (last.capture != nullptr) {
    throw Failure(MTIA_ERROR_NOT_SUPPORTED, std::string(function) +
                                                ": the event was last recorded while a graph was captured, and stands "
                                                "for a point in that graph; record it again first");
  }
  return last;
}

bool Event::is_complete() const {
  const Last last = last_outside_captures("event_query");
  return last.pending == nullptr || last.pending->is_complete();
}

void Event::wait() const {
  if (const auto record = last_outside_captures("event_synchronize").pending) record->wait();
}

void Event::delay(Stream& stream) const {
  const Last last = this->last();
  if (last.capture != nullptr) return last.capture->join(stream, last.tail);
  if (last.exists && stream.is_captured() && !stream.runs_on_this_thread()) {
    throw Failure(MTIA_ERROR_NOT_SUPPORTED,
                  "stream_wait_event: a stream that is being captured cannot wait for an event recorded outside the "
                  "capture; let the other stream join first, by waiting for this one");
  }
  const std::shared_ptr<Record>& record = last.pending;
  // Behind a record of its own, a stream is in order anyway.
  if (record == nullptr || record->is_complete() || &record->stream() == &stream) return;
  // Inside an item of the stream, what is submitted next runs at once, so the wait is due now.
  if (stream.runs_on_this_thread()) return record->wait();
  OwnWork wait{[record](const mtia_work_context&) noexcept { record->wait(); }};
  stream.enqueue(wait.describe("mtia::stream_wait_event", 0, 0, 1));
}

int64_t Event::completion_time() const {
  const Last last = last_outside_captures("event_elapsed_time");
  if (!timing_) throw Failure(MTIA_ERROR_INVALID_VALUE, "event_elapsed_time: an event was created without timing");
  if (!last.exists) throw Failure(MTIA_ERROR_INVALID_VALUE, "event_elapsed_time: an event was never recorded");
  if (last.pending == nullptr) return last.time_ns;
  if (!last.pending->is_complete()) {
    throw Failure(MTIA_ERROR_NOT_READY, "event_elapsed_time: an event is not complete; synchronize it first");
  }
  return last.pending->time_ns();
}

double Event::milliseconds_until(const Event& end) const {
  const int64_t begin_ns = completion_time();
  return static_cast<double>(end.completion_time() - begin_ns) * 1e-6;
}

}  // namespace torch_mtia::runtime::host
