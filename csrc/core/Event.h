// An event of the driver, owned. No PyTorch.
#pragma once

#include <atomic>
#include <cstdint>

#include "../runtime/loader.h"

namespace torch_mtia::core {

class Stream;

class Event {
 public:
  explicit Event(bool enable_timing);  // throws runtime::DriverError
  ~Event();
  Event(Event&& other) noexcept;
  Event& operator=(Event&& other) noexcept;

  mtia_event handle() const { return handle_; }
  void record(Stream& stream);  // replaces the last record
  // These three refuse an event that was last recorded in a capture: a capture under way becomes invalid.
  bool query() const;        // true: complete, or never recorded
  void synchronize() const;  // blocks
  // Milliseconds. Throws runtime::DriverError: NOT_READY or INVALID_VALUE, as the driver defines them.
  double elapsed_time(const Event& end) const;

 private:
  // Throws unless the status is a success. `end`: the second event of the function.
  template <typename Function>
  void check(mtia_status status, Function function, const Event& end) const;

  mtia_event handle_ = nullptr;
  std::atomic<uint64_t> capture_id_{0};  // in which it was last recorded; 0: in none
};

}  // namespace torch_mtia::core
