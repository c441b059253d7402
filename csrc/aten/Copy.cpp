// Copies in every direction, and the host's access to values.
//
// torch's own copy_ handles shapes, quantization and named tensors and calls _copy_from for a device such as ours. A
// copy between equal layouts is a copy of bytes by the driver; any other one runs ATen's CPU copy loop in the stream,
// or one that turns matrices (TransposedCopy.h), over host aliases on either side; without a host view, on the host,
// over copies (Fallback.h). A copy that touches host memory waits for the stream before it returns, unless the host
// bytes were few enough to be taken along.
#include <ATen/EmptyTensor.h>
#include <ATen/TensorIterator.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/Copy.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_local_scalar_dense_native.h>
#include <torch/library.h>

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
#include "TransposedCopy.h"

namespace torch_mtia {
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

// Runs on the source's stream, behind the work of both devices' current streams, and holds back the destination's.
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
