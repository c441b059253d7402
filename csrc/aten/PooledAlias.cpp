#include "PooledAlias.h"

#include <ATen/EmptyTensor.h>
#include <c10/core/TensorImpl.h>

#include <algorithm>
#include <array>
#include <utility>

#include "../device/DeviceType.h"
#include "../device/HostView.h"
#include "../processor/initial_exec.h"
#include "HostAlias.h"

namespace torch_mtia {
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
