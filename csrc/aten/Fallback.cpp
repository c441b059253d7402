// Every operator without a kernel of its own: runs its CPU kernel on host aliases of its arguments.
//
// Note [Fallback]
// 1. Each storage among the arguments gets one host alias, shared by all tensors over it, so aliasing between arguments
//    survives. Nothing is copied.
// 2. The CPU kernel runs in the current stream, with new CPU memory drawn from the device: on the caller if the
//    arguments are small, else on the stream's executor while the caller waits. An operator whose result's shape
//    depends on data could not do with less, and the fallback cannot tell which those are.
// 3. Results become device tensors: an argument that was written is returned itself; a view of an argument shares the
//    argument's storage; a new tensor's storage is adopted. A resized argument hands its new memory and its new sizes
//    to the tensor that it stands for.
// A sparse tensor (Sparse.h) is converted part by part. An `out` that is not contiguous is stood in for by a contiguous
// tensor, which is copied to it: some of ATen's kernels write as if it were contiguous. Float32 tensors stand in for
// 16-bit ones where Note [Float32 accumulation] asks for it.
//
// Note [Copying fallback]
// With a driver without a host view, the alias of a storage has memory of its own: as many bytes, of which those that
// the arguments reach, from the lowest to the highest, are copied there before the kernel runs. It runs on the caller.
// Then the bytes that written arguments reach are copied back, with any that lie between their elements: work in
// another stream must not write those meanwhile.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/ThreadLocalState.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/COW.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <exception>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>

#include "../core/Waits.h"
#include "../device/AllocationScopes.h"
#include "../device/Door.h"
#include "../device/MTIACachingAllocator.h"
#include "../device/MTIAGraph.h"
#include "ByteRange.h"
#include "CommonDevice.h"
#include "Fallback.h"
#include "FallbackControl.h"
#include "HostAlias.h"
#include "Launch.h"
#include "LentGenerator.h"
#include "ListNumbers.h"
#include "Operator.h"
#include "Sparse.h"

namespace torch_mtia {
namespace {

using torch::jit::Stack;

// The traits of an operator. Names are compared once for all operators, and not at a call.
OperatorTraits find_traits(const c10::OperatorHandle& op) {
  static const auto* const operators = [] {
    auto* const found = new std::unordered_map<c10::OperatorHandle, OperatorTraits>();
    auto& dispatcher = c10::Dispatcher::singleton();
    for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
      const auto is_of_it = [&](const OperatorRow& row) { return row.name == name.name; };
      if (std::none_of(std::begin(kOperatorRows), std::end(kOperatorRows), is_of_it)) continue;
      if (const auto handle = dispatcher.findSchema(name)) found->emplace(*handle, traits_of(name.name));
    }
    return found;
  }();
  const auto known = operators->find(op);
  return known == operators->end() ? OperatorTraits() : known->second;
}

// One call: its arguments' aliases, and the way back.
class FallbackCall {
 public:
  // `key`: that of the CPU kernel. `kernel`: one of ours that runs in its place; null: none.
  FallbackCall(const c10::OperatorHandle& op, c10::DispatchKey key, Stack* stack,
               const c10::KernelFunction* kernel = nullptr)
      : op_(op),
        key_(key),
        kernel_(kernel),
        stack_(stack),
        first_argument_(stack->size() - op.schema().arguments().size()) {}

  void run() {
    find_device();
    MTIAGraph::refuse(current_stream(device_), op_.schema().name(),
                      "it has no kernel for mtia and falls back to the CPU's, which the caller waits for. Call it "
                      "before the capture or after a replay");
    const c10::DeviceGuard guard(device_);
    try {
      alias_arguments();
      run_in_stream();
      give_back_arguments();
    } catch (...) {
      wait_for_copies();
      throw;
    }
    for (size_t i = first_argument_; i < stack_->size(); ++i) (*stack_)[i] = to_device((*stack_)[i]);
  }

 private:
  // Before the memory of the aliases goes: copies from and to it may be on their way.
  void wait_for_copies() noexcept {
    if (HostView::available()) return;
    try {
      current_stream(device_).wait();
    } catch (...) {  // of a device that is lost: no copies either, and the first error is the caller's
    }
  }

  struct StorageAlias {
    c10::Storage device;
    c10::Storage host;
    void* address;
    // Without a host view: what was copied to the host, and what is to be copied back.
    ByteRange copied = {};
    ByteRange written = {};
  };
  struct TensorAlias {
    at::Tensor device;
    at::Tensor host;
    bool writes = false;  // the kernel, says its schema
    core::OldBytes old_bytes = core::OldBytes::kRead;
    // The memory of an argument for which `host` stands in: contiguous for an `out`, float32 for 16 bits.
    at::Tensor memory = {};

    const at::Tensor& in_place() const { return memory.defined() ? memory : host; }
  };

  template <typename Visit>
  static void for_each_tensor(const c10::IValue& value, const Visit& visit) {
    if (value.isTensor()) {
      if (value.toTensor().defined()) visit(value.toTensor());
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorList()) {
        if (tensor.defined()) visit(tensor);
      }
    } else if (value.isList()) {
      for (const c10::IValue& element : value.toListRef()) for_each_tensor(element, visit);
    }
  }

  static bool is_written(const c10::Argument& argument) {
    return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
  }

  // Whether an operator in place reads what it changes, a schema does not say.
  static core::OldBytes old_bytes_of(const c10::Argument& argument, bool writes, const OperatorTraits& traits) {
    if (argument.is_out()) return core::OldBytes::kOverwritten;
    if (argument.name() == traits.in_part) return core::OldBytes::kReadInPart;
    return writes ? core::OldBytes::kPassedOn : core::OldBytes::kRead;
  }

  void find_device() {
    const bool takes_host_tensors = find_traits(op_).host_tensors;
    CommonDevice common(op_.operator_name().name, takes_host_tensors, /*writes_host_tensors=*/takes_host_tensors);
    const auto& arguments = op_.schema().arguments();
    for (size_t i = 0; i < arguments.size(); ++i) {
      const auto& value = (*stack_)[first_argument_ + i];
      for_each_tensor(value, [&](const at::Tensor& tensor) {
        common.add(tensor, is_written(arguments[i]));
        numel_ += tensor.numel();
      });
      if (value.isDevice()) common.add(value.toDevice());
    }
    device_ = common.get();
    generator_device_ = common.of_generators();
  }

  void alias_arguments() {
    const auto& arguments = op_.schema().arguments();
    const OperatorTraits traits = find_traits(op_);
    if (traits.in_float32 && kernel_ == nullptr) find_narrow_dtype();
    for (size_t i = 0; i < arguments.size(); ++i) {
      writes_argument_ = traits.writes_unmarked || is_written(arguments[i]);
      old_bytes_ = old_bytes_of(arguments[i], writes_argument_, traits);
      is_out_ = arguments[i].is_out();
      auto& value = (*stack_)[first_argument_ + i];
      value = to_host(value);
    }
    const bool draws = op_.hasTag(at::Tag::nondeterministic_seeded);
    if (!draws) return;
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (!is_optional_generator(*arguments[i].type())) continue;
      auto& value = (*stack_)[first_argument_ + i];
      if (value.isNone()) value = at::detail::createCPUGenerator(draw_seed(default_generator(device_.index())));
      return;
    }
    seeds_default_generator_ = true;
  }

  // Whether two arguments, one of which is written, have bytes in common. Kernels refuse that, but not of copies.
  bool arguments_overlap() const {
    const auto& arguments = op_.schema().arguments();
    bool found = false;
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (!is_written(arguments[i])) continue;
      for_each_tensor((*stack_)[first_argument_ + i], [&](const at::Tensor& output) {
        found = found || at::has_internal_overlap(output) == at::MemOverlap::Yes;
        for (size_t j = 0; j < arguments.size(); ++j) {
          for_each_tensor((*stack_)[first_argument_ + j], [&](const at::Tensor& other) {
            if (other.is_same(output)) return;
            const auto status = at::get_overlap_status(output, other);
            found = found || status == at::MemOverlapStatus::Full || status == at::MemOverlapStatus::Partial;
          });
        }
      });
    }
    return found;
  }

  // Mixed dtypes are left alone: ATen's kernels accumulate in the wider one.
  void find_narrow_dtype() {
    std::optional<at::ScalarType> dtype;
    bool is_mixed = false;
    const auto& arguments = op_.schema().arguments();
    for (size_t i = 0; i < arguments.size(); ++i) {
      for_each_tensor((*stack_)[first_argument_ + i], [&](const at::Tensor& tensor) {
        if (!tensor.is_floating_point()) return;
        is_mixed = is_mixed || (dtype && dtype != tensor.scalar_type());
        dtype = tensor.scalar_type();
      });
    }
    if (is_mixed || !dtype || !at::isReducedFloatingType(*dtype) || arguments_overlap()) return;
    narrow_dtype_ = dtype;
    result_dtype_ = *dtype;
    for (size_t i = 0; i < arguments.size(); ++i) {
      c10::IValue& value = (*stack_)[first_argument_ + i];
      if (arguments[i].name() != "dtype" || value.isNone()) continue;
      result_dtype_ = value.toScalarType();
      if (at::isReducedFloatingType(result_dtype_)) value = at::kFloat;
    }
  }

  // Results that the kernel has made in float32.
  void round_results() {
    const auto round = [&](const at::Tensor& tensor) {
      const auto is_it = [&](const TensorAlias& known) { return known.host.is_same(tensor); };
      const bool is_new = std::none_of(tensors_.begin(), tensors_.end(), is_it);
      return tensor.defined() && is_new && tensor.scalar_type() == at::kFloat ? tensor.to(result_dtype_) : tensor;
    };
    for (size_t i = first_argument_; i < stack_->size(); ++i) {
      c10::IValue& value = (*stack_)[i];
      if (value.isTensor()) value = round(value.toTensor());
    }
  }

  static bool is_optional_generator(const c10::Type& type) {
    return type.kind() == c10::TypeKind::GeneratorType ||
           (type.kind() == c10::TypeKind::OptionalType &&
            type.castRaw<c10::OptionalType>()->getElementType()->kind() == c10::TypeKind::GeneratorType);
  }

  c10::IValue to_host(const c10::IValue& value) {
    if (value.isTensor()) return to_host(value.toTensor());
    if (value.isTensorList()) {
      c10::List<at::Tensor> result;
      result.reserve(value.toTensorList().size());
      for (const at::Tensor& tensor : value.toTensorList()) result.push_back(to_host(tensor));
      return result;
    }
    if (value.isList()) {
      auto list = value.toList();
      auto result = c10::impl::GenericList(list.elementType());
      result.reserve(list.size());
      for (const c10::IValue& element : value.toListRef()) result.push_back(to_host(element));
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

  at::Tensor to_host(const at::Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    if (!is_ours(tensor.device())) {
      if (tensor.has_storage()) host_storages_.push_back(tensor.storage());
      return tensor;
    }
    const bool is_sparse = tensor.layout() == at::kSparse;
    const size_t num_storages = storages_.size();
    const c10::Storage storage = is_sparse ? c10::Storage() : to_host_storage(tensor);
    const bool shares_storage = storages_.size() == num_storages;
    for (auto& known : tensors_) {
      if (!known.device.is_same(tensor)) continue;
      known.writes = known.writes || writes_argument_;
      known.old_bytes = std::min(known.old_bytes, old_bytes_);  // the first reads the most
      return known.host;
    }
    if (is_sparse) {
      const SparseParts parts = parts_of(tensor);
      at::Tensor host =
          make_sparse(c10::DispatchKey::SparseCPU, tensor, {to_host(parts.indices), to_host(parts.values)});
      tensors_.push_back({tensor, host, writes_argument_, old_bytes_});
      return host;
    }
    at::Tensor host = host_alias(tensor, storage);
    // What kernels refuse, memory that overlaps, they are to see.
    const bool stays =
        !is_out_ || host.is_contiguous() || shares_storage || at::has_internal_overlap(host) == at::MemOverlap::Yes;
    at::Tensor memory;
    if (tensor.scalar_type() == narrow_dtype_) {
      memory = std::exchange(host, at::empty(host.sizes(), host.options().dtype(at::kFloat)));
    } else if (!stays) {
      memory = std::exchange(host, at::empty(host.sizes(), host.options()));
    }
    tensors_.push_back({tensor, host, writes_argument_, old_bytes_, memory});
    return host;
  }

  c10::Storage to_host_storage(const at::Tensor& tensor) {
    auto* storage = tensor.storage().unsafeGetStorageImpl();
    auto alias = std::find_if(storages_.begin(), storages_.end(), [&](const StorageAlias& known) {
      return known.device.unsafeGetStorageImpl() == storage;
    });
    if (alias == storages_.end()) {
      c10::DataPtr data = host_memory(*storage);
      void* const address = data.get();
      // A kernel that grows its out argument goes to the storage's allocator, which inside the call draws from the
      // device.
      c10::Storage host(c10::Storage::use_byte_size_t(), storage->nbytes(), std::move(data),
                        c10::GetAllocator(c10::kCPU), storage->resizable());
      storages_.push_back({tensor.storage(), std::move(host), address});
      alias = storages_.end() - 1;
    } else if (writes_argument_ && c10::impl::cow::is_cow_data_ptr(storage->data_ptr())) {
      // An argument that is only read was first: its lazy clone gets memory of its own now.
      storage->mutable_data();
      if (HostView::available()) {
        alias->host.set_data_ptr_noswap(host_memory(*storage));
        alias->address = alias->host.mutable_data();
      }
    }
    if (!HostView::available()) note_use(*alias, range_of(tensor));
    return alias->host;
  }

  c10::DataPtr host_memory(c10::StorageImpl& device) const {
    // Reading must not make a copy of a lazy clone.
    void* const address = writes_argument_ ? device.mutable_data() : const_cast<void*>(device.data());
    if (!HostView::available()) return c10::GetAllocator(c10::kCPU)->allocate(device.nbytes());
    return {address != nullptr ? HostView::to_host(address) : nullptr, c10::Device(c10::kCPU)};
  }

  void note_use(StorageAlias& alias, const ByteRange& range) {
    if (!alias.copied.contains(range)) {
      alias.copied.extend(range);
      copy(alias, alias.copied, MTIA_COPY_DEVICE_TO_HOST);
    }
    if (writes_argument_) alias.written.extend(range);
  }

  void copy(const StorageAlias& alias, const ByteRange& range, mtia_copy_kind kind) {
    const auto device = reinterpret_cast<uint64_t>(alias.device.data()) + range.begin;
    const auto host = reinterpret_cast<uint64_t>(alias.address) + range.begin;
    const bool to_host = kind == MTIA_COPY_DEVICE_TO_HOST;
    current_stream(device_).core().copy(to_host ? host : device, to_host ? device : host, range.end - range.begin, kind,
                                        core::CopyUse::kByFallback);
  }

  void run_kernel() {
    std::optional<DeviceAllocation> device_memory;
    if (HostView::available()) device_memory.emplace();
    for (const TensorAlias& alias : tensors_) {
      if (alias.memory.defined()) alias.host.copy_(alias.memory);
    }
    redispatch();
    for (const TensorAlias& alias : tensors_) {
      if (!alias.memory.defined() || !alias.writes) continue;
      if (alias.memory.sizes() != alias.host.sizes()) alias.memory.resize_(alias.host.sizes());
      alias.memory.copy_(alias.host);
    }
    if (narrow_dtype_) round_results();
  }

  void redispatch() {
    if (kernel_ != nullptr) return kernel_->callBoxed(op_, c10::DispatchKeySet(key_), stack_);
    if (!seeds_default_generator_) {
      op_.redispatchBoxed(c10::DispatchKeySet(key_), stack_);
      return;
    }
    static auto* const mutex = new std::mutex();
    std::lock_guard<std::mutex> lock(*mutex);
    const LentGenerator lent(draw_seed(default_generator(device_.index())));
    op_.redispatchBoxed(c10::DispatchKeySet(key_), stack_);
  }

  // Before the kernel has run, what it is given beside tensors of the device; afterwards, the tensors that it has made.
  void list_values(core::OperandSink& sink) const {
    if (error_) return;
    for (size_t i = first_argument_; i < stack_->size(); ++i) {
      const c10::IValue& value = (*stack_)[i];
      for_each_tensor(value, [&](const at::Tensor& tensor) {
        const auto is_it = [&](const TensorAlias& known) { return known.host.is_same(tensor); };
        if (tensor.layout() != at::kStrided || std::any_of(tensors_.begin(), tensors_.end(), is_it)) return;
        if (has_run_) {
          list_operand(tensor, /*writes=*/true, core::OldBytes::kOverwritten, sink);
        } else {
          list_host_operand(tensor, /*writes=*/false, sink);
        }
      });
      if (value.isScalar()) list_numbers(value.toScalar(), sink);
      if (value.isDoubleList()) list_numbers(at::ArrayRef<double>(value.toDoubleVector()), sink);
    }
  }

  // The kernel as a work item. The caller waits for it, so it refers to the call while the caller is there: see Note
  // [Items that are waited for] in core/Waits.h. It can run only once.
  class KernelWork {
   public:
    KernelWork(FallbackCall& call, const MTIAStream& stream, uint64_t awaited)
        : call_(&call), stream_(&stream), awaited_(awaited) {}

    // On the executor the kernel needs what the dispatcher keeps in thread-local state (autograd off, modes).
    void detach() noexcept {
      try {
        caller_state_ = std::make_unique<at::ThreadLocalState>();
      } catch (...) {
        call_->error_ = std::current_exception();
      }
    }

    void list_operands(core::OperandSink& sink) const {
      const core::Awaited::Run caller(awaited_);
      if (!caller) return;
      for (const TensorAlias& alias : call_->tensors_) {
        if (alias.device.layout() != at::kStrided) continue;
        list_operand(alias.in_place(), alias.writes, alias.old_bytes, sink);
      }
      call_->list_values(sink);
    }

    void operator()() {
      core::Awaited::Run caller(awaited_);
      if (!caller) return;
      try {
        if (call_->error_) std::rethrow_exception(call_->error_);
        const core::RunningWork running(stream_->core());
        if (caller_state_) {
          const at::ThreadLocalStateGuard state(*caller_state_);
          const c10::DeviceGuard guard(call_->device_);
          const c10::StreamGuard stream_guard(stream_->unwrap());
          call_->run_kernel();
        } else {
          call_->run_kernel();
        }
      } catch (...) {
        call_->error_ = std::current_exception();
        caller.fail(call_->error_);
      }
      call_->has_run_ = true;
      caller.finish();
    }

   private:
    FallbackCall* call_;
    const MTIAStream* stream_;
    uint64_t awaited_;
    std::unique_ptr<at::ThreadLocalState> caller_state_;
  };

  void run_in_stream() {
    const MTIAStream stream = current_stream(device_);
    if (!HostView::available()) {
      stream.wait();
      run_kernel();
      return;
    }
    const MTIACachingAllocator::Window window(stream.core());
    core::WorkInfo info{};
    info.name = op_.schema().name().c_str();
    info.flags = MTIA_WORK_MAY_RUN_INLINE;
    info.cost = numel_ <= kSmallFallbackNumel ? 0 : UINT64_MAX;
    core::Awaited awaited;
    launch(stream, info, KernelWork(*this, stream, awaited.ticket()));
    awaited.wait(stream.core());
  }

  // What a kernel has resized within its storage may reach further than before. Of what is dense, all is written.
  bool copy_back_resized() {
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

  void give_back_arguments() {
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

  const StorageAlias& storage_alias_of(const at::Tensor& device) const {
    return *std::find_if(storages_.begin(), storages_.end(), [&](const StorageAlias& alias) {
      return alias.device.unsafeGetStorageImpl() == device.storage().unsafeGetStorageImpl();
    });
  }

  // The device memory behind a new CPU storage: the memory itself if it came from the device, else a copy. An operator
  // that keeps the storage for itself must not find it empty.
  c10::DataPtr adopt_or_copy(const c10::Storage& host, bool kept_elsewhere) {
    auto* impl = host.unsafeGetStorageImpl();
    if (impl->nbytes() == 0) return MTIACachingAllocator::get().allocate(0);
    if (kept_elsewhere || !DeviceAllocation::owns(impl->data_ptr())) return copy_to_device(*impl);
    return DeviceAllocation::adopt(impl->set_data_ptr(c10::DataPtr()));
  }

  c10::DataPtr copy_to_device(const c10::StorageImpl& host) {
    const MTIAStream stream = current_stream(device_);
    c10::DataPtr data = MTIACachingAllocator::get().allocate(host.nbytes());
    stream.core().copy(reinterpret_cast<uint64_t>(data.get()), reinterpret_cast<uint64_t>(host.data()), host.nbytes(),
                       MTIA_COPY_HOST_TO_DEVICE);
    stream.wait();
    return data;
  }

  // References that the tensors on the stack, results and converted results, hold.
  size_t references_on_stack(const c10::Storage& host) const {
    size_t references = 0;
    for (size_t i = first_argument_; i < stack_->size(); ++i) {
      for_each_tensor((*stack_)[i], [&](const at::Tensor& tensor) {
        references += tensor.has_storage() && tensor.storage().is_alias_of(host);
      });
    }
    return references;
  }

  c10::Storage to_device(const c10::Storage& host) {
    for (const auto& alias : storages_) {
      if (alias.host.is_alias_of(host)) return alias.device;
    }
    const bool kept_elsewhere = host.use_count() > 1 && host.use_count() > references_on_stack(host);
    c10::Storage device(c10::Storage::use_byte_size_t(), host.nbytes(), adopt_or_copy(host, kept_elsewhere),
                        &MTIACachingAllocator::get(), /*resizable=*/true);
    storages_.push_back({device, host, nullptr});
    return device;
  }

  at::Tensor to_device(const at::Tensor& host) {
    if (!host.defined() || !host.device().is_cpu() || is_host_argument(host)) return host;
    const bool is_sparse = host.layout() == at::kSparse;
    TORCH_CHECK_NOT_IMPLEMENTED(
        (is_sparse || host.layout() == at::kStrided) && !host.is_quantized(), op_.operator_name().name,
        " is not implemented for ", device_name(), ": it gives a ",
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
    auto result = at::detail::make_tensor<c10::TensorImpl>(to_device(host.storage()),
                                                           c10::DispatchKeySet(dispatch_key()), host.dtype());
    auto* impl = result.unsafeGetTensorImpl();
    impl->set_sizes_and_strides(host.sizes(), host.strides(), host.storage_offset());
    if (host.is_conj()) impl->_set_conj(true);
    if (host.is_neg()) impl->_set_neg(true);
    return result;
  }

  // An argument that was on the CPU, or a view of one: nothing to convert.
  bool is_host_argument(const at::Tensor& host) const {
    return std::any_of(host_storages_.begin(), host_storages_.end(), [&](const c10::Storage& storage) {
      return host.has_storage() && host.storage().is_alias_of(storage);
    });
  }

  c10::IValue to_device(const c10::IValue& value) {
    if (value.isTensor()) return to_device(value.toTensor());
    if (value.isTensorList()) {
      c10::List<at::Tensor> result;
      for (const at::Tensor& tensor : value.toTensorList()) result.push_back(to_device(tensor));
      return result;
    }
    return value;
  }

  const c10::OperatorHandle& op_;
  const c10::DispatchKey key_;
  const c10::KernelFunction* const kernel_;
  Stack* const stack_;
  const size_t first_argument_;
  c10::Device device_{device_type(), 0};
  c10::Device generator_device_{device_type(), 0};
  int64_t numel_ = 0;
  bool writes_argument_ = false;  // the one that is being converted
  core::OldBytes old_bytes_ = core::OldBytes::kRead;
  bool is_out_ = false;
  bool seeds_default_generator_ = false;
  bool has_run_ = false;
  std::optional<at::ScalarType> narrow_dtype_;  // of the arguments for which float32 tensors stand in
  at::ScalarType result_dtype_ = at::kFloat;
  std::exception_ptr error_;
  c10::SmallVector<StorageAlias, 4> storages_;
  c10::SmallVector<TensorAlias, 4> tensors_;
  c10::SmallVector<c10::Storage, 1> host_storages_;  // of arguments on the CPU
};

template <c10::DispatchKey key>
void fallback(const c10::OperatorHandle& op, Stack* stack) {
  FallbackControl::enter(op);
  ensure_initialized();
  FallbackCall(op, key, stack).run();
}

}  // namespace

void fall_back(const c10::OperatorHandle& op, Stack* stack) {
  fallback<c10::DispatchKey::CPU>(op, stack);
}

void fall_back_sparse(const c10::OperatorHandle& op, Stack* stack) {
  fallback<c10::DispatchKey::SparseCPU>(op, stack);
}

void fall_back_to(const c10::KernelFunction& kernel, const c10::OperatorHandle& op, Stack* stack) {
  FallbackControl::enter(op);
  ensure_initialized();
  FallbackCall(op, c10::DispatchKey::CPU, stack, &kernel).run();
}

void run_on_copies(const c10::OperatorHandle& op, Stack* stack) {
  FallbackCall(op, c10::DispatchKey::CPU, stack).run();
}

MTIA_LIBRARY_IMPL(_, kBackend, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&fall_back>());
}

MTIA_LIBRARY_IMPL(_, kSparse, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&fall_back_sparse>());
}

}  // namespace torch_mtia
