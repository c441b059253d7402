#include "graph_outputs.h"

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "../device/MTIACachingAllocator.h"
#include "../device/MTIAStream.h"

namespace py = pybind11;

namespace torch_mtia {
namespace {

// Note [Results of graphs]
// A replay writes its results where the capture did. What it hands out are tensors over that memory, with storages of
// their own. Before memory is written again, a storage that is still in use gets a copy elsewhere: all tensors over it
// find their values there, and nobody notices. In a training loop nothing is in use any more by then, and nothing is
// copied.
class GraphOutputs {
 public:
  // The results of the capture.
  explicit GraphOutputs(std::vector<at::Tensor> tensors) {
    for (at::Tensor& tensor : tensors) {
      auto* const impl = tensor.storage().unsafeGetStorageImpl();
      auto memory = std::find_if(memories_.begin(), memories_.end(), [&](const std::unique_ptr<Memory>& known) {
        return known->storage.unsafeGetStorageImpl() == impl;
      });
      if (memory == memories_.end()) {
        memory = memories_.insert(memory, std::make_unique<Memory>(tensor.storage()));
        by_address()[tensor.storage().data()] = memory->get();
      }
      results_.push_back({std::move(tensor), memory->get()});
    }
  }
  ~GraphOutputs() {
    for (const auto& memory : memories_) {
      const auto found = by_address().find(memory->storage.data());
      if (found != by_address().end() && found->second == memory.get()) by_address().erase(found);
    }
  }
  GraphOutputs(const GraphOutputs&) = delete;
  GraphOutputs& operator=(const GraphOutputs&) = delete;

  // To be called before a replay: what earlier ones handed out moves away. The current stream is that of the replay.
  void move_away() {
    for (const auto& memory : memories_) memory->move_away();
  }

  // The results of the replay that was submitted last.
  std::vector<at::Tensor> hand_out() {
    for (const auto& memory : memories_) memory->hand_out();
    std::vector<at::Tensor> tensors;
    tensors.reserve(results_.size());
    for (const Result& result : results_) {
      tensors.push_back(view(c10::Storage(result.memory->handed_out.lock()), result.tensor));
    }
    for (const auto& memory : memories_) memory->keep_until_handed_out.reset();
    return tensors;
  }

  // If the tensor lies where a graph writes its results: one that stays there, of the same bytes.
  static std::optional<at::Tensor> captured(const at::Tensor& tensor) {
    const auto found = by_address().find(tensor.storage().data());
    if (found == by_address().end()) return std::nullopt;
    return view(found->second->storage, tensor);
  }

  // What was handed out with the memory of this tensor moves away.
  static void move_away_from(const at::Tensor& tensor) {
    const auto found = by_address().find(tensor.storage().data());
    if (found != by_address().end()) found->second->move_away();
  }

 private:
  // A tensor over the storage, with the sizes and strides of another one.
  static at::Tensor view(c10::Storage storage, const at::Tensor& like) {
    auto tensor =
        at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(dispatch_key()), like.dtype());
    tensor.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
    return tensor;
  }

  using StoragePtr = c10::intrusive_ptr<c10::StorageImpl>;

  struct Memory {
    explicit Memory(const c10::Storage& captured) : storage(captured) {}

    void hand_out() {
      // Keeps the memory, should the graph die first.
      auto owner = std::make_unique<c10::Storage>(storage);
      c10::DataPtr data(
          storage.mutable_data(), owner.release(), [](void* context) { delete static_cast<c10::Storage*>(context); },
          storage.device());
      keep_until_handed_out =
          c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), storage.nbytes(), std::move(data),
                                                &MTIACachingAllocator::get(), /*resizable=*/true);
      handed_out = keep_until_handed_out;
    }

    void move_away() {
      const StoragePtr used = std::exchange(handed_out, none()).lock();
      if (!used || used->data() != storage.data()) return;
      const c10::DeviceGuard guard(storage.device());
      c10::DataPtr elsewhere = MTIACachingAllocator::get().allocate(storage.nbytes());
      MTIACachingAllocator::get().copy_data(elsewhere.get(), storage.data(), storage.nbytes());
      used->set_data_ptr_noswap(std::move(elsewhere));
    }

    static c10::weak_intrusive_ptr<c10::StorageImpl> none() {
      return c10::weak_intrusive_ptr<c10::StorageImpl>(StoragePtr());
    }

    const c10::Storage storage;
    c10::weak_intrusive_ptr<c10::StorageImpl> handed_out = none();
    StoragePtr keep_until_handed_out;
  };
  struct Result {
    at::Tensor tensor;  // of the capture
    Memory* memory;
  };

  // Guarded by the interpreter lock. Leaked: graphs may die with the interpreter.
  static std::unordered_map<const void*, Memory*>& by_address() {
    static auto* const instance = new std::unordered_map<const void*, Memory*>();
    return *instance;
  }

  std::vector<std::unique_ptr<Memory>> memories_;
  std::vector<Result> results_;
};

}  // namespace

void bind_graph_outputs(py::module_& module) {
  py::class_<GraphOutputs>(module, "GraphOutputs")
      .def(py::init<std::vector<at::Tensor>>(), py::arg("tensors"))
      .def("move_away", &GraphOutputs::move_away)
      .def("hand_out", &GraphOutputs::hand_out)
      .def_static("captured", &GraphOutputs::captured, py::arg("tensor"))
      .def_static("move_away_from", &GraphOutputs::move_away_from, py::arg("tensor"));
}

}  // namespace torch_mtia
