#include "GraphOutputs.h"

#include <algorithm>
#include <memory>
#include <unordered_map>
#include <utility>

#include "../core/Event.h"
#include "DeviceType.h"
#include "MTIACachingAllocator.h"
#include "MTIAStream.h"

namespace torch_mtia {
namespace {

struct HandedOut {
  c10::weak_intrusive_ptr<c10::StorageImpl> storage;
  const void* address;  // where it was handed out
  c10::MempoolId_t pool;
  uint64_t order;
};

// A tensor over the storage, with the sizes and strides of another one.
at::Tensor view(c10::Storage storage, const at::Tensor& like) {
  auto tensor =
      at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(dispatch_key()), like.dtype());
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  return tensor;
}

c10::Storage over(const c10::Storage& memory) {
  // Keeps the memory, should the graph die first.
  auto owner = std::make_unique<c10::Storage>(memory);
  c10::DataPtr data(
      memory.mutable_data(), owner.release(), [](void* context) { delete static_cast<c10::Storage*>(context); },
      memory.device());
  return c10::Storage(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), memory.nbytes(),
                                                            std::move(data), &MTIACachingAllocator::get(),
                                                            /*resizable=*/true));
}

uint64_t next_order() {
  static uint64_t last = 0;
  return ++last;
}

// Both are leaked: graphs may die with the interpreter.
std::unordered_map<const void*, c10::Storage>& by_address() {
  static auto* const instance = new std::unordered_map<const void*, c10::Storage>();
  return *instance;
}
std::vector<HandedOut>& in_use() {
  static auto* const instance = new std::vector<HandedOut>();
  return *instance;
}

}  // namespace

GraphOutputs::GraphOutputs(std::vector<at::Tensor> tensors, c10::MempoolId_t pool) : pool_(pool), order_(next_order()) {
  for (at::Tensor& tensor : tensors) {
    auto* const impl = tensor.storage().unsafeGetStorageImpl();
    auto memory = std::find_if(memories_.begin(), memories_.end(),
                               [&](const c10::Storage& known) { return known.unsafeGetStorageImpl() == impl; });
    if (memory == memories_.end()) {
      memory = memories_.insert(memory, tensor.storage());
      by_address().insert_or_assign(tensor.storage().data(), *memory);
    }
    results_.push_back({std::move(tensor), static_cast<size_t>(memory - memories_.begin())});
  }
}

GraphOutputs::~GraphOutputs() {
  for (const c10::Storage& memory : memories_) {
    const auto found = by_address().find(memory.data());
    if (found != by_address().end() && found->second.is_alias_of(memory)) by_address().erase(found);
  }
}

void GraphOutputs::move_away() const {
  struct Moving {
    c10::intrusive_ptr<c10::StorageImpl> storage;
    const void* address;
    c10::DataPtr elsewhere = {};
  };
  std::vector<Moving> all;
  std::erase_if(in_use(), [&](const HandedOut& result) {
    auto storage = result.storage.lock();
    if (!storage || storage->data() != result.address) return true;
    if (result.pool == pool_ && result.order >= order_) all.push_back({std::move(storage), result.address});
    return false;
  });
  // An allocation may raise, and may let other threads go on.
  for (Moving& moving : all) moving.elsewhere = MTIACachingAllocator::get().allocate(moving.storage->nbytes());
  std::erase_if(all, [](const Moving& moving) { return moving.storage->data() != moving.address; });
  if (all.empty()) return;
  const MTIAStream stream = MTIAStream::current(current_device());
  const std::vector<MTIAStream> others = stream.others();
  for (Moving& moving : all) {
    MTIACachingAllocator::get().copy_data(moving.elsewhere.get(), moving.address, moving.storage->nbytes());
    for (const MTIAStream& other : others) {
      MTIACachingAllocator::get().recordStream(moving.elsewhere, other.unwrap());
    }
    moving.storage->set_data_ptr_noswap(std::move(moving.elsewhere));
  }
  // The program goes on to use them in the streams in which it used them before.
  core::Event moved(/*enable_timing=*/false);
  moved.record(stream.core());
  for (const MTIAStream& other : others) other.core().wait(moved);
}

std::vector<at::Tensor> GraphOutputs::hand_out() const {
  std::vector<c10::Storage> storages;
  for (const c10::Storage& memory : memories_) {
    storages.push_back(over(memory));
    in_use().push_back({storages.back().getWeakStorageImpl(), memory.data(), pool_, order_});
  }
  std::vector<at::Tensor> tensors;
  tensors.reserve(results_.size());
  for (const Result& result : results_) tensors.push_back(view(storages[result.memory], result.tensor));
  return tensors;
}

std::optional<at::Tensor> GraphOutputs::captured(const at::Tensor& tensor) {
  const auto found = by_address().find(tensor.storage().data());
  if (found == by_address().end()) return std::nullopt;
  return view(found->second, tensor);
}

}  // namespace torch_mtia
