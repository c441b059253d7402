#include "FallbackAliases.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/ops/empty.h>
#include <c10/core/impl/COW.h>

#include <algorithm>
#include <utility>

#include "../device/AllocationScopes.h"
#include "../device/DeviceType.h"
#include "../device/HostView.h"
#include "../device/MTIACachingAllocator.h"
#include "HostAlias.h"
#include "Launch.h"
#include "Sparse.h"

namespace torch_mtia {
namespace {

// The memory of the alias of a storage.
c10::DataPtr host_memory(c10::StorageImpl& device, bool writes) {
  // Reading must not make a copy of a lazy clone.
  void* const address = writes ? device.mutable_data() : const_cast<void*>(device.data());
  if (!HostView::available()) return c10::GetAllocator(c10::kCPU)->allocate(device.nbytes());
  return {address != nullptr ? HostView::to_host(address) : nullptr, c10::Device(c10::kCPU)};
}

}  // namespace

c10::IValue FallbackAliases::to_host(const c10::IValue& value, const ArgumentUse& use) {
  if (value.isTensor()) return to_host(value.toTensor(), use);
  if (value.isTensorList()) {
    c10::List<at::Tensor> result;
    result.reserve(value.toTensorList().size());
    for (const at::Tensor& tensor : value.toTensorList()) result.push_back(to_host(tensor, use));
    return result;
  }
  if (value.isList()) {
    auto list = value.toList();
    auto result = c10::impl::GenericList(list.elementType());
    result.reserve(list.size());
    for (const c10::IValue& element : value.toListRef()) result.push_back(to_host(element, use));
    return result;
  }
  if (value.isDevice()) return c10::Device(c10::kCPU);
  if (value.isGenerator()) {
    const at::Generator generator = value.toGenerator();
    TORCH_CHECK(generator.device() == generator_device_, "Expected a '", generator_device_,
                "' device type for generator but found '", generator.device(), "'");
    return at::detail::createCPUGenerator(draw_seed(generator));
  }
  return value;
}

at::Tensor FallbackAliases::to_host(const at::Tensor& tensor, const ArgumentUse& use) {
  if (!tensor.defined()) return tensor;
  if (!is_ours(tensor.device())) {
    if (tensor.has_storage()) host_storages_.push_back(tensor.storage());
    return tensor;
  }
  const bool is_sparse = tensor.layout() == at::kSparse;
  const size_t num_storages = storages_.size();
  const c10::Storage storage = is_sparse ? c10::Storage() : to_host_storage(tensor, use);
  const bool shares_storage = storages_.size() == num_storages;
  for (auto& known : tensors_) {
    if (!known.device.is_same(tensor)) continue;
    known.writes = known.writes || use.writes;
    known.old_bytes = std::min(known.old_bytes, use.old_bytes);  // the first reads the most
    return known.host;
  }
  if (is_sparse) {
    const SparseParts parts = parts_of(tensor);
    at::Tensor host =
        make_sparse(c10::DispatchKey::SparseCPU, tensor, {to_host(parts.indices, use), to_host(parts.values, use)});
    tensors_.push_back({tensor, host, use.writes, use.old_bytes});
    return host;
  }
  at::Tensor host = host_alias(tensor, storage);
  // What kernels refuse, memory that overlaps, they are to see.
  const bool stays =
      !use.is_out || host.is_contiguous() || shares_storage || at::has_internal_overlap(host) == at::MemOverlap::Yes;
  at::Tensor memory;
  if (tensor.scalar_type() == narrow_dtype_) {
    memory = std::exchange(host, at::empty(host.sizes(), host.options().dtype(at::kFloat)));
  } else if (!stays) {
    memory = std::exchange(host, at::empty(host.sizes(), host.options()));
  }
  tensors_.push_back({tensor, host, use.writes, use.old_bytes, memory});
  return host;
}

c10::Storage FallbackAliases::to_host_storage(const at::Tensor& tensor, const ArgumentUse& use) {
  auto* storage = tensor.storage().unsafeGetStorageImpl();
  auto alias = std::find_if(storages_.begin(), storages_.end(),
                            [&](const StorageAlias& known) { return known.device.unsafeGetStorageImpl() == storage; });
  if (alias == storages_.end()) {
    c10::DataPtr data = host_memory(*storage, use.writes);
    void* const address = data.get();
    // A kernel that grows its out argument goes to the storage's allocator, which inside the call draws from the
    // device.
    c10::Storage host(c10::Storage::use_byte_size_t(), storage->nbytes(), std::move(data), c10::GetAllocator(c10::kCPU),
                      storage->resizable());
    storages_.push_back({tensor.storage(), std::move(host), address});
    alias = storages_.end() - 1;
  } else if (use.writes && c10::impl::cow::is_cow_data_ptr(storage->data_ptr())) {
    // An argument that is only read was first: its lazy clone gets memory of its own now.
    storage->mutable_data();
    if (HostView::available()) {
      alias->host.set_data_ptr_noswap(host_memory(*storage, use.writes));
      alias->address = alias->host.mutable_data();
    }
  }
  if (!HostView::available()) note_use(*alias, range_of(tensor), use.writes);
  return alias->host;
}

void FallbackAliases::note_use(StorageAlias& alias, const ByteRange& range, bool writes) {
  if (!alias.copied.contains(range)) {
    alias.copied.extend(range);
    copy(alias, alias.copied, MTIA_COPY_DEVICE_TO_HOST);
  }
  if (writes) alias.written.extend(range);
}

void FallbackAliases::copy(const StorageAlias& alias, const ByteRange& range, mtia_copy_kind kind) const {
  const auto device = reinterpret_cast<uint64_t>(alias.device.data()) + range.begin;
  const auto host = reinterpret_cast<uint64_t>(alias.address) + range.begin;
  const bool to_host = kind == MTIA_COPY_DEVICE_TO_HOST;
  current_stream(device_).core().copy(to_host ? host : device, to_host ? device : host, range.end - range.begin, kind,
                                      core::CopyUse::kByFallback);
}

void FallbackAliases::wait_for_copies() const noexcept {
  if (HostView::available()) return;
  try {
    current_stream(device_).wait();
  } catch (...) {  // of a device that is lost: no copies either, and the first error is the caller's
  }
}

void FallbackAliases::fill_substitutes() const {
  for (const TensorAlias& alias : tensors_) {
    if (alias.memory.defined()) alias.host.copy_(alias.memory);
  }
}

void FallbackAliases::copy_from_substitutes() const {
  for (const TensorAlias& alias : tensors_) {
    if (!alias.memory.defined() || !alias.writes) continue;
    if (alias.memory.sizes() != alias.host.sizes()) alias.memory.resize_(alias.host.sizes());
    alias.memory.copy_(alias.host);
  }
}

bool FallbackAliases::is_alias(const at::Tensor& host) const {
  return std::any_of(tensors_.begin(), tensors_.end(),
                     [&](const TensorAlias& known) { return known.host.is_same(host); });
}

void FallbackAliases::list_operands(core::OperandSink& sink) const {
  for (const TensorAlias& alias : tensors_) {
    if (alias.device.layout() != at::kStrided) continue;
    list_operand(alias.in_place(), alias.writes, alias.old_bytes, sink);
  }
}

// What a kernel has resized within its storage may reach further than before. All of a dense tensor counts as written.
bool FallbackAliases::copy_back_resized() const {
  bool copies_back = false;
  for (const TensorAlias& tensor : tensors_) {
    const at::Tensor& host = tensor.in_place();
    if (!tensor.writes || host.layout() != at::kStrided || !host.is_non_overlapping_and_dense()) continue;
    const StorageAlias& alias = storage_alias_of(tensor.device);
    const bool is_elsewhere = alias.host.data() != alias.address || alias.host.nbytes() != alias.device.nbytes();
    const ByteRange range = range_of(host);
    if (is_elsewhere || range.empty() || alias.written.contains(range)) continue;
    copy(alias, range, MTIA_COPY_HOST_TO_DEVICE);
    copies_back = true;
  }
  return copies_back;
}

void FallbackAliases::write_back(std::span<const c10::IValue> results) {
  results_ = results;
  bool copies_back = !HostView::available() && copy_back_resized();
  for (auto& alias : storages_) {
    if (alias.host.data() == alias.address && alias.host.nbytes() == alias.device.nbytes()) {
      if (alias.written.empty()) continue;
      copy(alias, alias.written, MTIA_COPY_HOST_TO_DEVICE);
      copies_back = true;
      continue;
    }
    auto* storage = alias.device.unsafeGetStorageImpl();
    storage->set_data_ptr_noswap(adopt_or_copy(alias.host, /*kept_elsewhere=*/false));
    storage->set_nbytes(alias.host.nbytes());
  }
  if (copies_back) current_stream(device_).wait();  // before the host's memory goes
  // Indexed, because the parts of a sparse tensor become tensors of the list.
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const at::Tensor device = tensors_[i].device;
    const at::Tensor host = tensors_[i].in_place();
    if (host.layout() == at::kSparse) {
      const SparseParts parts = parts_of(host);
      set_sparse(device, host, {to_device(parts.indices), to_device(parts.values)});
      continue;
    }
    auto* impl = device.unsafeGetTensorImpl();
    if (impl->is_conj() != host.is_conj()) impl->_set_conj(host.is_conj());
    if (impl->is_neg() != host.is_neg()) impl->_set_neg(host.is_neg());
    if (!host.storage().is_alias_of(storage_alias_of(device).host)) {
      impl->set_storage_keep_dtype(to_device(host.storage()));
    }
    if (impl->sizes() == host.sizes() && impl->strides() == host.strides() &&
        impl->storage_offset() == host.storage_offset()) {
      continue;
    }
    impl->set_sizes_and_strides(host.sizes(), host.strides(), host.storage_offset());
  }
}

const FallbackAliases::StorageAlias& FallbackAliases::storage_alias_of(const at::Tensor& device) const {
  return *std::find_if(storages_.begin(), storages_.end(), [&](const StorageAlias& alias) {
    return alias.device.unsafeGetStorageImpl() == device.storage().unsafeGetStorageImpl();
  });
}

// The device memory of a new CPU storage: the memory itself if it came from the device, else a copy. An operator
// that keeps the storage for itself must not find it empty.
c10::DataPtr FallbackAliases::adopt_or_copy(const c10::Storage& host, bool kept_elsewhere) const {
  auto* impl = host.unsafeGetStorageImpl();
  if (impl->nbytes() == 0) return MTIACachingAllocator::get().allocate(0);
  if (kept_elsewhere || !DeviceAllocation::owns(impl->data_ptr())) return copy_to_device(*impl);
  return DeviceAllocation::adopt(impl->set_data_ptr(c10::DataPtr()));
}

c10::DataPtr FallbackAliases::copy_to_device(const c10::StorageImpl& host) const {
  const MTIAStream stream = current_stream(device_);
  c10::DataPtr data = MTIACachingAllocator::get().allocate(host.nbytes());
  stream.core().copy(reinterpret_cast<uint64_t>(data.get()), reinterpret_cast<uint64_t>(host.data()), host.nbytes(),
                     MTIA_COPY_HOST_TO_DEVICE);
  stream.wait();
  return data;
}

c10::Storage FallbackAliases::to_device(const c10::Storage& host) {
  for (const auto& alias : storages_) {
    if (alias.host.is_alias_of(host)) return alias.device;
  }
  size_t references = 0;  // that results hold
  for (const c10::IValue& result : results_) {
    for_each_tensor(result, [&](const at::Tensor& tensor) {
      references += tensor.has_storage() && tensor.storage().is_alias_of(host);
    });
  }
  const bool kept_elsewhere = host.use_count() > 1 && host.use_count() > references;
  c10::Storage device(c10::Storage::use_byte_size_t(), host.nbytes(), adopt_or_copy(host, kept_elsewhere),
                      &MTIACachingAllocator::get(), /*resizable=*/true);
  storages_.push_back({device, host, nullptr});
  return device;
}

at::Tensor FallbackAliases::to_device(const at::Tensor& host) {
  if (!host.defined() || !host.device().is_cpu() || is_host_argument(host)) return host;
  const bool is_sparse = host.layout() == at::kSparse;
  TORCH_CHECK_NOT_IMPLEMENTED((is_sparse || host.layout() == at::kStrided) && !host.is_quantized(),
                              op_.operator_name().name, " is not implemented for ", device_name(), ": it gives a ",
                              host.is_quantized() ? "quantized" : "compressed sparse",
                              " tensor, and the device's tensors are dense, or sparse in the layout torch.sparse_coo");
  for (const auto& alias : tensors_) {
    if (alias.host.is_same(host)) return alias.device;
  }
  if (is_sparse) {
    const SparseParts parts = parts_of(host);
    at::Tensor result = make_sparse(sparse_dispatch_key(), host, {to_device(parts.indices), to_device(parts.values)});
    tensors_.push_back({result, host});
    return result;
  }
  auto result = at::detail::make_tensor<c10::TensorImpl>(to_device(host.storage()), c10::DispatchKeySet(dispatch_key()),
                                                         host.dtype());
  auto* impl = result.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(host.sizes(), host.strides(), host.storage_offset());
  if (host.is_conj()) impl->_set_conj(true);
  if (host.is_neg()) impl->_set_neg(true);
  return result;
}

// An argument that was on the CPU, or a view of one: nothing to convert.
bool FallbackAliases::is_host_argument(const at::Tensor& host) const {
  return std::any_of(host_storages_.begin(), host_storages_.end(), [&](const c10::Storage& storage) {
    return host.has_storage() && host.storage().is_alias_of(storage);
  });
}

c10::IValue FallbackAliases::to_device(const c10::IValue& value) {
  if (value.isTensor()) return to_device(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> result;
    for (const at::Tensor& tensor : value.toTensorList()) result.push_back(to_device(tensor));
    return result;
  }
  return value;
}

}  // namespace torch_mtia
