#include "UnwrittenBytes.h"

#include <algorithm>
#include <iterator>

namespace torch_mtia::sanitizer {

UnwrittenBytes::Runs::const_iterator UnwrittenBytes::run_at(uint64_t address) const {
  const auto behind = runs_.upper_bound(address);
  return behind != runs_.begin() && std::prev(behind)->second > address ? std::prev(behind) : behind;
}

void UnwrittenBytes::add(uint64_t begin, uint64_t end) {
  if (begin == end) return;
  remove(begin, end);
  runs_.emplace(begin, end);
}

void UnwrittenBytes::add(const Region& region) {
  for (uint64_t at = region.begin(); at < region.end() && runs_.size() < kMaxRuns;) {
    const uint64_t end = region.run_end(at);
    add(at, end);
    at = region.next(end);
  }
}

void UnwrittenBytes::remove(uint64_t begin, uint64_t end) {
  for (auto run = run_at(begin); run != runs_.end() && run->first < end;) {
    const auto [first, last] = *run;
    run = runs_.erase(run);
    if (first < begin) runs_.emplace_hint(run, first, begin);
    if (end < last) runs_.emplace_hint(run, end, last);
  }
}

void UnwrittenBytes::remove(const Region& region) {
  for (uint64_t at = region.begin(); at < region.end();) {
    const auto run = run_at(at);
    if (run == runs_.end()) return;
    at = region.next(std::max(at, run->first));
    if (at >= run->second) continue;
    const uint64_t end = runs_.size() < kMaxRuns ? region.run_end(at) : region.end();
    remove(at, end);
    at = region.next(end);
  }
}

uint64_t UnwrittenBytes::first_of(const Region& region) const {
  for (uint64_t at = region.begin(); at < region.end();) {
    const auto run = run_at(at);
    if (run == runs_.end()) return Region::kNone;
    at = region.next(std::max(at, run->first));
    if (at < run->second) return at;
  }
  return Region::kNone;
}

bool UnwrittenBytes::contains_all(const Region& region) const {
  for (uint64_t at = region.begin(); at < region.end();) {
    const auto run = run_at(at);
    if (run == runs_.end() || run->first > at) return false;
    at = region.next(run->second);
  }
  return true;
}

std::vector<std::pair<uint64_t, uint64_t>> UnwrittenBytes::between(uint64_t begin, uint64_t end) const {
  std::vector<std::pair<uint64_t, uint64_t>> found;
  for (auto run = run_at(begin); run != runs_.end() && run->first < end; ++run) {
    found.emplace_back(std::max(begin, run->first), std::min(end, run->second));
  }
  return found;
}

}  // namespace torch_mtia::sanitizer
