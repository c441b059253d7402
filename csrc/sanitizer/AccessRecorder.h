// What the programs of one launch of a kernel do to memory. No PyTorch.
//
// Note [Happens-before of programs]
// Programs of a launch are concurrent unless they synchronize through atomics: what a program does before a release
// happens before what another one does after a later acquire of the same address. The emulation runs one program at a
// time, so only the running program has a vector clock, those that are suspended (Note [Interleaved programs] in
// mtia_runtime.h), and each released address. The time of a program is its epoch, the number of its releases: an access
// in epoch e of program p happens before the present if the clock has a later epoch of p.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "../runtime/mtia_runtime.h"
#include "Findings.h"
#include "Shadow.h"

namespace torch_mtia::sanitizer {

// Used by one thread at a time.
class AccessRecorder {
 public:
  // Accesses must stay inside the range of `live`, disjoint and ascending, that their pointer argument points into, or
  // inside any of them if the argument is not known. Nullopt: bounds are not checked. `arguments` are packed.
  AccessRecorder(std::optional<std::vector<mtia_span>> live, std::vector<std::byte> arguments);
  // Also reports NaN and infinity that programs make and store: see Note [Numbers] in Numbers.h.
  void watch_numbers() { watches_numbers_ = true; }

  // As mtia_kernel_watch.access.
  uint64_t access(const mtia_kernel_context& context, const mtia_site* site, const std::array<int32_t, 3>& program,
                  uint64_t address, int64_t stride, const uint64_t* addresses, uint64_t lanes, const void* values);

  struct Launch {
    bool was_followed = false;      // false: its accesses are not known
    std::vector<Operand> operands;  // what it read before it wrote it itself; then what it wrote
    std::vector<Finding> findings;  // without items
  };
  // What happened since the last call, as one launch.
  Launch take();

 private:
  using Clock = std::vector<std::pair<uint32_t, uint32_t>>;  // programs, ascending, with their next epochs
  struct Record {
    uint32_t program;
    uint32_t epoch;
    uint32_t site;
  };
  // Indices of records_ and nodes_; 0: none.
  struct Cell {
    uint32_t writer = 0;       // by a store
    uint32_t last_writer = 0;  // by a store or an atomic
    uint32_t needs = 0;        // read before the launch had written it
    uint32_t loads = 0;        // since the store: a list in nodes_ of each program's last access
    uint32_t atomics = 0;      // the same
    bool operator==(const Cell&) const = default;
  };
  // Lists are immutable and share their tails, so that cells may be copied.
  struct Node {
    uint32_t record;
    uint32_t next;  // 0: none
  };
  struct Site {
    const mtia_site* source = nullptr;
    std::shared_ptr<const KernelLine> line;
    uint32_t kind = 0;
    uint32_t size = 0;
    uint32_t record = 0;  // of this run of the statement; 0: none yet
    uint64_t moment = 0;  // of the record
    mtia_span tensor{};   // that the pointer argument points into; empty: not known
    // All accesses of the record lie between low and high. The last ones, from begin to end, are not in memory_ yet.
    uint64_t low = 0;
    uint64_t high = 0;
    uint64_t begin = 0;
    uint64_t end = 0;
  };

  static constexpr std::array<int32_t, 3> kNowhere{-1, -1, -1};
  struct Program {
    std::array<int32_t, 3> place = kNowhere;  // in the grid
    uint32_t number = 0;
    uint32_t epoch = 0;
    Clock clock;
    // What it has read that is not finite, and the sites that made such numbers, with the lanes.
    NonFinite given;
    std::vector<std::pair<const mtia_site*, uint64_t>> computed;
  };

  void begin_program(const mtia_kernel_context& context, const std::array<int32_t, 3>& place);
  void end_program(const std::array<int32_t, 3>& place);
  void suspend();  // the running program
  void resume(const std::array<int32_t, 3>& place);
  uint32_t number_at(const std::array<int32_t, 3>& place) const;
  // Null: the compiler makes no such site; the launch cannot be followed.
  Site* site_of(const mtia_site& source);
  uint32_t record_of(Site& site, uint32_t number);
  void touch(Site& site, uint32_t number, uint64_t begin, uint64_t end);
  void enter(Site& site);
  void enter_all();
  void touch(Cell& cell, const Site& site, uint32_t record, uint64_t address);
  void add(uint32_t& list, uint32_t record);
  bool chooses(uint32_t record) const { return (sites_[records_[record].site].kind & MTIA_SITE_CHOOSES) != 0; }

  // Whether this run of the statement has stored to some of these bytes.
  bool was_stored(Site& site, uint64_t begin, uint64_t end);
  void check_lanes(const mtia_kernel_context& context, Site& site, uint32_t number, const uint64_t* addresses,
                   uint64_t lanes, const void* values);
  bool happens_before_now(const Record& record) const;
  void check_order(uint32_t earlier, const Site& site, uint32_t record, uint64_t address);
  void compute(const mtia_site& source, uint64_t lanes);
  static NonFinite classify(const void* number, const Site& site);
  void check_numbers(const mtia_kernel_context& context, const Site& site, const mtia_site& source,
                     const uint64_t* addresses, uint64_t lanes, const void* values, bool is_single);
  void report(FindingKind kind, uint32_t record, uint32_t earlier, uint64_t address);
  std::array<int32_t, 3> program_at(uint32_t number) const;
  KernelAccess describe(uint32_t record, uint64_t address) const;
  void acquire(uint64_t address);
  void release(uint64_t address);

  std::vector<mtia_span> live_;
  bool checks_bounds_;
  std::vector<std::byte> arguments_;

  std::array<int32_t, 3> grid_{};
  Program running_;
  std::unordered_map<uint32_t, Program> suspended_;
  bool is_foreign_ = false;  // there was a site that the compiler does not make
  uint64_t moment_ = 0;      // counts changes of the running program and its epoch; 0: no program has begun
  std::vector<Site> sites_;
  std::vector<Record> records_;
  std::vector<Node> nodes_;
  ByteShadow<Cell> memory_;
  std::unordered_map<uint64_t, Clock> released_;  // by address
  static constexpr size_t kMaxComputed = 64;
  bool watches_numbers_ = false;
  std::vector<Finding> findings_;
  std::set<std::tuple<FindingKind, uint32_t, uint32_t>> known_findings_;  // by sites
};

}  // namespace torch_mtia::sanitizer
