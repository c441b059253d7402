#include "Numbers.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <optional>
#include <string_view>
#include <vector>

#include "../core/Driver.h"
#include "../processor/attributes.h"

#define INLINED [[gnu::always_inline]] inline

namespace torch_mtia::sanitizer {
namespace {

// A format whose numbers, as unsigned integers, are NaN from `first_nan` on, and infinite if they are `infinity`, after
// `flip` and then `mask` are applied.
template <typename T>
struct Bits {
  T mask;
  T infinity;  // first_nan: the format has none
  T first_nan;
  T flip = 0;
};

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
INLINED NonFinite count_dense(const std::byte* data, uint64_t size, Bits<T> bits) {
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
    found += count_strided(reinterpret_cast<const std::byte*>(values), count, sizeof(T), bits);
  }
  return found;
}

using Counter = NonFinite (*)(const std::byte* data, uint64_t size, int64_t stride);

#define COUNTER(name, T, ...)                                                                             \
  VECTORIZED NonFinite name(const std::byte* data, uint64_t size, int64_t stride) {                       \
    const Bits<T> bits{__VA_ARGS__};                                                                      \
    return stride == sizeof(T) ? count_dense(data, size, bits) : count_strided(data, size, stride, bits); \
  }
COUNTER(count_double, uint64_t, ~UINT64_C(0) >> 1, UINT64_C(0x7ff) << 52, (UINT64_C(0x7ff) << 52) + 1)
COUNTER(count_float, uint32_t, 0x7fffffff, 0x7f800000, 0x7f800001)
COUNTER(count_half, uint16_t, 0x7fff, 0x7c00, 0x7c01)
COUNTER(count_bfloat16, uint16_t, 0x7fff, 0x7f80, 0x7f81)
COUNTER(count_float8_e5m2, uint8_t, 0x7f, 0x7c, 0x7d)
COUNTER(count_float8_e4m3fn, uint8_t, 0x7f, 0x7f, 0x7f)
COUNTER(count_float8_fnuz, uint8_t, 0xff, 0xff, 0xff, 0x7f)  // NaN has the bits of -0
COUNTER(count_float8_e8m0fnu, uint8_t, 0xff, 0xff, 0xff)
#undef COUNTER

struct Format {
  std::string_view dtype;  // as core::Operand has it
  uint64_t size;           // of a number, or of a part of a complex one
  Counter count;
};

constexpr Format kFormats[] = {
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

// The numbers of an operand; none if its dtype has no NaN. `host_offset`: from its addresses to the host's.
struct Numbers {
  Numbers(const core::Operand& operand, int64_t host_offset) : offset(host_offset) {
    const auto has_dtype = [&](const Format& each) { return each.dtype == operand.dtype; };
    const auto* const found = std::find_if(std::begin(kFormats), std::end(kFormats), has_dtype);
    if (operand.address == 0 || found == std::end(kFormats)) return;
    format = found;
    region = Region(operand);
  }

  NonFinite count() const {
    NonFinite found;
    region.any_row([&](uint64_t first, uint64_t run, uint64_t count, uint64_t stride) {
      const auto* data = reinterpret_cast<const std::byte*>(first + static_cast<uint64_t>(offset));
      if (run == format->size && count > 1) {
        found += format->count(data, count, static_cast<int64_t>(stride));
      } else {
        for (; count != 0; --count, data += stride) found += format->count(data, run / format->size, format->size);
      }
      return false;
    });
    return found;
  }
  // Whether they may share bytes.
  bool meets(const Numbers& other) const { return region.range().overlaps(other.region.range()); }

  int64_t offset;
  const Format* format = nullptr;
  Region region;
};

// The numbers among the operands of an item.
class Listing final : public core::OperandSink {
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
    if (numbers.region.empty()) return;
    entries.push_back({std::move(numbers), operand.writes, operand.old_bytes,
                       has_names_ ? std::optional(named(operand)) : std::nullopt});
  }
  void add_host(const core::Operand& operand) override {
    if (!operand.writes) host += Numbers(operand, /*host_offset=*/0).count();
  }

  std::vector<Entry> entries;
  NonFinite host;  // in what the item reads of the host's memory

 private:
  static int64_t offset() {
    static const int64_t offset = core::host_view_offset();
    return offset;
  }

  const bool has_names_;
};

}  // namespace

mtia_status NumbersObserver::run(const mtia_work& work, core::OperandList list, const mtia_work_context* context) {
  if (!is_wanted_()) return work.run(work.args, context);
  Listing before;
  list(work.args, before);
  NonFinite given = before.host;
  std::vector<Numbers> unchanged;  // operands that still have their values afterwards
  for (const Listing::Entry& each : before.entries) {
    if (each.old_bytes == core::OldBytes::kOverwritten) continue;
    const bool changes =
        each.writes || std::any_of(before.entries.begin(), before.entries.end(), [&](const Listing::Entry& other) {
          return other.writes && other.numbers.meets(each.numbers);
        });
    if (changes) {
      given += each.numbers.count();
    } else {
      unchanged.push_back(each.numbers);
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
    for (const Numbers& each : std::exchange(unchanged, {})) given += each.count();
    if (made.nan != 0 ? given.nan != 0 : given.any()) continue;
    report(work, list, i, made, given);
    break;
  }
  return status;
}

void NumbersObserver::report(const mtia_work& work, core::OperandList list, size_t entry, const NonFinite& made,
                             const NonFinite& given) const {
  Listing operands(/*has_names=*/true);
  list(work.args, operands);
  auto item = std::make_shared<Item>(item_);
  item->operands.push_back(*operands.entries.at(entry).named);
  report_({.kind = FindingKind::kNotFinite, .item = std::move(item), .operand = 0, .numbers = made, .given = given});
}

}  // namespace torch_mtia::sanitizer
