// Runs ATen's CPU loop of a dispatch stub as a work item on device memory.
//
// OnDevice<stub>::call has the stub's own signature; REGISTER_MTIA_DISPATCH(stub, &OnDevice<stub>::call) is all that a
// TensorIterator operator of ATen needs in order to run on the device.
#pragma once

#include <ATen/TensorIterator.h>
#include <ATen/native/DispatchStub.h>

#include <atomic>
#include <exception>
#include <memory>
#include <tuple>
#include <type_traits>
#include <vector>

#include "HostAlias.h"
#include "HostArguments.h"
#include "Launch.h"

namespace torch_mtia {

// What a host operand of an iterator is, once the work item has to keep it.
enum class HostOperand {
  kScalar,  // a number, copied before the call returns
  kBuffer,  // memory that the caller keeps valid until the work is done
};

// Replaces the data pointers of device operands by their host view for the duration of a scope.
class HostPointers {
 public:
  explicit HostPointers(at::TensorIteratorBase& iter);
  ~HostPointers();
  HostPointers(const HostPointers&) = delete;
  HostPointers& operator=(const HostPointers&) = delete;

 private:
  at::TensorIteratorBase& iter_;
};

// A copy of a built iterator that borrows nothing: its operands are host aliases and copies of host scalars. The data
// pointers of `iter` are host addresses already.
std::unique_ptr<at::TensorIterator> own_iterator(const at::TensorIteratorBase& iter, HostOperand host_operand);

// Work on an iterator with operands that have to be cast to the common dtype first: host aliases and host scalars, and
// a function that casts, iterates over the casts, and writes the results back.
struct CastingOperands {
  std::vector<at::Tensor> tensors;  // outputs first
  int num_outputs;
  at::ScalarType common_dtype;
};
CastingOperands take_casting_operands(const at::TensorIteratorBase& iter);
void run_with_casts(const CastingOperands& operands, c10::function_ref<void(at::TensorIterator&)> loop);

// Casts the host scalars of an iterator to the common dtype, as the CPU's iterator does when it is built, and says
// whether operands on the device need casts too.
bool cast_scalars(at::TensorIteratorBase& iter);

// An iterator over no elements with the operand dtypes of `iter`, with which a loop raises its dtype errors.
at::TensorIterator empty_iterator(const at::TensorIteratorBase& iter);

core::WorkInfo describe(const at::TensorIteratorBase& iter, const char* name);

// See mtia_work.accesses. The data pointers of `iter` are host addresses.
uint32_t list_accesses(const at::TensorIteratorBase& iter, mtia_access* list, uint32_t capacity) noexcept;

// One pair of dtypes (output, common) that a loop is known to support; a table with a bit for each.
class KnownDtypes {
 public:
  bool contains(at::ScalarType output, at::ScalarType common) const {
    return (rows_[static_cast<size_t>(output)].load(std::memory_order_relaxed) >> static_cast<unsigned>(common)) & 1;
  }
  void insert(at::ScalarType output, at::ScalarType common) {
    rows_[static_cast<size_t>(output)].fetch_or(uint64_t{1} << static_cast<unsigned>(common));
  }

 private:
  static_assert(static_cast<size_t>(at::ScalarType::NumOptions) <= 64);
  std::atomic<uint64_t> rows_[static_cast<size_t>(at::ScalarType::NumOptions)] = {};
};

// The work item of a built iterator. It runs on the caller's iterator as long as it stays on the caller's thread.
template <typename Loop>
class PointwiseWork {
 public:
  PointwiseWork(at::TensorIteratorBase& borrowed, HostOperand host_operand, Loop loop)
      : borrowed_(&borrowed), host_operand_(host_operand), loop_(std::move(loop)) {}

  void detach() noexcept {
    if (borrowed_ == nullptr) return;
    try {
      owned_ = own_iterator(*borrowed_, host_operand_);
    } catch (...) {
      copy_error_ = std::current_exception();
    }
    borrowed_ = nullptr;
  }

  uint32_t accesses(mtia_access* list, uint32_t capacity) const noexcept {
    const at::TensorIteratorBase* iter = borrowed_ != nullptr ? borrowed_ : owned_.get();
    return iter == nullptr ? 0 : list_accesses(*iter, list, capacity);
  }

  void operator()() {
    if (borrowed_ != nullptr) {
      loop_(*borrowed_);
      return;
    }
    if (copy_error_ != nullptr) std::rethrow_exception(copy_error_);
    // A loop may take a scalar operand out of its iterator; the next run needs it again.
    at::TensorIterator iter(*owned_);
    loop_(iter);
  }

 private:
  at::TensorIteratorBase* borrowed_;
  HostOperand host_operand_;
  Loop loop_;
  std::unique_ptr<at::TensorIterator> owned_;
  std::exception_ptr copy_error_;
};

// `reads_tensors`: the loop looks at the iterator's tensors, and not only at its data pointers, strides and dtypes.
template <typename Loop>
void launch_iterator(at::TensorIteratorBase& iter, const MTIAStream& stream, const char* name, HostOperand host_operand,
                     bool reads_tensors, Loop loop) {
  const core::WorkInfo info = describe(iter, name);
  HostPointers host_pointers(iter);
  PointwiseWork<Loop> work(iter, host_operand, std::move(loop));
  if (reads_tensors) work.detach();
  launch(stream, info, std::move(work));
}

template <auto& Stub, typename Function = typename std::remove_reference_t<decltype(Stub)>::FnPtr>
struct OnDevice;

template <auto& Stub, typename Iterator, typename... Args>
struct OnDevice<Stub, void (*)(Iterator&, Args...)> {
  static inline const char* name = "pointwise";  // set where the stub is registered

  static void call(Iterator& iter, Args... args) {
    if (iter.numel() == 0) return;
    require_host_view(name);
    const bool needs_casts = cast_scalars(iter);
    check_dtypes(iter, args...);
    const MTIAStream stream = current_stream(iter.device(0));
    auto loop = [arguments = std::make_tuple(keep(args)...)](auto& host_iter) {
      std::apply([&](const auto&... kept) { Stub(c10::kCPU, static_cast<Iterator&>(host_iter), kept.get()...); },
                 arguments);
    };
    if (C10_UNLIKELY(needs_casts)) {
      launch(stream, describe(iter, name),
             [operands = take_casting_operands(iter), loop] { run_with_casts(operands, loop); });
    } else {
      launch_iterator(iter, stream, name, HostOperand::kScalar, /*reads_tensors=*/false, std::move(loop));
    }
  }

 private:
  // A loop raises for a dtype it lacks when it runs; on an asynchronous stream that is too late. So the first call with
  // a pair of dtypes runs the loop over nothing.
  static void check_dtypes(Iterator& iter, Args... args) {
    static KnownDtypes known;
    const auto common = iter.maybe_common_dtype().value_or(iter.dtype(iter.ntensors() - 1));
    if (C10_LIKELY(known.contains(iter.dtype(0), common))) return;
    at::TensorIterator nothing = empty_iterator(iter);
    Stub(c10::kCPU, static_cast<Iterator&>(nothing), args...);
    known.insert(iter.dtype(0), common);
  }
};

}  // namespace torch_mtia
