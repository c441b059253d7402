#include "ModelRunner.h"

#include <ATen/DynamicLibrary.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>
#include <torch/csrc/inductor/aoti_torch/utils.h>

#include <filesystem>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "../core/Waits.h"
#include "../device/MTIAStream.h"
#include "../runtime/forks.h"
#include "Package.h"

namespace torch_mtia {
namespace {

c10::DeviceIndex index_of(const std::string& device) {
  ensure_initialized();
  return index_or_current(c10::Device(device).index());
}

// Before the model runs. The constructors of the library have run by then: a package is a program, and nothing here
// makes one from somewhere else safe to load. `library` is loaded again by who runs it.
const std::string& checked(const std::string& library) {
  const std::unique_ptr<void, int (*)(void*)> handle(dlopen(library.c_str(), RTLD_LAZY | RTLD_LOCAL), &dlclose);
  TORCH_CHECK(handle != nullptr, "the package's library does not load: ", dlerror());
  const auto* info = static_cast<const torch_mtia_package_info*>(dlsym(handle.get(), "torch_mtia_package"));
  TORCH_CHECK(info != nullptr, library, " was not made for ", device_name());
  check_package(library, *info);
  check_kernel_images(std::filesystem::path(library).parent_path().string());
  return library;
}

// The model's own, for the time in which it is loaded: it makes that device the current one.
std::string cuda_string(c10::DeviceIndex device) {
  return "cuda:" + std::to_string(device);  // the only device that its code knows beside the CPU: see cuda/cuda.h
}

std::unique_ptr<torch::inductor::AOTIModelContainerRunner> make_runner(const std::string& library, size_t num_models,
                                                                       const std::string& device,
                                                                       const std::string& folder,
                                                                       bool run_single_threaded) {
  const c10::DeviceGuard guard(c10::Device(device_type(), index_of(device)));
  take_shim_error();
  try {
    return std::make_unique<ModelRunner>(library, num_models, device, folder, run_single_threaded);
  } catch (const std::exception&) {
    if (const auto error = take_shim_error()) std::rethrow_exception(error);
    throw;
  }
}

const DeviceTypeRegistration runner_registration([](const RegisteredType& registered, bool active) {
  auto& runners = torch::inductor::getAOTIModelRunnerRegistry();
  if (active) {
    runners[registered.name] = &make_runner;
  } else {
    runners.erase(registered.name);
  }
});

// What is called with a container, and nothing else, finds its runner here. Leaked: packages are unloaded at exit.
class Runners {
 public:
  Runners() { runtime::hold_at_forks(runtime::ForkOrder::kTable, mutex_); }

  static Runners& all() {
    static auto* const runners = new Runners();
    return *runners;
  }
  void set(AOTInductorModelContainerHandle container, ModelRunner* runner) {
    const std::lock_guard lock(mutex_);
    runner == nullptr ? void(of_containers_.erase(container)) : void(of_containers_[container] = runner);
  }
  ModelRunner& of(AOTInductorModelContainerHandle container) {
    const std::lock_guard lock(mutex_);
    return *of_containers_.at(container);
  }

 private:
  std::mutex mutex_;
  std::unordered_map<AOTInductorModelContainerHandle, ModelRunner*> of_containers_;
};

}  // namespace

template <ModelRunner::Update ModelRunner::* update>
AOTIRuntimeError ModelRunner::update_constants(AOTInductorModelContainerHandle container,
                                               AOTInductorConstantMapHandle constants, bool use_inactive,
                                               bool validate_full_update) {
  ModelRunner& runner = Runners::all().of(container);
  runner.check_constants(constants, /*are_copied=*/update != &ModelRunner::update_user_managed_);
  const auto original = [&] { return (runner.*update)(container, constants, use_inactive, validate_full_update); };
  return use_inactive ? runner.change(original) : runner.change_between_runs(original);
}

AOTIRuntimeError ModelRunner::swap_constants(AOTInductorModelContainerHandle container) {
  ModelRunner& runner = Runners::all().of(container);
  return runner.change_between_runs([&] { return runner.swap_(container); });
}

// It allocates on the current device.
template <typename Original>
AOTIRuntimeError ModelRunner::change(const Original& original) const {
  const c10::DeviceGuard guard(c10::Device(device_type(), device_));
  take_shim_error();
  const AOTIRuntimeError result = original();
  if (const auto error = result == AOTI_RUNTIME_SUCCESS ? nullptr : take_shim_error()) std::rethrow_exception(error);
  return result;
}

// Upstream's container copies as much as is stored, wherever it ends, and takes the offset twice.
void ModelRunner::check_constants(AOTInductorConstantMapHandle constants, bool are_copied) const {
  constexpr size_t kAlignment = 64;  // of sizes, where some constants are on the CPU
  using Constants = std::unordered_map<std::string, AtenTensorHandle>;
  for (const auto& [name, handle] : *reinterpret_cast<const Constants*>(constants)) {
    const auto found = constants_.find(name);
    if (found == constants_.end()) continue;
    const at::Tensor& tensor = *torch::aot_inductor::tensor_handle_to_tensor_pointer(handle);
    const auto [dtype, num_bytes] = found->second;
    TORCH_CHECK(static_cast<int32_t>(tensor.scalar_type()) == dtype, "the constant ", name, " of the package is ",
                static_cast<c10::ScalarType>(dtype), ", and not ", tensor.scalar_type());
    const size_t given = are_copied ? tensor.storage().nbytes() : num_bytes;
    TORCH_CHECK(given <= num_bytes && num_bytes - given < kAlignment && (!are_copied || tensor.storage_offset() == 0),
                "the constant ", name, " of the package has ", num_bytes, " bytes, and not ", given,
                " from the start of its storage: give the whole of it, and no view of something larger");
  }
}

// Upstream's container replaces tensors that a run may be reading, on another thread or in a stream that is not done.
template <typename Original>
AOTIRuntimeError ModelRunner::change_between_runs(const Original& original) {
  const core::WithoutGil without_gil;
  const std::lock_guard next(next_);
  const std::lock_guard alone(constants_in_use_);
  synchronize_device(device_);
  is_folded_ = false;
  return change(original);
}

// Upstream's container does it in the first run. There it loses the model if that fails, and waits for it forever in
// the next; and runs in other streams do not wait for what is folded. What a graph folds, it folds when it is replayed.
void ModelRunner::fold_constants(void* stream_handle) {
  const auto result = run_const_fold_func_(container_handle_, /*use_inactive=*/false,
                                           static_cast<AOTInductorStreamHandle>(stream_handle), proxy_executor_handle_);
  TORCH_CHECK(result == AOTI_RUNTIME_SUCCESS, "the constants of a package could not be folded");
  const auto stream = MTIAStream::find(device_, stream_handle);
  is_folded_ = stream && stream->core().wait_unless_captured();
  if (is_folded_) core::program_has_waited(stream->core());
}

ModelRunner::ModelRunner(const std::string& library, size_t num_models, const std::string& device,
                         const std::string& folder, bool run_single_threaded)
    : AOTIModelContainerRunner(checked(library), num_models, cuda_string(index_of(device)), folder,
                               run_single_threaded),
      device_(index_of(device)),
      update_(std::exchange(update_constant_buffer_func_, &update_constants<&ModelRunner::update_>)),
      update_from_cpu_(
          std::exchange(update_constant_buffer_from_cpu_func_, &update_constants<&ModelRunner::update_from_cpu_>)),
      update_user_managed_(std::exchange(update_user_managed_constant_buffer_func_,
                                         &update_constants<&ModelRunner::update_user_managed_>)),
      swap_(std::exchange(swap_constant_buffer_func_, &swap_constants)) {
  Runners::all().set(container_handle_, this);
  const auto from_folded = reinterpret_cast<decltype(&AOTInductorModelContainerGetConstantFromFolded)>(
      model_so_->sym("AOTInductorModelContainerGetConstantFromFolded"));
  size_t count = 0;
  TORCH_CHECK(AOTI_RUNTIME_SUCCESS == get_num_constants_func_(container_handle_, &count), "the number of constants");
  const auto data_size = reinterpret_cast<decltype(&AOTInductorModelContainerGetConstantDataSize)>(
      model_so_->sym("AOTInductorModelContainerGetConstantDataSize"));
  for (size_t i = 0; i < count; ++i) {
    const char* name = nullptr;
    bool is_folded = false;
    Constant constant{};
    TORCH_CHECK(AOTI_RUNTIME_SUCCESS == get_constant_name_func_(container_handle_, i, &name) &&
                    AOTI_RUNTIME_SUCCESS == from_folded(container_handle_, i, &is_folded) &&
                    AOTI_RUNTIME_SUCCESS == get_constant_dtype_func_(container_handle_, i, &constant.dtype) &&
                    AOTI_RUNTIME_SUCCESS == data_size(container_handle_, i, &constant.num_bytes),
                "constant ", i);
    if (is_folded) {
      has_folded_constants_ = true;
    } else {
      constants_.emplace(name, constant);
    }
  }
}

ModelRunner::~ModelRunner() {
  Runners::all().set(container_handle_, nullptr);
}

std::vector<at::Tensor> ModelRunner::run_impl(std::vector<AtenTensorHandle>& inputs, void* stream_handle) {
  for (size_t i = 0; i < inputs.size(); ++i) {
    TORCH_CHECK(!torch::aot_inductor::tensor_handle_to_tensor_pointer(inputs[i])->is_meta(), "input ", i,
                " of a package has no memory: it is a tensor of the device meta");
  }
  const c10::DeviceGuard guard(c10::Device(device_type(), device_));
  if (stream_handle == nullptr) stream_handle = MTIAStream::current(device_).core().handle();
  // Upstream's container waits for models that other threads run, which may have to take the GIL back before they end.
  const core::WithoutGil without_gil;
  std::unique_lock next(next_);
  take_shim_error();
  try {
    if (has_folded_constants_ && !is_folded_) {
      const std::lock_guard alone(constants_in_use_);
      fold_constants(stream_handle);
    }
    const std::shared_lock constants(constants_in_use_);
    next.unlock();
    return AOTIModelContainerRunner::run_impl(inputs, stream_handle);
  } catch (const std::exception&) {
    if (const auto error = take_shim_error()) std::rethrow_exception(error);
    throw;
  }
}

}  // namespace torch_mtia
