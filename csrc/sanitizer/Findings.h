// What is found, and what it is about. No PyTorch.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "../core/Operands.h"
#include "../runtime/mtia_runtime.h"
#include "Clocks.h"
#include "Region.h"

namespace torch_mtia::sanitizer {

using core::OldBytes;
using Context = std::shared_ptr<void>;  // where in the program something was done

// A place in a kernel that accesses memory.
struct KernelLine {
  std::string file;
  int line = 0;
  std::string argument;  // through which it does; empty: not known
};

// One of the tensors that an item reads or writes.
struct Operand {
  Region region;
  bool writes = false;
  OldBytes old_bytes = OldBytes::kRead;
  std::string type;                                    // for people, such as "float32[4, 8]"
  std::shared_ptr<const KernelLine> line = nullptr;    // of a kernel
  std::shared_ptr<const uint64_t> captured = nullptr;  // of a graph: how many blocks there had been at its capture
};

// One item of work, as it was submitted.
struct Item {
  std::string name;
  const void* stream = nullptr;   // null: the host does it itself
  uint64_t function = 0;          // the number of the function of the host that does it or submits it; 0: none
  bool is_listed = true;          // false: nobody knows what it touches
  bool copies = false;            // the first of its two operands to the second one
  bool copies_bytes = false;      // each to the place that it has in the first one
  bool is_collective = false;     // its numbers come from other processes
  std::vector<Operand> operands;  // in the order in which it comes to them
  Context context;

  size_t timeline = 0;
  uint64_t time = 0;
  uint64_t number = 0;  // of all items, in order
  // What it is behind, while functions of the host are on their way: what they do is told when they run, which may be
  // later than what is behind them. Else null.
  std::shared_ptr<const Clock> clock = nullptr;
};

// Memory that nobody has freed.
struct LiveBlock {
  uint64_t address;
  uint64_t size;
  uint64_t execution;  // of its site
  uint64_t allocated;  // the number of the last item before
  uint64_t used;       // of the last item that has touched it; 0: none
};

// Where a program allocates, and how often it did. What a site allocates while nothing is freed is one execution.
struct Site {
  uint64_t executions = 0;
  uint64_t rises = 0;      // executions in which it had more blocks alive than ever before
  uint64_t last_rise = 0;  // the number of the last one of them
  uint64_t alive = 0;      // blocks
  uint64_t most_alive = 0;
  uint64_t frees = 0;         // of all sites, when it allocated last
  Context context = nullptr;  // where it is, by its last block

  void allocate(uint64_t frees_now, Context where);
};

struct LiveSite {
  Site site;
  std::vector<LiveBlock> blocks;
};

enum class FindingKind {
  kRace,           // two items touch the same bytes in no order, and one of them writes
  kFreedTooEarly,  // the same, where the memory was freed in between and given to another tensor
  kUseAfterFree,   // an item touches memory that was freed before it was submitted
  kUninitialized,  // an item reads bytes that nothing has written since they were allocated
  kOutOfBounds,    // a kernel leaves the tensor
  kProgramRace,    // two programs of a kernel touch the same bytes in no order, and one of them writes
  kLaneConflict,   // lanes of one store write different values to one address
  kNotFinite,      // an item makes NaN or infinity of numbers that are finite: see Numbers.h
};

// How many of some numbers are not finite. Of a complex number each part counts.
struct NonFinite {
  uint64_t nan = 0;
  uint64_t infinite = 0;

  bool any() const { return (nan | infinite) != 0; }
  void operator+=(const NonFinite& other) {
    nan += other.nan;
    infinite += other.infinite;
  }
};

// What a program of a kernel does.
struct KernelAccess {
  std::shared_ptr<const KernelLine> line;
  std::array<int32_t, 3> program{};
  uint64_t address = 0;
  uint32_t size = 0;
  bool writes = false;
};

// Of what a kernel does.
struct KernelFinding {
  FindingKind kind;
  KernelAccess access;
  std::optional<KernelAccess> earlier;  // by another program; of numbers, the store
  mtia_span tensor{};                   // that the pointer belongs to; empty: not known
  NonFinite numbers = {};               // that are stored
  NonFinite given = {};                 // among what the program has read
};

struct Finding {
  FindingKind kind;
  std::shared_ptr<const Item> item;
  size_t operand = 0;
  std::shared_ptr<const Item> earlier = nullptr;  // of the first two kinds
  size_t earlier_operand = 0;
  Context memory = nullptr;  // where it was freed; or allocated, of the fourth and fifth kinds
  std::shared_ptr<const KernelFinding> kernel = nullptr;  // of what kernels do; these have no operand
  NonFinite numbers = {};                                 // of the operand, if it is not finite
  NonFinite given = {};                                   // among what the item reads
  uint64_t count = 1;                                     // how often it was found
};

}  // namespace torch_mtia::sanitizer
