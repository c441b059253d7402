// Finds the first work item that makes NaN or infinity: its results have some, and its operands have none. No PyTorch.
//
// Note [Numbers]
// Each run of an item is checked on its own, on the thread that runs it; so are the replays of a graph. An item only
// propagates what is not finite if an operand has it, or if a scalar argument is infinite, as of full() or
// masked_fill(). NaN is reported if no operand has NaN, even if one is infinite; infinity if all operands are finite.
//
// Results are examined after each run, operands only if a result is not finite. Operands that the item changes in place
// are examined before it runs.
#pragma once

#include <utility>

#include "../core/Hooks.h"
#include "Findings.h"

namespace torch_mtia::sanitizer {

// Of one item.
class NumbersObserver final : public core::RunObserver {
 public:
  using Report = void (*)(Finding finding);

  // `is_wanted`: asked at each run, whether to check.
  NumbersObserver(Item item, bool (*is_wanted)(), Report report)
      : item_(std::move(item)), is_wanted_(is_wanted), report_(report) {}

  mtia_status run(const mtia_work& work, core::OperandList list, const mtia_work_context* context) override;

 private:
  void report(const mtia_work& work, core::OperandList list, size_t entry, const NonFinite& made,
              const NonFinite& given) const;

  const Item item_;  // without operands
  bool (*const is_wanted_)();
  const Report report_;
};

}  // namespace torch_mtia::sanitizer
