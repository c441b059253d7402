// Runs a CPU kernel of ATen as a work item on device memory.
//
// To give an operator such a kernel:
//   - a row in yaml/native_functions.yaml with `runs`, the name of ATen's CPU kernel; the code is generated;
//   - where that does not fit: a row, and a function that checks the arguments, makes the outputs, calls run_on_host.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/conj_physical_native.h>

#include <c10/util/FunctionRef.h>

#include <array>
#include <exception>
#include <tuple>
#include <utility>

#include "HostArguments.h"
#include "Launch.h"
#include "Operator.h"

namespace torch_mtia {

struct HostKernelInfo {
  Operator op;
  uint64_t weight = 1;
  uint64_t least_cost = 0;
  bool waits = false;  // the call raises what depends on the data, too
  bool asked = false;  // the caller has seen to it that the kernel takes the dtypes
};

// What the launch of a kernel does with its tensors whatever their number: kept out of the templates below, of which
// there is an instance for every operator.
class HostKernelLaunch {
 public:
  HostKernelLaunch(const HostKernelInfo& kernel, c10::Device device, const HostTensors& tensors);

  const MTIAStream& stream() const { return stream_; }
  const core::WorkInfo& info() const { return info_; }
  // Before the launch: see Note [Dtypes]. A call without data is asked about too, because that costs nothing.
  template <typename Work>
  void check_dtypes(const Work& work) {
    if (C10_LIKELY(is_known_)) return;
    Work zeros = work.zeros();
    ask(zeros.tensors(), [&] { zeros(); });
  }
  // Where the work puts an error; null: the stream keeps it.
  std::exception_ptr* error() { return waits_ ? &error_ : nullptr; }
  // After the launch: raises that error.
  void finish() {
    if (C10_UNLIKELY(waits_)) wait();
  }

 private:
  void ask(const HostTensors& zeros, c10::function_ref<void()> run);
  void wait();

  const MTIAStream stream_;
  core::WorkInfo info_{};
  const Operator op_;
  bool has_data_ = false;
  bool asks_for_dtypes_ = false;  // a kernel may not look at them where an input or all results are empty
  bool is_known_ = false;
  // Because of `HostKernelInfo::waits`, or to be deterministic: ATen's kernels ask for that flag of the process when
  // they run, so the work ends before the program can change it.
  bool waits_;
  std::exception_ptr error_;
};

void unite_inputs_with_outputs(const HostTensors& tensors);
uint32_t list_accesses(const HostTensors& tensors, mtia_access* list, uint32_t capacity) noexcept;

template <typename Run, typename... Kept>
class HostKernelWork {
 public:
  HostKernelWork(Run run, Kept&&... arguments) : run_(std::move(run)), arguments_(std::move(arguments)...) {}

  HostTensors tensors() {
    HostTensors list;
    std::apply([&](Kept&... kept) { (kept.collect(list), ...); }, arguments_);
    return list;
  }
  HostKernelWork zeros() const {
    HostKernelWork work =
        std::apply([&](const Kept&... kept) { return HostKernelWork(Run(run_), kept.zeros()...); }, arguments_);
    unite_inputs_with_outputs(work.tensors());
    return work;
  }
  // The caller, who waits for the work, takes its error from there; null: it is thrown.
  void put_error_in(std::exception_ptr* error) { error_ = error; }

  // Below the dispatcher's autograd: on the caller that is so already, an executor has a state of its own.
  void operator()() {
    const at::AutoDispatchBelowADInplaceOrView below;
    try {
      std::apply([&](const Kept&... kept) { run_(kept.get()...); }, arguments_);
    } catch (...) {
      if (error_ == nullptr) throw;
      *error_ = std::current_exception();
    }
  }

  uint32_t accesses(mtia_access* list, uint32_t capacity) const noexcept {
    return list_accesses(const_cast<HostKernelWork*>(this)->tensors(), list, capacity);
  }

 private:
  Run run_;
  std::tuple<Kept...> arguments_;
  std::exception_ptr* error_ = nullptr;
};

// Runs run(arguments...) in the current stream of `device`; `arguments` are results of keep and keep_output. The
// estimated time is `weight` times that of moving the tensors, and at least `least_cost` (nanoseconds on one thread).
template <typename Run, typename... Kept>
void run_on_host(const HostKernelInfo& kernel, c10::Device device, Run run, Kept... kept) {
  Block<HostKernelWork<Run, Kept...>> block{{{std::move(run), std::move(kept)...}}, kernel.op.name};
  auto& work = block.callable.callable;
  HostKernelLaunch launch_of_it(kernel, device, work.tensors());
  launch_of_it.check_dtypes(work);
  work.put_error_in(launch_of_it.error());
  launch(launch_of_it.stream(), launch_of_it.info(), block);
  launch_of_it.finish();
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
    // A kernel may leave a result lazily conjugate (linalg_lu_solve does), but only the alias has that bit.
    for (const at::Tensor* output : call.outputs_) {
      if (!output->is_conj()) continue;
      output->_set_conj(false);
      at::native::conj_physical_(const_cast<at::Tensor&>(*output));
    }
  }
  const at::Tensor& maybe_get_output(int64_t index) override { return *outputs_.at(static_cast<size_t>(index)); }

 private:
  template <typename Arguments, size_t... kIndex>
  void note_outputs(const Arguments& arguments, std::index_sequence<kIndex...>) {
    outputs_ = {&std::get<std::tuple_size_v<Arguments> - kOutputs + kIndex>(arguments)...};
  }
  std::array<const at::Tensor*, kOutputs> outputs_{};
};

}  // namespace torch_mtia
