// Copies in every direction, and the host's access to values.
//
// torch's own copy_ handles shapes, quantization and named tensors and calls _copy_from for a device such as ours. A
// copy between equal layouts is a copy of bytes by the driver; any other one runs ATen's CPU copy loop in the stream,
// or one that turns matrices (copy_transposed), over host aliases on either side; without a host view, on the host,
// over copies (Fallback.h). A copy that touches host memory waits for the stream before it returns, unless the host
// bytes were few enough to be taken along.
#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <ATen/TensorIterator.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/Copy.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_local_scalar_dense_native.h>
#include <torch/library.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>

#include "../device/DeviceType.h"
#include "../device/MTIACachingAllocator.h"
#include "../device/MTIAGraph.h"
#include "../device/MTIAHostAllocator.h"
#include "../device/ScalarTypes.h"
#include "Fallback.h"
#include "HostAccesses.h"
#include "Launch.h"
#include "MTIANativeFunctions.h"
#include "Pointwise.h"

namespace torch_mtia {

// Copies whose source lies along another dimension than their destination, as of x.t() or to channels last.

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

// Copies bits of operand 1 to operand 0, of one dtype, and returns true, if each has its neighbours along a dimension
// of its own. ATen's loop would go along one of the two and take a cache line for each element of the other.
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

}  // namespace

namespace {

// Host bytes up to which a copy to a busy stream takes a copy of them along instead of waiting.
constexpr size_t kStagedBytes = 64 * 1024;

// Copies host bytes to the device. Reads the caller's bytes while it stays on the caller's thread.
class StagedCopy {
 public:
  StagedCopy(void* to, const void* from, size_t size) : to_(to), from_(from), size_(size) {}

  static bool is_serial() { return true; }

  void detach() noexcept {
    staged_.reset(new (std::nothrow) std::byte[size_]);
    if (staged_ != nullptr) std::memcpy(staged_.get(), from_, size_);
    from_ = staged_.get();
  }

  void list_operands(core::OperandSink& sink) const {
    const auto address = reinterpret_cast<uint64_t>(HostView::to_device(to_));
    sink.add({address, size_, {}, {}, 1, /*writes=*/true, core::OldBytes::kOverwritten, ""});
  }

  void operator()() const {
    if (from_ == nullptr) throw std::bad_alloc();  // in detach
    std::memcpy(to_, from_, size_);
  }

 private:
  void* to_;
  const void* from_;
  size_t size_;
  std::unique_ptr<std::byte[]> staged_;
};

bool is_flat(const at::TensorIteratorBase& iter) {
  const auto& to = iter.tensor_base(0);
  const auto& from = iter.tensor_base(1);
  return to.scalar_type() == from.scalar_type() && to.is_conj() == from.is_conj() && to.is_neg() == from.is_neg() &&
         to.numel() == from.numel() && iter.is_contiguous();
}

// Nothing to do, as on the CPU, also where elements share memory, which a copy may not write otherwise.
bool is_same_data(const at::Tensor& from, const at::Tensor& to) {
  return to.is_alias_of(from) && to.storage_offset() == from.storage_offset() && to.strides() == from.strides() &&
         to.sizes() == from.sizes() && to.scalar_type() == from.scalar_type() && to.is_conj() == from.is_conj() &&
         to.is_neg() == from.is_neg();
}

uint64_t address(const void* pointer) {
  return reinterpret_cast<uint64_t>(pointer);
}

void copy_bytes(const MTIAStream& stream, void* to, const void* from, size_t size, mtia_copy_kind kind,
                core::CopyUse use = core::CopyUse::kWaitedFor) {
  stream.core().copy(address(to), address(from), size, kind, use);
}

// ATen's loop would find it out on the stream, and dtypes are checked at the call.
void check_convertible(c10::ScalarType from, c10::ScalarType to) {
  if (from == to) return;
  for (const auto type : {from, to}) {
    TORCH_CHECK_NOT_IMPLEMENTED(is_supported(type), "\"copy_\" not implemented for '", type, "' (conversion from ",
                                from, " to ", to, ")");
  }
}

void run_copy_loop(at::TensorIteratorBase& iter, const MTIAStream& stream) {
  check_convertible(iter.dtype(1), iter.dtype(0));
  // ATen's loop for another dtype, or for a conjugate or negative bit on one side, looks at the tensors.
  const auto& to = iter.tensor_base(0);
  const auto& from = iter.tensor_base(1);
  const bool converts =
      iter.dtype(0) != iter.dtype(1) || to.is_conj() != from.is_conj() || to.is_neg() != from.is_neg();
  launch_iterator(iter, stream, "aten::copy_", CPUOperand::kBuffer, converts,
                  [converts](at::TensorIteratorBase& host_iter) {
                    if (!converts && copy_transposed(host_iter)) return;
                    at::native::copy_stub(c10::kCPU, static_cast<at::TensorIterator&>(host_iter), false);
                  });
}

// A copy that is not one of bytes, where the host cannot reach the device's memory: through the host, which waits.
void copy_through_host(const at::Tensor& from, const at::Tensor& to) {
  check_convertible(from.scalar_type(), to.scalar_type());
  if (is_ours(from.device()) && is_ours(to.device()) && from.device() != to.device()) {
    to.copy_(from.cpu());
    return;
  }
  static const auto copy = c10::Dispatcher::singleton().findSchemaOrThrow("aten::copy_", "");
  torch::jit::Stack stack{to, from, /*non_blocking=*/false};
  run_on_copies(copy, &stack);
}

void copy_within_device(at::TensorIterator& iter) {
  const MTIAStream stream = current_stream(iter.device(0));
  if (is_flat(iter)) {
    copy_bytes(stream, iter.data_ptr(0), iter.data_ptr(1), iter.numel() * iter.element_size(0),
               MTIA_COPY_DEVICE_TO_DEVICE);
  } else {
    run_copy_loop(iter, stream);
  }
}

// Runs on the source's stream, after the work of both devices' current streams. The destination's stream waits for it.
void copy_between_devices(at::TensorIterator& iter) {
  const MTIAStream to = current_stream(iter.device(0));
  const MTIAStream from = current_stream(iter.device(1));
  // A stream that is captured waits for streams of its capture only: the destination's joins.
  if (from.core().graph() != nullptr && to.core().graph() == nullptr) to.wait_for(from);
  from.wait_for(to);
  if (is_flat(iter)) {
    copy_bytes(from, iter.data_ptr(0), iter.data_ptr(1), iter.numel() * iter.element_size(0),
               MTIA_COPY_DEVICE_TO_DEVICE);
  } else {
    run_copy_loop(iter, from);
  }
  to.wait_for(from);
}

// Submits a copy between pinned host memory and the device, and does not wait.
void copy_pinned(at::TensorIterator& iter, const at::Tensor& host, const MTIAStream& stream, mtia_copy_kind kind) {
  if (is_flat(iter)) {
    copy_bytes(stream, iter.data_ptr(0), iter.data_ptr(1), iter.numel() * iter.element_size(0), kind,
               core::CopyUse::kNotWaitedFor);
  } else {
    run_copy_loop(iter, stream);
  }
  record_pinned_use(host, stream.unwrap());
}

constexpr const char* kPageable =
    "the caller waits for a copy from or to host memory. Pin the host tensor (pin_memory=True) and pass "
    "non_blocking=True; each replay then copies what it has at that time. Or copy before the capture or after a replay";

void copy_to_device(at::TensorIterator& iter) {
  const MTIAStream stream = current_stream(iter.device(0));
  MTIAGraph::refuse(stream, "aten::copy_", kPageable);
  if (!is_flat(iter)) {
    run_copy_loop(iter, stream);
    stream.wait();
    return;
  }
  const size_t size = iter.numel() * iter.element_size(0);
  if (size > kStagedBytes || !HostView::available()) {
    copy_bytes(stream, iter.data_ptr(0), iter.data_ptr(1), size, MTIA_COPY_HOST_TO_DEVICE);
    stream.wait();
    return;
  }
  core::WorkInfo info{};
  info.name = "aten::copy_";
  info.cost = cost_of_bytes(size);
  launch(stream, info, StagedCopy(HostView::to_host(iter.data_ptr(0)), iter.data_ptr(1), size));
}

void copy_to_host(at::TensorIterator& iter) {
  const MTIAStream stream = current_stream(iter.device(1));
  MTIAGraph::refuse(stream, "aten::copy_", kPageable);
  if (is_flat(iter)) {
    copy_bytes(stream, iter.data_ptr(0), iter.data_ptr(1), iter.numel() * iter.element_size(0),
               MTIA_COPY_DEVICE_TO_HOST);
  } else {
    run_copy_loop(iter, stream);
  }
  stream.synchronize();
}

}  // namespace
}  // namespace torch_mtia

namespace at::native {

// `non_blocking` makes a difference for pinned memory only: pageable memory is read or written before the return.
Tensor _copy_from_mtia(const Tensor& self, const Tensor& dst, bool non_blocking) {
  if (torch_mtia::is_same_data(self, dst)) return dst;
  TORCH_CHECK(
      (torch_mtia::is_ours(self.device()) || self.is_cpu()) && (torch_mtia::is_ours(dst.device()) || dst.is_cpu()),
      "copy_ from ", self.device(), " to ", dst.device(), " is not supported; copy through the CPU");
  auto iter = TensorIteratorConfig()
                  .add_output(dst)
                  .add_const_input(self)
                  .resize_outputs(false)
                  .check_all_same_dtype(false)
                  .check_all_same_device(false)
                  .build();
  if (iter.numel() == 0) return dst;
  if (!torch_mtia::HostView::available() && !torch_mtia::is_flat(iter)) {
    torch_mtia::copy_through_host(self, dst);
    return dst;
  }
  const auto is_pinned = [](const Tensor& tensor) { return torch_mtia::is_pinned(tensor.const_data_ptr()); };
  if (!torch_mtia::is_ours(self.device())) {
    if (non_blocking && is_pinned(self)) {
      torch_mtia::copy_pinned(iter, self, torch_mtia::current_stream(dst.device()), MTIA_COPY_HOST_TO_DEVICE);
    } else {
      torch_mtia::copy_to_device(iter);
    }
  } else if (!torch_mtia::is_ours(dst.device())) {
    if (non_blocking && is_pinned(dst)) {
      torch_mtia::copy_pinned(iter, dst, torch_mtia::current_stream(self.device()), MTIA_COPY_DEVICE_TO_HOST);
    } else {
      torch_mtia::copy_to_host(iter);
    }
  } else if (self.device() == dst.device()) {
    torch_mtia::copy_within_device(iter);
  } else {
    torch_mtia::copy_between_devices(iter);
  }
  return dst;
}

Tensor _copy_from_and_resize_mtia(const Tensor& self, const Tensor& dst) {
  if (dst.sizes() != self.sizes()) dst.resize_(self.sizes());
  return _copy_from_mtia(self, dst, /*non_blocking=*/false);
}

Scalar _local_scalar_dense_mtia(const Tensor& self) {
  const auto stream = torch_mtia::current_stream(self.device());
  torch_mtia::MTIAGraph::refuse(
      stream, "aten::_local_scalar_dense (item(), float(), bool(), if tensor: ...)",
      "the host waits for the value. Keep it on the device (torch.where), or ask for it after "
      "a replay");
  if (torch_mtia::HostView::available()) {
    stream.synchronize();
    torch_mtia::notify_host_read("aten::_local_scalar_dense", self);
    return _local_scalar_dense_cpu(torch_mtia::host_alias(self, /*for_write=*/false));
  }
  const Tensor value = at::detail::empty_cpu(self.sizes(), self.scalar_type());
  _copy_from_mtia(self, value, /*non_blocking=*/false);
  return _local_scalar_dense_cpu(value);
}

// ATen's CPU kernel writes as if `out` were contiguous.
Tensor& narrow_copy_out_mtia(const Tensor& self, int64_t dim, int64_t start, int64_t length, Tensor& out) {
  TORCH_CHECK(out.dtype() == self.dtype(), "narrow_copy: expected out of dtype ", self.dtype(), " but got ",
              out.dtype());
  const Tensor part = self.narrow(dim, start, length);
  resize_output(out, part.sizes());
  return out.copy_(part);
}

// ATen's own would be a fill through an iterator; the CPU, too, only clears the bytes.
Tensor& zero_mtia_(Tensor& self) {
  if (!self.is_non_overlapping_and_dense()) return self.fill_(0);
  const std::byte zero{};
  const auto address = reinterpret_cast<mtia_device_ptr>(self.mutable_data_ptr());
  if (self.numel() > 0) torch_mtia::current_stream(self.device()).core().fill(address, &zero, 1, self.nbytes());
  return self;
}

void record_stream_mtia(Tensor& self, Stream stream) {
  torch_mtia::MTIACachingAllocator::get().recordStream(self.storage().data_ptr(), stream);
}

}  // namespace at::native

// What leaves the lazy conjugate and negative bits to us. copy_ sees them, and the fallbacks of the two keys would
// resolve them by a clone, which is a copy, without end. Recording a stream is of the memory, and those fallbacks
// corrupt the heap for an operator that returns nothing.
static void register_lazy_bits(torch::Library& library) {
  for (const char* name : {"_copy_from", "record_stream"}) library.impl(name, torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(aten, Conjugate, m) {
  register_lazy_bits(m);
}
TORCH_LIBRARY_IMPL(aten, Negative, m) {
  register_lazy_bits(m);
}
