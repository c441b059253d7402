#pragma once

#include <chrono>

namespace torch_mtia::collectives {

// The end of a wait. Timeouts that reach beyond the clock's range never expire.
struct Deadline {
  explicit Deadline(std::chrono::milliseconds timeout) : timeout(timeout), time(after(timeout)) {}

  bool is_over() const { return std::chrono::steady_clock::now() >= time; }

  std::chrono::milliseconds timeout;
  std::chrono::steady_clock::time_point time;

 private:
  static std::chrono::steady_clock::time_point after(std::chrono::milliseconds timeout) {
    using Clock = std::chrono::steady_clock;
    const auto now = Clock::now();
    const auto range = std::chrono::floor<std::chrono::milliseconds>(Clock::time_point::max() - now);
    return timeout < range ? now + timeout : Clock::time_point::max();
  }
};

}  // namespace torch_mtia::collectives
