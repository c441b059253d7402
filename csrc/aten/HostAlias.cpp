#include "HostAlias.h"

#include <ATen/EmptyTensor.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/alignment.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "../device/DeviceType.h"
#include "../device/HostView.h"
#include "../device/ScalarTypes.h"
#include "../processor/attributes.h"

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

namespace {

// Aliases that nobody uses. Trivially destructible, so that work which dies while the thread ends finds it as it is;
// StockGuard empties it and closes it then.
struct Stock {
  std::array<c10::TensorImpl*, 8> aliases;
  size_t size;
  bool guarded;
  bool closed;
};
INITIAL_EXEC constinit thread_local Stock stock{};

struct StockGuard {
  ~StockGuard() {
    stock.closed = true;
    while (stock.size > 0) c10::intrusive_ptr<c10::TensorImpl>::reclaim(stock.aliases[--stock.size]).reset();
  }
};

void guard_stock() {
  static thread_local StockGuard guard;
  (void)guard;
  stock.guarded = true;
}

// Most tensors have few dimensions: not worth a call of memcmp.
bool equal(at::IntArrayRef a, at::IntArrayRef b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a.data()[i] != b.data()[i]) return false;
  }
  return true;
}

bool nobody_else_uses(const at::Tensor& alias) {
  return alias.use_count() == 1 && alias.unsafeGetTensorImpl()->unsafe_storage().use_count() == 1;
}

}  // namespace

PooledAlias::PooledAlias(const at::TensorBase& tensor, bool for_write, core::OldBytes old_bytes, bool follows_in_list)
    : writes_(for_write), old_bytes_(old_bytes), follows_in_list_(follows_in_list) {
  if (!tensor.defined()) return;
  const auto* source = tensor.unsafeGetTensorImpl();
  source_ = source;
  nbytes_ = static_cast<size_t>(source->numel()) * source->dtype().itemsize();
  device_ = tensor.device();
  if (device_.is_cpu()) {
    alias_ = clone_on_host(tensor);
    return;
  }
  TORCH_CHECK(is_ours(device_), "Expected all tensors to be on the same device, but found a tensor on ", device_,
              " beside those on ", device_name());
  if (stock.size == 0 || tensor.is_conj() || tensor.is_neg()) {
    alias_ = host_alias(tensor, for_write);
    return;
  }
  auto* storage = source->unsafe_storage().unsafeGetStorageImpl();
  void* address = for_write ? storage->mutable_data() : const_cast<void*>(storage->data());
  if (address != nullptr) address = HostView::to_host(address);
  // Not wrap_tensor_impl: an alias keeps its invariants.
  alias_ =
      at::Tensor(c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>::reclaim(stock.aliases[--stock.size]));
  auto* impl = alias_.unsafeGetTensorImpl();
  auto* alias_storage = impl->unsafe_storage().unsafeGetStorageImpl();
  alias_storage->set_data_ptr_noswap(c10::DataPtr(address, c10::Device(c10::kCPU)));
  alias_storage->set_nbytes(storage->nbytes());
  if (impl->dtype() != tensor.dtype()) impl->set_storage_and_dtype(impl->storage(), tensor.dtype());
  // Comparing is cheaper than setting, and the alias often stood for a tensor of the same shape before.
  if (!equal(impl->sizes(), tensor.sizes()) || !equal(impl->strides(), tensor.strides())) {
    impl->set_sizes_and_strides(tensor.sizes(), tensor.strides());
  }
  if (impl->storage_offset() != tensor.storage_offset()) impl->set_storage_offset(tensor.storage_offset());
}

bool PooledAlias::overlaps(const PooledAlias& other) const {
  if (!on_device() || !other.on_device() || source_ == other.source_ || nbytes_ == 0 || other.nbytes_ == 0)
    return false;
  const auto start = [](const at::Tensor& alias) { return static_cast<const char*>(alias.storage().data()); };
  if (start(alias_) != start(other.alias_)) return false;
  const auto range = [&](const at::Tensor& alias) {
    const auto* const begin = static_cast<const char*>(alias.const_data_ptr());
    return std::pair(begin, begin + at::detail::computeStorageNbytes(alias.sizes(), alias.strides(), alias.itemsize()));
  };
  const auto [begin, end] = range(alias_);
  const auto [other_begin, other_end] = range(other.alias_);
  return begin < other_end && other_begin < end;
}

void PooledAlias::recycle() noexcept {
  if (!on_device() || stock.closed || stock.size == stock.aliases.size() || alias_.is_conj() || alias_.is_neg() ||
      !nobody_else_uses(alias_)) {
    return;
  }
  if (!stock.guarded) guard_stock();
  stock.aliases[stock.size++] = alias_.unsafeReleaseTensorImpl();
}

}  // namespace torch_mtia
