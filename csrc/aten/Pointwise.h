// Runs ATen's CPU loop of a dispatch stub as a work item on device memory.
//
// OnDevice<stub>::call has the stub's own signature and does for the device what the stub does for the CPU. Registered
// as the stub's kernel for MTIA, it is all that a TensorIterator operator of ATen needs in order to run on the device.
#pragma once

#include <ATen/TensorIterator.h>
#include <ATen/native/DispatchStub.h>
#include <c10/core/Scalar.h>

#include <exception>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "HostAlias.h"
#include "Launch.h"
#include "Operator.h"
#include "OwnedArguments.h"

namespace torch_mtia {

// What a host operand of an iterator is, once the work item has to keep it.
enum class CPUOperand {
  kScalar,  // a number, copied before the call returns
  kBuffer,  // memory that the caller keeps valid until the work is done
};

C10_ALWAYS_INLINE bool on_device(const at::TensorIteratorBase& iter, int arg) {
  const std::optional<at::Device>& device = iter.operand(arg).device;
  return device && !device->is_cpu();
}

// Replaces the data pointers of device operands by their host view for the duration of a scope.
class HostViewPointers {
 public:
  C10_ALWAYS_INLINE explicit HostViewPointers(at::TensorIteratorBase& iter) : iter_(iter) {
    for (int arg = 0; arg < iter.ntensors(); ++arg) {
      if (on_device(iter, arg)) iter.operand(arg).data = HostView::to_host(iter.operand(arg).data);
    }
  }
  C10_ALWAYS_INLINE ~HostViewPointers() {
    for (int arg = 0; arg < iter_.ntensors(); ++arg) {
      if (on_device(iter_, arg)) iter_.operand(arg).data = HostView::to_device(iter_.operand(arg).data);
    }
  }
  HostViewPointers(const HostViewPointers&) = delete;
  HostViewPointers& operator=(const HostViewPointers&) = delete;

 private:
  at::TensorIteratorBase& iter_;
};

// A copy of a built iterator that borrows nothing: its operands are host aliases and copies of host scalars. The data
// pointers of `iter` are host addresses already. Unless the loop reads tensors, those of operands with the same sizes
// and dtype are one and the same, because it is their metadata that it asks for; a node of a graph is half as large so.
std::unique_ptr<at::TensorIterator> own_iterator(const at::TensorIteratorBase& iter, CPUOperand host_operand,
                                                 bool reads_tensors);

// Which operands the CPU's iterator of an operator casts to the common dtype before the loop sees them. An iterator for
// another device leaves that to the kernel, and does not remember what it was configured for.
enum class Casts {
  kAll,
  kAllButBoolOutput,  // comparisons and logic: an output of booleans is written directly
  kNone,              // each operand has a dtype of its own
};

// The dtype in which a loop sees an operand.
inline at::ScalarType loop_dtype(const at::TensorIteratorBase& iter, int arg, Casts casts) {
  const auto own = iter.dtype(arg);
  if (casts == Casts::kNone || (casts == Casts::kAllButBoolOutput && own == at::kBool && arg < iter.noutputs())) {
    return own;
  }
  return iter.maybe_common_dtype().value_or(own);
}

// Whether the loop sees an operand in another dtype than its own.
C10_ALWAYS_INLINE bool has_casts(const at::TensorIteratorBase& iter, Casts casts) {
  for (int arg = 0; arg < iter.ntensors(); ++arg) {
    if (loop_dtype(iter, arg, casts) != iter.dtype(arg)) return true;
  }
  return false;
}
// Casts the host scalars of an iterator to the common dtype, as the CPU's iterator does when it is built, and says
// whether operands on the device need casts too.
bool cast_scalars(at::TensorIteratorBase& iter, Casts casts);

// Work on an iterator with operands that have to be cast first: host aliases and host scalars, and a function that
// casts, iterates over the casts, and writes the results back.
struct CastingOperands {
  std::vector<at::Tensor> tensors;  // outputs first
  std::vector<bool> on_device;
  std::vector<at::ScalarType> dtypes;
  int num_outputs;
};
CastingOperands take_casting_operands(const at::TensorIteratorBase& iter, Casts casts);
void run_with_casts(const CastingOperands& operands, c10::function_ref<void(at::TensorIterator&)> loop);

// Of the first operands of a loop that are no outputs; all others are read.
using InputBytes = std::array<core::OldBytes, 3>;

// Of an operand of a loop. An operator in place has its tensor as an output and as an input.
constexpr core::OldBytes old_bytes_of(int arg, int num_outputs, const InputBytes& inputs) {
  if (arg < num_outputs) return core::OldBytes::kOverwritten;
  const auto input = static_cast<size_t>(arg - num_outputs);
  return input < inputs.size() ? inputs[input] : core::OldBytes::kRead;
}

template <typename Loop>
struct CastingWork {
  CastingOperands operands;
  Loop loop;

  void operator()() const { run_with_casts(operands, loop); }
  void list_operands(core::OperandSink& sink) const {
    for (size_t arg = 0; arg < operands.tensors.size(); ++arg) {
      const bool is_output = static_cast<int>(arg) < operands.num_outputs;
      if (operands.on_device[arg]) {
        const auto old_bytes = old_bytes_of(static_cast<int>(arg), operands.num_outputs, loop.inputs);
        list_operand(operands.tensors[arg], is_output, old_bytes, sink);
      } else {
        list_host_operand(operands.tensors[arg], is_output, sink);
      }
    }
    loop.list_numbers(sink);
  }
};

// An iterator over no elements with the dtypes that the loop sees, with which a loop raises its dtype errors. Numbers
// stay numbers: for those loops may have another kernel.
at::TensorIterator empty_iterator(const at::TensorIteratorBase& iter, Casts casts);

// The dtypes that the loop sees: see Note [Dtypes].
std::string words(const at::TensorIteratorBase& iter, Casts casts);

C10_ALWAYS_INLINE core::WorkInfo describe(const at::TensorIteratorBase& iter, const char* name) {
  int64_t bytes_per_element = 0;
  for (int arg = 0; arg < iter.ntensors(); ++arg) bytes_per_element += iter.element_size(arg);
  core::WorkInfo info{};
  info.name = name;
  info.cost = cost_of_bytes(static_cast<uint64_t>(iter.numel() * bytes_per_element));
  return info;
}

// The data pointers of `iter` are host addresses.
void list_operands(const at::TensorIteratorBase& iter, CPUOperand host_operand, const InputBytes& inputs,
                   core::OperandSink& sink);
// The same for the stub of index, which goes through its input along dimensions that the iterator lacks: their sizes,
// and strides in bytes.
void list_operands(const at::TensorIteratorBase& iter, CPUOperand host_operand, const InputBytes& inputs,
                   core::OperandSink& sink, at::IntArrayRef indexed_sizes, at::IntArrayRef indexed_strides);
template <typename... Args>
void list_operands(const at::TensorIteratorBase& iter, CPUOperand host_operand, const InputBytes& inputs,
                   core::OperandSink& sink, const Args&... /*of the stub*/) {
  list_operands(iter, host_operand, inputs, sink);
}

// The work item of a built iterator. It runs the caller's loop on the caller's iterator as long as it stays on the
// caller's thread.
template <typename Loop>
class PointwiseWork {
 public:
  PointwiseWork(at::TensorIteratorBase& iter, const Loop& loop, CPUOperand host_operand, bool reads_tensors)
      : iter_(&iter),
        loop_(&loop),
        host_operand_(host_operand),
        reads_tensors_(reads_tensors),
        is_serial_(is_serial_loop(iter)) {}

  bool is_serial() const { return is_serial_; }

  void detach() noexcept {
    if (owned_ != nullptr || copy_error_ != nullptr) return;
    try {
      owned_ = std::make_unique<Owned>(own_iterator(*iter_, host_operand_, reads_tensors_), *loop_);
    } catch (...) {
      copy_error_ = std::current_exception();
    }
  }

  void list_operands(core::OperandSink& sink) const {
    if (copy_error_ != nullptr) return;
    const at::TensorIteratorBase& iter = owned_ != nullptr ? *owned_->iter : *iter_;
    if constexpr (requires(const Loop& loop) { loop.list_operands(iter, host_operand_, sink); }) {
      (owned_ != nullptr ? owned_->loop : *loop_).list_operands(iter, host_operand_, sink);
    } else {
      torch_mtia::list_operands(iter, host_operand_, InputBytes(), sink);
    }
  }

  void operator()() {
    if (owned_ == nullptr && copy_error_ == nullptr) [[likely]]
      return (*loop_)(*iter_);
    if (copy_error_ != nullptr) std::rethrow_exception(copy_error_);
    owned_->run();
  }

 private:
  struct Owned {
    Owned(std::unique_ptr<at::TensorIterator> iter, const Loop& loop) : iter(std::move(iter)), loop(loop) {}

    void run() {
      if (leaves_iterator_alone) return loop(*iter);
      // A loop may take a scalar operand out of its iterator; the next run needs it again.
      at::TensorIterator copy(*iter);
      loop(copy);
      leaves_iterator_alone = copy.ntensors() == iter->ntensors();
    }

    const std::unique_ptr<at::TensorIterator> iter;
    const Loop loop;
    bool leaves_iterator_alone = false;  // known after the first run
  };

  static bool is_serial_loop(const at::TensorIteratorBase& iter) {
    if constexpr (requires { Loop::kLeastGrain; }) return iter.numel() < Loop::kLeastGrain;
    return false;
  }

  at::TensorIteratorBase* iter_;  // these two are the caller's
  const Loop* loop_;
  CPUOperand host_operand_;
  bool reads_tensors_;
  bool is_serial_;
  std::unique_ptr<Owned> owned_;
  std::exception_ptr copy_error_;
};

// `reads_tensors`: the loop looks at the iterator's tensors, and not only at its data pointers, strides and dtypes.
template <typename Loop>
void launch_iterator(at::TensorIteratorBase& iter, const MTIAStream& stream, const char* name, CPUOperand host_operand,
                     bool reads_tensors, const Loop& loop) {
  const core::WorkInfo info = describe(iter, name);
  HostViewPointers host_pointers(iter);
  Block<PointwiseWork<Loop>> block{{PointwiseWork<Loop>(iter, loop, host_operand, reads_tensors)}, name};
  if (reads_tensors) block.callable.detach();
  launch(stream, info, block);
}

// Runs a loop over elements so that all are computed in vectors. ATen's compute those at the ends of rows, and of what
// a thread takes, one by one, which gives some functions other bits: see Note [Batch invariance].
void run_in_vectors(const at::TensorIteratorBase& iter, c10::function_ref<void(at::TensorIterator&)> loop);

// Whether a loop over `dtype` can convert the argument whatever the operator does with it; a conversion raises for a
// value that does not fit. May say no to a value that fits.
bool converts(const c10::Scalar& value, at::ScalarType dtype);
template <typename T>
bool converts(const T& /*value*/, at::ScalarType /*dtype*/) {
  return true;
}

// A stub's loop with its arguments after the iterator.
template <typename Iterator, typename... Args>
struct OwnedLoop {
  // Fewer elements are one piece: for ATen's loops, whose smallest grain is 2048, and for the vector functions of MKL,
  // which share out some hundred.
  static constexpr int64_t kLeastGrain = 32;

  // That of index goes through its input by itself, and its arguments say how.
  static constexpr bool kIsOverElements = !(std::is_same_v<Args, at::IntArrayRef> || ...);

  void (*cpu_loop)(Iterator&, Args...);
  InputBytes inputs;
  bool in_vectors;
  std::tuple<decltype(own(std::declval<const Args&>()))...> arguments;

  void operator()(at::TensorIterator& iter) const { run(iter); }
  void operator()(at::TensorIteratorBase& iter) const { run(iter); }
  void list_operands(const at::TensorIteratorBase& iter, CPUOperand host_operand, core::OperandSink& sink) const {
    std::apply(
        [&](const auto&... owned) { torch_mtia::list_operands(iter, host_operand, inputs, sink, owned.get()...); },
        arguments);
    list_numbers(sink);
  }
  void list_numbers(core::OperandSink& sink) const {
    std::apply([&](const auto&... owned) { (torch_mtia::list_numbers(owned.get(), sink), ...); }, arguments);
  }

 private:
  void run(auto& iter) const {
    const auto loop = [&](auto& elements) {
      std::apply([&](const auto&... owned) { cpu_loop(static_cast<Iterator&>(elements), owned.get()...); }, arguments);
    };
    if constexpr (kIsOverElements) {
      if (in_vectors) return run_in_vectors(iter, loop);
    }
    loop(iter);
  }
};

// One stub's loop and what is known about it. Shared by all stubs of one signature, so that a stub costs little code.
template <typename Iterator, typename... Args>
class DeviceLoop {
 public:
  using Loop = void (*)(Iterator&, Args...);
  explicit constexpr DeviceLoop(Loop cpu_loop) : cpu_loop_(cpu_loop) {}

  // What a loop with such arguments does with its inputs.
  using Inputs = InputBytes (*)(const std::remove_reference_t<Args>&...);

  // `op` names the work to errors and to the profiler, and the loop in yaml/dtypes.yaml. `inputs`: null where all are
  // read.
  void configure(const Operator& op, Casts casts, Inputs inputs) {
    op_ = op;
    casts_ = casts;
    inputs_ = inputs;
  }

  void operator()(Iterator& iter, Args... args) {
    require_host_view(op_.name);
    const bool needs_casts = C10_UNLIKELY(has_casts(iter, casts_)) && cast_scalars(iter, casts_);
    check_arguments(iter, args...);
    if (iter.numel() == 0) return;
    const MTIAStream stream = current_stream(iter.device(0));
    const bool in_vectors = is_batch_invariant() && iter.ninputs() > 0;
    OwnedLoop<Iterator, Args...> loop{
        cpu_loop_, inputs_ == nullptr ? InputBytes() : inputs_(args...), in_vectors, {own(args)...}};
    if (C10_UNLIKELY(needs_casts)) {
      launch(stream, describe(iter, op_.name), CastingWork{take_casting_operands(iter, casts_), std::move(loop)});
    } else {
      launch_iterator(iter, stream, op_.name, CPUOperand::kScalar, /*reads_tensors=*/false, loop);
    }
  }

 private:
  // See Note [Dtypes]. Asked about, too, is a number that may not fit.
  void check_arguments(Iterator& iter, Args... args) {
    DtypeSignature dtypes;
    for (int arg = 0; arg < iter.ntensors(); ++arg) dtypes.add(dtype_symbol(loop_dtype(iter, arg, casts_)));
    [[maybe_unused]] const auto input = loop_dtype(iter, iter.ntensors() - 1, casts_);
    if (C10_LIKELY(op_.takes(dtypes) && (converts(args, input) && ...))) return;
    at::TensorIterator nothing = empty_iterator(iter, casts_);
    ask_kernel(op_, [&] { return words(iter, casts_); }, [&] { cpu_loop_(static_cast<Iterator&>(nothing), args...); });
  }

  Loop cpu_loop_;
  Operator op_{"pointwise"};
  Casts casts_ = Casts::kAll;
  Inputs inputs_ = nullptr;
};

// `OwnLoop` replaces the stub's on the CPU.
template <auto& Stub, auto OwnLoop = nullptr,
          typename Function = typename std::remove_reference_t<decltype(Stub)>::FnPtr>
struct OnDevice;

template <auto& Stub, auto OwnLoop, typename Iterator, typename... Args>
struct OnDevice<Stub, OwnLoop, void (*)(Iterator&, Args...)> {
  static void cpu_loop(Iterator& iter, Args... args) {
    if constexpr (OwnLoop == nullptr) {
      Stub(c10::kCPU, iter, args...);
    } else {
      OwnLoop(iter, args...);
    }
  }
  static inline DeviceLoop<Iterator, Args...> loop{&cpu_loop};
  static void call(Iterator& iter, Args... args) { loop(iter, args...); }
  // What to register; the arguments are those of configure.
  static auto make(const Operator& op, Casts casts, typename DeviceLoop<Iterator, Args...>::Inputs inputs = nullptr) {
    loop.configure(op, casts, inputs);
    return &call;
  }
};

// Loops (PointwiseLoops.cpp) in place of those of ATen's dispatch stubs, for rows with `loop` in
// yaml/native_functions.yaml.

// In 16-bit floating point as on CUDA, in float32 and rounded once, where ATen's loops would round alpha, or a number
// among the operands, to the dtype of the tensors.
void add_loop(at::TensorIteratorBase& iter, const c10::Scalar& alpha);
void mul_loop(at::TensorIteratorBase& iter);

// ATen's divide the least integer by -1, which ends the process. Here it wraps.
void div_trunc_loop(at::TensorIteratorBase& iter);
void lcm_loop(at::TensorIteratorBase& iter);

// ATen's count to an argument and not to the end of their iterator, which makes a difference for an empty one.
void arange_loop(at::TensorIterator& iter, const c10::Scalar& start, const c10::Scalar& steps, const c10::Scalar& step);
void linspace_loop(at::TensorIterator& iter, const c10::Scalar& start, const c10::Scalar& end, int64_t steps);

}  // namespace torch_mtia
