// Finds the first work that makes NaN or infinity: its results have some, and what it was given has none. No PyTorch.
//
// Note [Numbers]
// Each run of an item is judged by itself, on the thread that runs it, so the replays of a graph are, too. What passes
// on what is not finite has it among its operands. So does an item that is given an infinite number, as full() or
// masked_fill() are. NaN counts where no operand has NaN, though one may be infinite, and infinity where all operands
// are finite.
//
// Results are looked at after each run. Operands are so only where a result is not finite; of what the item changes in
// place, the values before it are needed, and looked at then.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "../core/Observer.h"
#include "Findings.h"

namespace torch_mtia::sanitizer {

// Floating-point numbers in memory that the host can reach.
class Numbers {
 public:
  // Of an operand with any other dtype: none. `host_offset`: what makes its address one of the host's.
  Numbers(const core::Operand& operand, int64_t host_offset);

  bool empty() const { return size_ == 0; }
  uint64_t size() const { return size_; }
  NonFinite count() const;
  // Whether they may share bytes.
  bool meets(const Numbers& other) const { return lowest_ < other.end_ && other.lowest_ < end_; }

 private:
  struct Format;
  struct Dimension {
    uint64_t size;
    int64_t stride;  // in bytes, not negative
  };
  static const Format kFormats[];

  const Format* format_ = nullptr;
  uint64_t lowest_ = 0;
  uint64_t end_ = 0;
  uint64_t size_ = 0;
  Dimension run_{1, 0};          // the innermost dimension
  std::vector<Dimension> grid_;  // the others
};

// Looks at what one item is given and makes.
class NumbersObserver final : public core::RunObserver {
 public:
  using Report = void (*)(Finding finding);

  // `is_wanted`: asked at each run, whether to look.
  NumbersObserver(Item item, bool (*is_wanted)(), Report report)
      : item_(std::move(item)), is_wanted_(is_wanted), report_(report) {}

  mtia_status run(const mtia_work& work, core::OperandList list, const mtia_work_context* context) override;

 private:
  class Listing;
  void report(const mtia_work& work, core::OperandList list, size_t entry, const NonFinite& made,
              const NonFinite& given) const;

  const Item item_;  // without operands
  bool (*const is_wanted_)();
  const Report report_;
};

}  // namespace torch_mtia::sanitizer
