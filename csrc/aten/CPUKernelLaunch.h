// Runs a CPU kernel of ATen as a work item on device memory.
//
// A row in yaml/native_functions.yaml with `runs` is all that most operators need: the code that calls this is
// generated. docs/development.md says how to add one.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/conj_physical_native.h>
#include <c10/core/Scalar.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <array>
#include <concepts>
#include <memory>
#include <optional>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "../device/AllocationScopes.h"
#include "HostAlias.h"
#include "InFloat32.h"
#include "Launch.h"
#include "Operator.h"
#include "OwnedArguments.h"
#include "Shapes.h"

namespace torch_mtia {

struct CPUKernelInfo {
  Operator op;
  uint64_t weight = 1;
  uint64_t least_cost = 0;
  bool waits = false;  // the call raises what depends on the data, too
  Order order = Order::kByThreads;
};

// A CPU kernel with its arguments, whatever their types. It is on the caller's stack, and moves to the heap if the work
// is queued. A work item runs it any number of times.
class KernelCall {
 public:
  KernelCall() = default;
  KernelCall(const KernelCall&) = delete;
  KernelCall& operator=(const KernelCall&) = delete;
  virtual ~KernelCall() = default;

  // Calls apply for the alias of each tensor, which it may exchange for another one.
  virtual void visit(VisitTensor apply) = 0;
  // `results`: what the kernel makes; empty if it writes its outputs. `is_trial`: see InFloat32.
  virtual void run(std::span<at::Tensor> results, bool is_trial) = 0;
  virtual void list_numbers(core::OperandSink& sink) const = 0;
  virtual std::unique_ptr<KernelCall> move_to_heap() = 0;
};

inline std::array<at::Tensor, 1> result_array(at::Tensor result) {
  return {std::move(result)};
}
template <typename... Results>
std::array<at::Tensor, sizeof...(Results)> result_array(std::tuple<Results...> results) {
  return std::apply([](auto&... result) { return std::array<at::Tensor, sizeof...(Results)>{std::move(result)...}; },
                    results);
}

// There is an instance for every operator: what does not depend on the types is in CPUKernelLaunch.cpp.
template <size_t kResults, typename Run, typename... Owned>
class TypedCall final : public KernelCall {
 public:
  explicit TypedCall(Run run, Owned&&... arguments) : run_(std::move(run)), arguments_(std::move(arguments)...) {}
  TypedCall(TypedCall&& other) noexcept : run_(std::move(other.run_)), arguments_(std::move(other.arguments_)) {}

  void visit(VisitTensor apply) override {
    [[maybe_unused]] const auto visit_one = [&](auto& owned) {
      if constexpr (requires { owned.visit(apply); }) owned.visit(apply);
    };
    std::apply([&](Owned&... owned) { (visit_one(owned), ...); }, arguments_);
  }
  void run(std::span<at::Tensor> results, bool is_trial) override {
    if constexpr (requires { run_.is_trial; }) run_.is_trial = is_trial;
    const auto call = [&](const Owned&... owned) -> decltype(auto) { return run_(owned.get()...); };
    if constexpr (kResults == 0) {
      (void)std::apply(call, arguments_);
    } else {
      std::ranges::move(result_array(std::apply(call, arguments_)), results.begin());
    }
  }
  void list_numbers(core::OperandSink& sink) const override {
    std::apply([&](const Owned&... owned) { (torch_mtia::list_numbers(owned.get(), sink), ...); }, arguments_);
  }
  std::unique_ptr<KernelCall> move_to_heap() override { return std::make_unique<TypedCall>(std::move(*this)); }

 private:
  Run run_;
  std::tuple<Owned...> arguments_;
};

// Has a CPU kernel that makes its results itself make them where they belong: offers the bytes of the outputs, as Note
// [Offered memory] says, to whatever runs while this lives. Undefined outputs stand for results that nobody wants. What
// lies between the elements of an output is not offered, and so neither is such an output.
class OutputOffer {
 public:
  explicit OutputOffer(at::TensorList outputs);
  // Sees to it that the results are in the outputs.
  void settle(std::span<at::Tensor> results);

 private:
  at::TensorList outputs_;
  MemoryOffer offer_;
};

// Launches a call of a kernel that writes its outputs, which are among its arguments.
void launch_kernel(const CPUKernelInfo& kernel, c10::Device device, KernelCall& call);
// The same for a kernel that makes its results, in new `outputs`. Without `shapes` a trial tells what they are.
void launch_kernel(const CPUKernelInfo& kernel, c10::Device device, KernelCall& call, at::ArrayRef<TensorShape> shapes,
                   std::span<at::Tensor> outputs);

// Runs run(arguments...) in the current stream of `device`; `arguments` are results of own and own_output. The
// estimated time is `weight` times that of moving the tensors, and at least `least_cost` (nanoseconds on one thread).
template <typename Run, typename... Owned>
void run_cpu_kernel(const CPUKernelInfo& kernel, c10::Device device, Run run, Owned... owned) {
  TypedCall<0, Run, Owned...> call(std::move(run), std::move(owned)...);
  launch_kernel(kernel, device, call);
}

// The same for a kernel that makes its results: in new outputs, which are returned.
template <size_t kOutputs, typename Run, typename... Owned>
std::array<at::Tensor, kOutputs> make_with_cpu_kernel(const CPUKernelInfo& kernel, c10::Device device,
                                                      const Shapes<kOutputs>& shapes, Run run, Owned... owned) {
  std::array<at::Tensor, kOutputs> outputs;
  TypedCall<kOutputs, Run, Owned...> call(std::move(run), std::move(owned)...);
  launch_kernel(kernel, device, call, shapes.list(), outputs);
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

// Note [List kernels]
// CPU kernels on lists of tensors (`_foreach_*_`, `_fused_*_`) run as one work item, too.
//
// A kernel that takes lists looks at its arguments only when it runs, and what it refuses has to be refused at the
// call.
//   - A foreach operator becomes one work item if its lists are alike (fits_one_item): that is the usual case, and CUDA
//     draws the same line. Any other lists go to ATen's slow path, one operator for each tensor, which raises what
//     there is to raise. The slow path is also what the work item runs, on host aliases.
//   - A fused operator has no slow path: check raises.
//
// The arguments of an operator on lists, by kind; the first list is what it writes. Borrows them.
class ListArguments {
 public:
  template <typename... Arguments>
  explicit ListArguments(const Arguments&... arguments) {
    (add(arguments), ...);
  }

  // Whether one work item does what ATen's slow path would do with these.
  bool fits_one_item(const Operator& op) const;

  // Raises for lists that a fused kernel does not take. All tensors are on one device; a list is empty or as long as
  // the first; if there are several, each has one dtype and the sizes and strides of the first.
  void check(const char* name) const;

 private:
  void add(at::TensorList list) { lists_.push_back(list); }
  void add(const at::Tensor& tensor) { tensors_.push_back(&tensor); }
  void add(const std::optional<at::Tensor>& tensor) {
    if (tensor) tensors_.push_back(&*tensor);
  }
  void add(const at::Scalar& scalar) { scalars_.push_back(scalar); }
  void add(at::ArrayRef<at::Scalar> scalars) {
    scalars_.append(scalars.begin(), scalars.end());
    has_scalar_list_ = true;
  }
  template <typename T>
    requires std::is_arithmetic_v<T>
  void add(T) {}

  bool have_same_length() const;
  bool overlap_partially() const;

  c10::SmallVector<at::TensorList, 6> lists_;
  c10::SmallVector<const at::Tensor*, 3> tensors_;
  c10::SmallVector<at::Scalar, 4> scalars_;
  bool has_scalar_list_ = false;
};

// Tells autograd that the tensors have changed, as ATen's slow path does.
void advance_versions(at::TensorList list);

}  // namespace torch_mtia
