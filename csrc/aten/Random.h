// Random operators: what they draw from, and the form of their work.
//
// A random operator reserves its part of the generator's range on the caller, launches one work item that holds the
// PhiloxSource and its operands' addresses, and waits for nothing. See Note [Philox words].
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <vector>

#include "../core/WorkItem.h"
#include "Launch.h"
#include "Philox.h"

namespace torch_mtia {

// The operands of a kernel that goes through tensors in logical (row-major) order, whatever their strides: up to four
// device tensors of equal sizes, as host addresses and strides. Plain data: a work item may keep it. Made of
// contiguous tensors, it allocates nothing.
class StridedElements {
 public:
  static constexpr int kMaxOperands = 4;

  // Outputs first; a lazily cloned storage of an output is made its own.
  StridedElements(std::initializer_list<const at::TensorBase*> tensors, int num_outputs);

  int64_t numel() const { return numel_; }
  bool contiguous() const { return sizes_.empty(); }

  // The first of the elements from `first`; only where contiguous().
  template <typename T>
  T* at(int operand, int64_t first) const {
    return static_cast<T*>(operands_[operand].data) + first;
  }

  // The `count` elements from `first` of an input: in place, or gathered in `buffer`.
  template <typename T>
  const T* read(int operand, int64_t first, int64_t count, T* buffer) const {
    if (contiguous()) return at<T>(operand, first);
    walk(operand, first, count, [&](int64_t i, char* address) { buffer[i] = *reinterpret_cast<T*>(address); });
    return buffer;
  }

  template <typename T>
  void write(int operand, int64_t first, int64_t count, const T* values) const {
    if (contiguous()) {
      T* to = at<T>(operand, first);
      for (int64_t i = 0; i < count; ++i) to[i] = values[i];
      return;
    }
    walk(operand, first, count, [&](int64_t i, char* address) { *reinterpret_cast<T*>(address) = values[i]; });
  }

  void list_operands(core::OperandSink& sink) const;

 private:
  struct Operand {
    void* data;
    int64_t element_size;
    c10::ScalarType dtype;
  };

  int64_t stride(int operand, int64_t dim) const { return strides_[operand * sizes_.size() + dim]; }

  // Calls visit(i, address of element first + i) for i < count.
  template <typename Visit>
  void walk(int operand, int64_t first, int64_t count, Visit visit) const {
    std::array<int64_t, kMaxDims> index;
    const auto ndim = static_cast<int64_t>(sizes_.size());
    char* address = static_cast<char*>(operands_[operand].data);
    int64_t rest = first;
    for (int64_t dim = ndim - 1; dim >= 0; --dim) {
      index[dim] = rest % sizes_[dim];
      rest /= sizes_[dim];
      address += index[dim] * stride(operand, dim);
    }
    const int64_t inner_stride = stride(operand, ndim - 1);
    for (int64_t i = 0; i < count; ++i) {
      visit(i, address);
      address += inner_stride;
      if (++index[ndim - 1] < sizes_[ndim - 1]) continue;
      for (int64_t dim = ndim - 1; dim > 0 && index[dim] == sizes_[dim]; --dim) {
        index[dim] = 0;
        address += stride(operand, dim - 1) - sizes_[dim] * stride(operand, dim);
        ++index[dim - 1];
      }
    }
  }

  static constexpr int kMaxDims = 64;  // as in ATen

  int64_t numel_;
  int num_operands_;
  int num_outputs_;
  std::array<Operand, kMaxOperands> operands_;
  std::vector<int64_t> sizes_;    // empty: all operands are contiguous
  std::vector<int64_t> strides_;  // in bytes, operand after operand
};

// Takes `words` words, rounded up to 4, from the generator given, or from the device's default generator; in a capture,
// from what the generator will have at each replay. Raises RuntimeError for a generator of another device.
PhiloxSource reserve_words(const std::optional<at::Generator>& generator, c10::Device device, uint64_t words);

// Elements that are worth a thread.
inline constexpr int64_t kGrainElements = 16 * 1024;

// Calls body(state, elements, begin, end) over pieces of [0, num_pieces).
template <typename Body>
struct RandomWork {
  PhiloxSource source;
  StridedElements elements;
  int64_t num_pieces;
  int64_t grain;
  Body body;

  bool is_serial() const { return num_pieces <= grain; }
  void operator()() const {
    const PhiloxState state = source.get();
    // at::parallel_for would come to the same, after asking OpenMP.
    if (is_serial()) return body(state, elements, 0, num_pieces);
    at::parallel_for(0, num_pieces, grain, [&](int64_t begin, int64_t end) { body(state, elements, begin, end); });
  }
  void list_operands(core::OperandSink& sink) const { elements.list_operands(sink); }
};

struct DrawInfo {
  const char* name;
  double nanoseconds_per_element;
};

template <typename Body>
void launch_random(const DrawInfo& info, c10::Device device, RandomWork<Body> work) {
  core::WorkInfo work_info{};
  work_info.name = info.name;
  work_info.cost = static_cast<uint64_t>(static_cast<double>(work.elements.numel()) * info.nanoseconds_per_element);
  launch(current_stream(device), work_info, std::move(work));
}

// A draw that takes the same number of words for each element, `values_per_tile` elements from a tile.
template <typename Body>
void launch_tiles(const DrawInfo& info, const std::optional<at::Generator>& generator, c10::Device device,
                  StridedElements elements, int64_t values_per_tile, Body body) {
  require_host_view(info.name);
  const int64_t num_tiles = (elements.numel() + values_per_tile - 1) / values_per_tile;
  PhiloxSource source = reserve_words(generator, device, num_tiles * kTileWords);
  launch_random<Body>(
      info, device,
      {std::move(source), std::move(elements), num_tiles, kGrainElements / values_per_tile, std::move(body)});
}

// A draw in which each element reads words of its own.
template <typename Body>
void launch_samples(const DrawInfo& info, const std::optional<at::Generator>& generator, c10::Device device,
                    StridedElements elements, Body body) {
  require_host_view(info.name);
  const int64_t numel = elements.numel();
  PhiloxSource source = reserve_words(generator, device, 4 * numel);
  constexpr int64_t kGrainSamples = 512;
  launch_random<Body>(info, device, {std::move(source), std::move(elements), numel, kGrainSamples, std::move(body)});
}

// Calls visit(words of the tile, first element, number of elements) for the tiles of [begin, end).
template <typename Visit>
void for_each_tile(const PhiloxState& state, int64_t numel, int64_t values_per_tile, int64_t begin, int64_t end,
                   Visit visit) {
  constexpr int64_t kBatch = 8;
  alignas(64) uint32_t words[kBatch * kTileWords];
  for (int64_t tile = begin; tile < end; tile += kBatch) {
    const int64_t num_tiles = std::min(kBatch, end - tile);
    philox_tiles(state, tile, num_tiles, words);
    for (int64_t t = 0; t < num_tiles; ++t) {
      const int64_t first = (tile + t) * values_per_tile;
      visit(words + t * kTileWords, first, std::min(values_per_tile, numel - first));
    }
  }
}

// Fills `out` with what `sample(const uint32_t* words, value_type* values)` makes of each tile: `kValues` of them.
template <typename scalar_t, typename value_type, int64_t kValues = kTileValues<value_type>, typename Sample>
void fill_tiles(const DrawInfo& info, const std::optional<at::Generator>& generator, const at::TensorBase& out,
                Sample sample) {
  const auto fill = [sample](const PhiloxState& state, const StridedElements& elements, int64_t begin, int64_t end) {
    constexpr bool kConverts = !std::is_same_v<value_type, scalar_t>;
    const auto fill_tile = [&](const uint32_t* words, int64_t first, int64_t count) {
      if constexpr (!kConverts) {
        if (elements.contiguous() && count == kValues) return sample(words, elements.at<scalar_t>(0, first));
      }
      alignas(64) value_type values[kValues];
      sample(words, values);
      if constexpr (kConverts) {
        scalar_t converted[kValues];
        for (int64_t i = 0; i < kValues; ++i) converted[i] = static_cast<scalar_t>(values[i]);
        elements.write(0, first, count, converted);
      } else {
        elements.write(0, first, count, values);
      }
    };
    for_each_tile(state, elements.numel(), kValues, begin, end, fill_tile);
  };
  launch_tiles(info, generator, out.device(), StridedElements({&out}, 1), kValues, fill);
}

}  // namespace torch_mtia
