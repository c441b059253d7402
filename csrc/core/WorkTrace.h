// A trace of work items, for the profiler and for logs. No PyTorch.
//
// The driver reports items (Note [Tracing] in mtia_runtime.h) only while there is a recording or a listener.
#pragma once

#include <cstdint>
#include <deque>
#include <string>

namespace torch_mtia::core {

class Stream;

// Times are nanoseconds since the epoch; 0: not yet.
struct WorkRecord {
  uint64_t id = 0;   // unique in the process
  std::string name;  // a copy: kernels are collected, and operators deregistered, before the records are read
  const Stream* stream = nullptr;
  uint64_t operation = 0;  // of the submitting thread: see push_operation. 0: none
  int32_t thread = 0;      // the submitting thread: its number in the kernel
  int64_t submit_start_ns = 0;
  int64_t submit_end_ns = 0;
  int64_t start_ns = 0;
  int64_t end_ns = 0;
};

// Process-wide and thread safe. No function initializes the device.
class WorkTrace {
 public:
  // Records the items submitted from now on. False: it is recording already.
  static bool start();
  // Ends the recording and returns it. Items that have not run by now have neither start nor end.
  static std::deque<WorkRecord> stop();

  // Names the operation of the calling thread until the matching pop, in recordings that are under way. They nest.
  static void push_operation(uint64_t id);
  static void pop_operation() noexcept;

  // A listener, called on the submitting thread with each item; null: none.
  using LaunchListener = void (*)(const Stream& stream, const char* name) noexcept;
  static void set_launch_listener(LaunchListener listener);

  // Makes the driver report, or stop reporting, as the functions above need it. To be called once the device is
  // initialized.
  static void attach();

  // Whether the driver can report at all. False until the device is initialized.
  static bool is_supported();
};

}  // namespace torch_mtia::core
