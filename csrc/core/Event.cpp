#include "Event.h"

#include <utility>

#include "BlockingWait.h"
#include "Observer.h"
#include "Stream.h"

namespace torch_mtia::core {
namespace {

void tell_wait(const Event& event) {
  if (Observer* told = current_observer()) [[unlikely]]
    told->host_waited(event);
}

}  // namespace

Event::Event(bool enable_timing) {
  runtime::call(&mtia_runtime_api::event_create, enable_timing ? 1 : 0, &handle_);
}

Event::~Event() {
  if (handle_ == nullptr) return;
  if (Observer* told = current_observer()) [[unlikely]]
    told->destroys(*this);
  runtime::driver().event_destroy(handle_);
}

Event::Event(Event&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}

Event& Event::operator=(Event&& other) noexcept {
  std::swap(handle_, other.handle_);
  return *this;
}

void Event::record(Stream& stream) {
  if (Observer* told = current_observer()) [[unlikely]]
    told->records(*this, stream);
  runtime::call(&mtia_runtime_api::event_record, handle_, stream.handle());
}

bool Event::query() const {
  const mtia_status status = runtime::driver().event_query(handle_);
  if (status != MTIA_ERROR_NOT_READY) runtime::check(status, &mtia_runtime_api::event_query);
  if (status == MTIA_SUCCESS) tell_wait(*this);
  return status == MTIA_SUCCESS;
}

void Event::synchronize() const {
  if (query()) return;
  const BlockingWait wait(/*takes_time=*/true);
  runtime::call(&mtia_runtime_api::event_synchronize, handle_);
  tell_wait(*this);
}

double Event::elapsed_time(const Event& end) const {
  double milliseconds = 0;
  runtime::call(&mtia_runtime_api::event_elapsed_time, handle_, end.handle(), &milliseconds);
  return milliseconds;
}

}  // namespace torch_mtia::core
