// Work items as the sanitizer keeps them, and what it finds. No PyTorch.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "../core/WorkItem.h"
#include "../runtime/mtia_runtime.h"
#include "Region.h"

namespace torch_mtia::sanitizer {

using core::OldBytes;
using Context = std::shared_ptr<void>;  // where in the program something was done

class Clock;

// A place in a kernel that accesses memory.
struct KernelLine {
  std::string file;
  int line = 0;
  std::string argument;  // the pointer argument that the address comes from; empty: not known
};

// One of the tensors that an item reads or writes.
struct Operand {
  Region region;
  bool writes = false;
  OldBytes old_bytes = OldBytes::kRead;
  std::string type;                                    // for people, such as "float32[4, 8]"
  std::shared_ptr<const KernelLine> line = nullptr;    // of a kernel
  std::shared_ptr<const uint64_t> captured = nullptr;  // of a graph: the number of blocks allocated at its capture
};

inline Operand named(const core::Operand& operand) {
  std::string type = std::to_string(operand.element_size) + " bytes";
  if (operand.dtype[0] != '\0') {
    type = std::string(operand.dtype) + '[';
    const auto shape = operand.shape.empty() ? operand.sizes : operand.shape;
    for (size_t d = 0; d < shape.size(); ++d) type += (d == 0 ? "" : ", ") + std::to_string(shape[d]);
    type += ']';
  }
  return {Region(operand), operand.writes, operand.old_bytes, std::move(type)};
}

// One work item, as it was submitted.
struct Item {
  std::string name;
  const void* stream = nullptr;   // null: the host does it itself
  uint64_t function = 0;          // the number of the host function that does it or submits it; 0: none
  bool is_listed = true;          // false: its operands are unknown
  bool copies = false;            // the first of its two operands to the second one
  bool copies_bytes = false;      // byte for byte: at equal offsets
  bool is_collective = false;     // its numbers come from other processes
  std::vector<Operand> operands;  // in the order in which they are accessed
  Context context;

  size_t timeline = 0;
  uint64_t time = 0;
  uint64_t number = 0;  // of all items, in order of submission
  // The clock of its timeline when it was submitted, kept while host functions are in flight: their own items are
  // submitted when they run, possibly after items that they happen before. Else null.
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

// A place where the program allocates. All blocks that it allocates while nothing is freed are one execution.
struct Site {
  uint64_t executions = 0;
  uint64_t rises = 0;      // executions that exceeded most_alive
  uint64_t last_rise = 0;  // the number of the last of these
  uint64_t alive = 0;      // live blocks
  uint64_t most_alive = 0;
  uint64_t frees = 0;         // of all sites, at its last allocation
  Context context = nullptr;  // of its last block

  void allocate(uint64_t frees_now, Context where);
};

struct LiveSite {
  Site site;
  std::vector<LiveBlock> blocks;
};

enum class FindingKind {
  kRace,           // two items access the same bytes, one writes, and neither happens before the other
  kFreedTooEarly,  // the same, where the memory was freed in between and reused for another tensor
  kUseAfterFree,   // an item accesses memory that was freed before it was submitted
  kUninitialized,  // an item reads bytes that nothing has written since they were allocated
  kOutOfBounds,    // a kernel accesses memory outside of the tensor
  kProgramRace,    // as kRace, of two programs of a kernel
  kLaneConflict,   // lanes of one store write different values to one address
  kNotFinite,      // an item makes NaN or infinity of finite numbers: see Numbers.h
};

// Counts of numbers that are not finite. The parts of a complex number count separately.
struct NonFinite {
  uint64_t nan = 0;
  uint64_t infinite = 0;

  bool any() const { return (nan | infinite) != 0; }
  void operator+=(const NonFinite& other) {
    nan += other.nan;
    infinite += other.infinite;
  }
};

// An access by a program of a kernel.
struct KernelAccess {
  std::shared_ptr<const KernelLine> line;
  std::array<int32_t, 3> program{};
  uint64_t address = 0;
  uint32_t size = 0;
  bool writes = false;
};

// The accesses of a finding within one launch of a kernel.
struct KernelAccesses {
  KernelAccess access;
  std::optional<KernelAccess> earlier = std::nullopt;  // by another program; of kNotFinite, the store
  mtia_span tensor{};                                  // that the pointer argument points into; empty: not known
};

struct Finding {
  FindingKind kind;
  std::shared_ptr<const Item> item = nullptr;
  size_t operand = 0;
  std::shared_ptr<const Item> earlier = nullptr;  // of kRace and kFreedTooEarly
  size_t earlier_operand = 0;
  Context memory = nullptr;  // where it was freed; of kUninitialized and kOutOfBounds, where it was allocated
  std::shared_ptr<const KernelAccesses> kernel = nullptr;  // if it is within a kernel; then `operand` has no meaning
  NonFinite numbers = {};                                  // in the operand, or in what a program stores
  NonFinite given = {};                                    // in what the item, or the program, reads
  uint64_t count = 1;                                      // how often it was found
};

}  // namespace torch_mtia::sanitizer
