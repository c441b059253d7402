#include "stream.h"

#include <thread>

namespace opencl_driver {
namespace {

thread_local const Stream* runs_work_of = nullptr;

// Whether it is over, well or not.
bool is_complete(const Command& command) {
  cl_int status = CL_COMPLETE;
  check(clGetEventInfo(command.get(), CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof(status), &status, nullptr),
        "clGetEventInfo");
  return status <= CL_COMPLETE;
}

cl_ulong end_of(const Command& command) {
  cl_ulong nanoseconds = 0;
  check(clGetEventProfilingInfo(command.get(), CL_PROFILING_COMMAND_END, sizeof(nanoseconds), &nanoseconds, nullptr),
        "clGetEventProfilingInfo");
  return nanoseconds;
}

}  // namespace

bool Stream::is_inside_of_work() {
  return runs_work_of != nullptr;
}

Command Stream::submit(const std::function<void(cl_command_queue, cl_event*)>& enqueue) {
  Command command;
  if (runs_work_of == this) {  // the stream's own queue waits for the work
    enqueue(device_.own_queue().get(), command.out());
    check(clWaitForEvents(1, command.list()), "clWaitForEvents");
    return command;
  }
  const std::lock_guard lock(mutex_);
  enqueue(queue_.get(), command.out());
  check(clFlush(queue_.get()), "clFlush");  // so that it runs although nobody waits for it
  last_ = command;
  return command;
}

Command Stream::submit_to_host(std::function<void()> body) {
  if (runs_work_of == this) {
    run(body);
    return {};
  }
  const std::lock_guard lock(mutex_);
  if (!has_thread_) {
    std::thread([stream = shared_from_this()] { stream->run_host_work(); }).detach();
    has_thread_ = true;
  }
  cl_int status = CL_SUCCESS;
  Command done(clCreateUserEvent(device_.context().get(), &status));
  check(status, "clCreateUserEvent");
  Command before;
  check(clEnqueueMarkerWithWaitList(queue_.get(), 0, nullptr, before.out()), "clEnqueueMarkerWithWaitList");
  Command after;
  check(clEnqueueBarrierWithWaitList(queue_.get(), 1, done.list(), after.out()), "clEnqueueBarrierWithWaitList");
  host_work_.push_back({std::move(before), std::move(body), std::move(done)});  // somebody has to set `done` now
  changed_.notify_all();
  last_ = after;
  check(clFlush(queue_.get()), "clFlush");
  return after;
}

void Stream::run_host_work() {
  runs_work_of = this;
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return !host_work_.empty() || retired_; });
    if (host_work_.empty()) return;
    HostWork work = std::move(host_work_.front());
    host_work_.pop_front();
    lock.unlock();
    clWaitForEvents(1, work.before.list());  // of a command that failed, the stream says so when it is synchronized
    run(work.body);
    work.body = nullptr;  // who waits for the work finds what it held gone
    clSetUserEventStatus(work.done.get(), CL_COMPLETE);
    lock.lock();
  }
}

void Stream::run(const std::function<void()>& body) {
  std::optional<Failure> failure;
  try {
    body();
    return;
  } catch (const Failure& thrown) {
    failure = thrown;
  } catch (const std::exception& error) {
    failure = Failure(MTIA_ERROR_INTERNAL, error.what());
  }
  const std::lock_guard lock(mutex_);
  if (!failure_) failure_ = failure;
}

Command Stream::mark() {
  return submit([](cl_command_queue queue, cl_event* last) {
    check(clEnqueueMarkerWithWaitList(queue, 0, nullptr, last), "clEnqueueMarkerWithWaitList");
  });
}

void Stream::wait_for(const Command& command) {
  if (runs_work_of == this) {
    clWaitForEvents(1, command.list());
    return;
  }
  submit([&](cl_command_queue queue, cl_event* last) {
    check(clEnqueueBarrierWithWaitList(queue, 1, command.list(), last), "clEnqueueBarrierWithWaitList");
  });
}

bool Stream::is_idle() {
  const std::lock_guard lock(mutex_);
  return !last_ || is_complete(last_);
}

void Stream::synchronize() {
  Command last;
  {
    const std::lock_guard lock(mutex_);
    last = last_;
  }
  const cl_int status = last ? clWaitForEvents(1, last.list()) : CL_SUCCESS;
  std::optional<Failure> failure;
  {
    const std::lock_guard lock(mutex_);
    std::swap(failure, failure_);
    if (status != CL_SUCCESS && last_.get() == last.get()) last_ = {};  // it is reported once
  }
  if (failure) throw *failure;
  check(status, "a command of the stream", MTIA_ERROR_LAUNCH_FAILED);
}

void Stream::retire() {
  const std::lock_guard lock(mutex_);
  retired_ = true;
  changed_.notify_all();
}

Command Event::last() {
  const std::lock_guard lock(mutex_);
  return recorded_;
}

void Event::record(Stream& stream) {
  Command mark = stream.mark();
  const std::lock_guard lock(mutex_);
  recorded_ = std::move(mark);
}

void Event::delay(Stream& stream) {
  if (const Command command = last()) stream.wait_for(command);
}

bool Event::is_complete() {
  const Command command = last();
  return !command || opencl_driver::is_complete(command);
}

void Event::wait() {
  if (const Command command = last()) clWaitForEvents(1, command.list());  // not the place for errors of work
}

double Event::milliseconds_until(Event& end) {
  const Command from = last();
  const Command to = end.last();
  if (!from || !to || !timing_ || !end.timing_) {
    throw Failure(MTIA_ERROR_INVALID_VALUE, "event_elapsed_time: an event was never recorded, or has no timing");
  }
  if (!opencl_driver::is_complete(from) || !opencl_driver::is_complete(to)) {
    throw Failure(MTIA_ERROR_NOT_READY, "event_elapsed_time: an event is not complete");
  }
  return static_cast<double>(static_cast<int64_t>(end_of(to) - end_of(from))) * 1e-6;
}

}  // namespace opencl_driver
