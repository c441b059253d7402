// Whose waits order anything for an observer. No PyTorch.
//
// Note [Waits of the program]
// Streams and events of this layer report no wait to an observer. Most waits are the runtime's own (allocators,
// destructors, deleters, measurements): they depend on timing and on caches, and no program may rely on them. The
// program's own ways to wait (synchronize(), a query() that is true, copies to the host, ...) call these afterwards.
//
// Where the runtime's waits order accesses to memory that is used again, it says so by AllocatorObserver.
#pragma once

#include "Event.h"
#include "Observer.h"
#include "Stream.h"

namespace torch_mtia::core {

inline void program_has_waited(const Stream& stream) {
  if (Observer* observer = current_observer()) [[unlikely]]
    observer->host_waited(stream);
}
inline void program_has_waited(const Event& event) {
  if (Observer* observer = current_observer()) [[unlikely]]
    observer->host_waited(event);
}

inline bool program_queries(const Stream& stream) {
  const bool is_idle = stream.query();
  if (is_idle) program_has_waited(stream);
  return is_idle;
}
inline bool program_queries(const Event& event) {
  const bool is_complete = event.query();
  if (is_complete) program_has_waited(event);
  return is_complete;
}

inline void program_waits_for(Stream& stream) {
  stream.wait_until_idle();
  program_has_waited(stream);
}
inline void program_waits_for(const Event& event) {
  event.synchronize();
  program_has_waited(event);
}

}  // namespace torch_mtia::core
