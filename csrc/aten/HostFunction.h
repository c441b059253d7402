// Runs, as a work item on device memory, a CPU kernel of ATen that makes its results itself.
//
// To give an operator such a kernel: a row in yaml/native_functions.yaml, and a function that calls
// HostFunction<kernel>::call with whether the sizes of the arguments fit together, and with a function that makes the
// outputs, which have the sizes, strides and dtypes that the CPU kernel gives its results.
#pragma once

#include <ATen/EmptyTensor.h>
#include <ATen/native/mtia/EmptyTensor.h>
#include <c10/core/DispatchKeySet.h>

#include <array>
#include <cstring>
#include <optional>
#include <tuple>
#include <utility>

#include "../device/HostViewAllocation.h"
#include "HostKernel.h"

namespace torch_mtia {

// An optional argument that the kernel writes, though its type does not say so.
struct Written {
  const std::optional<at::Tensor>& tensor;
};
inline KeptOptionalTensor keep(const Written& written) {
  return written.tensor ? KeptOptionalTensor{HostTensor(*written.tensor, /*for_write=*/true)} : KeptOptionalTensor{};
}

// New outputs; contiguous, unless said otherwise.
inline at::Tensor new_output(at::IntArrayRef sizes, const at::TensorOptions& options,
                             at::MemoryFormat format = at::MemoryFormat::Contiguous) {
  return at::Tensor(at::detail::empty_mtia(sizes, options.memory_format(format)));
}
inline at::Tensor new_output_like(const at::Tensor& tensor, at::MemoryFormat format = at::MemoryFormat::Contiguous) {
  return new_output(tensor.sizes(), tensor.options(), format);
}

// Zeros on the CPU in place of an argument on the device.
at::Tensor stand_in(const at::Tensor& tensor);
inline std::optional<at::Tensor> stand_in(const std::optional<at::Tensor>& tensor) {
  return tensor ? std::optional<at::Tensor>(stand_in(*tensor)) : std::nullopt;
}
template <typename T>
const T& stand_in(const T& value) {
  return value;
}

// The dtypes of the tensors of a call.
template <typename Dtypes>
void add_dtype(Dtypes& dtypes, const at::Tensor& tensor) {
  dtypes.add(dtype_symbol(tensor.defined() ? tensor.scalar_type() : at::ScalarType::Undefined));
}
template <typename Dtypes>
void add_dtype(Dtypes& dtypes, const std::optional<at::Tensor>& tensor) {
  add_dtype(dtypes, tensor.value_or(at::Tensor()));
}
template <typename Dtypes>
void add_dtype(Dtypes& dtypes, const Written& written) {
  add_dtype(dtypes, written.tensor);
}
template <typename Dtypes, typename T>
void add_dtype(Dtypes& /*dtypes*/, const T& /*value*/) {}

inline bool is_empty(const at::Tensor& tensor) {
  return tensor.defined() && tensor.numel() == 0;
}
inline bool is_empty(const std::optional<at::Tensor>& tensor) {
  return tensor && is_empty(*tensor);
}
template <typename T>
bool is_empty(const T& /*value*/) {
  return false;
}

// Offers the bytes of the outputs, as Note [Offered memory] says, to whatever runs while it lives.
class OutputOffer {
 public:
  explicit OutputOffer(at::TensorList outputs);
  // Sees to it that the results are in the outputs.
  void settle(at::ArrayRef<at::Tensor*> results);

 private:
  at::TensorList outputs_;
  HostViewOffer offer_;
};

template <auto Kernel>
class HostFunction {
 public:
  // check, make() (a tensor, or an array of tensors) and run, on the device of the first argument; returns the outputs.
  template <typename Make, typename... Arguments>
  static auto call(const HostKernelInfo& info, bool fits, Make make, const at::Tensor& first,
                   const Arguments&... arguments) {
    check(info.op, fits, first, arguments...);
    const auto outputs = make();
    run(info, first.device(), outputs, first, arguments...);
    return outputs;
  }

  // Raises at the call what the CPU kernel raises: for a call that does not fit, and for dtypes that it does not take.
  template <typename... Arguments>
  static void check(const Operator& op, bool fits, const Arguments&... arguments) {
    DtypeSignature dtypes;
    (add_dtype(dtypes, arguments), ...);
    if (C10_LIKELY(fits && op.takes(dtypes))) return;
    const auto words = [&] {
      DtypeWords result;
      (add_dtype(result, arguments), ...);
      // Where there are no elements, kernels return before they ask for the dtypes.
      return fits && !(is_empty(arguments) || ...) ? result.text() : std::string();
    };
    ask_kernel(op, words, [&] {
      const at::AutoDispatchBelowADInplaceOrView below;
      [](const auto&... kept) { (void)Kernel(kept.get()...); }(keep_stand_in(arguments)...);
    });
  }

  // Undefined outputs stand for results that the kernel does not make.
  template <typename... Arguments>
  static void run(HostKernelInfo info, c10::Device device, at::TensorList outputs, const Arguments&... arguments) {
    info.asked = true;  // by check
    run_on_host(
        info, device,
        [](at::TensorList kept_outputs, const auto&... kept) {
          const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
          OutputOffer offer(kept_outputs);
          auto results = to_array(Kernel(kept...));
          std::array<at::Tensor*, std::tuple_size_v<decltype(results)>> addresses;
          for (size_t i = 0; i < results.size(); ++i) addresses[i] = &results[i];
          offer.settle(addresses);
        },
        keep_output(outputs), keep(arguments)...);
  }

 private:
  static auto keep_stand_in(const Written& written) { return keep(stand_in(written.tensor)); }
  template <typename T>
  static auto keep_stand_in(const T& argument) {
    return keep(stand_in(argument));
  }

  static std::array<at::Tensor, 1> to_array(at::Tensor result) { return {std::move(result)}; }
  template <typename... Results>
  static std::array<at::Tensor, sizeof...(Results)> to_array(std::tuple<Results...> results) {
    return std::apply([](auto&... result) { return std::array<at::Tensor, sizeof...(Results)>{std::move(result)...}; },
                      results);
  }
};

}  // namespace torch_mtia
