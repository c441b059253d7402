// What the programs of one launch of a kernel do to memory. No PyTorch.
//
// Note [Programs in order]
// Programs of a launch run in no order, but for what they say to each other through atomics: what a program did before
// a release has happened before what another one does behind an acquire of the same address that came later. Here they
// run one after the other, so only the one that runs needs to know whom it is behind; each address of an atomic keeps
// what it was told. Programs count their releases: an access of program p in its epoch e is known to whom knows p up to
// a later epoch.
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
  // Accesses must stay in the tensor of `live`, disjoint and ascending, that their pointer argument belongs to, and in
  // any of them if it is not known. Null: they may lead anywhere. `arguments` are packed.
  AccessRecorder(std::optional<std::vector<mtia_span>> live, std::vector<std::byte> arguments);
  // From now on reports NaN and infinity that programs make and store: see Note [Numbers] in Numbers.h.
  void watch_numbers() { watches_numbers_ = true; }

  // As mtia_kernel_watch.access.
  uint64_t access(const mtia_kernel_context& context, const mtia_site* site, const std::array<int32_t, 3>& program,
                  uint64_t address, int64_t stride, const uint64_t* addresses, uint64_t lanes, const void* values);

  struct Launch {
    bool was_followed = false;      // false: nobody knows what it did
    std::vector<Operand> operands;  // what it read before it wrote that itself; then what it wrote
    std::vector<KernelFinding> findings;
  };
  // What happened since the last call, as one launch.
  Launch take();

 private:
  using Known = std::vector<std::pair<uint32_t, uint32_t>>;  // programs, ascending, and up to which epochs
  struct Record {
    uint32_t program;
    uint32_t epoch;
    uint32_t site;
  };
  // Of bytes of which all the same is known: indices of records_, 0 for none. Readers are those since the last write.
  struct Cell {
    uint32_t writer = 0;       // by a store
    uint32_t last_writer = 0;  // by a store or an atomic
    uint32_t needs = 0;        // read before anything of the launch had written it
    uint32_t loads = 0;        // since the store: a list in nodes_, the last access of each program
    uint32_t atomics = 0;      // the same
    bool operator==(const Cell&) const = default;
  };
  // Lists share their ends, so that cells may be copied.
  struct Node {
    uint32_t record;
    uint32_t next;  // 0: none
  };
  struct Site {
    const mtia_site* source = nullptr;
    std::shared_ptr<const KernelLine> line;
    uint32_t kind = 0;
    uint32_t size = 0;
    uint32_t record = 0;  // of what it does now; 0: it needs a new one
    uint64_t moment = 0;  // to which the record belongs
    mtia_span tensor{};   // that the pointer argument belongs to; empty: not known
    // What the record has touched is between low and high. The last stretch, from begin to end, is not in memory_ yet.
    uint64_t low = 0;
    uint64_t high = 0;
    uint64_t begin = 0;
    uint64_t end = 0;
  };

  void begin_program(const mtia_kernel_context& context, const std::array<int32_t, 3>& program);
  // Null: the image is not one of ours, and the launch cannot be followed.
  Site* site_of(const mtia_site& source);
  uint32_t record_of(Site& site, uint32_t number);
  const mtia_span* live_at(uint64_t address) const;

  void touch(Site& site, uint32_t number, uint64_t begin, uint64_t end);
  void enter(Site& site);
  void enter_all();
  void touch(Cell& cell, const Site& site, uint32_t record, uint64_t address);
  void add(uint32_t& list, uint32_t record);
  bool chooses(uint32_t record) const { return (sites_[records_[record].site].kind & MTIA_SITE_CHOOSES) != 0; }

  // Whether a strip that begins here has lanes that this run of the statement has been to before.
  bool was_stored(Site& site, uint64_t begin, uint64_t end);
  void check_lanes(const mtia_kernel_context& context, Site& site, uint32_t number, const uint64_t* addresses,
                   uint64_t lanes, const void* values);
  bool is_behind(const Record& record) const;
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
  uint32_t program_ = 0;
  uint32_t epoch_ = 0;
  Known known_;
  bool is_foreign_ = false;  // a site is none that the compiler makes
  uint64_t moment_ = 0;      // grows when program_ or epoch_ changes; 0: no program has begun
  std::vector<Site> sites_;
  std::vector<Record> records_;
  std::vector<Node> nodes_;
  Shadow<Cell> memory_;
  std::unordered_map<uint64_t, Known> released_;
  // Of the program that runs: what it has read that is not finite, and what has made such numbers, in which lanes.
  static constexpr size_t kMaxComputed = 64;
  bool watches_numbers_ = false;
  NonFinite given_;
  std::vector<std::pair<const mtia_site*, uint64_t>> computed_;
  std::vector<KernelFinding> findings_;
  std::set<std::tuple<FindingKind, uint32_t, uint32_t>> known_findings_;  // by sites
};

}  // namespace torch_mtia::sanitizer
