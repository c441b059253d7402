// Finds work that touches memory at the wrong time. No PyTorch.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "../runtime/forks.h"
#include "Clocks.h"
#include "Findings.h"
#include "Region.h"
#include "UnwrittenBytes.h"

namespace torch_mtia::sanitizer {

struct Checks {
  bool order = true;
  bool freed = true;
  bool initialized = true;
  bool kernels = true;
  bool bounds = true;  // of kernels
};

// Of all devices, whose addresses differ. Thread safe.
class Detector {
 public:
  // Forgets everything.
  void restart(Checks checks);

  // What is wrong with an item that is being submitted. `found`: what kernels of it did.
  std::vector<Finding> submit(Item item, std::vector<KernelFinding> found = {});
  // The same for what a kernel of a graph did, as far as the detector of the graph does not know the memory.
  void locate(Finding& finding);

  void begin_function(uint64_t number, const void* stream);
  void end_function(uint64_t number);

  void record(const void* event, const void* stream);
  void wait(const void* stream, const void* event);
  void forget(const void* event);
  void host_waits_for_stream(const void* stream);
  void host_waits_for_event(const void* event);

  // `is_private`: it stays in use when it is freed. `is_written`: it has been written to, for all that is known.
  // `site`: the same number for what the same lines of the program allocate; 0: nobody knows them.
  void allocate(uint64_t address, uint64_t size, bool is_private, bool is_written, Context context, uint64_t site = 0);
  void free(uint64_t address, Context context);
  // Memory is given out again only after a stream has done what it was given until now.
  void reuse_waits_for(const void* stream, uint64_t address, uint64_t size);

  // How many there have been so far: for Operand::captured.
  uint64_t num_blocks();

  // What is alive of all sites, but for private blocks.
  std::vector<LiveSite> live_blocks();

  // Of one that lives as long as the process.
  void hold_at_forks(runtime::ForkOrder order) { runtime::hold_at_forks(order, mutex_); }

  // How often something was touched by so many in different shapes that the first of these was forgotten.
  uint64_t num_forgotten();

 private:
  struct Touch {
    std::shared_ptr<const Item> item;
    size_t operand;
    // Of the item and the operand: most touches are only compared in these.
    size_t timeline;
    uint64_t time;
    uint64_t begin;
    bool writes;
    bool was_freed = false;   // the memory, since
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
  // Bytes of which all the same is known, from the key in the map to `end`.
  struct Cell {
    uint64_t end;
    std::vector<Touch> touches;  // that later items have to be behind
  };
  struct Block {
    uint64_t size;
    bool is_live;
    bool is_private;
    Context context;     // where it was allocated; of one that is not live, where it was freed
    uint64_t allocated;  // the number of the last item before
    uint64_t number;     // of all blocks, in order
    Context freed;       // where its memory was before
    uint64_t site = 0;
    uint64_t execution = 0;  // of the site
  };
  using Cells = std::map<uint64_t, Cell>;
  struct Function {
    const void* stream;
    size_t timeline;
  };

  // False: of a function that nobody knows.
  bool set_time(Item& item);
  void check_kernel(const std::shared_ptr<const Item>& item, KernelFinding found, std::vector<Finding>& findings) const;
  void locate_locked(Finding& finding) const;
  void check_memory(const std::shared_ptr<const Item>& item, size_t operand, std::vector<Finding>& findings) const;
  void check_written(const std::shared_ptr<const Item>& item, size_t operand, std::vector<Finding>& findings);
  void check_cells(const std::shared_ptr<const Item>& item, size_t operand, std::vector<Finding>& findings);
  // The bytes of a copy are as initialized as those that it copies. Of one that moves or converts elements it is only
  // known whether it copies nothing but what nobody has written.
  void pass_on_unwritten(const Item& copy);
  void check_order(const std::shared_ptr<const Item>& item, size_t operand, const Cell& cell,
                   std::vector<Finding>& findings) const;
  // Calls body(cell's address, cell) for those that share bytes with a region. None reaches across an end of it; where
  // there was none, there is one then.
  template <typename Body>
  void for_each_cell(const Region& region, Body body);
  void cut_at(uint64_t address);
  // A block of a site is no more.
  void leave_site(const Block& block);
  const Block* block_at(uint64_t address) const;
  Block* block_at(uint64_t address) { return const_cast<Block*>(std::as_const(*this).block_at(address)); }

  struct State {
    Checks checks;
    Clocks clocks;
    Cells cells;
    UnwrittenBytes unwritten;
    std::map<uint64_t, Block> blocks;
    uint64_t num_items = 0;
    std::unordered_map<uint64_t, Site> sites;  // by number
    uint64_t num_frees = 0;                    // by the program
    uint64_t num_blocks = 0;
    uint64_t num_forgotten = 0;
    std::unordered_map<uint64_t, Function> functions;  // by number
  };
  std::mutex mutex_;
  State state_;
};

}  // namespace torch_mtia::sanitizer
