// Every operator without a kernel of its own: runs its CPU kernel on host aliases of its arguments.
//
// Note [Fallback]
// 1. Each storage among the arguments gets one host alias, shared by all tensors over it, so aliasing between arguments
//    survives. Nothing is copied.
// 2. The CPU kernel runs in the current stream, with new CPU memory drawn from the device: on the caller if the
//    arguments are small, else on the stream's executor while the caller waits. An operator whose result's shape
//    depends on data could not do with less, and the fallback cannot tell which those are.
// 3. Results become device tensors: an argument that was written is returned itself; a view of an argument shares the
//    argument's storage; a new tensor's storage is adopted. A resized argument hands its new memory and its new sizes
//    to the tensor that it stands for.
// A sparse tensor (Sparse.h) is converted part by part. An `out` that is not contiguous is stood in for by a contiguous
// tensor, which is copied to it: some of ATen's kernels write as if it were contiguous. Float32 tensors stand in for
// 16-bit ones where Note [Float32 accumulation] asks for it.
//
// Note [Copying fallback]
// With a driver without a host view, the alias of a storage has memory of its own: as many bytes, of which those that
// the arguments reach, from the lowest to the highest, are copied there before the kernel runs. It runs on the caller.
// Then the bytes that written arguments reach are copied back, with any that lie between their elements: work in
// another stream must not write those meanwhile.
#include "Fallback.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/ThreadLocalState.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <ATen/ops/_nested_tensor_size_native.h>
#include <ATen/ops/_nested_tensor_storage_offsets_native.h>
#include <ATen/ops/_nested_tensor_strides_native.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <algorithm>
#include <exception>
#include <mutex>
#include <optional>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "../core/Waits.h"
#include "../device/AllocationScopes.h"
#include "../device/DeviceType.h"
#include "../device/MTIACachingAllocator.h"
#include "../device/MTIAGraph.h"
#include "../runtime/forks.h"
#include "FallbackAliases.h"
#include "HostAlias.h"
#include "Launch.h"
#include "Operator.h"

namespace torch_mtia {
namespace {

struct State {
  State() { runtime::hold_at_forks(runtime::ForkOrder::kTable, mutex); }

  std::mutex mutex;
  std::unordered_map<c10::OperatorName, int64_t> counts;
  std::unordered_set<c10::OperatorName> warned;
  std::unordered_set<std::string> denied;
  FallbackControl::Warn warn = FallbackControl::Warn::kNever;
  int forbidden = 0;
  std::unordered_set<c10::OperatorName> forced;
  std::vector<c10::RegistrationHandleRAII> registrations;  // of `forced`: each restores the operator's kernel
};

// Leaked: operators may fall back while the process ends.
State& state() {
  static auto* const instance = new State();
  return *instance;
}

// That a kernel is put over another one, which the dispatcher warns of, is what forcing means.
class Silent final : public c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

}  // namespace

void FallbackControl::enter(const c10::OperatorHandle& op) {
  const auto& name = op.operator_name();
  auto& control = state();
  bool warns = false;
  bool forbidden = false;
  bool denied = false;
  bool forced = false;
  {
    std::lock_guard<std::mutex> lock(control.mutex);
    forbidden = control.forbidden != 0;
    forced = control.forced.count(name) != 0;
    denied = !control.denied.empty() && (control.denied.count("all") != 0 || control.denied.count(name.name) != 0 ||
                                         control.denied.count(c10::toString(name)) != 0);
    if (!forbidden && !denied) {
      ++control.counts[name];
      warns = control.warn == Warn::kAlways || (control.warn == Warn::kOnce && control.warned.insert(name).second);
    }
  }
  // Without the lock: who raises may want Python's.
  if (!forbidden && !denied && !warns) return;
  const std::string call =
      c10::toString(name) + (forced ? " is forced off its kernel for " : " has no kernel for ") + device_name();
  TORCH_CHECK_NOT_IMPLEMENTED(!forbidden, call, " and would fall back to the CPU, inside torch_mtia.fallback.forbid()");
  TORCH_CHECK_NOT_IMPLEMENTED(!denied, call,
                              ", and torch_mtia.fallback.deny(), or TORCH_MTIA_FALLBACK, keeps it from falling back");
  TORCH_WARN(call, " and falls back to the CPU");
}

std::map<std::string, int64_t> FallbackControl::stats() {
  auto& control = state();
  std::lock_guard<std::mutex> lock(control.mutex);
  std::map<std::string, int64_t> result;
  for (const auto& [name, count] : control.counts) result[c10::toString(name)] = count;
  return result;
}

void FallbackControl::reset() {
  auto& control = state();
  std::lock_guard<std::mutex> lock(control.mutex);
  control.counts.clear();
  control.warned.clear();
}

void FallbackControl::set_warn(Warn mode) {
  auto& control = state();
  std::lock_guard<std::mutex> lock(control.mutex);
  control.warn = mode;
}

void FallbackControl::set_denied(const std::vector<std::string>& names) {
  auto& control = state();
  std::lock_guard<std::mutex> lock(control.mutex);
  control.denied = {names.begin(), names.end()};
}

void FallbackControl::forbid(bool enable) {
  auto& control = state();
  std::lock_guard<std::mutex> lock(control.mutex);
  control.forbidden += enable ? 1 : -1;
}

void FallbackControl::set_forced(const std::vector<c10::OperatorName>& operators) {
  auto& dispatcher = c10::Dispatcher::singleton();
  auto& control = state();
  Silent silent;
  const c10::WarningUtils::WarningHandlerGuard guard(&silent);
  std::lock_guard<std::mutex> lock(control.mutex);
  control.registrations.clear();
  control.forced = {operators.begin(), operators.end()};
  for (const auto& name : operators) {
    control.registrations.push_back(
        dispatcher.registerImpl(name, dispatch_key(), c10::KernelFunction::makeFromBoxedFunction<&fall_back>(),
                                std::nullopt, nullptr, "forced onto the CPU by torch_mtia.fallback.force()"));
  }
}

namespace {

using torch::jit::Stack;

// The traits of an operator. Names are compared once for all operators, and not at a call.
OperatorTraits find_traits(const c10::OperatorHandle& op) {
  static const auto* const operators = [] {
    auto* const found = new std::unordered_map<c10::OperatorHandle, OperatorTraits>();
    auto& dispatcher = c10::Dispatcher::singleton();
    for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
      const auto is_of_it = [&](const OperatorRow& row) { return row.name == name.name; };
      if (std::none_of(std::begin(kOperatorRows), std::end(kOperatorRows), is_of_it)) continue;
      if (const auto handle = dispatcher.findSchema(name)) found->emplace(*handle, traits_of(name.name));
    }
    return found;
  }();
  const auto known = operators->find(op);
  return known == operators->end() ? OperatorTraits() : known->second;
}

// One call.
class FallbackCall {
 public:
  // `key`: that of the CPU kernel. `kernel`: one of ours that runs in its place; null: none.
  FallbackCall(const c10::OperatorHandle& op, c10::DispatchKey key, Stack* stack,
               const c10::KernelFunction* kernel = nullptr)
      : op_(op),
        key_(key),
        kernel_(kernel),
        stack_(stack),
        first_argument_(stack->size() - op.schema().arguments().size()) {}

  void run() {
    find_device();
    MTIAGraph::refuse(current_stream(device_), op_.schema().name(),
                      "it has no kernel for mtia and falls back to the CPU's, which the caller waits for. Call it "
                      "before the capture or after a replay");
    const c10::DeviceGuard guard(device_);
    try {
      alias_arguments();
      run_in_stream();
      aliases_->write_back(results());
    } catch (...) {
      aliases_->wait_for_copies();
      throw;
    }
    for (c10::IValue& result : results()) result = aliases_->to_device(result);
  }

 private:
  std::span<c10::IValue> results() { return std::span(*stack_).subspan(first_argument_); }

  static bool is_written(const c10::Argument& argument) {
    return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
  }

  // Whether an operator in place reads what it changes, a schema does not say.
  static core::OldBytes old_bytes_of(const c10::Argument& argument, bool writes, const OperatorTraits& traits) {
    if (argument.is_out()) return core::OldBytes::kOverwritten;
    if (argument.name() == traits.in_part) return core::OldBytes::kReadInPart;
    return writes ? core::OldBytes::kPassedThrough : core::OldBytes::kRead;
  }

  void find_device() {
    const bool takes_host_tensors = find_traits(op_).host_tensors;
    CommonDevice common(op_.operator_name().name, takes_host_tensors, /*writes_host_tensors=*/takes_host_tensors);
    const auto& arguments = op_.schema().arguments();
    for (size_t i = 0; i < arguments.size(); ++i) {
      const auto& value = (*stack_)[first_argument_ + i];
      for_each_tensor(value, [&](const at::Tensor& tensor) {
        common.add(tensor, is_written(arguments[i]));
        numel_ += tensor.numel();
      });
      if (value.isDevice()) common.add(value.toDevice());
    }
    device_ = common.get();
    aliases_.emplace(op_, device_, common.of_generators());
  }

  void alias_arguments() {
    const auto& arguments = op_.schema().arguments();
    const OperatorTraits traits = find_traits(op_);
    if (traits.in_float32 && kernel_ == nullptr) find_narrow_dtype();
    for (size_t i = 0; i < arguments.size(); ++i) {
      const bool writes = traits.writes_unmarked || is_written(arguments[i]);
      auto& value = (*stack_)[first_argument_ + i];
      value = aliases_->to_host(value, {writes, old_bytes_of(arguments[i], writes, traits), arguments[i].is_out()});
    }
    const bool draws = op_.hasTag(at::Tag::nondeterministic_seeded);
    if (!draws) return;
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (!is_optional_generator(*arguments[i].type())) continue;
      auto& value = (*stack_)[first_argument_ + i];
      if (value.isNone()) value = at::detail::createCPUGenerator(draw_seed(default_generator(device_.index())));
      return;
    }
    seeds_default_generator_ = true;
  }

  // Whether two arguments, one of which is written, have bytes in common. Kernels refuse that, but not of copies.
  bool arguments_overlap() const {
    const auto& arguments = op_.schema().arguments();
    bool found = false;
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (!is_written(arguments[i])) continue;
      for_each_tensor((*stack_)[first_argument_ + i], [&](const at::Tensor& output) {
        found = found || at::has_internal_overlap(output) == at::MemOverlap::Yes;
        for (size_t j = 0; j < arguments.size(); ++j) {
          for_each_tensor((*stack_)[first_argument_ + j], [&](const at::Tensor& other) {
            if (other.is_same(output)) return;
            const auto status = at::get_overlap_status(output, other);
            found = found || status == at::MemOverlapStatus::Full || status == at::MemOverlapStatus::Partial;
          });
        }
      });
    }
    return found;
  }

  // Mixed dtypes are left alone: ATen's kernels accumulate in the wider one.
  void find_narrow_dtype() {
    std::optional<at::ScalarType> dtype;
    bool is_mixed = false;
    const auto& arguments = op_.schema().arguments();
    for (size_t i = 0; i < arguments.size(); ++i) {
      for_each_tensor((*stack_)[first_argument_ + i], [&](const at::Tensor& tensor) {
        if (!tensor.is_floating_point()) return;
        is_mixed = is_mixed || (dtype && dtype != tensor.scalar_type());
        dtype = tensor.scalar_type();
      });
    }
    if (is_mixed || !dtype || !at::isReducedFloatingType(*dtype) || arguments_overlap()) return;
    aliases_->widen(*dtype);
    rounds_results_ = true;
    result_dtype_ = *dtype;
    for (size_t i = 0; i < arguments.size(); ++i) {
      c10::IValue& value = (*stack_)[first_argument_ + i];
      if (arguments[i].name() != "dtype" || value.isNone()) continue;
      result_dtype_ = value.toScalarType();
      if (at::isReducedFloatingType(result_dtype_)) value = at::kFloat;
    }
  }

  // Results that the kernel has made in float32.
  void round_results() {
    const auto round = [&](const at::Tensor& tensor) {
      return tensor.defined() && !aliases_->is_alias(tensor) && tensor.scalar_type() == at::kFloat
                 ? tensor.to(result_dtype_)
                 : tensor;
    };
    for (size_t i = first_argument_; i < stack_->size(); ++i) {
      c10::IValue& value = (*stack_)[i];
      if (value.isTensor()) value = round(value.toTensor());
    }
  }

  static bool is_optional_generator(const c10::Type& type) {
    return type.kind() == c10::TypeKind::GeneratorType ||
           (type.kind() == c10::TypeKind::OptionalType &&
            type.castRaw<c10::OptionalType>()->getElementType()->kind() == c10::TypeKind::GeneratorType);
  }

  void run_kernel() {
    std::optional<DeviceAllocation> device_memory;
    if (HostView::available()) device_memory.emplace();
    aliases_->fill_substitutes();
    redispatch();
    aliases_->copy_from_substitutes();
    if (rounds_results_) round_results();
  }

  void redispatch() {
    if (kernel_ != nullptr) return kernel_->callBoxed(op_, c10::DispatchKeySet(key_), stack_);
    if (!seeds_default_generator_) {
      op_.redispatchBoxed(c10::DispatchKeySet(key_), stack_);
      return;
    }
    static auto* const mutex = new std::mutex();
    std::lock_guard<std::mutex> lock(*mutex);
    const DefaultCPUSeedGuard seed(draw_seed(default_generator(device_.index())));
    op_.redispatchBoxed(c10::DispatchKeySet(key_), stack_);
  }

  // Before the kernel has run, what it is given beside tensors of the device; afterwards, the tensors that it has made.
  void list_values(core::OperandSink& sink) const {
    if (error_) return;
    for (size_t i = first_argument_; i < stack_->size(); ++i) {
      const c10::IValue& value = (*stack_)[i];
      for_each_tensor(value, [&](const at::Tensor& tensor) {
        if (tensor.layout() != at::kStrided || aliases_->is_alias(tensor)) return;
        if (has_run_) {
          list_operand(tensor, /*writes=*/true, core::OldBytes::kOverwritten, sink);
        } else {
          list_host_operand(tensor, /*writes=*/false, sink);
        }
      });
      if (value.isScalar()) list_numbers(value.toScalar(), sink);
      if (value.isDoubleList()) list_numbers(at::ArrayRef<double>(value.toDoubleVector()), sink);
    }
  }

  // The kernel as a work item. The caller waits for it, so it refers to the call while the caller is there: see Note
  // [Items that are waited for] in core/Waits.h. It can run only once.
  class KernelWork {
   public:
    KernelWork(FallbackCall& call, const MTIAStream& stream, uint64_t awaited)
        : call_(&call), stream_(&stream), awaited_(awaited) {}

    // On the executor the kernel needs what the dispatcher keeps in thread-local state (autograd off, modes).
    void detach() noexcept {
      try {
        caller_state_ = std::make_unique<at::ThreadLocalState>();
      } catch (...) {
        call_->error_ = std::current_exception();
      }
    }

    void list_operands(core::OperandSink& sink) const {
      const core::Awaited::Run caller(awaited_);
      if (!caller) return;
      call_->aliases_->list_operands(sink);
      call_->list_values(sink);
    }

    void operator()() {
      core::Awaited::Run caller(awaited_);
      if (!caller) return;
      try {
        if (call_->error_) std::rethrow_exception(call_->error_);
        const core::RunningWork running(stream_->core());
        if (caller_state_) {
          const at::ThreadLocalStateGuard state(*caller_state_);
          const c10::DeviceGuard guard(call_->device_);
          const c10::StreamGuard stream_guard(stream_->unwrap());
          call_->run_kernel();
        } else {
          call_->run_kernel();
        }
      } catch (...) {
        call_->error_ = std::current_exception();
        caller.fail(call_->error_);
      }
      call_->has_run_ = true;
      caller.finish();
    }

   private:
    FallbackCall* call_;
    const MTIAStream* stream_;
    uint64_t awaited_;
    std::unique_ptr<at::ThreadLocalState> caller_state_;
  };

  void run_in_stream() {
    const MTIAStream stream = current_stream(device_);
    if (!HostView::available()) {
      stream.wait();
      run_kernel();
      return;
    }
    const MTIACachingAllocator::Window window(stream.core());
    core::WorkInfo info{};
    info.name = op_.schema().name().c_str();
    info.flags = MTIA_WORK_MAY_RUN_INLINE;
    info.cost = numel_ <= kSmallFallbackNumel ? 0 : UINT64_MAX;
    core::Awaited awaited;
    launch(stream, info, KernelWork(*this, stream, awaited.ticket()), Order::kByThreads);
    awaited.wait(stream.core());
  }

  const c10::OperatorHandle& op_;
  const c10::DispatchKey key_;
  const c10::KernelFunction* const kernel_;
  Stack* const stack_;
  const size_t first_argument_;
  c10::Device device_{device_type(), 0};
  int64_t numel_ = 0;
  bool seeds_default_generator_ = false;
  bool has_run_ = false;
  bool rounds_results_ = false;  // float32 tensors stand in for those of 16 bits
  at::ScalarType result_dtype_ = at::kFloat;
  std::exception_ptr error_;
  std::optional<FallbackAliases> aliases_;  // once the device is known
};

template <c10::DispatchKey key>
void fallback(const c10::OperatorHandle& op, Stack* stack) {
  FallbackControl::enter(op);
  ensure_initialized();
  FallbackCall(op, key, stack).run();
}

}  // namespace

void fall_back(const c10::OperatorHandle& op, Stack* stack) {
  fallback<c10::DispatchKey::CPU>(op, stack);
}

void fall_back_sparse(const c10::OperatorHandle& op, Stack* stack) {
  fallback<c10::DispatchKey::SparseCPU>(op, stack);
}

void fall_back_to(const c10::KernelFunction& kernel, const c10::OperatorHandle& op, Stack* stack) {
  FallbackControl::enter(op);
  ensure_initialized();
  FallbackCall(op, c10::DispatchKey::CPU, stack, &kernel).run();
}

void run_on_copies(const c10::OperatorHandle& op, Stack* stack) {
  FallbackCall(op, c10::DispatchKey::CPU, stack).run();
}

MTIA_LIBRARY_IMPL(_, kBackend, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&fall_back>());
}

// Nested tensors of the strided layout have no kernels here, and say so. What they are made of they can tell: autograd
// asks for it where nothing may raise, and the process would end.
MTIA_LIBRARY_IMPL(aten, kNested, m) {
  m.impl("_nested_tensor_size", TORCH_FN(at::native::_nested_tensor_size));
  m.impl("_nested_tensor_strides", TORCH_FN(at::native::_nested_tensor_strides));
  m.impl("_nested_tensor_storage_offsets", TORCH_FN(at::native::_nested_tensor_storage_offsets));
}

}  // namespace torch_mtia
