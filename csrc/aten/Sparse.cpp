#include "Sparse.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/SparseTensorUtils.h>
#include <ATen/ops/_coalesced_native.h>
#include <ATen/ops/_indices_native.h>
#include <ATen/ops/_nnz_native.h>
#include <ATen/ops/_sparse_coo_tensor_with_dims_and_tensors_native.h>
#include <ATen/ops/_sparse_coo_tensor_with_dims_native.h>
#include <ATen/ops/_values_native.h>
#include <ATen/ops/clone_native.h>
#include <ATen/ops/copy_native.h>
#include <ATen/ops/copy_sparse_to_sparse_native.h>
#include <ATen/ops/dense_dim_native.h>
#include <ATen/ops/empty_native.h>
#include <ATen/ops/indices_native.h>
#include <ATen/ops/is_coalesced_native.h>
#include <ATen/ops/sparse_dim_native.h>
#include <ATen/ops/sparse_resize_and_clear_native.h>
#include <ATen/ops/sparse_resize_native.h>
#include <ATen/ops/values_native.h>
#include <ATen/ops/zero_native.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <optional>
#include <string>
#include <utility>

#include "Fallback.h"

namespace torch_mtia {

namespace {

// Registers what is not needed before there is a sparse tensor: it takes longer than to register all other kernels.
void ensure_kernels();

}  // namespace

SparseParts parts_of(const at::Tensor& sparse) {
  const auto* impl = at::sparse::get_sparse_impl(sparse);
  return {impl->indices(), impl->values()};
}

at::Tensor make_sparse(c10::DispatchKey key, const at::Tensor& model, const SparseParts& parts) {
  if (key == sparse_dispatch_key()) ensure_kernels();
  const c10::DeviceGuard guard(parts.values.device());  // a sparse tensor is made on the current device
  at::Tensor sparse = at::detail::make_tensor<at::SparseTensorImpl>(c10::DispatchKeySet(key), parts.values.dtype());
  set_sparse(sparse, model, parts);
  return sparse;
}

void set_sparse(const at::Tensor& sparse, const at::Tensor& model, const SparseParts& parts) {
  auto* impl = at::sparse::get_sparse_impl(sparse);
  const auto* like = at::sparse::get_sparse_impl(model);
  impl->raw_resize_(like->sparse_dim(), like->dense_dim(), model.sizes());
  impl->set_indices_and_values_unsafe(parts.indices, parts.values);
  impl->set_coalesced(like->coalesced());
}

namespace {

void find_device(std::optional<c10::Device>& device, const at::Tensor& argument) {
  if (!device) device = argument.device();
}
void find_device(std::optional<c10::Device>& device, const std::optional<c10::Device>& argument) {
  if (!device && argument && argument->has_index()) device = argument;
}
template <typename Argument>
void find_device(std::optional<c10::Device>& /*device*/, const Argument& /*argument*/) {}

// ATen's functions make a sparse tensor on the current device.
template <auto* function>
struct OnItsDevice;
template <typename Result, typename... Arguments, Result (*function)(Arguments...)>
struct OnItsDevice<function> {
  static Result call(Arguments... arguments) {
    ensure_kernels();
    std::optional<c10::Device> device;
    (find_device(device, arguments), ...);
    const c10::OptionalDeviceGuard guard(device);
    return function(std::forward<Arguments>(arguments)...);
  }
};

void define_kernels(torch::Library& m) {
  m.impl("_indices", TORCH_FN(at::native::_indices_sparse));
  m.impl("_values", TORCH_FN(at::native::_values_sparse));
  m.impl("indices", TORCH_FN(at::native::indices_sparse));
  m.impl("values", TORCH_FN(at::native::values_sparse));
  m.impl("_nnz", TORCH_FN(at::native::_nnz_sparse));
  m.impl("sparse_dim", TORCH_FN(at::native::sparse_dim_sparse));
  m.impl("dense_dim", TORCH_FN(at::native::dense_dim_sparse));
  m.impl("is_coalesced", TORCH_FN(at::native::is_coalesced_sparse));
  m.impl("_coalesced_", TORCH_FN(at::native::_coalesced_sparse_));
  m.impl("sparse_resize_", TORCH_FN(OnItsDevice<&at::native::sparse_resize_>::call));
  m.impl("sparse_resize_and_clear_", TORCH_FN(OnItsDevice<&at::native::sparse_resize_and_clear_>::call));
  m.impl("clone", TORCH_FN(OnItsDevice<&at::native::clone_sparse>::call));
  m.impl("zero_", TORCH_FN(OnItsDevice<&at::native::zero_sparse_>::call));
  m.impl("copy_", TORCH_FN(OnItsDevice<&at::native::copy_sparse_wrapper_>::call));
  m.impl("copy_sparse_to_sparse_", TORCH_FN(OnItsDevice<&at::native::copy_sparse_>::call));

  // What else the CPU has a sparse kernel for falls back. Without a registration of its own, an operator would run the
  // composite kernel that serves all backends, and those are for dense tensors: a sum returned its input.
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findOp(name);
    if (!op || name.getNamespace() != "aten" || !op->hasKernelForDispatchKey(c10::DispatchKey::SparseCPU) ||
        op->hasKernelForDispatchKey(sparse_dispatch_key())) {
      continue;
    }
    const std::string local = name.name.substr(sizeof("aten::") - 1);
    m.impl((name.overload_name.empty() ? local : local + "." + name.overload_name).c_str(),
           torch::CppFunction::makeFromBoxedFunction<&fall_back_sparse>());
  }
}

// Leaked: kernels stay registered until the process ends.
struct Kernels {
  torch::Library aten{torch::Library::IMPL, "aten", sparse_dispatch_key(), __FILE__, __LINE__};
  torch::Library all{torch::Library::IMPL, "_", sparse_dispatch_key(), __FILE__, __LINE__};

  Kernels() {
    define_kernels(aten);
    all.fallback(torch::CppFunction::makeFromBoxedFunction<&fall_back_sparse>());
  }
};

void ensure_kernels() {
  [[maybe_unused]] static const auto* const registered = new Kernels();
}

}  // namespace

// What makes sparse tensors.
MTIA_LIBRARY_IMPL(aten, kSparse, m) {
  m.impl("empty.memory_format", TORCH_FN(OnItsDevice<&at::native::empty_sparse_symint>::call));
  m.impl("_sparse_coo_tensor_with_dims", TORCH_FN(OnItsDevice<&at::native::new_with_dims_sparse>::call));
  m.impl("_sparse_coo_tensor_with_dims_and_tensors",
         TORCH_FN(OnItsDevice<&at::native::new_with_dims_and_tensor_sparse_symint>::call));
}

}  // namespace torch_mtia
