#include "AccessRecorder.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "../runtime/live_ranges.h"

namespace torch_mtia::sanitizer {
namespace {

constexpr uint64_t kNumbers = MTIA_SITE_FLOAT | MTIA_SITE_BFLOAT16;

// `count` bits from `first` on.
constexpr uint64_t bits(uint32_t first, uint32_t count) {
  return (count == 64 ? ~uint64_t{0} : (uint64_t{1} << count) - 1) << first;
}

// The compiler makes no site with a larger number or larger elements; but an image is a file that may be corrupt.
constexpr uint32_t kMaxSites = uint32_t{1} << 16;
constexpr uint32_t kMaxElementSize = 8;

// A line with more operands gets one scattered operand instead.
constexpr size_t kMaxOperands = 256;

// Bytes that one line of the kernel accesses, in ascending order.
class Runs {
 public:
  void add(uint64_t begin, uint64_t end) {
    if (!runs_.empty() && runs_.back().end == begin) {
      runs_.back().end = end;
    } else {
      runs_.push_back({begin, end});
    }
  }

  // One operand for each sequence of runs with one size and one stride.
  void list(bool writes, OldBytes old_bytes, const std::shared_ptr<const KernelLine>& line,
            std::vector<Operand>& operands) {
    uint64_t bytes = 0;
    for (const ByteRange& run : runs_) bytes += run.size();
    const std::string type = std::to_string(bytes) + " bytes";
    std::vector<Operand> found;
    for (size_t first = 0; first < runs_.size() && found.size() <= kMaxOperands;) {
      const size_t last = end_of_sequence(first);
      const ByteRange& run = runs_[first];
      const int64_t sizes[] = {static_cast<int64_t>(last - first)};
      const int64_t strides[] = {last - first > 1 ? static_cast<int64_t>(runs_[first + 1].begin - run.begin) : 0};
      found.push_back({Region(run.begin, run.size(), sizes, strides), writes, old_bytes, type, line});
      first = last;
    }
    if (found.size() > kMaxOperands) {
      operands.push_back({Region(std::move(runs_)), writes, old_bytes, type, line});
    } else {
      operands.insert(operands.end(), found.begin(), found.end());
    }
  }

 private:
  // The first run after `first` with another size, or another distance from the one before it.
  size_t end_of_sequence(size_t first) const {
    size_t last = first + 1;
    if (last == runs_.size()) return last;
    const uint64_t size = runs_[first].size();
    const uint64_t stride = runs_[last].begin - runs_[first].begin;
    while (last < runs_.size() && runs_[last].size() == size && runs_[last].begin - runs_[last - 1].begin == stride)
      ++last;
    return last;
  }

  Region::Runs runs_;
};

}  // namespace

AccessRecorder::AccessRecorder(std::optional<std::vector<mtia_span>> live, std::vector<std::byte> arguments)
    : live_(live.value_or(std::vector<mtia_span>())),
      checks_bounds_(live.has_value()),
      arguments_(std::move(arguments)),
      records_(1),
      nodes_(1) {}

uint64_t AccessRecorder::access(const mtia_kernel_context& context, const mtia_site* source,
                                const std::array<int32_t, 3>& program, uint64_t address, int64_t stride,
                                const uint64_t* addresses, uint64_t lanes, const void* values) {
  if (source == nullptr) {
    if (address == MTIA_PROGRAM_BEGINS_AMONG_OTHERS) suspend();
    address == MTIA_PROGRAM_ENDS ? end_program(program) : begin_program(context, program);
    return 0;
  }
  if (program != running_.place) [[unlikely]]
    resume(program);
  const bool computes = (source->kind & MTIA_SITE_COMPUTES) != 0;
  if (computes && (source->kind & MTIA_SITE_WRITES) == 0) {
    compute(*source, lanes);
    return lanes;
  }
  Site* const known = site_of(*source);
  if (known == nullptr) return lanes;
  Site& site = *known;
  if (computes) {
    if (watches_numbers_) check_numbers(context, site, *source, &address, 1, values, /*is_single=*/true);
    return lanes;
  }
  if (lanes == 0) {
    enter(site);
    site.record = 0;
    return 0;
  }
  const bool is_dense = addresses == nullptr && stride == static_cast<int64_t>(site.size);
  const auto is_inside = [&](uint64_t begin, uint64_t size) {
    if (!checks_bounds_) return true;
    const mtia_span* tensor = site.tensor.size != 0 ? &site.tensor : runtime::range_at(live_, begin);
    return tensor != nullptr && runtime::contains(*tensor, begin, size);
  };
  // The common case: adjacent lanes, and nothing but their bytes to record.
  const uint64_t special = MTIA_SITE_ACQUIRES | MTIA_SITE_RELEASES | (watches_numbers_ ? kNumbers : 0);
  if (is_dense && (lanes & (lanes + 1)) == 0 && (site.kind & special) == 0) {
    const uint64_t size = uint64_t{site.size} * static_cast<uint32_t>(std::bit_width(lanes));
    if (is_inside(address, size) && (values == nullptr || !was_stored(site, address, address + size))) [[likely]] {
      touch(site, source->number, address, address + size);
      return lanes;
    }
  }
  if ((site.kind & (MTIA_SITE_ACQUIRES | MTIA_SITE_RELEASES)) != 0) enter_all();
  const auto address_of = [&](uint32_t lane) {
    return addresses != nullptr ? addresses[lane] : address + static_cast<uint64_t>(int64_t{lane} * stride);
  };
  // Calls body(first lane, count) for lanes with adjacent bytes.
  const auto for_each_run = [&](uint64_t left, auto&& body) {
    while (left != 0) {
      const auto first = static_cast<uint32_t>(std::countr_zero(left));
      auto count = static_cast<uint32_t>(std::countr_one(left >> first));
      if (!is_dense) {
        const uint64_t begin = address_of(first);
        uint32_t near = 1;
        while (near < count && address_of(first + near) == begin + uint64_t{near} * site.size) ++near;
        count = near;
      }
      body(first, count);
      left &= ~bits(first, count);
    }
  };

  uint64_t allowed = lanes;
  if (checks_bounds_) {
    for_each_run(lanes, [&](uint32_t first, uint32_t count) {
      if (is_inside(address_of(first), uint64_t{count} * site.size)) [[likely]]
        return;
      for (uint32_t lane = first; lane < first + count; ++lane) {
        if (is_inside(address_of(lane), site.size)) continue;
        allowed &= ~bits(lane, 1);
        report(FindingKind::kOutOfBounds, record_of(site, source->number), 0, address_of(lane));
      }
    });
  }
  if ((site.kind & MTIA_SITE_ACQUIRES) != 0) {
    for (uint64_t left = allowed; left != 0; left &= left - 1) acquire(address_of(std::countr_zero(left)));
  }
  if (watches_numbers_ && (site.kind & kNumbers) != 0) {
    std::array<uint64_t, 64> all;
    for (uint64_t left = allowed; left != 0; left &= left - 1) {
      all[std::countr_zero(left)] = address_of(std::countr_zero(left));
    }
    const bool is_single = lanes == 1 && addresses == nullptr && stride == 0;
    check_numbers(context, site, *source, all.data(), allowed, values, is_single);
  }
  if (values != nullptr && allowed != 0) {
    const auto low = static_cast<uint32_t>(std::countr_zero(allowed));
    const auto high = 63 - static_cast<uint32_t>(std::countl_zero(allowed));
    if (!is_dense || was_stored(site, address_of(low), address_of(high) + site.size)) {
      std::array<uint64_t, 64> all;
      for (uint32_t lane = low; lane <= high; ++lane) all[lane] = address_of(lane);
      check_lanes(context, site, source->number, all.data(), allowed, values);
    }
  }
  if (addresses != nullptr) {
    for (uint64_t left = allowed; left != 0; left &= left - 1) memory_.fetch(addresses[std::countr_zero(left)]);
  }
  for_each_run(allowed, [&](uint32_t first, uint32_t count) {
    const uint64_t begin = address_of(first);
    touch(site, source->number, begin, begin + uint64_t{count} * site.size);
  });
  if ((site.kind & MTIA_SITE_RELEASES) != 0) {
    enter(site);
    for (uint64_t left = allowed; left != 0; left &= left - 1) release(address_of(std::countr_zero(left)));
    ++running_.epoch;
    ++moment_;
  }
  return allowed;
}

void AccessRecorder::begin_program(const mtia_kernel_context& context, const std::array<int32_t, 3>& place) {
  enter_all();
  std::copy_n(context.grid, 3, grid_.begin());
  running_ = {};
  running_.place = place;
  running_.number = number_at(place);
  ++moment_;
}

void AccessRecorder::suspend() {
  enter_all();
  const uint32_t number = running_.number;
  if (running_.place != kNowhere) suspended_.insert_or_assign(number, std::move(running_));
  running_ = {};
}

void AccessRecorder::end_program(const std::array<int32_t, 3>& place) {
  if (place != running_.place) resume(place);  // it has done nothing since others have
  enter_all();
  running_ = {};
}

void AccessRecorder::resume(const std::array<int32_t, 3>& place) {
  suspend();
  const uint32_t number = number_at(place);
  if (const auto found = suspended_.find(number); found != suspended_.end()) {
    running_ = std::move(found->second);
    suspended_.erase(found);
  }
  running_.place = place;
  running_.number = number;
  ++moment_;
}

uint32_t AccessRecorder::number_at(const std::array<int32_t, 3>& place) const {
  return static_cast<uint32_t>(place[0] + int64_t{grid_[0]} * (place[1] + int64_t{grid_[1]} * place[2]));
}

AccessRecorder::Site* AccessRecorder::site_of(const mtia_site& source) {
  if (source.number < sites_.size() && sites_[source.number].source == &source) [[likely]]
    return &sites_[source.number];
  if (source.number >= kMaxSites || source.size == 0 || source.size > kMaxElementSize) {
    is_foreign_ = true;
    return nullptr;
  }
  if (source.number >= sites_.size()) sites_.resize(source.number + 1);
  Site& site = sites_[source.number];
  site.source = &source;
  site.line = std::make_shared<KernelLine>(KernelLine{source.file, source.line, source.argument});
  site.kind = source.kind;
  site.size = source.size;
  const int64_t offset = source.argument_offset;
  if (offset < 0 || static_cast<uint64_t>(offset) + sizeof(uint64_t) > arguments_.size()) return &site;
  uint64_t pointer = 0;
  std::memcpy(&pointer, arguments_.data() + offset, sizeof(pointer));
  if (const mtia_span* tensor = runtime::range_at(live_, pointer)) site.tensor = *tensor;
  return &site;
}

uint32_t AccessRecorder::record_of(Site& site, uint32_t number) {
  if (site.record == 0 || site.moment != moment_) {
    site.record = static_cast<uint32_t>(records_.size());
    site.moment = moment_;
    site.low = site.high = 0;
    records_.push_back({running_.number, running_.epoch, number});
  }
  return site.record;
}

// Memory -------------------------------------------------------------------------------------------------------------

// Adjacent accesses of a site are entered into memory_ together. They must be entered before another site accesses the
// same bytes, unless both read, and before the program's clock changes.
void AccessRecorder::touch(Site& site, uint32_t number, uint64_t begin, uint64_t end) {
  record_of(site, number);
  const bool is_first = site.low == site.high;
  for (Site& other : sites_) {
    if (other.begin < end && begin < other.end && ((site.kind | other.kind) & MTIA_SITE_WRITES) != 0) enter(other);
  }
  if (site.end != begin) {
    enter(site);
    site.begin = begin;
  }
  site.end = end;
  site.low = is_first ? begin : std::min(site.low, begin);
  site.high = is_first ? end : std::max(site.high, end);
}

void AccessRecorder::enter(Site& site) {
  const uint64_t begin = std::exchange(site.begin, 0);
  const uint64_t end = std::exchange(site.end, 0);
  memory_.touch(begin, end, [&](Cell& cell, uint64_t address) { touch(cell, site, site.record, address); });
}

void AccessRecorder::enter_all() {
  for (Site& site : sites_) enter(site);
}

void AccessRecorder::touch(Cell& cell, const Site& site, uint32_t record, uint64_t address) {
  const bool writes = (site.kind & MTIA_SITE_WRITES) != 0;
  const bool is_atomic = (site.kind & MTIA_SITE_ATOMIC) != 0;
  // Of several reads, prefer one that uses every byte over one whose data may be masked away.
  if ((site.kind & MTIA_SITE_READS) != 0 && cell.last_writer == 0 &&
      (cell.needs == 0 || ((site.kind & MTIA_SITE_CHOOSES) == 0 && chooses(cell.needs)))) {
    cell.needs = record;
  }
  uint32_t& list = is_atomic ? cell.atomics : cell.loads;
  if (!writes && list != 0 && nodes_[list].record == record) return;
  const auto check = [&](uint32_t first, bool only_writes) {
    for (uint32_t node = first; node != 0; node = nodes_[node].next) {
      const uint32_t earlier = nodes_[node].record;
      if (!only_writes || (sites_[records_[earlier].site].kind & MTIA_SITE_WRITES) != 0)
        check_order(earlier, site, record, address);
    }
  };
  check_order(cell.writer, site, record, address);
  if (!is_atomic) check(cell.atomics, /*only_writes=*/!writes);
  if (writes) {
    check(cell.loads, /*only_writes=*/false);
    cell.last_writer = record;
  }
  if (is_atomic || !writes) return add(list, record);
  cell.writer = record;
  cell.loads = cell.atomics = 0;
}

// Program order: keep only each program's last access.
void AccessRecorder::add(uint32_t& list, uint32_t record) {
  uint32_t next = list;
  if (next != 0 && records_[nodes_[next].record].program == running_.number) {
    if (nodes_[next].record == record) return;
    next = nodes_[next].next;
  }
  if (nodes_.back().record != record || nodes_.back().next != next) nodes_.push_back({record, next});
  list = static_cast<uint32_t>(nodes_.size() - 1);
}

bool AccessRecorder::was_stored(Site& site, uint64_t begin, uint64_t end) {
  if (site.record == 0 || site.moment != moment_ || end <= site.low || begin >= site.high) return false;
  enter_all();
  return memory_.any_of(begin, end, [&](const Cell& cell) { return cell.last_writer == site.record; });
}

// The values of earlier strips of the statement are in memory, those of this one in `values`.
void AccessRecorder::check_lanes(const mtia_kernel_context& context, Site& site, uint32_t number,
                                 const uint64_t* addresses, uint64_t lanes, const void* values) {
  const auto* const stored = static_cast<const std::byte*>(values);
  const auto value_of = [&](int lane) { return stored + static_cast<size_t>(lane) * site.size; };
  const bool is_first = site.record == 0 || site.moment != moment_;
  for (uint64_t left = lanes; left != 0; left &= left - 1) {
    const int lane = std::countr_zero(left);
    const void* there = nullptr;
    for (uint64_t before = lanes & bits(0, static_cast<uint32_t>(lane)); before != 0; before &= before - 1) {
      const int other = std::countr_zero(before);
      if (addresses[other] == addresses[lane]) there = value_of(other);
    }
    if (there == nullptr && !is_first && was_stored(site, addresses[lane], addresses[lane] + 1)) {
      there = reinterpret_cast<const void*>(addresses[lane] + static_cast<uint64_t>(context.host_offset));
    }
    if (there == nullptr || std::memcmp(there, value_of(lane), site.size) == 0) continue;
    report(FindingKind::kLaneConflict, record_of(site, number), 0, addresses[lane]);
    return;
  }
}

// Numbers ------------------------------------------------------------------------------------------------------------

void AccessRecorder::compute(const mtia_site& source, uint64_t lanes) {
  if (!watches_numbers_) return;
  if ((source.kind & MTIA_SITE_READS) != 0) {
    for (auto& [known, known_lanes] : running_.computed) known_lanes = ~uint64_t{0};
    return;
  }
  for (auto& [known, known_lanes] : running_.computed) {
    if (known != &source) continue;
    known_lanes |= lanes;
    return;
  }
  if (running_.computed.size() < kMaxComputed) running_.computed.emplace_back(&source, lanes);
}

NonFinite AccessRecorder::classify(const void* number, const Site& site) {
  uint64_t bits = 0;
  std::memcpy(&bits, number, site.size);
  bits &= (uint64_t{1} << (8 * site.size - 1)) - 1;  // without the sign
  const uint64_t infinity = (site.kind & MTIA_SITE_BFLOAT16) != 0 ? 0x7f80
                            : site.size == 8                      ? uint64_t{0x7ff} << 52
                            : site.size == 4                      ? 0x7f800000
                            : site.size == 1                      ? 0x7c
                                                                  : 0x7c00;
  return {.nan = bits > infinity ? 1U : 0U, .infinite = bits == infinity ? 1U : 0U};
}

// A program stores constants, what it has read, and what it has computed. A lane of a vector stays the same element,
// except across reductions: NaN, which is never a constant, may have been computed in any lane.
void AccessRecorder::check_numbers(const mtia_kernel_context& context, const Site& site, const mtia_site& source,
                                   const uint64_t* addresses, uint64_t lanes, const void* values, bool is_single) {
  NonFinite found;
  uint64_t where = 0;
  for (uint64_t left = lanes; left != 0; left &= left - 1) {
    const int lane = std::countr_zero(left);
    const void* number =
        values != nullptr ? static_cast<const std::byte*>(values) + static_cast<size_t>(lane) * site.size
                          : reinterpret_cast<const void*>(addresses[lane] + static_cast<uint64_t>(context.host_offset));
    const NonFinite each = classify(number, site);
    if (each.any()) where |= bits(static_cast<uint32_t>(lane), 1);
    found += each;
  }
  if (!found.any()) return;
  if (values == nullptr) {
    if ((site.kind & MTIA_SITE_READS) != 0) running_.given += found;
    return;
  }
  if (found.nan != 0 ? running_.given.nan != 0 : running_.given.any()) return;
  // A uniform infinity may be a constant, and the lanes in which a site made infinity may have been masked off.
  const auto makes_it = [&](const std::pair<const mtia_site*, uint64_t>& each) {
    if (found.nan == 0 && (each.first->kind & MTIA_SITE_FLOAT) != 0) return false;  // that made NaN
    if (is_single && found.nan == 0) return each.second == ~uint64_t{0};
    return (each.second & where) != 0;
  };
  const auto made = std::find_if(running_.computed.begin(), running_.computed.end(), makes_it);
  const mtia_site* by = made != running_.computed.end() ? made->first : nullptr;
  if (by == nullptr && found.nan != 0 && !running_.computed.empty()) by = running_.computed.front().first;
  if (by == nullptr || !known_findings_.emplace(FindingKind::kNotFinite, by->number, source.number).second) return;
  KernelAccess access{.line = std::make_shared<KernelLine>(KernelLine{by->file, by->line, ""}),
                      .program = program_at(running_.number),
                      .address = addresses[std::countr_zero(where)],
                      .size = site.size,
                      .writes = true};
  KernelAccess store = access;
  store.line = site.line;
  findings_.push_back({.kind = FindingKind::kNotFinite,
                       .kernel = std::make_shared<KernelAccesses>(KernelAccesses{std::move(access), std::move(store)}),
                       .numbers = found,
                       .given = running_.given});
}

// Order: see Note [Happens-before of programs] -----------------------------------------------------------------------

bool AccessRecorder::happens_before_now(const Record& record) const {
  if (record.program == running_.number) return true;
  const auto time =
      std::lower_bound(running_.clock.begin(), running_.clock.end(), std::pair(record.program, uint32_t{0}));
  return time != running_.clock.end() && time->first == record.program && time->second > record.epoch;
}

void AccessRecorder::check_order(uint32_t earlier, const Site& site, uint32_t record, uint64_t address) {
  if (earlier == 0 || happens_before_now(records_[earlier])) return;
  if ((site.kind & sites_[records_[earlier].site].kind & MTIA_SITE_ATOMIC) != 0) return;
  report(FindingKind::kProgramRace, record, earlier, address);
}

namespace {

// Both are clocks: programs, ascending, with epochs.
template <typename Clock>
void join(Clock& clock, const Clock& other) {
  Clock joined;
  joined.reserve(clock.size() + other.size());
  auto one = clock.begin();
  for (const auto& entry : other) {
    while (one != clock.end() && one->first < entry.first) joined.push_back(*one++);
    joined.push_back(entry);
    if (one != clock.end() && one->first == entry.first) {
      joined.back().second = std::max(one->second, entry.second);
      ++one;
    }
  }
  joined.insert(joined.end(), one, clock.end());
  clock = std::move(joined);
}

}  // namespace

void AccessRecorder::acquire(uint64_t address) {
  const auto released = released_.find(address);
  if (released != released_.end()) join(running_.clock, released->second);
}

void AccessRecorder::release(uint64_t address) {
  Clock& released = released_[address];
  if (!running_.clock.empty()) join(released, running_.clock);
  const auto own = std::lower_bound(released.begin(), released.end(), std::pair(running_.number, uint32_t{0}));
  if (own != released.end() && own->first == running_.number) {
    own->second = running_.epoch + 1;
  } else {
    released.insert(own, {running_.number, running_.epoch + 1});
  }
}

// Results ------------------------------------------------------------------------------------------------------------

void AccessRecorder::report(FindingKind kind, uint32_t record, uint32_t earlier, uint64_t address) {
  const uint32_t site = records_[record].site;
  if (!known_findings_.insert({kind, site, records_[earlier].site}).second) return;
  KernelAccesses accesses{.access = describe(record, address), .tensor = sites_[site].tensor};
  if (earlier != 0) accesses.earlier = describe(earlier, address);
  findings_.push_back({.kind = kind, .kernel = std::make_shared<KernelAccesses>(std::move(accesses))});
}

std::array<int32_t, 3> AccessRecorder::program_at(uint32_t number) const {
  const auto x = static_cast<uint32_t>(grid_[0]);
  const auto y = static_cast<uint32_t>(grid_[1]);
  return {static_cast<int32_t>(number % x), static_cast<int32_t>(number / x % y), static_cast<int32_t>(number / x / y)};
}

KernelAccess AccessRecorder::describe(uint32_t record, uint64_t address) const {
  const Record& of = records_[record];
  const Site& site = sites_[of.site];
  return {.line = site.line,
          .program = program_at(of.program),
          .address = address,
          .size = site.size,
          .writes = (site.kind & MTIA_SITE_WRITES) != 0};
}

AccessRecorder::Launch AccessRecorder::take() {
  enter_all();
  Launch launch;
  launch.was_followed = moment_ != 0 && !std::exchange(is_foreign_, false);
  launch.findings = std::move(findings_);
  std::vector<Runs> read(sites_.size());
  std::vector<Runs> written(sites_.size());
  const auto add = [&](const Cell& cell, uint64_t begin, uint64_t end) {
    if (cell.needs != 0) read[records_[cell.needs].site].add(begin, end);
    if (cell.last_writer != 0) written[records_[cell.last_writer].site].add(begin, end);
  };
  memory_.for_each(add);
  for (size_t site = 0; site < sites_.size(); ++site) {
    const bool chooses = (sites_[site].kind & MTIA_SITE_CHOOSES) != 0;
    read[site].list(/*writes=*/false, chooses ? OldBytes::kPassedThrough : OldBytes::kRead, sites_[site].line,
                    launch.operands);
  }
  for (size_t site = 0; site < sites_.size(); ++site) {
    written[site].list(/*writes=*/true, OldBytes::kOverwritten, sites_[site].line, launch.operands);
  }

  moment_ = 0;
  running_ = {};
  suspended_.clear();
  sites_.clear();
  records_.resize(1);
  nodes_.resize(1);
  memory_.clear();
  released_.clear();
  findings_.clear();
  known_findings_.clear();
  return launch;
}

}  // namespace torch_mtia::sanitizer
