#include "HostAlias.h"

#include <ATen/EmptyTensor.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/alignment.h>

#include <cstdlib>
#include <cstring>
#include <new>

#include "../device/HostView.h"
#include "../device/ScalarTypes.h"

namespace torch_mtia {

at::Tensor host_alias(const at::TensorBase& tensor, bool for_write) {
  const auto& storage = tensor.storage();
  void* address = for_write ? storage.mutable_data() : const_cast<void*>(storage.data());
  if (address != nullptr && !tensor.device().is_cpu()) address = HostView::to_host(address);
  auto alias_storage = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), storage.nbytes(),
                                                             c10::DataPtr(address, c10::Device(c10::kCPU)),
                                                             /*allocator=*/nullptr, /*resizable=*/false);
  return host_alias(tensor, c10::Storage(std::move(alias_storage)));
}

at::Tensor host_alias(const at::TensorBase& tensor, c10::Storage storage) {
  auto alias = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU),
                                                        tensor.dtype());
  auto* impl = alias.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(tensor.sizes(), tensor.strides());
  impl->set_storage_offset(tensor.storage_offset());
  if (tensor.is_conj()) impl->_set_conj(true);
  if (tensor.is_neg()) impl->_set_neg(true);
  return alias;
}

at::Tensor clone_on_host(const at::TensorBase& cpu_tensor) {
  at::Tensor copy = at::detail::empty_strided_cpu(cpu_tensor.sizes(), cpu_tensor.strides(), cpu_tensor.scalar_type());
  std::memcpy(copy.mutable_data_ptr(), cpu_tensor.const_data_ptr(), copy.storage().nbytes());
  if (cpu_tensor.unsafeGetTensorImpl()->is_wrapped_number()) copy.unsafeGetTensorImpl()->set_wrapped_number(true);
  return copy;
}

at::Tensor zeros_on_host(const at::TensorBase& tensor) {
  const size_t nbytes = at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.itemsize());
  void* address = nullptr;
  if (nbytes != 0) {
    address = std::calloc(nbytes + c10::gAlignment, 1);
    if (address == nullptr) throw std::bad_alloc();
  }
  const auto aligned = (reinterpret_cast<uintptr_t>(address) + c10::gAlignment - 1) & ~(c10::gAlignment - 1);
  c10::DataPtr data(
      reinterpret_cast<void*>(aligned), address, [](void* memory) { std::free(memory); }, c10::Device(c10::kCPU));
  auto storage = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), nbytes, std::move(data),
                                                       /*allocator=*/nullptr, /*resizable=*/false);
  auto zeros = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(std::move(storage)),
                                                        c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
  auto* impl = zeros.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(tensor.sizes(), tensor.strides());
  if (tensor.is_conj()) impl->_set_conj(true);
  if (tensor.is_neg()) impl->_set_neg(true);
  return zeros;
}

void list_operand(const at::Tensor& alias, bool writes, core::OldBytes old_bytes, core::OperandSink& sink) {
  const auto size = static_cast<int64_t>(alias.itemsize());
  const auto address = reinterpret_cast<uint64_t>(HostView::to_device(alias.const_data_ptr()));
  sink.add({address, static_cast<uint64_t>(size), alias.sizes(), alias.strides(), size, writes, old_bytes,
            dtype_name(alias.scalar_type())});
}

void list_host_operand(const at::TensorBase& tensor, bool writes, core::OperandSink& sink) {
  const auto size = static_cast<int64_t>(tensor.itemsize());
  const auto old_bytes = writes ? core::OldBytes::kPassedThrough : core::OldBytes::kRead;
  sink.add_host({reinterpret_cast<uint64_t>(tensor.const_data_ptr()), static_cast<uint64_t>(size), tensor.sizes(),
                 tensor.strides(), size, writes, old_bytes, dtype_name(tensor.scalar_type())});
}

}  // namespace torch_mtia
