// Which operators fell back to the CPU, and which may. The C++ side of torch_mtia.fallback.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace torch_mtia {

// Thread safe; process-wide, because autograd runs operators on threads of its own.
class FallbackControl {
 public:
  enum class Warn { kNever, kOnce, kAlways };

  // Counts one fallback of the operator and warns of it, as the settings say. Raises NotImplementedError if the
  // operator is denied or fallbacks are forbidden.
  static void enter(const c10::OperatorHandle& op);

  static std::map<std::string, int64_t> stats();  // "aten::name.overload" -> calls since the last reset
  static void reset();
  static void set_warn(Warn mode);
  static void set_denied(const std::vector<std::string>& names);  // "aten::name" or "aten::name.overload"
  static void forbid(bool enable);                                // counted: as many false as true

  // The operators that fall back although they have a kernel; replaces those of the last call. Not while another thread
  // calls any of them: the dispatcher reads its tables without a lock.
  static void set_forced(const std::vector<c10::OperatorName>& operators);
};

}  // namespace torch_mtia
