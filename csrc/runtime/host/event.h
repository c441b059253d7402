// Events of the software device.
//
// Note [Records]
// Each record of an event on a busy stream is an object of its own, shared by the event, the marker in the stream's
// queue and everybody who waits for it. Recording again gives the event another one. So who waits, waits for the record
// that was the last when he asked, in whichever order records on different streams complete, and an event may be
// destroyed at any time. On an idle stream a record is complete at once and needs no object. In a capture a record is a
// point in the graph.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

#include "../mtia_runtime.h"
#include "executor.h"
#include "graph.h"
#include "stream.h"

namespace torch_mtia::runtime::host {

class Record {
 public:
  explicit Record(Stream& stream) : stream_(stream) {}

  void complete() noexcept;  // called once, when the stream gets there
  bool is_complete() const noexcept { return complete_.load(std::memory_order_acquire); }
  void wait() noexcept;  // blocks, but for a thread that is inside an item of the record's stream
  const Stream& stream() const { return stream_; }
  int64_t time_ns() const { return time_ns_; }  // valid once complete

 private:
  Stream& stream_;
  std::atomic<bool> complete_{false};
  int64_t time_ns_ = 0;
  std::mutex mutex_;
  WaitQueue completed_;
};

// Thread safe.
class Event {
 public:
  explicit Event(bool timing) : timing_(timing) {}

  void record(Stream& stream);
  // These throw Failure as the functions of the driver say.
  bool is_complete() const;
  void wait() const;                 // blocks the calling thread
  void delay(Stream& stream) const;  // makes later work of the stream wait
  double milliseconds_until(const Event& end) const;

 private:
  // The last record. Complete without an object: at `time_ns`.
  struct Last {
    bool exists = false;
    int64_t time_ns = 0;
    std::shared_ptr<Record> pending;
    std::shared_ptr<Capture> capture;  // in which it stands for `tail`; null: in none
    Tail tail;
  };
  Last last() const;
  Last last_outside_captures(const char* function) const;
  int64_t completion_time() const;

  const bool timing_;
  mutable std::mutex mutex_;
  Last last_;
};

inline Event* event_of(mtia_event handle) {
  return reinterpret_cast<Event*>(handle);
}
inline mtia_event handle_of(Event* event) {
  return reinterpret_cast<mtia_event>(event);
}

}  // namespace torch_mtia::runtime::host
