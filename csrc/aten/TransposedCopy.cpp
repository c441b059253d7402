#include "TransposedCopy.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace torch_mtia {
namespace {

// Elements are copied in tiles, through a buffer, from which whole cache lines are written: the destination's rows may
// all lie in the same few sets of a cache, which could not keep lines of all of them until they are full. Tiles are
// chosen for 2048 x 2048 and 4096 x 4096 elements on a Zen 5.
constexpr int64_t kTileRows = 64;
template <int Size>
constexpr int64_t kTileColumns = std::min(512 / Size, 256);

// Rows and columns of which the next lines are fetched ahead: the processor sees no pattern in pieces of rows.
constexpr int64_t kSourceAhead = 16;
constexpr int64_t kDestinationAhead = 8;
constexpr int64_t kLine = 64;

constexpr int64_t kLeastSide = 8;  // of a matrix: of a thinner one, most of a line is not copied

using Bytes = uint8_t __attribute__((vector_size(16)));
using Words2 = uint16_t __attribute__((vector_size(16)));
using Words4 = uint32_t __attribute__((vector_size(16)));
using Words8 = uint64_t __attribute__((vector_size(16)));

// Elements of the lower halves of two vectors in turns.
template <int Size>
Bytes interleaved_low(Bytes a, Bytes b) {
  if constexpr (Size == 1) return __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  if constexpr (Size == 2) return (Bytes)__builtin_shufflevector((Words2)a, (Words2)b, 0, 8, 1, 9, 2, 10, 3, 11);
  if constexpr (Size == 4) return (Bytes)__builtin_shufflevector((Words4)a, (Words4)b, 0, 4, 1, 5);
  if constexpr (Size == 8) return (Bytes)__builtin_shufflevector((Words8)a, (Words8)b, 0, 2);
}

template <int Size>
Bytes interleaved_high(Bytes a, Bytes b) {
  if constexpr (Size == 1)
    return __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
  if constexpr (Size == 2) return (Bytes)__builtin_shufflevector((Words2)a, (Words2)b, 4, 12, 5, 13, 6, 14, 7, 15);
  if constexpr (Size == 4) return (Bytes)__builtin_shufflevector((Words4)a, (Words4)b, 2, 6, 3, 7);
  if constexpr (Size == 8) return (Bytes)__builtin_shufflevector((Words8)a, (Words8)b, 1, 3);
}

// A square of as many elements as a vector has, each way. Every round interleaves the first half of the vectors with
// the second; after as many as a vector can be halved, the rows have become columns.
template <int Size>
void turn_square(char* to, int64_t to_step, const char* from, int64_t from_step) {
  constexpr int kSide = 16 / Size;
  Bytes rows[kSide];
#pragma GCC unroll 16
  for (int i = 0; i < kSide; ++i) std::memcpy(&rows[i], from + i * from_step, sizeof(Bytes));
#pragma GCC unroll 4
  for (int round = 1; round < kSide; round *= 2) {
    Bytes turned[kSide];
#pragma GCC unroll 8
    for (int i = 0; i < kSide / 2; ++i) {
      turned[2 * i] = interleaved_low<Size>(rows[i], rows[i + kSide / 2]);
      turned[2 * i + 1] = interleaved_high<Size>(rows[i], rows[i + kSide / 2]);
    }
    std::copy_n(turned, kSide, rows);
  }
#pragma GCC unroll 16
  for (int i = 0; i < kSide; ++i) std::memcpy(to + i * to_step, &rows[i], sizeof(Bytes));
}

// Element (i, j), for i < rows and j < columns, is at from + i * Size + j * from_step, and goes to
// to + i * to_step + j * Size.
template <int Size>
void copy_tile(char* to, int64_t to_step, const char* from, int64_t from_step, int64_t rows, int64_t columns) {
  constexpr int64_t kSide = 16 / Size;
  constexpr int64_t kRow = kTileColumns<Size> * Size;
  alignas(kLine) char turned[kTileRows * kRow];
  const int64_t whole_rows = rows / kSide * kSide;
  const int64_t whole_columns = columns / kSide * kSide;
  const auto copy_each = [&](int64_t first_row, int64_t first_column, int64_t last_column) {
    for (int64_t j = first_column; j < last_column; ++j) {
      for (int64_t i = first_row; i < rows; ++i) {
        std::memcpy(turned + i * kRow + j * Size, from + i * Size + j * from_step, Size);
      }
    }
  };
  for (int64_t j = 0; j < whole_columns; j += kSide) {
    for (int64_t ahead = j + kSourceAhead; ahead < j + kSourceAhead + kSide; ++ahead) {
      for (int64_t byte = 0; byte < rows * Size; byte += kLine) __builtin_prefetch(from + ahead * from_step + byte);
    }
    for (int64_t i = 0; i < whole_rows; i += kSide) {
      turn_square<Size>(turned + i * kRow + j * Size, kRow, from + i * Size + j * from_step, from_step);
    }
  }
  copy_each(whole_rows, 0, whole_columns);
  copy_each(0, whole_columns, columns);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t byte = 0; byte < columns * Size; byte += kLine) {
      __builtin_prefetch(to + (i + kDestinationAhead) * to_step + byte, /*rw=*/1);
    }
    std::memcpy(to + i * to_step, turned + i * kRow, columns * Size);
  }
}

// A copy of matrices: the destination's neighbours lie along the iterator's dimension 0, the source's along `row`.
template <int Size>
void copy_matrices(at::TensorIteratorBase& iter, int row) {
  const auto shape = iter.shape();
  const auto to_strides = iter.strides(0);
  const auto from_strides = iter.strides(1);
  const auto to = static_cast<char*>(iter.data_ptr(0));
  const auto from = static_cast<const char*>(iter.data_ptr(1));
  const int64_t across = at::divup(shape[0], kTileColumns<Size>);
  const int64_t down = at::divup(shape[row], kTileRows);
  const int64_t tiles = iter.numel() / (shape[0] * shape[row]) * across * down;
  const int64_t grain = std::max<int64_t>(at::internal::GRAIN_SIZE / (kTileRows * kTileColumns<Size>), 1);
  at::parallel_for(0, tiles, grain, [&](int64_t begin, int64_t end) {
    for (int64_t tile = begin; tile < end; ++tile) {
      const int64_t j = tile % across * kTileColumns<Size>;
      const int64_t i = tile / across % down * kTileRows;
      int64_t to_offset = i * to_strides[row] + j * to_strides[0];
      int64_t from_offset = i * from_strides[row] + j * from_strides[0];
      int64_t matrix = tile / across / down;
      for (int d = 1; d < iter.ndim(); ++d) {
        if (d == row) continue;
        to_offset += matrix % shape[d] * to_strides[d];
        from_offset += matrix % shape[d] * from_strides[d];
        matrix /= shape[d];
      }
      copy_tile<Size>(to + to_offset, to_strides[row], from + from_offset, from_strides[0],
                      std::min(kTileRows, shape[row] - i), std::min(kTileColumns<Size>, shape[0] - j));
    }
  });
}

}  // namespace

bool copy_transposed(at::TensorIteratorBase& iter) {
  const auto size = static_cast<int64_t>(iter.element_size(0));
  if (iter.ndim() < 2 || iter.shape()[0] < kLeastSide || iter.strides(0)[0] != size || iter.strides(1)[0] == size) {
    return false;
  }
  int row = 0;
  for (int d = 1; d < iter.ndim(); ++d) {
    if (iter.strides(1)[d] == size && iter.shape()[d] >= kLeastSide) row = d;
  }
  if (row == 0) return false;
  switch (size) {
    case 1:
      copy_matrices<1>(iter, row);
      return true;
    case 2:
      copy_matrices<2>(iter, row);
      return true;
    case 4:
      copy_matrices<4>(iter, row);
      return true;
    case 8:
      copy_matrices<8>(iter, row);
      return true;
    default:
      return false;  // complex numbers of 128 bits fill vectors
  }
}

}  // namespace torch_mtia
