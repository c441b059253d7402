#include "Detector.h"

#include <algorithm>
#include <utility>

namespace torch_mtia::sanitizer {
namespace {

// Of a cell. Few programs have more tensors of different shapes that share bytes.
constexpr size_t kMaxTouches = 4096;

}  // namespace

bool Detector::Access::is_known(FindingKind kind, const std::shared_ptr<const Item>& earlier) const {
  return std::any_of(findings.begin(), findings.end(),
                     [&](const Finding& each) { return each.kind == kind && each.earlier == earlier; });
}

void Site::allocate(uint64_t frees_now, Context where) {
  if (executions == 0 || frees != frees_now) ++executions;
  frees = frees_now;
  context = std::move(where);
  if (++alive <= most_alive) return;
  most_alive = alive;
  if (std::exchange(last_rise, executions) != executions) ++rises;
}

std::vector<Finding> Detector::submit(Item submitted, std::vector<Finding> found) {
  const auto item = std::make_shared<Item>(std::move(submitted));
  std::vector<Finding> findings;
  if (!set_time(*item)) return {};
  item->number = ++num_items_;
  if (!functions_.empty()) item->clock = std::make_shared<const Clock>(clocks_.of(item->timeline));
  if (!item->is_listed) unwritten_.clear();  // it may have written anything
  for (Finding& each : found) check_kernel(item, std::move(each), findings);
  for (size_t operand = 0; operand < item->operands.size(); ++operand) {
    if (item->operands[operand].region.empty()) continue;
    const Access access{item, operand, findings};
    check_memory(access);
    check_written(access);
    check_cells(access);
  }
  if (item->copies) copy_unwritten(*item);
  return findings;
}

bool Detector::set_time(Item& item) {
  item.timeline = clocks_.timeline_of(item.stream);
  if (item.function == 0) {
    item.time = clocks_.submit(item.timeline);
    return true;
  }
  const auto found = functions_.find(item.function);
  if (found == functions_.end()) return false;
  const auto& [stream, timeline] = found->second;
  if (item.stream == stream) {
    item.timeline = timeline;
    item.time = clocks_.of(timeline).at(timeline);
  } else {
    item.time = clocks_.submit(item.timeline, timeline);
  }
  return true;
}

void Detector::begin_function(uint64_t number, const void* stream) {
  functions_[number] = {stream, clocks_.begin_function(clocks_.timeline_of(stream))};
}

void Detector::end_function(uint64_t number) {
  const auto found = functions_.find(number);
  if (found == functions_.end()) return;
  clocks_.end_function(clocks_.timeline_of(found->second.stream), found->second.timeline);
  functions_.erase(found);
}

void Detector::allocate(uint64_t address, uint64_t size, bool is_private, bool is_written, Context context,
                        uint64_t site) {
  auto block = blocks_.lower_bound(address);
  if (block != blocks_.begin() && std::prev(block)->first + std::prev(block)->second.size > address) --block;
  Context freed = nullptr;
  while (block != blocks_.end() && block->first < address + size) {
    if (block->second.is_live) leave_site(block->second);
    freed = block->second.is_live ? nullptr : std::move(block->second.context);
    block = blocks_.erase(block);
  }
  Block& added =
      blocks_[address] = {size, /*is_live=*/true, is_private, context, num_items_, ++num_blocks_, std::move(freed)};
  if (site != 0 && !is_private) {
    Site& of = sites_[site];
    of.allocate(num_frees_, std::move(context));
    added.site = site;
    added.execution = of.executions;
  }
  if (is_written) {
    unwritten_.remove(address, address + size);
  } else if (checks_.initialized) {
    unwritten_.add(address, address + size);
  }
}

void Detector::free(uint64_t address, Context context) {
  const auto block = blocks_.find(address);
  if (block == blocks_.end() || block->second.is_private) return;  // allocated before the start, or in use
  if (block->second.is_live) leave_site(block->second);
  if (context != nullptr) ++num_frees_;
  block->second.is_live = false;
  block->second.context = context;
  unwritten_.remove(address, address + block->second.size);
  for_each_cell(Region::dense(address, block->second.size), [&](uint64_t /*begin*/, Cell& cell) {
    for (Touch& touch : cell.touches) {
      if (!std::exchange(touch.was_freed, true)) touch.freed = context;
    }
  });
}

// The next block of this memory happens after these touches, whatever its stream, and nothing may access it before.
void Detector::reuse_waits_for(const void* stream, uint64_t address, uint64_t size) {
  if (size == 0) return;
  const Clock& done = clocks_.of(clocks_.timeline_of(stream));
  for_each_cell(Region::dense(address, size), [&](uint64_t /*begin*/, Cell& cell) {
    std::erase_if(cell.touches, [&](const Touch& touch) { return touch.is_before(done); });
  });
}

void Detector::leave_site(const Block& block) {
  const auto site = sites_.find(block.site);
  if (site != sites_.end()) --site->second.alive;
}

std::vector<LiveSite> Detector::live_blocks() {
  std::unordered_map<uint64_t, LiveSite> sites;
  auto cell = cells_.begin();
  for (const auto& [address, block] : blocks_) {
    if (!block.is_live || block.site == 0) continue;
    uint64_t used = 0;
    while (cell != cells_.end() && cell->second.end <= address) ++cell;
    for (auto each = cell; each != cells_.end() && each->first < address + block.size; ++each) {
      for (const Touch& touch : each->second.touches) used = std::max(used, touch.item->number);
    }
    LiveSite& of = sites[block.site];
    of.site = sites_.at(block.site);
    of.blocks.push_back({address, block.size, block.execution, block.allocated, used});
  }
  std::vector<LiveSite> result;
  result.reserve(sites.size());
  for (auto& [number, each] : sites) result.push_back(std::move(each));
  return result;
}

const Detector::Block* Detector::block_at(uint64_t address) const {
  auto block = blocks_.upper_bound(address);
  if (block == blocks_.begin()) return nullptr;
  --block;
  return address < block->first + block->second.size ? &block->second : nullptr;
}

void Detector::check_kernel(const std::shared_ptr<const Item>& item, Finding found,
                            std::vector<Finding>& findings) const {
  const bool leaves = found.kind == FindingKind::kOutOfBounds;
  if (found.kind != FindingKind::kNotFinite && (leaves ? !checks_.bounds : !checks_.kernels)) return;
  found.item = item;
  locate(found);
  findings.push_back(std::move(found));
}

void Detector::locate(Finding& finding) const {
  if (finding.kind != FindingKind::kOutOfBounds || finding.memory != nullptr) return;
  const KernelAccesses& found = *finding.kernel;
  const bool is_wild = found.tensor.size == 0;
  const Block* block = block_at(is_wild ? found.access.address : found.tensor.address);
  if (block == nullptr || (is_wild && block->is_live)) return;
  if (is_wild) finding.kind = FindingKind::kUseAfterFree;
  finding.memory = block->context;
}

void Detector::check_memory(const Access& access) const {
  if (!checks_.freed || access.is_known(FindingKind::kUseAfterFree)) return;
  const Operand& what = access.what();
  const Block* block = block_at(what.region.begin());
  if (block == nullptr || block->is_private) return;
  if (!block->is_live) {
    access.report(FindingKind::kUseAfterFree, block->context);
  } else if (what.captured != nullptr && *what.captured < block->number) {
    // A graph accesses the addresses of its capture, whatever is allocated there now.
    access.report(FindingKind::kUseAfterFree, block->freed);
  }
}

void Detector::check_written(const Access& access) {
  const Operand& what = access.what();
  // An operand that is read in part must have some written bytes, unless an empty index selects nothing of it.
  const auto may_select = [&] {
    return std::none_of(access.item->operands.begin(), access.item->operands.end(),
                        [](const Operand& each) { return each.region.empty(); });
  };
  if (what.old_bytes == OldBytes::kRead ||
      (what.old_bytes == OldBytes::kReadInPart && unwritten_.contains_all(what.region) && may_select())) {
    const uint64_t first = unwritten_.first_of(what.region);
    if (first != Region::kNone && !access.is_known(FindingKind::kUninitialized)) {
      const Block* block = block_at(first);
      access.report(FindingKind::kUninitialized, block != nullptr ? block->context : nullptr);
    }
  }
  if (what.writes) unwritten_.remove(what.region);
}

void Detector::check_cells(const Access& access) {
  const Region& region = access.what().region;
  const bool writes = access.what().writes;
  const Clock& clock = clocks_.of(access.item->timeline);
  for_each_cell(region, [&](uint64_t begin, Cell& cell) {
    check_order(access, cell, clock);
    // Drop covered touches: happens-before is transitive, and unordered pairs were reported above.
    const bool covers_all = region.contains({begin, cell.end});
    std::erase_if(cell.touches, [&](const Touch& touch) {
      return (covers_all || (region.may_contain(touch.begin) && region.contains(touch.what().region))) &&
             (writes || (!touch.writes && touch.is_before(clock)));
    });
    if (cell.touches.size() == kMaxTouches) {
      cell.touches.erase(cell.touches.begin());
      ++num_forgotten_;
    }
    cell.touches.emplace_back(access.item, access.operand);
  });
  if (!writes || !region.is_dense()) return;
  cells_.assign(region.begin(), Cell{.end = region.end(), .touches = {Touch(access.item, access.operand)}});
}

void Detector::check_order(const Access& access, const Cell& cell, const Clock& clock) const {
  if (!checks_.order) return;
  for (const Touch& touch : cell.touches) {
    if (!(touch.writes || access.what().writes) || touch.is_before(clock)) continue;
    if (touch.item->clock != nullptr && touch.item->clock->at(access.item->timeline) >= access.item->time) continue;
    if (!touch.what().region.overlaps(access.what().region)) continue;
    const FindingKind kind = touch.was_freed ? FindingKind::kFreedTooEarly : FindingKind::kRace;
    if (!access.is_known(kind, touch.item)) access.report(kind, touch.freed, touch.item, touch.operand);
  }
}

void Detector::copy_unwritten(const Item& copy) {
  const Region& from = copy.operands[0].region;
  const Region& to = copy.operands[1].region;
  if (from.empty()) return;
  if (unwritten_.contains_all(from)) {
    unwritten_.add(to);
  } else if (copy.copies_bytes && from.is_dense() && to.is_dense()) {
    unwritten_.copy(from.begin(), from.end(), to.begin());
  }
}

template <typename Body>
void Detector::for_each_cell(const Region& region, Body body) {
  cells_.cut(region.end());
  auto cell = cells_.cut(region.begin());
  for (uint64_t at = region.begin(); at < region.end();) {
    if (cell != cells_.end() && cell->second.end <= at) cell = cells_.find(at);
    if (cell == cells_.end() || cell->first > at) {
      const uint64_t end = cell == cells_.end() ? region.end() : std::min(cell->first, region.end());
      cell = cells_.emplace_hint(cell, at, Cell{.end = end});
    }
    body(cell->first, cell->second);
    at = region.next(cell->second.end);
    ++cell;
  }
}

// Unwritten bytes ----------------------------------------------------------------------------------------------------

void UnwrittenBytes::add(const Region& region) {
  for (uint64_t at = region.begin(); at < region.end() && runs_.size() < kMaxRuns;) {
    const uint64_t end = region.run_end(at);
    add(at, end);
    at = region.next(end);
  }
}

void UnwrittenBytes::remove(const Region& region) {
  for (uint64_t at = first_of(region); at != Region::kNone;) {
    const uint64_t end = runs_.size() < kMaxRuns ? region.run_end(at) : region.end();
    remove(at, end);
    at = first_of(region, end);
  }
}

uint64_t UnwrittenBytes::first_of(const Region& region, uint64_t at) const {
  while (at < region.end()) {
    const auto run = runs_.find(at);
    if (run == runs_.end()) return Region::kNone;
    at = region.next(std::max(at, run->first));
    if (at < run->second.end) return at;
  }
  return Region::kNone;
}

bool UnwrittenBytes::contains_all(const Region& region) const {
  for (uint64_t at = region.begin(); at < region.end();) {
    const auto run = runs_.find(at);
    if (run == runs_.end() || run->first > at) return false;
    at = region.next(run->second.end);
  }
  return true;
}

void UnwrittenBytes::copy(uint64_t begin, uint64_t end, uint64_t to) {
  std::vector<ByteRange> found;  // first: the ranges may overlap
  for (auto run = runs_.find(begin); run != runs_.end() && run->first < end; ++run) {
    found.push_back({std::max(begin, run->first), std::min(end, run->second.end)});
  }
  for (const auto& each : found) add(to + (each.begin - begin), to + (each.end - begin));
}

}  // namespace torch_mtia::sanitizer
