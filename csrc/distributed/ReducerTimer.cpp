// The times of DDP's logging data (DistributedDataParallel._get_ddp_logging_data), by events of the device. Mirrors
// torch/csrc/distributed/c10d/reducer_cuda.cpp.
#include <c10/core/Device.h>
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>

#include <array>
#include <optional>

#include "../core/Event.h"
#include "../device/MTIAFunctions.h"
#include "../device/MTIAStream.h"

namespace torch_mtia {
namespace {

constexpr size_t kNumEvents = static_cast<size_t>(c10d::Timer::Event::kBackwardCommEnd) + 1;

class ReducerTimer final : public c10d::Timer {
 public:
  explicit ReducerTimer(c10::Device device) : device_(device) {}

  void record(Event event) override {
    Timer::record(event);  // the host's time, which getTimestamp returns
    events_.at(static_cast<size_t>(event))
        .emplace(/*enable_timing=*/true)
        .record(MTIAStream::current(index_or_current(device_.index())).core());
  }

  std::optional<int64_t> measureDifference(Event start, Event end) override {
    const std::optional<core::Event>& first = events_.at(static_cast<size_t>(start));
    const std::optional<core::Event>& last = events_.at(static_cast<size_t>(end));
    if (!first || !last) return std::nullopt;
    first->synchronize();
    last->synchronize();
    const double milliseconds = first->elapsed_time(*last);
    if (milliseconds < 0) return std::nullopt;  // the last is of the iteration before
    return static_cast<int64_t>(milliseconds * 1e6);
  }

 private:
  const c10::Device device_;
  std::array<std::optional<core::Event>, kNumEvents> events_;
};

}  // namespace
}  // namespace torch_mtia

namespace c10d {
// Of both doors, which have this in common.
C10_REGISTER_TYPED_CLASS(TimerRegistry, c10::kMTIA, torch_mtia::ReducerTimer)
C10_REGISTER_TYPED_CLASS(TimerRegistry, c10::kPrivateUse1, torch_mtia::ReducerTimer)
}  // namespace c10d
