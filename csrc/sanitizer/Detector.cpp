#include "Detector.h"

#include <algorithm>
#include <utility>

namespace torch_mtia::sanitizer {
namespace {

// Of a cell: so many tensors that share bytes, in different shapes, are hardly met.
constexpr size_t kMaxTouches = 4096;

bool is_known(const std::vector<Finding>& findings, FindingKind kind, const std::shared_ptr<const Item>& earlier) {
  return std::any_of(findings.begin(), findings.end(),
                     [&](const Finding& each) { return each.kind == kind && each.earlier == earlier; });
}

}  // namespace

void Site::allocate(uint64_t frees_now, Context where) {
  if (executions == 0 || frees != frees_now) ++executions;
  frees = frees_now;
  context = std::move(where);
  if (++alive <= most_alive) return;
  most_alive = alive;
  if (std::exchange(last_rise, executions) != executions) ++rises;
}

void Detector::restart(Checks checks) {
  const std::lock_guard lock(mutex_);
  state_ = State();
  state_.checks = checks;
}

std::vector<Finding> Detector::submit(Item submitted, std::vector<KernelFinding> found) {
  const auto item = std::make_shared<Item>(std::move(submitted));
  std::vector<Finding> findings;
  const std::lock_guard lock(mutex_);
  if (!set_time(*item)) return {};
  item->number = ++state_.num_items;
  if (!state_.functions.empty()) item->clock = std::make_shared<const Clock>(state_.clocks.of(item->timeline));
  if (!item->is_listed) state_.unwritten.clear();  // it may have written anything
  for (KernelFinding& each : found) check_kernel(item, std::move(each), findings);
  for (size_t operand = 0; operand < item->operands.size(); ++operand) {
    if (item->operands[operand].region.empty()) continue;
    check_memory(item, operand, findings);
    check_written(item, operand, findings);
    check_cells(item, operand, findings);
  }
  if (item->copies) pass_on_unwritten(*item);
  return findings;
}

bool Detector::set_time(Item& item) {
  Clocks& clocks = state_.clocks;
  item.timeline = clocks.timeline_of(item.stream);
  if (item.function == 0) {
    item.time = clocks.submit(item.timeline);
    return true;
  }
  const auto found = state_.functions.find(item.function);
  if (found == state_.functions.end()) return false;
  const auto& [stream, timeline] = found->second;
  if (item.stream == stream) {
    item.timeline = timeline;
    item.time = clocks.of(timeline).at(timeline);
  } else {
    item.time = clocks.submit(item.timeline, timeline);
  }
  return true;
}

void Detector::begin_function(uint64_t number, const void* stream) {
  const std::lock_guard lock(mutex_);
  state_.functions[number] = {stream, state_.clocks.begin_function(state_.clocks.timeline_of(stream))};
}

void Detector::end_function(uint64_t number) {
  const std::lock_guard lock(mutex_);
  const auto found = state_.functions.find(number);
  if (found == state_.functions.end()) return;
  state_.clocks.end_function(state_.clocks.timeline_of(found->second.stream), found->second.timeline);
  state_.functions.erase(found);
}

void Detector::record(const void* event, const void* stream) {
  const std::lock_guard lock(mutex_);
  state_.clocks.record(event, state_.clocks.timeline_of(stream));
}

void Detector::wait(const void* stream, const void* event) {
  const std::lock_guard lock(mutex_);
  state_.clocks.wait(state_.clocks.timeline_of(stream), event);
}

void Detector::forget(const void* event) {
  const std::lock_guard lock(mutex_);
  state_.clocks.forget(event);
}

void Detector::host_waits_for_stream(const void* stream) {
  const std::lock_guard lock(mutex_);
  state_.clocks.host_waits_for_stream(state_.clocks.timeline_of(stream));
}

void Detector::host_waits_for_event(const void* event) {
  const std::lock_guard lock(mutex_);
  state_.clocks.host_waits_for_event(event);
}

void Detector::allocate(uint64_t address, uint64_t size, bool is_private, bool is_written, Context context,
                        uint64_t site) {
  const std::lock_guard lock(mutex_);
  auto block = state_.blocks.lower_bound(address);
  if (block != state_.blocks.begin() && std::prev(block)->first + std::prev(block)->second.size > address) --block;
  Context freed = nullptr;
  while (block != state_.blocks.end() && block->first < address + size) {
    if (block->second.is_live) leave_site(block->second);
    freed = block->second.is_live ? nullptr : std::move(block->second.context);
    block = state_.blocks.erase(block);
  }
  Block& added = state_.blocks[address] = {
      size, /*is_live=*/true, is_private, context, state_.num_items, ++state_.num_blocks, std::move(freed)};
  if (site != 0 && !is_private) {
    Site& of = state_.sites[site];
    of.allocate(state_.num_frees, std::move(context));
    added.site = site;
    added.execution = of.executions;
  }
  if (is_written) {
    state_.unwritten.remove(address, address + size);
  } else if (state_.checks.initialized) {
    state_.unwritten.add(address, address + size);
  }
}

void Detector::free(uint64_t address, Context context) {
  const std::lock_guard lock(mutex_);
  const auto block = state_.blocks.find(address);
  if (block == state_.blocks.end() || block->second.is_private) return;  // allocated before anybody looked, or in use
  if (block->second.is_live) leave_site(block->second);
  if (context != nullptr) ++state_.num_frees;
  block->second.is_live = false;
  block->second.context = context;
  state_.unwritten.remove(address, address + block->second.size);
  for_each_cell(Region::dense(address, block->second.size), [&](uint64_t /*begin*/, Cell& cell) {
    for (Touch& touch : cell.touches) {
      if (!std::exchange(touch.was_freed, true)) touch.freed = context;
    }
  });
}

// Whoever gets the memory is after these touches, in whatever stream; nobody else may touch it meanwhile.
void Detector::reuse_waits_for(const void* stream, uint64_t address, uint64_t size) {
  if (size == 0) return;
  const std::lock_guard lock(mutex_);
  const Clock& done = state_.clocks.of(state_.clocks.timeline_of(stream));
  for_each_cell(Region::dense(address, size), [&](uint64_t /*begin*/, Cell& cell) {
    std::erase_if(cell.touches, [&](const Touch& touch) { return touch.is_before(done); });
  });
}

uint64_t Detector::num_blocks() {
  const std::lock_guard lock(mutex_);
  return state_.num_blocks;
}

uint64_t Detector::num_forgotten() {
  const std::lock_guard lock(mutex_);
  return state_.num_forgotten;
}

void Detector::leave_site(const Block& block) {
  const auto site = state_.sites.find(block.site);
  if (site != state_.sites.end()) --site->second.alive;
}

std::vector<LiveSite> Detector::live_blocks() {
  const std::lock_guard lock(mutex_);
  std::unordered_map<uint64_t, LiveSite> sites;
  auto cell = state_.cells.begin();
  for (const auto& [address, block] : state_.blocks) {
    if (!block.is_live || block.site == 0) continue;
    uint64_t used = 0;
    while (cell != state_.cells.end() && cell->second.end <= address) ++cell;
    for (auto each = cell; each != state_.cells.end() && each->first < address + block.size; ++each) {
      for (const Touch& touch : each->second.touches) used = std::max(used, touch.item->number);
    }
    LiveSite& of = sites[block.site];
    of.site = state_.sites.at(block.site);
    of.blocks.push_back({address, block.size, block.execution, block.allocated, used});
  }
  std::vector<LiveSite> result;
  result.reserve(sites.size());
  for (auto& [number, each] : sites) result.push_back(std::move(each));
  return result;
}

const Detector::Block* Detector::block_at(uint64_t address) const {
  auto block = state_.blocks.upper_bound(address);
  if (block == state_.blocks.begin()) return nullptr;
  --block;
  return address < block->first + block->second.size ? &block->second : nullptr;
}

void Detector::check_kernel(const std::shared_ptr<const Item>& item, KernelFinding found,
                            std::vector<Finding>& findings) const {
  const bool leaves = found.kind == FindingKind::kOutOfBounds;
  if (found.kind != FindingKind::kNotFinite && (leaves ? !state_.checks.bounds : !state_.checks.kernels)) return;
  findings.push_back({.kind = found.kind,
                      .item = item,
                      .kernel = std::make_shared<KernelFinding>(found),
                      .numbers = found.numbers,
                      .given = found.given});
  locate_locked(findings.back());
}

void Detector::locate(Finding& finding) {
  const std::lock_guard lock(mutex_);
  if (finding.kernel != nullptr) locate_locked(finding);
}

void Detector::locate_locked(Finding& finding) const {
  if (finding.kind != FindingKind::kOutOfBounds || finding.memory != nullptr) return;
  const KernelFinding& found = *finding.kernel;
  const bool is_wild = found.tensor.size == 0;
  const Block* block = block_at(is_wild ? found.access.address : found.tensor.address);
  if (block == nullptr || (is_wild && block->is_live)) return;
  if (is_wild) finding.kind = FindingKind::kUseAfterFree;
  finding.memory = block->context;
}

void Detector::check_memory(const std::shared_ptr<const Item>& item, size_t operand,
                            std::vector<Finding>& findings) const {
  if (!state_.checks.freed || is_known(findings, FindingKind::kUseAfterFree, nullptr)) return;
  const auto found = [&](const Context& freed) {
    findings.push_back({.kind = FindingKind::kUseAfterFree, .item = item, .operand = operand, .memory = freed});
  };
  const Operand& what = item->operands[operand];
  const Block* block = block_at(what.region.begin());
  if (block == nullptr || block->is_private) return;
  if (!block->is_live) {
    found(block->context);
  } else if (what.captured != nullptr && *what.captured < block->number) {
    found(block->freed);  // a graph reads where it did at its capture, whoever has that memory now
  }
}

void Detector::check_written(const std::shared_ptr<const Item>& item, size_t operand, std::vector<Finding>& findings) {
  const Operand& what = item->operands[operand];
  // Of what is read in part, some must be written. An index without elements chooses nothing.
  const auto may_choose = [&] {
    return std::none_of(item->operands.begin(), item->operands.end(),
                        [](const Operand& each) { return each.region.empty(); });
  };
  if (what.old_bytes == OldBytes::kRead ||
      (what.old_bytes == OldBytes::kReadInPart && state_.unwritten.contains_all(what.region) && may_choose())) {
    const uint64_t first = state_.unwritten.first_of(what.region);
    if (first != Region::kNone && !is_known(findings, FindingKind::kUninitialized, nullptr)) {
      const Block* block = block_at(first);
      findings.push_back({.kind = FindingKind::kUninitialized,
                          .item = item,
                          .operand = operand,
                          .memory = block != nullptr ? block->context : nullptr});
    }
  }
  if (what.writes) state_.unwritten.remove(what.region);
}

void Detector::check_cells(const std::shared_ptr<const Item>& item, size_t operand, std::vector<Finding>& findings) {
  const Region& region = item->operands[operand].region;
  const bool writes = item->operands[operand].writes;
  for_each_cell(region, [&](uint64_t begin, Cell& known) {
    check_order(item, operand, known, findings);
    auto& touches = known.touches;
    // Of what it covers: whoever is behind this item is behind what this item is behind; and what it is not behind was
    // found here.
    const Clock& clock = state_.clocks.of(item->timeline);
    const bool covers_all = region.contains(begin, known.end);
    std::erase_if(touches, [&](const Touch& touch) {
      return (covers_all || (region.may_contain(touch.begin) && region.contains(touch.what().region))) &&
             (writes || (!touch.writes && touch.is_before(clock)));
    });
    if (touches.size() == kMaxTouches) {
      touches.erase(touches.begin());
      ++state_.num_forgotten;
    }
    touches.emplace_back(item, operand);
  });
  if (!writes || !region.is_dense()) return;
  // All is the same in them now.
  Cell whole{.end = region.end(), .touches = {Touch(item, operand)}};
  state_.cells.erase(state_.cells.lower_bound(region.begin()), state_.cells.lower_bound(region.end()));
  state_.cells.emplace(region.begin(), std::move(whole));
}

void Detector::pass_on_unwritten(const Item& copy) {
  const Region& from = copy.operands[0].region;
  const Region& to = copy.operands[1].region;
  if (from.empty()) return;
  if (state_.unwritten.contains_all(from)) {
    state_.unwritten.add(to);
  } else if (copy.copies_bytes && from.is_dense() && to.is_dense()) {
    for (const auto& [begin, end] : state_.unwritten.between(from.begin(), from.end())) {
      state_.unwritten.add(to.begin() + (begin - from.begin()), to.begin() + (end - from.begin()));
    }
  }
}

void Detector::check_order(const std::shared_ptr<const Item>& item, size_t operand, const Cell& cell,
                           std::vector<Finding>& findings) const {
  if (!state_.checks.order) return;
  const Operand& later = item->operands[operand];
  const Clock& clock = state_.clocks.of(item->timeline);
  for (const Touch& touch : cell.touches) {
    if (!(touch.writes || later.writes) || touch.is_before(clock)) continue;
    if (touch.item->clock != nullptr && touch.item->clock->at(item->timeline) >= item->time) continue;
    if (!touch.what().region.overlaps(later.region)) continue;
    const FindingKind kind = touch.was_freed ? FindingKind::kFreedTooEarly : FindingKind::kRace;
    if (is_known(findings, kind, touch.item)) continue;
    findings.push_back({kind, item, operand, touch.item, touch.operand, touch.freed});
  }
}

void Detector::cut_at(uint64_t address) {
  auto cell = state_.cells.upper_bound(address);
  if (cell == state_.cells.begin()) return;
  --cell;
  if (cell->first == address || cell->second.end <= address) return;
  Cell behind = cell->second;
  cell->second.end = address;
  const auto second = state_.cells.emplace_hint(std::next(cell), address, std::move(behind));
  for (const auto& part : {cell, second}) {
    std::erase_if(part->second.touches,
                  [&](const Touch& touch) { return !touch.what().region.overlaps(part->first, part->second.end); });
  }
}

template <typename Body>
void Detector::for_each_cell(const Region& region, Body body) {
  cut_at(region.begin());
  cut_at(region.end());
  auto cell = state_.cells.lower_bound(region.begin());
  for (uint64_t at = region.begin(); at < region.end();) {
    if (cell != state_.cells.end() && cell->second.end <= at) {
      cell = state_.cells.upper_bound(at);
      if (cell != state_.cells.begin() && std::prev(cell)->second.end > at) --cell;
    }
    if (cell == state_.cells.end() || cell->first > at) {
      const uint64_t end = cell == state_.cells.end() ? region.end() : std::min(cell->first, region.end());
      cell = state_.cells.emplace_hint(cell, at, Cell{.end = end, .touches = {}});
    }
    body(cell->first, cell->second);
    at = region.next(cell->second.end);
    ++cell;
  }
}

}  // namespace torch_mtia::sanitizer
