#include "Event.h"

#include <utility>

#include "Graph.h"
#include "Hooks.h"
#include "Stream.h"
#include "Waits.h"

namespace torch_mtia::core {
Event::Event(bool enable_timing) {
  runtime::call(&mtia_runtime_api::event_create, enable_timing ? 1 : 0, &handle_);
}

Event::~Event() {
  if (handle_ == nullptr) return;
  if (Observer* observer = current_observer()) [[unlikely]]
    observer->destroys(*this);
  runtime::driver().event_destroy(handle_);
}

Event::Event(Event&& other) noexcept
    : handle_(std::exchange(other.handle_, nullptr)), capture_id_(other.capture_id_.load()) {}

Event& Event::operator=(Event&& other) noexcept {
  std::swap(handle_, other.handle_);
  capture_id_ = other.capture_id_.exchange(capture_id_);
  return *this;
}

void Event::record(Stream& stream) {
  if (Observer* observer = current_observer()) [[unlikely]]
    observer->records(*this, stream);
  runtime::call(&mtia_runtime_api::event_record, handle_, stream.handle());
  const Graph* graph = stream.graph();
  capture_id_ = graph != nullptr ? graph->capture_id() : 0;
}

template <typename Function>
void Event::check(mtia_status status, Function function, const Event& end) const {
  if (status == MTIA_SUCCESS) return;
  const auto error = runtime::last_error(status, function);
  if (status == MTIA_ERROR_NOT_SUPPORTED) {
    for (const Event* event : {this, &end}) Graph::invalidate_capture(event->capture_id_, error.what());
  }
  throw error;
}

bool Event::query() const {
  const mtia_status status = runtime::driver().event_query(handle_);
  if (status != MTIA_ERROR_NOT_READY) check(status, &mtia_runtime_api::event_query, *this);
  return status == MTIA_SUCCESS;
}

void Event::synchronize() const {
  if (query()) return;
  const BlockingWait wait(/*takes_time=*/true);
  runtime::call(&mtia_runtime_api::event_synchronize, handle_);
}

double Event::elapsed_time(const Event& end) const {
  double milliseconds = 0;
  const mtia_status status = runtime::driver().event_elapsed_time(handle_, end.handle(), &milliseconds);
  check(status, &mtia_runtime_api::event_elapsed_time, end);
  return milliseconds;
}

}  // namespace torch_mtia::core
