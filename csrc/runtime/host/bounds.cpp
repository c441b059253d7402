#include "bounds.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <span>

namespace torch_mtia::runtime::host {
namespace {

bool is_inside(const mtia_kernel_context& context, uint64_t address, uint64_t size) {
  const std::span ranges(context.live_ranges, context.num_live_ranges);
  const auto next = std::upper_bound(ranges.begin(), ranges.end(), address,
                                     [](uint64_t at, const mtia_span& range) { return at < range.address; });
  if (next == ranges.begin()) return false;
  const mtia_span& range = *std::prev(next);
  const uint64_t offset = address - range.address;
  return size <= range.size && offset <= range.size - size;  // sums of the kernel's numbers may wrap
}

void report(mtia_error_cell& cell, const mtia_site& site, const int32_t (&program)[3]) {
  int64_t none = 0;
  if (!__atomic_compare_exchange_n(&cell.reported, &none, 1, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) return;
  std::copy_n(program, 3, cell.program);
  cell.line = site.line;
  const bool reads = (site.kind & MTIA_SITE_READS) != 0;
  const bool writes = (site.kind & MTIA_SITE_WRITES) != 0;
  const char* const slash = std::strrchr(site.file, '/');
  const bool is_named = site.argument[0] != '\0';
  std::snprintf(cell.message, sizeof(cell.message), "%s outside of live memory%s%s (%s:%d)",
                !writes  ? "reads"
                : !reads ? "writes"
                         : "accesses",
                is_named ? " through argument " : "", site.argument, slash != nullptr ? slash + 1 : site.file,
                site.line);
}

uint64_t access(const mtia_kernel_watch* /*watch*/, const mtia_kernel_context* context, const mtia_site* site,
                int32_t program_x, int32_t program_y, int32_t program_z, uint64_t address, int64_t stride,
                const uint64_t* addresses, uint64_t lanes, const void* /*values*/) {
  if (lanes == 0 || (site->kind & MTIA_SITE_COMPUTES) != 0) return lanes;
  uint64_t inside = lanes;
  for (uint64_t left = lanes; left != 0; left &= left - 1) {
    const int lane = __builtin_ctzll(left);
    const uint64_t at = addresses != nullptr ? addresses[lane] : address + static_cast<uint64_t>(lane * stride);
    if (is_inside(*context, at, site->size)) continue;
    inside &= ~(uint64_t{1} << lane);
    report(*context->error_cell, *site, {program_x, program_y, program_z});
  }
  return inside;
}

}  // namespace

const mtia_kernel_watch bounds_watch{&access};

}  // namespace torch_mtia::runtime::host
