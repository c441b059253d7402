// Streams and events. Work of a stream runs in order on a thread of the stream's own, in the process that uses the
// device; what the device has to do is a request to the device's process, whose reply the thread waits for.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "device_process.h"
#include "failure.h"

namespace vendor {

class Capture;
class Stream;

// Something that a stream runs, any number of times. `run` throws Failure.
struct Item {
  std::string name;
  std::function<void(Stream&)> run;
  uint64_t cost = 0;
  bool capturable = true;
};

// Nodes that what comes next in a stream depends on, ascending.
using Tail = std::vector<uint32_t>;

// What an event stands for: a point in a stream's work or, if `capture` is set, in a graph.
struct Record {
  std::mutex mutex;
  std::condition_variable done;
  bool is_done = false;
  std::chrono::steady_clock::time_point time;
  std::shared_ptr<Capture> capture;
  Tail tail;

  void finish();
  void wait();
  bool query();
};

// Thread safe.
class Stream : public std::enable_shared_from_this<Stream> {
 public:
  Stream(std::vector<std::unique_ptr<DeviceProcess>>& devices, int32_t device, void* tag, bool blocking)
      : devices_(devices), device_(device), tag_(tag), blocking_(blocking) {}

  int32_t device() const { return device_; }
  void* tag() const { return tag_; }

  // Queues the item, or records it if the stream is being captured. With launch blocking, and not from inside of
  // another stream's item, waits for it. Throws Failure, also that of an item it has waited for, which synchronize
  // throws, too.
  void submit(Item item);
  bool is_idle();
  // Throws the first failure since the last call.
  void synchronize();
  // The stream's work may run on when the handle is gone.
  void retire();

  std::shared_ptr<Capture> capture();
  void set_capture(std::shared_ptr<Capture> capture);

  // For the stream's thread: a socket to a device.
  Link& link(int32_t device);

 private:
  void run_items();
  void run(const Item& item);

  std::vector<std::unique_ptr<DeviceProcess>>& devices_;
  const int32_t device_;
  void* const tag_;
  const bool blocking_;
  std::map<int32_t, std::unique_ptr<Link>> links_;  // the thread's

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Item> items_;
  uint64_t submitted_ = 0;
  uint64_t finished_ = 0;
  bool retired_ = false;
  std::thread::id thread_;
  std::optional<Failure> failure_;
  std::shared_ptr<Capture> capture_;
};

class Event {
 public:
  explicit Event(bool timing) : timing_(timing) {}

  void record(Stream& stream);
  void delay(Stream& stream);
  bool is_complete();
  void wait();
  double milliseconds_until(Event& end);

 private:
  std::shared_ptr<Record> last();
  std::shared_ptr<Record> last_in_time(const char* function);

  const bool timing_;
  std::mutex mutex_;
  std::shared_ptr<Record> record_;  // null: it was never recorded
};

}  // namespace vendor
