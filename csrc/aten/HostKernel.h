// Runs a CPU kernel of ATen as a work item on device memory.
//
// To give an operator such a kernel:
//   - a structured operator, or one that writes only its arguments: a row in yaml/native_functions.yaml with `runs`,
//   the
//     name of ATen's CPU kernel; the code is generated (tools/codegen) and calls run_structured or run_on_host;
//   - any other: a row, and a function that checks the arguments, makes the outputs, and calls run_on_host.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>
#include <array>
#include <tuple>
#include <utility>

#include "HostArguments.h"
#include "Launch.h"

namespace torch_mtia {

template <typename Visit, typename... Kept>
void for_each_tensor(const std::tuple<Kept...>& arguments, Visit visit) {
  const auto visit_argument = [&](const auto& kept) {
    if constexpr (requires { kept.for_each_tensor(visit); }) kept.for_each_tensor(visit);
  };
  std::apply([&](const Kept&... kept) { (visit_argument(kept), ...); }, arguments);
}

// An operator in place has one tensor as input and output.
template <typename... Kept>
void unite_inputs_with_outputs(std::tuple<Kept...>& arguments) {
  const auto unite = [](auto& input, const auto& output) {
    if constexpr (std::is_same_v<std::decay_t<decltype(input)>, KeptTensor> &&
                  std::is_same_v<std::decay_t<decltype(output)>, KeptOutput>) {
      input.tensor.unite_with(output.tensor);
    }
  };
  std::apply(
      [&](Kept&... inputs) {
        const auto with_each_output = [&](auto& input) {
          std::apply([&](const Kept&... outputs) { (unite(input, outputs), ...); }, std::as_const(arguments));
        };
        (with_each_output(inputs), ...);
      },
      arguments);
}

template <typename Run, typename... Kept>
class HostKernelWork {
 public:
  HostKernelWork(Run run, std::tuple<Kept...> arguments) : run_(std::move(run)), arguments_(std::move(arguments)) {}

  // Below the dispatcher's autograd: on the caller that is so already, an executor has a state of its own.
  void operator()() {
    const at::AutoDispatchBelowADInplaceOrView below;
    std::apply([&](const Kept&... kept) { run_(kept.get()...); }, arguments_);
  }

  uint32_t accesses(mtia_access* list, uint32_t capacity) const noexcept {
    uint32_t count = 0;
    for_each_tensor(arguments_, [&](const HostTensor& tensor) {
      if (!tensor.on_device()) return;
      if (count < capacity) list[count] = tensor.access();
      ++count;
    });
    return count;
  }

 private:
  Run run_;
  std::tuple<Kept...> arguments_;
};

// Runs run(arguments...) in the current stream of `device`; `arguments` are results of keep and keep_output. The
// estimated time is `weight` times that of moving the tensors, and at least `least_cost` (nanoseconds on one thread).
struct HostKernelInfo {
  const char* name;  // with static lifetime
  uint64_t weight = 1;
  uint64_t least_cost = 0;
};
template <typename Run, typename... Kept>
void run_on_host(const HostKernelInfo& kernel, c10::Device device, Run run, Kept... kept) {
  require_host_view(kernel.name);
  std::tuple<Kept...> arguments(std::move(kept)...);
  unite_inputs_with_outputs(arguments);
  size_t bytes = 0;
  for_each_tensor(arguments, [&](const HostTensor& tensor) { bytes += tensor.nbytes(); });
  core::WorkInfo info{};
  info.name = kernel.name;
  info.cost = std::max(cost_of_bytes(bytes) * kernel.weight, kernel.least_cost);
  launch(current_stream(device), info, HostKernelWork<Run, Kept...>(std::move(run), std::move(arguments)));
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
