// Finds work that accesses memory at the wrong time. No PyTorch.
//
// Note [Vector clocks]
// Each stream, and the host, is a timeline that counts its items. The clock of a timeline has, for each timeline, the
// time of the last item that happens before whatever the timeline is given next. The clock of a stream joins those of
// the events that it waits for, and the host's at each submission. So an item at time t of timeline i happens before an
// item of another timeline if the other's clock is at t or later for i when that item is submitted.
//
// All threads of the host share one clock: what one thread has waited for happens before what another one submits,
// however they communicate. The host's own accesses happen after what it has waited for, and before all later
// submissions.
//
// A host function that a stream calls has a timeline of its own: after what the stream was given before it, before what
// the stream is given later. What it submits to other streams happens after it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "Findings.h"
#include "Region.h"
#include "Shadow.h"

namespace torch_mtia::sanitizer {

class Clock {
 public:
  uint64_t at(size_t timeline) const { return timeline < times_.size() ? times_[timeline] : 0; }
  void join(const Clock& other) {
    if (times_.size() < other.times_.size()) times_.resize(other.times_.size());
    for (size_t i = 0; i < other.times_.size(); ++i) times_[i] = std::max(times_[i], other.times_[i]);
  }
  uint64_t advance(size_t timeline) {
    set(timeline, at(timeline) + 1);
    return times_[timeline];
  }
  void set(size_t timeline, uint64_t time) {
    if (timeline >= times_.size()) times_.resize(timeline + 1);
    times_[timeline] = time;
  }

 private:
  std::vector<uint64_t> times_;
};

// Streams are identified by their addresses, events by their handles, which outlive a move.
class Clocks {
 public:
  static constexpr size_t kHost = 0;

  // The timeline of a stream; of null, the host's.
  size_t timeline_of(const void* stream) {
    const auto [found, is_new] = timelines_.try_emplace(stream, clocks_.size());
    if (is_new) clocks_.emplace_back();
    return found->second;
  }
  const Clock& of(size_t timeline) const { return clocks_[timeline]; }

  // Returns the time of an item that is submitted.
  uint64_t submit(size_t timeline) {
    clocks_[timeline].join(clocks_[kHost]);
    return clocks_[timeline].advance(timeline);
  }
  // By a host function.
  uint64_t submit(size_t timeline, size_t function) {
    clocks_[timeline].join(clocks_[function]);
    return submit(timeline);
  }

  // The timeline of a host function that is submitted to a stream. All its accesses have the timeline's present time.
  size_t begin_function(size_t timeline) {
    auto& unused = unused_[timeline];
    const size_t function = unused.empty() ? clocks_.size() : unused.back();
    unused.empty() ? void(clocks_.emplace_back()) : unused.pop_back();
    const uint64_t time = clocks_[function].at(function) + 1;
    clocks_[timeline].join(clocks_[kHost]);
    clocks_[timeline].set(function, time);
    clocks_[function] = clocks_[timeline];
    return function;
  }
  void end_function(size_t timeline, size_t function) { unused_[timeline].push_back(function); }

  void record(const void* event, const void* stream) {
    Clock& clock = clocks_[timeline_of(stream)];
    clock.join(clocks_[kHost]);
    events_[event] = clock;
  }
  // The host, of null, or a stream waits for an event.
  void wait(const void* stream, const void* event) {
    const auto found = events_.find(event);
    if (found != events_.end()) clocks_[timeline_of(stream)].join(found->second);
  }
  void forget(const void* event) { events_.erase(event); }
  void host_waits_for_stream(const void* stream) {
    const size_t timeline = timeline_of(stream);
    clocks_[kHost].join(clocks_[timeline]);
  }

 private:
  std::unordered_map<const void*, size_t> timelines_{{nullptr, kHost}};
  std::vector<Clock> clocks_{1};
  std::unordered_map<size_t, std::vector<size_t>> unused_;  // timelines of ended functions, by those of their streams
  std::unordered_map<const void*, Clock> events_;
};

struct Checks {
  bool order = true;
  bool freed = true;
  bool initialized = true;
  bool kernels = true;
  bool bounds = true;  // of kernels
};

// The bytes that nothing has written since they were allocated.
class UnwrittenBytes {
 public:
  struct Run {
    uint64_t end;
    void clip(uint64_t /*begin*/) {}
  };

  void add(uint64_t begin, uint64_t end) { runs_.assign(begin, {end}); }
  void add(const Region& region);
  void remove(uint64_t begin, uint64_t end) { runs_.erase(begin, end); }
  void remove(const Region& region);
  void clear() { runs_.clear(); }

  // The first of a region, at or after an address; Region::kNone: all of it is written.
  uint64_t first_of(const Region& region) const { return first_of(region, region.begin()); }
  uint64_t first_of(const Region& region, uint64_t at) const;
  bool contains_all(const Region& region) const;
  // For a copy between dense ranges of one size.
  void copy(uint64_t begin, uint64_t end, uint64_t to);

 private:
  // At most so many runs. Beyond, everything between the first and the last byte of a region counts as written.
  static constexpr size_t kMaxRuns = 1 << 20;

  RangeShadow<Run> runs_;
};

// Of all devices, whose addresses differ. Not thread safe.
class Detector {
 public:
  explicit Detector(Checks checks = {}) : checks_(checks) {}

  // What is wrong with an item that is being submitted. `found`: within its kernels.
  std::vector<Finding> submit(Item item, std::vector<Finding> found = {});
  // Adds where the memory of a kOutOfBounds finding was allocated or freed, unless the finding says so already: the
  // detector of a graph may not know that memory.
  void locate(Finding& finding) const;

  void begin_function(uint64_t number, const void* stream);
  void end_function(uint64_t number);

  // Events; see Note [Vector clocks].
  Clocks& clocks() { return clocks_; }

  // `is_private`: it stays in use when it is freed. `is_written`: do not report reads of it as uninitialized.
  // `site`: a number for the lines of the program that allocate; 0: not known.
  void allocate(uint64_t address, uint64_t size, bool is_private, bool is_written, Context context, uint64_t site = 0);
  void free(uint64_t address, Context context);
  // The allocator reuses memory only after a stream has done what it was given until now.
  void reuse_waits_for(const void* stream, uint64_t address, uint64_t size);

  // The number of blocks allocated so far: for Operand::captured.
  uint64_t num_blocks() const { return num_blocks_; }

  // The live blocks of all sites, without private ones.
  std::vector<LiveSite> live_blocks();

  // How many touches were dropped because a cell had too many.
  uint64_t num_forgotten() const { return num_forgotten_; }

 private:
  // An access that a cell remembers.
  struct Touch {
    std::shared_ptr<const Item> item;
    size_t operand;
    // Copies of members of the item and the operand, for locality: most touches are only compared by these.
    size_t timeline;
    uint64_t time;
    uint64_t begin;
    bool writes;
    bool was_freed = false;   // whether the memory was freed since
    Context freed = nullptr;  // where

    Touch(const std::shared_ptr<const Item>& item, size_t operand)
        : item(item),
          operand(operand),
          timeline(item->timeline),
          time(item->time),
          begin(what().region.begin()),
          writes(what().writes) {}

    const Operand& what() const { return item->operands[operand]; }
    bool is_before(const Clock& clock) const { return clock.at(timeline) >= time; }
  };
  struct Cell {
    uint64_t end;
    std::vector<Touch> touches = {};  // that later items must be ordered after

    void clip(uint64_t begin) {
      std::erase_if(touches, [&](const Touch& each) { return !each.what().region.overlaps(begin, end); });
    }
  };
  struct Block {
    uint64_t size;
    bool is_live;
    bool is_private;
    Context context;     // where it was allocated; if it is not live, where it was freed
    uint64_t allocated;  // the number of the last item before
    uint64_t number;     // of all blocks, in order of allocation
    Context freed;       // where the previous block of its memory was freed
    uint64_t site = 0;
    uint64_t execution = 0;  // of the site
  };
  // By an operand of the item that is being submitted.
  struct Access {
    const std::shared_ptr<const Item>& item;
    size_t operand;
    std::vector<Finding>& findings;  // in the item

    const Operand& what() const { return item->operands[operand]; }
    bool is_known(FindingKind kind, const std::shared_ptr<const Item>& earlier = nullptr) const;
    void report(FindingKind kind, Context memory, std::shared_ptr<const Item> earlier = nullptr,
                size_t earlier_operand = 0) const {
      findings.push_back({kind, item, operand, std::move(earlier), earlier_operand, std::move(memory)});
    }
  };
  struct Function {
    const void* stream;
    size_t timeline;
  };

  // False: the item's host function is unknown.
  bool set_time(Item& item);
  void check_kernel(const std::shared_ptr<const Item>& item, Finding found, std::vector<Finding>& findings) const;
  void check_memory(const Access& access) const;
  void check_written(const Access& access);
  void check_cells(const Access& access);
  void check_order(const Access& access, const Cell& cell, const Clock& clock) const;
  // A copy is as initialized as its source. Of one that moves or converts elements only a source without any written
  // byte counts.
  void copy_unwritten(const Item& copy);
  // Calls body(begin, cell) for the cells that share bytes with a region, which exist afterwards; none extends beyond
  // the region's ends.
  template <typename Body>
  void for_each_cell(const Region& region, Body body);
  // A block of a site is no longer live.
  void leave_site(const Block& block);
  const Block* block_at(uint64_t address) const;

  Checks checks_;
  Clocks clocks_;
  RangeShadow<Cell> cells_;
  UnwrittenBytes unwritten_;
  std::map<uint64_t, Block> blocks_;
  std::unordered_map<uint64_t, Site> sites_;          // by number
  std::unordered_map<uint64_t, Function> functions_;  // by number
  uint64_t num_items_ = 0;
  uint64_t num_frees_ = 0;  // by the program
  uint64_t num_blocks_ = 0;
  uint64_t num_forgotten_ = 0;
};

}  // namespace torch_mtia::sanitizer
