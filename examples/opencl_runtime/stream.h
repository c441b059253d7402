// Streams and events. A stream is a queue of OpenCL, in order. Work that runs on the host, of which OpenCL knows
// nothing, has its place in that order between two commands: a marker, for which a thread of the stream's waits before
// it runs the work, and a barrier that waits for an event which the thread sets when the work is done.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "device.h"

namespace opencl_driver {

// Thread safe.
class Stream : public std::enable_shared_from_this<Stream> {
 public:
  Stream(Device& device, void* tag) : device_(device), tag_(tag), queue_(device.new_queue()) {}

  Device& device() const { return device_; }
  void* tag() const { return tag_; }

  // Enqueues what `enqueue` does into the queue it gets, one command or several, and returns the last of them, which it
  // is to ask for. From inside of the stream's own work, returns when they are done. Throws Failure.
  Command submit(const std::function<void(cl_command_queue queue, cl_event* last)>& enqueue);
  // Runs `body` in the stream's order, on a thread of the stream's. What it throws, the stream reports. From inside of
  // the stream's own work, runs it at once. Throws Failure.
  Command submit_to_host(std::function<void()> body);
  // Commands that only order others. Throw Failure.
  Command mark();
  void wait_for(const Command& command);

  bool is_idle();
  // Throws the first failure since the last call.
  void synchronize();
  // The stream's work may run on when the handle is gone.
  void retire();

  // Whether the calling thread is inside of some stream's work.
  static bool is_inside_of_work();

 private:
  struct HostWork {
    Command before;
    std::function<void()> body;
    Command done;  // an event of the user's, as OpenCL calls it
  };
  void run_host_work();
  void run(const std::function<void()>& body);

  Device& device_;
  void* const tag_;
  const Queue queue_;

  std::mutex mutex_;
  Command last_;  // of all that was submitted
  std::optional<Failure> failure_;
  std::condition_variable changed_;
  std::deque<HostWork> host_work_;
  bool has_thread_ = false;
  bool retired_ = false;
};

// Thread safe.
class Event {
 public:
  explicit Event(bool timing) : timing_(timing) {}

  void record(Stream& stream);
  void delay(Stream& stream);
  bool is_complete();
  void wait();
  double milliseconds_until(Event& end);

 private:
  Command last();

  const bool timing_;
  std::mutex mutex_;
  Command recorded_;  // none: it was never recorded
};

}  // namespace opencl_driver
