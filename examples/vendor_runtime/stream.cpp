#include "stream.h"

#include "graph.h"

namespace vendor {
namespace {

[[noreturn]] void refuse(mtia_status status, const std::string& message) {
  throw Failure(status, message);
}

thread_local bool runs_items_here = false;

constexpr const char* kCaptured = ": not while it stands for a point in a graph";

}  // namespace

void Record::finish() {
  const std::lock_guard lock(mutex);
  time = std::chrono::steady_clock::now();
  is_done = true;
  done.notify_all();
}

void Record::wait() {
  std::unique_lock lock(mutex);
  done.wait(lock, [this] { return is_done; });
}

bool Record::query() {
  const std::lock_guard lock(mutex);
  return is_done;
}

void Stream::submit(Item item) {
  devices_[static_cast<size_t>(device_)]->check_alive();
  const bool blocks = blocking_ && !runs_items_here;
  std::unique_lock lock(mutex_);
  if (const auto capture = capture_) {
    lock.unlock();
    capture->add(*this, std::move(item));
    return;
  }
  if (thread_ == std::this_thread::get_id()) {  // from inside an item of this stream
    lock.unlock();
    item.run(*this);
    return;
  }
  if (thread_ == std::thread::id()) {
    std::thread thread(&Stream::run_items, shared_from_this());
    thread_ = thread.get_id();
    thread.detach();
  }
  std::optional<Failure> failure;
  if (blocks) {
    item.run = [&failure, run = std::move(item.run)](Stream& stream) {
      try {
        run(stream);
      } catch (const Failure& thrown) {
        failure = thrown;
        throw;
      }
    };
  }
  items_.push_back(std::move(item));
  const uint64_t number = ++submitted_;
  changed_.notify_all();
  if (!blocks) return;
  changed_.wait(lock, [&] { return finished_ >= number; });
  if (failure) throw *failure;
}

void Stream::run_items() {
  runs_items_here = true;
  const std::shared_ptr<Stream> alive = shared_from_this();
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return !items_.empty() || retired_; });
    if (items_.empty()) return;
    {
      const Item item = std::move(items_.front());
      items_.pop_front();
      lock.unlock();
      run(item);
    }
    lock.lock();
    ++finished_;
    changed_.notify_all();
  }
}

void Stream::run(const Item& item) {
  std::optional<Failure> failure;
  try {
    item.run(*this);
  } catch (const Failure& thrown) {
    failure = thrown;
  } catch (const std::exception& error) {
    failure = Failure(MTIA_ERROR_INTERNAL, error.what());
  }
  const std::lock_guard lock(mutex_);
  if (failure && !failure_) failure_ = failure;
}

bool Stream::is_idle() {
  devices_[static_cast<size_t>(device_)]->check_alive();
  const std::lock_guard lock(mutex_);
  if (capture_ != nullptr) refuse(MTIA_ERROR_NOT_SUPPORTED, "stream_query: the stream is being captured");
  return finished_ == submitted_;
}

void Stream::synchronize() {
  std::optional<Failure> failure;
  {
    std::unique_lock lock(mutex_);
    if (capture_ != nullptr) refuse(MTIA_ERROR_NOT_SUPPORTED, "stream_synchronize: the stream is being captured");
    const uint64_t number = submitted_;
    changed_.wait(lock, [&] { return finished_ >= number; });
    std::swap(failure, failure_);
  }
  if (failure) throw *failure;
  devices_[static_cast<size_t>(device_)]->check_alive();
}

void Stream::retire() {
  const std::lock_guard lock(mutex_);
  retired_ = true;
  changed_.notify_all();
}

std::shared_ptr<Capture> Stream::capture() {
  const std::lock_guard lock(mutex_);
  return capture_;
}

void Stream::set_capture(std::shared_ptr<Capture> capture) {
  const std::lock_guard lock(mutex_);
  capture_ = std::move(capture);
}

Link& Stream::link(int32_t device) {
  auto& link = links_[device];
  if (link == nullptr) link.reset(devices_[static_cast<size_t>(device)]->connect());
  return *link;
}

std::shared_ptr<Record> Event::last() {
  const std::lock_guard lock(mutex_);
  return record_;
}

std::shared_ptr<Record> Event::last_in_time(const char* function) {
  auto record = last();
  if (record != nullptr && record->capture != nullptr) {
    refuse(MTIA_ERROR_NOT_SUPPORTED, std::string(function) + kCaptured);
  }
  return record;
}

void Event::record(Stream& stream) {
  auto record = std::make_shared<Record>();
  if (const auto capture = stream.capture()) {
    record->capture = capture;
    record->tail = capture->tail(stream);
  } else {
    // Of an event, the device's loss must not keep waiters waiting: the item does not fail.
    stream.submit({"event_record", [record](Stream&) { record->finish(); }});
  }
  const std::lock_guard lock(mutex_);
  record_ = record;
}

void Event::delay(Stream& stream) {
  const auto record = last();
  if (record == nullptr) return;
  if (record->capture != nullptr) return record->capture->join(stream, record->tail);
  if (stream.capture() != nullptr) {
    refuse(MTIA_ERROR_NOT_SUPPORTED, "stream_wait_event: the event was recorded outside the capture");
  }
  stream.submit({"stream_wait_event", [record](Stream&) { record->wait(); }});
}

bool Event::is_complete() {
  const auto record = last_in_time("event_query");
  return record == nullptr || record->query();
}

void Event::wait() {
  if (const auto record = last_in_time("event_synchronize")) record->wait();
}

double Event::milliseconds_until(Event& end) {
  const auto from = last_in_time("event_elapsed_time");
  const auto to = end.last_in_time("event_elapsed_time");
  if (from == nullptr || to == nullptr || !timing_ || !end.timing_) {
    refuse(MTIA_ERROR_INVALID_VALUE, "event_elapsed_time: an event was never recorded, or has no timing");
  }
  if (!from->query() || !to->query()) refuse(MTIA_ERROR_NOT_READY, "event_elapsed_time: an event is not complete");
  return std::chrono::duration<double, std::milli>(to->time - from->time).count();
}

}  // namespace vendor
