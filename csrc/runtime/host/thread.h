// Threads of the driver.
#pragma once

#include <functional>
#include <string>

namespace torch_mtia::runtime::host {

// Runs `body`, which must not throw, on a new detached thread. Signals sent to the process never reach it, so they
// always reach a thread of the application. Throws std::system_error if there can be no further thread.
void start_thread(const std::string& name, std::function<void()> body);

}  // namespace torch_mtia::runtime::host
