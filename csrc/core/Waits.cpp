#include "Waits.h"

#include <condition_variable>
#include <mutex>
#include <utility>

#include "../runtime/forks.h"
#include "../runtime/loader.h"
#include "Event.h"
#include "Hooks.h"
#include "Stream.h"

namespace torch_mtia::core {

constinit thread_local const RunningWork* RunningWork::innermost = nullptr;

namespace {

// All that there are, in a list: few threads wait at a time. Leaked: items run until the process ends.
struct Waiting {
  Waiting() { runtime::hold_at_forks(runtime::ForkOrder::kTable, mutex); }

  std::mutex mutex;  // also of each Awaited
  std::condition_variable changed;
  uint64_t last_ticket = 0;
  Awaited* first = nullptr;
};

Waiting& waiting() {
  static auto* const instance = new Waiting();
  return *instance;
}

}  // namespace

Awaited::Awaited() {
  Waiting& all = waiting();
  const std::lock_guard lock(all.mutex);
  ticket_ = ++all.last_ticket;
  next_ = std::exchange(all.first, this);
  if (next_ != nullptr) next_->previous_ = this;
}

Awaited::~Awaited() {
  while (!leave()) {
    const BlockingWait without_locks(/*takes_time=*/false);
    std::unique_lock lock(waiting().mutex);
    waiting().changed.wait(lock, [this] { return users_ == 0; });
  }
}

bool Awaited::leave() {
  Waiting& all = waiting();
  const std::lock_guard lock(all.mutex);
  if (users_ != 0) return false;
  (previous_ != nullptr ? previous_->next_ : all.first) = next_;
  if (next_ != nullptr) next_->previous_ = previous_;
  return true;
}

bool Awaited::is_done() {
  const std::lock_guard lock(waiting().mutex);
  return is_done_;
}

void Awaited::wait(Stream& stream) {
  if (!is_done() && !stream.wait_unless_captured()) {
    // The item was queued before the capture began, and runs.
    const BlockingWait without_locks(/*takes_time=*/true);
    std::unique_lock lock(waiting().mutex);
    waiting().changed.wait(lock, [this] { return is_done_; });
  }
  if (!is_done()) {
    runtime::reject(&mtia_runtime_api::stream_synchronize, "returned before the stream had done what it was given");
  }
  program_has_waited(stream);  // also where the item was done before anybody waited: timing must not matter
  raise_error();
}

void Awaited::raise_error() {
  std::exception_ptr error;
  {
    const std::lock_guard lock(waiting().mutex);
    error = std::exchange(error_, nullptr);
  }
  if (error != nullptr) std::rethrow_exception(error);
}

bool Awaited::give(uint64_t ticket, const std::exception_ptr& error) noexcept {
  Run run(ticket);
  if (run) run.fail(error);
  return static_cast<bool>(run);
}

Awaited::Run::Run(uint64_t ticket) noexcept
    : awaited_([ticket] {
        Waiting& all = waiting();
        const std::lock_guard lock(all.mutex);
        Awaited* found = all.first;
        while (found != nullptr && found->ticket_ != ticket) found = found->next_;
        if (found != nullptr) ++found->users_;
        return found;
      }()) {}

Awaited::Run::~Run() {
  if (awaited_ == nullptr) return;
  Waiting& all = waiting();
  const std::lock_guard lock(all.mutex);
  if (--awaited_->users_ == 0) all.changed.notify_all();
}

void Awaited::Run::fail(std::exception_ptr error) noexcept {
  const std::lock_guard lock(waiting().mutex);
  awaited_->error_ = std::move(error);
}

void Awaited::Run::finish() noexcept {
  Waiting& all = waiting();
  const std::lock_guard lock(all.mutex);
  awaited_->is_done_ = true;
  all.changed.notify_all();
}

void program_has_waited(const Stream& stream) {
  if (Observer* observer = current_observer()) [[unlikely]]
    observer->host_waited(stream);
}
void program_has_waited(const Event& event) {
  if (Observer* observer = current_observer()) [[unlikely]]
    observer->host_waited(event);
}

bool program_queries(const Stream& stream) {
  const bool is_idle = stream.query();
  if (is_idle) program_has_waited(stream);
  return is_idle;
}
bool program_queries(const Event& event) {
  const bool is_complete = event.query();
  if (is_complete) program_has_waited(event);
  return is_complete;
}

void program_waits_for(Stream& stream) {
  stream.wait_until_idle();
  program_has_waited(stream);
}
void program_waits_for(const Event& event) {
  event.synchronize();
  program_has_waited(event);
}

}  // namespace torch_mtia::core
