#include "FallbackControl.h"

#include <c10/util/Exception.h>

#include <atomic>
#include <mutex>
#include <unordered_map>
#include <unordered_set>

#include "../device/Door.h"

namespace torch_mtia {
namespace {

struct State {
  std::mutex mutex;
  std::unordered_map<c10::OperatorName, int64_t> counts;
  std::unordered_set<c10::OperatorName> warned;
  std::unordered_set<std::string> denied;
  FallbackControl::Warn warn = FallbackControl::Warn::kNever;
  int forbidden = 0;
};

// Leaked: operators may fall back while the process ends.
State& state() {
  static auto* const instance = new State();
  return *instance;
}

}  // namespace

void FallbackControl::enter(const c10::OperatorHandle& op) {
  const auto& name = op.operator_name();
  auto& control = state();
  bool warns = false;
  {
    std::lock_guard<std::mutex> lock(control.mutex);
    TORCH_CHECK_NOT_IMPLEMENTED(control.forbidden == 0, c10::toString(name), " has no kernel for ", device_name(),
                                " and would fall back to the CPU, inside "
                                "torch_mtia.fallback.forbid()");
    TORCH_CHECK_NOT_IMPLEMENTED(control.denied.empty() || (control.denied.count(name.name) == 0 &&
                                                           control.denied.count(c10::toString(name)) == 0),
                                c10::toString(name), " has no kernel for ", device_name(),
                                ", and torch_mtia.fallback.deny() keeps it from falling back");
    ++control.counts[name];
    warns = control.warn == Warn::kAlways || (control.warn == Warn::kOnce && control.warned.insert(name).second);
  }
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

}  // namespace torch_mtia
