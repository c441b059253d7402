#include "CPUKernelLaunch.h"

#include <ATen/Context.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/native/ForeachUtils.h>
#include <ATen/native/mtia/EmptyTensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/util/FunctionRef.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <vector>

#include "../core/Waits.h"
#include "../device/DeviceType.h"
#include "HostAlias.h"
#include "Launch.h"

namespace torch_mtia {
namespace {

using PooledAliases = c10::SmallVector<PooledAlias*, 8>;

PooledAliases tensors_of(KernelCall& call) {
  PooledAliases tensors;
  call.visit([&](PooledAlias& tensor) { tensors.push_back(&tensor); });
  return tensors;
}

// Whether other data might do without the error that a kernel raised for zeros.
bool is_about_data(const c10::Error& error) {
  return dynamic_cast<const c10::IndexError*>(&error) != nullptr ||
         dynamic_cast<const c10::LinAlgError*>(&error) != nullptr;
}

// Registrations do not check the devices of operators that upstream excepts from it.
c10::Device common_device(const Operator& op, c10::Device device, const PooledAliases& tensors) {
  const bool is_common = is_ours(device) && std::ranges::all_of(tensors, [&](const PooledAlias* tensor) {
                           return tensor->device() == device || !tensor->get().defined();
                         });
  if (C10_LIKELY(is_common)) return device;
  // It writes into copies of tensors on the CPU.
  CommonDevice common(op.name, op.traits.host_tensors, /*writes_host_tensors=*/false);
  for (const PooledAlias* tensor : tensors) {
    if (tensor->get().defined()) common.add(tensor->device(), tensor->get().dim(), tensor->writes());
  }
  return common.get();
}

// An operator in place has one tensor as input and output.
void unite_inputs_with_outputs(const PooledAliases& tensors) {
  for (const PooledAlias* output : tensors) {
    if (!output->writes()) continue;
    for (PooledAlias* input : tensors) {
      if (input != output && !input->writes()) input->unite_with(*output);
    }
  }
}

// Whether some output has bytes of another tensor. Kernels differ in what they make of it: a trial tells.
bool outputs_overlap(const PooledAliases& tensors) {
  return std::ranges::any_of(tensors, [&](const PooledAlias* output) {
    return output->writes() &&
           std::ranges::any_of(tensors, [&](const PooledAlias* other) { return output->overlaps(*other); });
  });
}

// Below the dispatcher's autograd: on the caller that is so already, an executor has a state of its own. And below the
// CPU's autocast, whichever the caller has switched on, for kernels that call operators.
void run_on_host(KernelCall& call, std::span<at::Tensor> results, bool is_trial = false) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  call.run(results, is_trial);
}

// For a trial: while this lives, the device's tensors of a call are zeros on the host, which overlap as they do.
class OnZeros {
 public:
  OnZeros(KernelCall& call, const PooledAliases& tensors) : call_(call), tensors_(tensors) {
    for (const PooledAlias* tensor : tensors) {
      others_.push_back(tensor->get().defined() && tensor->on_device() ? zeros_on_host(tensor->get()) : tensor->get());
    }
    for (size_t i = 0; i < tensors.size(); ++i) unite_with_output(i);
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (tensors[i]->writes()) overlap(i);
    }
    exchange();
  }
  ~OnZeros() { exchange(); }
  OnZeros(const OnZeros&) = delete;
  OnZeros& operator=(const OnZeros&) = delete;

 private:
  void unite_with_output(size_t input) {
    if (tensors_[input]->writes() || !others_[input].defined()) return;
    for (size_t i = 0; i < tensors_.size(); ++i) {
      if (tensors_[i]->writes() && tensors_[i]->is_of_tensor_of(*tensors_[input])) others_[input] = others_[i];
    }
  }
  void overlap(size_t output) {
    c10::Storage whole;
    const PooledAlias& written = *tensors_[output];
    for (size_t i = 0; i < tensors_.size(); ++i) {
      if (!written.overlaps(*tensors_[i])) continue;
      if (!whole) {
        const auto nbytes = static_cast<int64_t>(written.get().storage().nbytes());
        whole = zeros_on_host(at::empty({nbytes}, at::TensorOptions(at::kMeta).dtype(at::kByte))).storage();
        place_in(whole, output);
      }
      place_in(whole, i);
    }
  }
  // Where the tensor is in its own storage.
  void place_in(const c10::Storage& storage, size_t i) {
    auto* const impl = others_[i].unsafeGetTensorImpl();
    impl->set_storage_keep_dtype(storage);
    impl->set_storage_offset(tensors_[i]->get().storage_offset());
  }
  void exchange() {
    size_t i = 0;
    call_.visit([&](PooledAlias& tensor) { tensor.exchange(others_[i++]); });
  }

  KernelCall& call_;
  const PooledAliases& tensors_;
  std::vector<at::Tensor> others_;  // the zeros, and while those are in the call, its aliases
};

// The work item of every CPU kernel.
class CPUKernelWork {
 public:
  // `outputs`: where a kernel that allocates its results stores them. `awaited`: the ticket of a caller that waits for
  // the work and takes its error, or 0 if the stream takes it.
  CPUKernelWork(KernelCall& call, OwnedTensorList outputs, uint64_t awaited)
      : call_(&call), outputs_(std::move(outputs)), awaited_(awaited) {}

  void detach() noexcept {
    if (owned_) return;
    try {
      owned_ = call_->move_to_heap();
      call_ = owned_.get();
    } catch (...) {
      detach_error_ = std::current_exception();
    }
  }

  void operator()() {
    try {
      if (detach_error_) std::rethrow_exception(detach_error_);
      if (outputs_.aliases.empty()) return run_on_host(*call_, {});
      OutputOffer offer(outputs_.get());
      c10::SmallVector<at::Tensor, 8> results(outputs_.aliases.size());
      run_on_host(*call_, results);
      offer.settle(results);
    } catch (...) {
      if (awaited_ == 0 || !core::Awaited::give(awaited_, std::current_exception())) throw;
    }
  }

  void list_operands(core::OperandSink& sink) const {
    if (detach_error_) return;
    for (const PooledAlias& output : outputs_.tensors) list_tensor(output, sink);
    call_->visit([&](const PooledAlias& tensor) { list_tensor(tensor, sink); });
    call_->list_numbers(sink);
  }

 private:
  static void list_tensor(const PooledAlias& tensor, core::OperandSink& sink) {
    if (tensor.on_device()) {
      list_operand(tensor.get(), tensor.writes(), tensor.old_bytes(), sink);
    } else if (tensor.get().defined()) {
      list_host_operand(tensor.get(), tensor.writes(), sink);
    }
  }

  KernelCall* call_;  // the caller's, until the work is queued
  std::unique_ptr<KernelCall> owned_;
  OwnedTensorList outputs_;
  uint64_t awaited_;
  std::exception_ptr detach_error_;
};

enum class Outputs {
  kGiven,    // among the tensors of the call
  kMade,     // made for the call, which tells their shapes
  kUnknown,  // the arguments do not fit, or nothing but the kernel tells what it makes of them
};

// One launch: what is known of its tensors, the trial if that is not enough, and the wait if there has to be one.
class CPUKernelLaunch {
 public:
  CPUKernelLaunch(const CPUKernelInfo& kernel, c10::Device device, KernelCall& call, Outputs outputs)
      : call_(call),
        tensors_(tensors_of(call)),
        stream_(current_stream(common_device(kernel.op, device, tensors_))),
        kernel_(kernel),
        outputs_(outputs) {
    require_host_view(kernel.op.name);
    unite_inputs_with_outputs(tensors_);
    info_.name = kernel.op.name;
    study_tensors();
    const bool waits = kernel.waits || at::globalContext().deterministicAlgorithms();
    if (waits && stream_.core().graph() == nullptr) awaited_.emplace();
  }

  // See Note [Dtypes]. A call without data is asked about too, because that costs nothing.
  void check_dtypes(std::span<at::Tensor> results) {
    if (C10_LIKELY(is_known_)) return;
    const OnZeros zeros(call_, tensors_);
    ask(results);
  }
  // Of these shapes, or, where there are none, such as they are from the trial.
  void make_outputs(at::ArrayRef<TensorShape> shapes, std::span<at::Tensor> outputs);
  // `outputs`: those that were made.
  void submit(at::TensorList outputs);

 private:
  void study_tensors();
  void ask(std::span<at::Tensor> results);
  void count(size_t bytes) {
    bytes_ += bytes;
    info_.cost = std::max(cost_of_bytes(bytes_) * kernel_.weight, kernel_.least_cost);
  }

  KernelCall& call_;
  const PooledAliases tensors_;
  const MTIAStream stream_;
  core::WorkInfo info_{};
  const CPUKernelInfo& kernel_;
  const Outputs outputs_;
  size_t bytes_ = 0;
  bool has_data_ = false;
  bool asks_for_dtypes_ = false;  // a kernel may not look at them where an input or all results are empty
  bool is_known_ = false;
  // The call waits because of `CPUKernelInfo::waits`, or to be deterministic: ATen's kernels ask for that flag of the
  // process when they run, so the work ends before the program can change it.
  std::optional<core::Awaited> awaited_;
};

void CPUKernelLaunch::study_tensors() {
  DtypeSignature dtypes;
  size_t bytes = 0;
  size_t input_bytes = 0;
  bool has_inputs = false;
  bool has_results = outputs_ == Outputs::kMade;
  bool lacks_input = false;
  for (const PooledAlias* tensor : tensors_) {
    bytes += tensor->nbytes();
    if (tensor->writes()) {
      has_results = has_results || tensor->nbytes() != 0;
    } else {
      lacks_input = lacks_input || (tensor->on_device() && tensor->nbytes() == 0 && !tensor->follows_in_list());
      has_inputs = has_inputs || tensor->on_device();
      input_bytes += tensor->nbytes();
    }
    dtypes.add(tensor->dtype_symbol());
  }
  count(bytes);
  has_data_ = !has_inputs || input_bytes != 0;
  asks_for_dtypes_ = !lacks_input && has_results;
  is_known_ = has_data_ && outputs_ != Outputs::kUnknown && kernel_.op.takes(dtypes) && !outputs_overlap(tensors_);
}

void CPUKernelLaunch::ask(std::span<at::Tensor> results) {
  if (kernel_.op.traits.takes_pivots) {
    for (const PooledAlias* tensor : tensors_) {
      const at::Tensor& pivots = tensor->get();
      if (pivots.scalar_type() != at::kInt) continue;
      std::fill_n(static_cast<int32_t*>(pivots.mutable_data_ptr()), pivots.storage().nbytes() / sizeof(int32_t), 1);
    }
  }
  const auto words = [&] {
    DtypeWords result;
    for (const PooledAlias* tensor : tensors_) result.add(tensor->dtype_symbol());
    return asks_for_dtypes_ ? result.text() : std::string();
  };
  ask_kernel(kernel_.op, words, [&] {
    try {
      run_on_host(call_, results, /*is_trial=*/true);
    } catch (const c10::Error& error) {
      if (!has_data_ || outputs_ == Outputs::kUnknown || !is_about_data(error)) throw;
    }
  });
}

void CPUKernelLaunch::make_outputs(at::ArrayRef<TensorShape> shapes, std::span<at::Tensor> outputs) {
  const c10::Device device(device_type(), stream_.device());
  size_t bytes = 0;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!shapes.empty()) {
      outputs[i] = empty_of(shapes[i]);
    } else if (outputs[i].defined()) {
      outputs[i] =
          at::detail::empty_strided_mtia(outputs[i].sizes(), outputs[i].strides(), outputs[i].options().device(device));
    }
    if (outputs[i].defined()) bytes += outputs[i].nbytes();
  }
  count(bytes);
}

void CPUKernelLaunch::submit(at::TensorList outputs) {
  const uint64_t ticket = awaited_ ? awaited_->ticket() : 0;
  Block<CPUKernelWork> block{{CPUKernelWork(call_, own_output(outputs), ticket)}, info_.name};
  launch(stream_, info_, block, kernel_.order);
  if (C10_LIKELY(!awaited_)) return;
  stream_.wait();
  awaited_->raise_error();
}

// Also of the bits of a lazily conjugate or negative result, which an output does not have.
bool same_layout(const at::Tensor& left, const at::Tensor& right) {
  if (left.sizes() != right.sizes() || left.scalar_type() != right.scalar_type()) return false;
  if (left.is_conj() != right.is_conj() || left.is_neg() != right.is_neg()) return false;
  for (int64_t dim = 0; dim < left.dim(); ++dim) {
    if (left.size(dim) != 1 && left.stride(dim) != right.stride(dim)) return false;
  }
  return true;
}

}  // namespace

OutputOffer::OutputOffer(at::TensorList outputs) : outputs_(outputs) {
  for (const at::Tensor& output : outputs) {
    if (output.defined() && output.is_non_overlapping_and_dense())
      offer_.add(output.mutable_data_ptr(), output.nbytes());
  }
}

void OutputOffer::settle(std::span<at::Tensor> results) {
  offer_.close();
  TORCH_INTERNAL_ASSERT(results.size() == outputs_.size());
  const auto in_place = [&](size_t i) {
    return results[i].const_data_ptr() == outputs_[i].const_data_ptr() && same_layout(results[i], outputs_[i]);
  };
  const auto uses_offer = [&](const at::Tensor& result) {
    return std::any_of(outputs_.begin(), outputs_.end(), [&](const at::Tensor& output) {
      return output.defined() && output.storage().data() == result.storage().data();
    });
  };
  c10::SmallVector<size_t, 4> to_copy;
  for (size_t i = 0; i < outputs_.size(); ++i) {
    if (!outputs_[i].defined() || outputs_[i].numel() == 0) continue;
    TORCH_INTERNAL_ASSERT(results[i].defined() && results[i].sizes() == outputs_[i].sizes());
    if (in_place(i)) continue;
    if (uses_offer(results[i])) results[i] = results[i].clone();
    to_copy.push_back(i);
  }
  for (const size_t i : to_copy) outputs_[i].copy_(results[i]);
}

void launch_kernel(const CPUKernelInfo& kernel, c10::Device device, KernelCall& call) {
  CPUKernelLaunch launch(kernel, device, call, Outputs::kGiven);
  launch.check_dtypes({});
  launch.submit({});
}

void launch_kernel(const CPUKernelInfo& kernel, c10::Device device, KernelCall& call, at::ArrayRef<TensorShape> shapes,
                   std::span<at::Tensor> outputs) {
  CPUKernelLaunch launch(kernel, device, call, shapes.empty() ? Outputs::kUnknown : Outputs::kMade);
  launch.check_dtypes(outputs);
  launch.make_outputs(shapes, outputs);
  launch.submit(at::TensorList(outputs.data(), outputs.size()));
}

bool ListArguments::have_same_length() const {
  const size_t length = lists_.front().size();
  return std::all_of(lists_.begin(), lists_.end(), [&](at::TensorList list) { return list.size() == length; }) &&
         (!has_scalar_list_ || scalars_.size() == length);
}

bool ListArguments::overlap_partially() const {
  const auto overlaps = [](const at::Tensor& written, const at::Tensor& read) {
    const auto status = at::get_overlap_status(written, read);
    return status == at::MemOverlapStatus::Partial || status == at::MemOverlapStatus::TooHard;
  };
  const at::TensorList self = lists_.front();
  for (size_t i = 0; i < self.size(); ++i) {
    for (size_t list = 1; list < lists_.size(); ++list) {
      if (overlaps(self[i], lists_[list][i])) return true;
    }
    for (const at::Tensor* tensor : tensors_) {
      if (overlaps(self[i], *tensor)) return true;
    }
  }
  return false;
}

bool ListArguments::fits_one_item(const Operator& op) const {
  const at::TensorList self = lists_.front();
  if (self.empty() || !have_same_length()) return false;
  const at::ScalarType dtype = self.front().scalar_type();
  const c10::Device device = self.front().device();
  // Integers: whether an operator takes them depends on the values of its scalars.
  if (!is_ours(device) || !(at::isFloatingType(dtype) || at::isComplexType(dtype))) return false;
  // Some operators refuse booleans, also as numbers.
  const auto is_boolean = [](const at::Scalar& scalar) { return scalar.isBoolean(); };
  if (std::any_of(scalars_.begin(), scalars_.end(), is_boolean)) return false;
  // The slow path, which does not round the numbers, is what the operator gives.
  const auto is_one = [](const at::Scalar& scalar) { return scalar.equal(1); };
  if (op.traits.rounds_numbers && at::isReducedFloatingType(dtype) &&
      !std::all_of(scalars_.begin(), scalars_.end(), is_one)) {
    return false;
  }
  const bool tensors_fit = std::all_of(tensors_.begin(), tensors_.end(), [&](const at::Tensor* tensor) {
    return tensor->defined() && tensor->dim() == 0 && tensor->scalar_type() == dtype &&
           (tensor->device() == device || tensor->is_cpu());
  });
  return tensors_fit && at::native::check_fast_path_restrictions(lists_, scalars_) && !overlap_partially();
}

void ListArguments::check(const char* name) const {
  const at::TensorList self = lists_.front();
  const at::Tensor& first = self.front();
  const bool walks_in_step = lists_.size() > 1;
  for (const at::TensorList list : lists_) {
    if (list.empty()) continue;
    TORCH_CHECK(list.size() == self.size(), name, ": expected lists of the same length, got ", self.size(), " and ",
                list.size());
    for (size_t i = 0; i < list.size(); ++i) {
      const at::Tensor& tensor = list[i];
      TORCH_CHECK(tensor.device() == first.device(), "Expected all tensors to be on the same device, but found ",
                  first.device(), " and ", tensor.device(), "! (when running ", name, ")");
      if (!walks_in_step) continue;
      TORCH_CHECK(tensor.scalar_type() == list.front().scalar_type(), name,
                  ": expected the tensors of a list to have one dtype, got ", list.front().scalar_type(), " and ",
                  tensor.scalar_type());
      // Kernels walk through memory and take no strides. A step count is one number for each tensor.
      const bool is_alike = tensor.sizes() == self[i].sizes() && tensor.strides() == self[i].strides();
      TORCH_CHECK((is_alike && tensor.is_non_overlapping_and_dense()) || tensor.numel() == 1, name,
                  ": expected dense tensors of the same sizes and strides at position ", i, " of all lists, got ",
                  self[i].sizes(), " and ", tensor.sizes());
    }
  }
  for (const at::Tensor* tensor : tensors_) {
    TORCH_CHECK(!tensor->defined() || tensor->device() == first.device() || (tensor->is_cpu() && tensor->dim() == 0),
                "Expected all tensors to be on the same device, but found ", first.device(), " and ", tensor->device(),
                "! (when running ", name, ")");
  }
}

void advance_versions(at::TensorList list) {
  for (const at::Tensor& tensor : list) {
    if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
  }
}

}  // namespace torch_mtia
