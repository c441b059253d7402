// Runs a CPU kernel of ATen as a work item on device memory.
//
// A row in yaml/native_functions.yaml with `runs` is all that most operators need: the code that calls this is
// generated. docs/development.md says how to add one.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/conj_physical_native.h>

#include <c10/core/DispatchKeySet.h>
#include <c10/util/FunctionRef.h>

#include <array>
#include <exception>
#include <optional>
#include <tuple>
#include <utility>

#include "../core/Waits.h"
#include "InFloat32.h"
#include "KeptArguments.h"
#include "Launch.h"
#include "ListNumbers.h"
#include "Operator.h"
#include "OutputOffer.h"
#include "Shapes.h"

namespace torch_mtia {

struct CPUKernelInfo {
  Operator op;
  uint64_t weight = 1;
  uint64_t least_cost = 0;
  bool waits = false;  // the call raises what depends on the data, too
};

enum class Outputs {
  kGiven,    // among the tensors of the call
  kMade,     // made for the call, which tells their shapes
  kUnknown,  // the arguments do not fit, or nothing but the kernel tells what it makes of them
};

// What the launch of a kernel does with its tensors whatever their number: kept out of the templates below, of which
// there is an instance for every operator.
class CPUKernelLaunch {
 public:
  CPUKernelLaunch(const CPUKernelInfo& kernel, c10::Device device, const PooledAliases& tensors, Outputs outputs);

  const MTIAStream& stream() const { return stream_; }
  const core::WorkInfo& info() const { return info_; }
  // Before the launch: see Note [Dtypes]. A call without data is asked about too, because that costs nothing.
  template <typename Work, typename Run>
  void check_dtypes(Work& work, Run run) {
    if (C10_LIKELY(is_known_)) return;
    Work zeros = work.zeros();
    ask(zeros.tensors(), [&] { run(zeros); });
  }
  // Makes the outputs: of these shapes, or, where there are none, such as they are from the trial.
  void make_outputs(at::ArrayRef<TensorShape> shapes, std::span<at::Tensor> outputs);
  // Who takes an error of the work: see core::Awaited. 0: the stream keeps it.
  uint64_t awaited() { return awaited_ ? awaited_->ticket() : 0; }
  // After the launch: raises that error.
  void finish() {
    if (C10_UNLIKELY(awaited_.has_value())) wait();
  }

 private:
  void ask(const PooledAliases& zeros, c10::function_ref<void()> run);
  void count(size_t bytes);
  void wait();

  const MTIAStream stream_;
  core::WorkInfo info_{};
  const CPUKernelInfo& kernel_;
  const c10::Device device_;
  const Outputs outputs_;
  size_t bytes_ = 0;
  bool has_data_ = false;
  bool asks_for_dtypes_ = false;  // a kernel may not look at them where an input or all results are empty
  bool is_known_ = false;
  // The call waits because of `CPUKernelInfo::waits`, or to be deterministic: ATen's kernels ask for that flag of the
  // process when they run, so the work ends before the program can change it.
  std::optional<core::Awaited> awaited_;
};

inline std::array<at::Tensor, 1> result_array(at::Tensor result) {
  return {std::move(result)};
}
template <typename... Results>
std::array<at::Tensor, sizeof...(Results)> result_array(std::tuple<Results...> results) {
  return std::apply([](auto&... result) { return std::array<at::Tensor, sizeof...(Results)>{std::move(result)...}; },
                    results);
}

// A kernel that makes its results, as one that takes its outputs first.
template <typename Run>
struct IntoOutputs {
  Run run;
  template <typename... Arguments>
  void operator()(at::TensorList outputs, Arguments&&... arguments) {
    OutputOffer offer(outputs);
    auto results = result_array(run(std::forward<Arguments>(arguments)...));
    offer.settle(results);
  }
};

void unite_inputs_with_outputs(const PooledAliases& tensors);
// Whether some output has bytes of another tensor. Kernels differ in what they make of it: a trial tells.
bool outputs_overlap(const PooledAliases& tensors);
// Lets the zeros of a trial overlap as the tensors do.
void overlap_as(const PooledAliases& tensors, const PooledAliases& zeros);
void list_operands(const PooledAliases& tensors, core::OperandSink& sink);

template <typename Run, typename... Kept>
class CPUKernelWork {
 public:
  CPUKernelWork(Run run, Kept&&... arguments) : run_(std::move(run)), arguments_(std::move(arguments)...) {}

  PooledAliases tensors() {
    PooledAliases list;
    std::apply([&](Kept&... kept) { (kept.collect(list), ...); }, arguments_);
    return list;
  }
  CPUKernelWork zeros() {
    CPUKernelWork work =
        std::apply([&](const Kept&... kept) { return CPUKernelWork(for_trial(run_), kept.zeros()...); }, arguments_);
    unite_inputs_with_outputs(work.tensors());
    overlap_as(tensors(), work.tensors());
    return work;
  }
  // The ticket of the caller, who waits for the work and takes its error. 0: it is thrown.
  void give_error_to(uint64_t awaited) { awaited_ = awaited; }

  // The work that makes the results of this one in `outputs`.
  auto into(at::TensorList outputs) && {
    return std::apply(
        [&](Kept&... kept) {
          return CPUKernelWork<IntoOutputs<Run>, KeptTensorList, Kept...>({std::move(run_)}, keep_output(outputs),
                                                                          std::move(kept)...);
        },
        arguments_);
  }

  // Below the dispatcher's autograd: on the caller that is so already, an executor has a state of its own. And below
  // the CPU's autocast, whichever the caller has switched on, for kernels that call operators.
  decltype(auto) call() {
    const at::AutoDispatchBelowADInplaceOrView below;
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    return std::apply([&](const Kept&... kept) -> decltype(auto) { return run_(kept.get()...); }, arguments_);
  }
  void operator()() {
    try {
      (void)call();
    } catch (...) {
      if (awaited_ == 0 || !core::Awaited::give(awaited_, std::current_exception())) throw;
    }
  }

  void list_operands(core::OperandSink& sink) const {
    torch_mtia::list_operands(const_cast<CPUKernelWork*>(this)->tensors(), sink);
    std::apply([&](const Kept&... kept) { (list_numbers(kept.get(), sink), ...); }, arguments_);
  }

 private:
  Run run_;
  std::tuple<Kept...> arguments_;
  uint64_t awaited_ = 0;
};

// Runs run(arguments...) in the current stream of `device`; `arguments` are results of keep and keep_output. The
// estimated time is `weight` times that of moving the tensors, and at least `least_cost` (nanoseconds on one thread).
template <typename Run, typename... Kept>
void run_cpu_kernel(const CPUKernelInfo& kernel, c10::Device device, Run run, Kept... kept) {
  Block<CPUKernelWork<Run, Kept...>> block{{{std::move(run), std::move(kept)...}}, kernel.op.name};
  auto& work = block.callable.callable;
  CPUKernelLaunch launch_of_it(kernel, device, work.tensors(), Outputs::kGiven);
  launch_of_it.check_dtypes(work, [](auto& zeros) { zeros(); });
  work.give_error_to(launch_of_it.awaited());
  launch(launch_of_it.stream(), launch_of_it.info(), block);
  launch_of_it.finish();
}

// The same for a kernel that makes its results: in new outputs, which are returned.
template <size_t kOutputs, typename Run, typename... Kept>
std::array<at::Tensor, kOutputs> make_with_cpu_kernel(const CPUKernelInfo& kernel, c10::Device device,
                                                      const Shapes<kOutputs>& shapes, Run run, Kept... kept) {
  CPUKernelWork<Run, Kept...> call(std::move(run), std::move(kept)...);
  CPUKernelLaunch launch_of_it(kernel, device, call.tensors(), shapes.known() ? Outputs::kMade : Outputs::kUnknown);
  std::array<at::Tensor, kOutputs> outputs;
  launch_of_it.check_dtypes(call, [&](auto& zeros) { outputs = result_array(zeros.call()); });
  launch_of_it.make_outputs(shapes.list(), outputs);
  auto work = std::move(call).into(outputs);
  work.give_error_to(launch_of_it.awaited());
  launch(launch_of_it.stream(), launch_of_it.info(), std::move(work));
  launch_of_it.finish();
  return outputs;
}

// A structured CPU kernel of ATen without its meta function, which has run for the device's tensors already. The last
// arguments are the outputs.
template <typename Kernel, size_t kOutputs>
class StructuredCall final : public Kernel {
 public:
  template <typename... Arguments>
  static void run(const Arguments&... arguments) {
    StructuredCall call;
    call.note_outputs(std::tie(arguments...), std::make_index_sequence<kOutputs>());
    call.impl(arguments...);
    // A kernel may leave a result lazily conjugate (linalg_lu_solve does), but only the alias has that bit. An output
    // that was given as a conjugate stays one.
    for (size_t i = 0; i < kOutputs; ++i) {
      const at::Tensor& output = *call.outputs_[i];
      if (output.is_conj() == call.were_conjugate_[i]) continue;
      output._set_conj(call.were_conjugate_[i]);
      at::native::conj_physical_(const_cast<at::Tensor&>(output));
    }
  }
  const at::Tensor& maybe_get_output(int64_t index) override { return *outputs_.at(static_cast<size_t>(index)); }

 private:
  template <typename Arguments, size_t... kIndex>
  void note_outputs(const Arguments& arguments, std::index_sequence<kIndex...>) {
    outputs_ = {&std::get<std::tuple_size_v<Arguments> - kOutputs + kIndex>(arguments)...};
    were_conjugate_ = {outputs_[kIndex]->is_conj()...};
  }
  std::array<const at::Tensor*, kOutputs> outputs_{};
  std::array<bool, kOutputs> were_conjugate_{};
};

}  // namespace torch_mtia
