#include "FallbackControl.h"

#include <c10/util/Exception.h>

#include <mutex>
#include <unordered_map>
#include <unordered_set>

#include "../device/DeviceType.h"
#include "../runtime/forks.h"
#include "Fallback.h"

namespace torch_mtia {
namespace {

struct State {
  State() { runtime::hold_at_forks(runtime::ForkOrder::kTable, mutex); }

  std::mutex mutex;
  std::unordered_map<c10::OperatorName, int64_t> counts;
  std::unordered_set<c10::OperatorName> warned;
  std::unordered_set<std::string> denied;
  FallbackControl::Warn warn = FallbackControl::Warn::kNever;
  int forbidden = 0;
  std::vector<c10::RegistrationHandleRAII> forced;  // each gives the kernel back to its operator when it goes
};

// Leaked: operators may fall back while the process ends.
State& state() {
  static auto* const instance = new State();
  return *instance;
}

// That a kernel is put over another one, which the dispatcher warns of, is what forcing means.
class Silent final : public c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

}  // namespace

void FallbackControl::enter(const c10::OperatorHandle& op) {
  const auto& name = op.operator_name();
  auto& control = state();
  bool warns = false;
  bool forbidden = false;
  bool denied = false;
  {
    std::lock_guard<std::mutex> lock(control.mutex);
    forbidden = control.forbidden != 0;
    denied = !control.denied.empty() &&
             (control.denied.count(name.name) != 0 || control.denied.count(c10::toString(name)) != 0);
    if (!forbidden && !denied) {
      ++control.counts[name];
      warns = control.warn == Warn::kAlways || (control.warn == Warn::kOnce && control.warned.insert(name).second);
    }
  }
  // Without the lock: who raises may want Python's.
  TORCH_CHECK_NOT_IMPLEMENTED(!forbidden, c10::toString(name), " has no kernel for ", device_name(),
                              " and would fall back to the CPU, inside "
                              "torch_mtia.fallback.forbid()");
  TORCH_CHECK_NOT_IMPLEMENTED(!denied, c10::toString(name), " has no kernel for ", device_name(),
                              ", and torch_mtia.fallback.deny() keeps it from falling back");
  if (warns) TORCH_WARN(c10::toString(name), " has no kernel for ", device_name(), " and falls back to the CPU");
}

std::map<std::string, int64_t> FallbackControl::stats() {
  auto& control = state();
  std::lock_guard<std::mutex> lock(control.mutex);
  std::map<std::string, int64_t> result;
  for (const auto& [name, count] : control.counts) result[c10::toString(name)] = count;
  return result;
}

void FallbackControl::reset() {
  auto& control = state();
  std::lock_guard<std::mutex> lock(control.mutex);
  control.counts.clear();
  control.warned.clear();
}

void FallbackControl::set_warn(Warn mode) {
  auto& control = state();
  std::lock_guard<std::mutex> lock(control.mutex);
  control.warn = mode;
}

void FallbackControl::set_denied(const std::vector<std::string>& names) {
  auto& control = state();
  std::lock_guard<std::mutex> lock(control.mutex);
  control.denied = {names.begin(), names.end()};
}

void FallbackControl::forbid(bool enable) {
  auto& control = state();
  std::lock_guard<std::mutex> lock(control.mutex);
  control.forbidden += enable ? 1 : -1;
}

void FallbackControl::set_forced(const std::vector<c10::OperatorName>& operators) {
  auto& dispatcher = c10::Dispatcher::singleton();
  auto& control = state();
  Silent silent;
  const c10::WarningUtils::WarningHandlerGuard guard(&silent);
  std::lock_guard<std::mutex> lock(control.mutex);
  control.forced.clear();
  for (const auto& name : operators) {
    control.forced.push_back(
        dispatcher.registerImpl(name, dispatch_key(), c10::KernelFunction::makeFromBoxedFunction<&fall_back>(),
                                std::nullopt, nullptr, "forced onto the CPU by torch_mtia.fallback.force()"));
  }
}

}  // namespace torch_mtia
