// An event of the driver, owned. No PyTorch.
#pragma once

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
  void record(Stream& stream);  // replaces what the event stands for
  bool query() const;           // true: complete, or never recorded
  void synchronize() const;     // blocks
  // Milliseconds. Throws runtime::DriverError: NOT_READY or INVALID_VALUE, as the driver defines them.
  double elapsed_time(const Event& end) const;

 private:
  mtia_event handle_ = nullptr;
};

}  // namespace torch_mtia::core
