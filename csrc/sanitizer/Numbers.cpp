#include "Numbers.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <string_view>

#include "../core/Driver.h"
#include "../processor/vectorized.h"
#include "NamedOperand.h"

#define INLINED [[gnu::always_inline]] inline

namespace torch_mtia::sanitizer {
namespace {

// Numbers of which those are not finite that are, as unsigned integers, `first_nan` or more, or `infinity`, once `flip`
// and then `mask` is applied.
template <typename T>
struct Bits {
  T mask;
  T infinity;  // as first_nan: there is none
  T first_nan;
  T flip = 0;
};

template <typename T>
INLINED NonFinite count_run(const std::byte* data, uint64_t size, Bits<T> bits) {
  constexpr uint64_t kChunk = 1024;
  const T least = std::min(bits.infinity, bits.first_nan);
  NonFinite found;
  for (uint64_t begin = 0; begin < size; begin += kChunk) {
    T values[kChunk];
    const uint64_t count = std::min(kChunk, size - begin);
    std::memcpy(values, data + begin * sizeof(T), count * sizeof(T));
    if (count < kChunk) std::memset(values + count, 0, (kChunk - count) * sizeof(T));
    T largest = 0;
    for (uint64_t i = 0; i < kChunk; ++i) {
      const T value = (values[i] ^ bits.flip) & bits.mask;
      largest = value > largest ? value : largest;
    }
    if (largest < least) [[likely]]
      continue;
    for (uint64_t i = 0; i < count; ++i) {
      const T value = (values[i] ^ bits.flip) & bits.mask;
      found.nan += value >= bits.first_nan;
      found.infinite += value == bits.infinity && value < bits.first_nan;
    }
  }
  return found;
}

template <typename T>
INLINED NonFinite count_strided(const std::byte* data, uint64_t size, int64_t stride, Bits<T> bits) {
  NonFinite found;
  for (uint64_t i = 0; i < size; ++i) {
    T value;
    std::memcpy(&value, data + i * stride, sizeof(T));
    value = (value ^ bits.flip) & bits.mask;
    found.nan += value >= bits.first_nan;
    found.infinite += value == bits.infinity && value < bits.first_nan;
  }
  return found;
}

template <typename T>
INLINED NonFinite count(const std::byte* data, uint64_t size, int64_t stride, Bits<T> bits) {
  return stride == sizeof(T) ? count_run(data, size, bits) : count_strided(data, size, stride, bits);
}

using Counter = NonFinite (*)(const std::byte* data, uint64_t size, int64_t stride);

VECTORIZED NonFinite count_double(const std::byte* data, uint64_t size, int64_t stride) {
  return count<uint64_t>(data, size, stride, {~UINT64_C(0) >> 1, UINT64_C(0x7ff) << 52, (UINT64_C(0x7ff) << 52) + 1});
}
VECTORIZED NonFinite count_float(const std::byte* data, uint64_t size, int64_t stride) {
  return count<uint32_t>(data, size, stride, {0x7fffffff, 0x7f800000, 0x7f800001});
}
VECTORIZED NonFinite count_half(const std::byte* data, uint64_t size, int64_t stride) {
  return count<uint16_t>(data, size, stride, {0x7fff, 0x7c00, 0x7c01});
}
VECTORIZED NonFinite count_bfloat16(const std::byte* data, uint64_t size, int64_t stride) {
  return count<uint16_t>(data, size, stride, {0x7fff, 0x7f80, 0x7f81});
}
VECTORIZED NonFinite count_float8_e5m2(const std::byte* data, uint64_t size, int64_t stride) {
  return count<uint8_t>(data, size, stride, {0x7f, 0x7c, 0x7d});
}
VECTORIZED NonFinite count_float8_e4m3fn(const std::byte* data, uint64_t size, int64_t stride) {
  return count<uint8_t>(data, size, stride, {0x7f, 0x7f, 0x7f});
}
// NaN is what would be -0.
VECTORIZED NonFinite count_float8_fnuz(const std::byte* data, uint64_t size, int64_t stride) {
  return count<uint8_t>(data, size, stride, {0xff, 0xff, 0xff, 0x7f});
}
VECTORIZED NonFinite count_float8_e8m0fnu(const std::byte* data, uint64_t size, int64_t stride) {
  return count<uint8_t>(data, size, stride, {0xff, 0xff, 0xff});
}

}  // namespace

struct Numbers::Format {
  std::string_view dtype;  // as core::Operand has it
  uint64_t size;           // of a number, or of a part of one
  Counter count;
};

const Numbers::Format Numbers::kFormats[] = {
    {"float32", 4, &count_float},
    {"bfloat16", 2, &count_bfloat16},
    {"float16", 2, &count_half},
    {"float64", 8, &count_double},
    {"complex64", 4, &count_float},
    {"complex128", 8, &count_double},
    {"complex32", 2, &count_half},
    {"float8_e5m2", 1, &count_float8_e5m2},
    {"float8_e4m3fn", 1, &count_float8_e4m3fn},
    {"float8_e5m2fnuz", 1, &count_float8_fnuz},
    {"float8_e4m3fnuz", 1, &count_float8_fnuz},
    {"float8_e8m0fnu", 1, &count_float8_e8m0fnu},
};

Numbers::Numbers(const core::Operand& operand, int64_t host_offset) {
  if (operand.address == 0) return;
  const std::string_view dtype = operand.dtype;
  const auto* format =
      std::find_if(std::begin(kFormats), std::end(kFormats), [&](const Format& each) { return each.dtype == dtype; });
  if (format == std::end(kFormats)) return;
  format_ = format;
  lowest_ = operand.address + host_offset;
  size_ = operand.element_size / format->size;
  const auto size = static_cast<int64_t>(format->size);
  if (size_ > 1) grid_.push_back({size_, size});
  for (size_t d = 0; d < operand.sizes.size(); ++d) {
    const auto count = static_cast<uint64_t>(operand.sizes[d]);
    const int64_t stride = operand.strides[d] * operand.stride_unit;
    if (count == 0) size_ = 0;
    if (count <= 1 || stride == 0) continue;
    if (stride < 0) lowest_ += (count - 1) * stride;
    size_ *= count;
    grid_.push_back({count, std::abs(stride)});
  }
  std::sort(grid_.begin(), grid_.end(), [](const Dimension& a, const Dimension& b) { return a.stride < b.stride; });
  end_ = lowest_ + size;
  for (const Dimension& each : grid_) end_ += (each.size - 1) * each.stride;
  // What goes on where the inner dimension ends is one with it.
  run_ = {1, size};
  auto each = grid_.begin();
  if (each != grid_.end() && each->stride != size) run_ = *each++;
  while (each != grid_.end() && each->stride == static_cast<int64_t>(run_.size) * run_.stride) {
    run_.size *= each++->size;
  }
  grid_.erase(grid_.begin(), each);
}

NonFinite Numbers::count() const {
  if (empty()) return {};
  NonFinite found;
  std::vector<uint64_t> index(grid_.size(), 0);
  for (;;) {
    uint64_t at = lowest_;
    for (size_t d = 0; d < index.size(); ++d) at += index[d] * grid_[d].stride;
    found += format_->count(reinterpret_cast<const std::byte*>(at), run_.size, run_.stride);
    size_t d = 0;
    while (d < index.size() && ++index[d] == grid_[d].size) index[d++] = 0;
    if (d == index.size()) return found;
  }
}

// The numbers among what an item lists.
class NumbersObserver::Listing final : public core::OperandSink {
 public:
  struct Entry {
    Numbers numbers;
    bool writes;
    core::OldBytes old_bytes;
    std::optional<Operand> named;  // if names are asked for
  };

  explicit Listing(bool has_names = false) : has_names_(has_names) {}

  void add(const core::Operand& operand) override {
    Numbers numbers(operand, offset());
    if (numbers.empty()) return;
    std::optional<Operand> named;
    if (has_names_) named = name(operand);
    entries.push_back({std::move(numbers), operand.writes, operand.old_bytes, std::move(named)});
  }
  void add_host(const core::Operand& operand) override {
    if (!operand.writes) host += Numbers(operand, 0).count();
  }

  std::vector<Entry> entries;
  NonFinite host;  // what the item reads there

 private:
  static int64_t offset() {
    static const int64_t offset = core::host_view_offset();
    return offset;
  }

  const bool has_names_;
};

mtia_status NumbersObserver::run(const mtia_work& work, core::OperandList list, const mtia_work_context* context) {
  if (!is_wanted_()) return work.run(work.args, context);
  Listing before;
  list(work.args, before);
  NonFinite given = before.host;
  std::vector<Numbers> kept;  // of what is given, what is the same afterwards
  for (const Listing::Entry& each : before.entries) {
    if (each.old_bytes == core::OldBytes::kOverwritten) continue;
    const bool changes =
        each.writes || std::any_of(before.entries.begin(), before.entries.end(), [&](const Listing::Entry& other) {
          return other.writes && other.numbers.meets(each.numbers);
        });
    if (changes) {
      given += each.numbers.count();
    } else {
      kept.push_back(each.numbers);
    }
  }
  const mtia_status status = work.run(work.args, context);
  if (status != MTIA_SUCCESS || given.nan != 0) return status;

  Listing after;
  list(work.args, after);
  for (size_t i = 0; i < after.entries.size(); ++i) {
    if (!after.entries[i].writes) continue;
    const NonFinite made = after.entries[i].numbers.count();
    if (!made.any()) continue;
    for (const Numbers& each : std::exchange(kept, {})) given += each.count();
    if (made.nan != 0 ? given.nan != 0 : given.any()) continue;
    report(work, list, i, made, given);
    break;
  }
  return status;
}

void NumbersObserver::report(const mtia_work& work, core::OperandList list, size_t entry, const NonFinite& made,
                             const NonFinite& given) const {
  Listing named(/*has_names=*/true);
  list(work.args, named);
  auto item = std::make_shared<Item>(item_);
  item->operands.push_back(*named.entries.at(entry).named);
  report_({.kind = FindingKind::kNotFinite, .item = std::move(item), .operand = 0, .numbers = made, .given = given});
}

}  // namespace torch_mtia::sanitizer
