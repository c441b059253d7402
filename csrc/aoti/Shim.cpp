#include "shim.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <torch/csrc/inductor/aoti_torch/utils.h>
#include <torch/csrc/shim_exception_state.h>
#include <torch/library.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

#include "../core/Driver.h"
#include "../core/Event.h"
#include "../core/Waits.h"
#include "../device/MTIACachingAllocator.h"
#include "../device/MTIAFunctions.h"
#include "../device/MTIAStream.h"
#include "Package.h"

namespace torch_mtia {
namespace {

thread_local std::exception_ptr last_error;

void set_message(const std::string& what, const std::string& what_without_backtrace) {
  torch::csrc::shim::details::set_torch_exception_what(what);
  torch::csrc::shim::details::set_torch_exception_what_without_backtrace(what_without_backtrace);
}

MTIAStream stream_of(c10::DeviceIndex device, mtia_stream handle) {
  const MTIAStream current = MTIAStream::current(device);
  if (handle == nullptr || current.core().handle() == handle) return current;
  const auto other = MTIAStream::find(device, handle);
  TORCH_CHECK_VALUE(other.has_value(), static_cast<const void*>(handle), " is not the handle of a stream of ",
                    device_name(device));
  return *other;
}

// The model has run on any stream, so the memory is reused after the present work of all.
void free_memory(void* address) {
  core::BlockAllocator* owner = MTIACachingAllocator::owner_of(address);
  if (owner == nullptr) return;
  const MTIAStream current = MTIAStream::current(static_cast<c10::DeviceIndex>(owner->device()));
  std::vector<MTIAStream> users = current.others();
  users.push_back(current);
  for (const MTIAStream& user : users) owner->record_stream(reinterpret_cast<uint64_t>(address), &user.core());
  MTIACachingAllocator::get().raw_deallocate(address);
}

void copy(void* to, const void* from, size_t nbytes) {
  if (nbytes == 0) return;
  const auto to_device = core::device_of_address(to);
  const auto from_device = core::device_of_address(from);
  if (!to_device && !from_device) {
    std::memcpy(to, from, nbytes);
    return;
  }
  const mtia_copy_kind kind = !to_device     ? MTIA_COPY_DEVICE_TO_HOST
                              : !from_device ? MTIA_COPY_HOST_TO_DEVICE
                                             : MTIA_COPY_DEVICE_TO_DEVICE;
  if (to_device && from_device && *to_device != *from_device) {
    synchronize_device(static_cast<c10::DeviceIndex>(*from_device));  // no event orders the copy after its streams
  }
  const MTIAStream stream = MTIAStream::current(static_cast<c10::DeviceIndex>(to_device ? *to_device : *from_device));
  stream.core().copy(reinterpret_cast<uint64_t>(to), reinterpret_cast<uint64_t>(from), nbytes, kind);
  stream.synchronize();
}

std::string read_file(const char* path) {
  std::ifstream file(path, std::ios::binary);
  TORCH_CHECK(file.is_open(), "the file of a kernel of this package cannot be read: ", path);
  return {std::istreambuf_iterator<char>(file), {}};
}

PackageKernel* kernel_of(MTIAKernelHandle handle) {
  return reinterpret_cast<PackageKernel*>(handle);
}

core::Event* event_of(MTIAEventHandle handle) {
  return reinterpret_cast<core::Event*>(handle);
}

// Handles own what they stand for.
template <typename Handle, typename Object>
Handle handle_of(std::unique_ptr<Object> object) {
  return reinterpret_cast<Handle>(object.release());
}

template <typename Object, typename Handle>
void destroy(Handle handle) {
  const std::unique_ptr<Object> object(reinterpret_cast<Object*>(handle));
}

// Operators that packages call by their schema, through libtorch's executor. It gives those that take a device one of
// CUDA, whatever the package says, and has no place for another. So the call passes through a boxed kernel that puts
// the model's device in its place; at a key that upstream keeps for tests of exactly that, because none is for it.
constexpr auto kProxyKey = c10::DispatchKey::TESTING_ONLY_GenericMode;

void with_device_of_model(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard once(kProxyKey);
  const auto count = static_cast<std::ptrdiff_t>(op.schema().arguments().size());
  for (auto argument = stack->end() - count; argument != stack->end(); ++argument) {
    if (argument->isDevice() && argument->toDevice().is_cuda()) {
      *argument = c10::Device(device_type(), current_device());
    }
  }
  op.callBoxed(stack);
}

// To register a fallback takes milliseconds, as it changes the tables of all operators.
void ensure_proxy_kernel() {
  [[maybe_unused]] static const auto* const registered = [] {
    auto* const library = new torch::Library(torch::Library::IMPL, "_", kProxyKey, __FILE__, __LINE__);
    library->fallback(torch::CppFunction::makeFromBoxedFunction<&with_device_of_model>());
    return library;
  }();
}

}  // namespace

AOTITorchError keep_shim_error(std::exception_ptr error) {
  last_error = std::move(error);
  try {
    std::rethrow_exception(last_error);
  } catch (const c10::Error& e) {
    set_message(e.what(), e.what_without_backtrace());
  } catch (const std::exception& e) {
    set_message(e.what(), e.what());
  } catch (...) {
    set_message("unknown error", "unknown error");
  }
  return AOTI_TORCH_FAILURE;
}

std::exception_ptr take_shim_error() {
  return std::exchange(last_error, nullptr);
}

}  // namespace torch_mtia

using namespace torch_mtia;

int32_t aoti_torch_device_type_mtia() {
  return static_cast<int32_t>(device_type());
}

AOTITorchError aoti_torch_mtia_get_device(int32_t* ret_index) {
  return run_shim([&] { *ret_index = current_device(); });
}

AOTITorchError aoti_torch_mtia_set_device(int32_t index) {
  return run_shim([&] { set_device(to_device_index(index)); });
}

AOTITorchError aoti_torch_create_mtia_guard(int32_t device_index, MTIAGuardHandle* ret_guard) {
  return run_shim([&] {
    *ret_guard = handle_of<MTIAGuardHandle>(
        std::make_unique<c10::DeviceGuard>(c10::Device(device_type(), to_device_index(device_index))));
  });
}

AOTITorchError aoti_torch_mtia_guard_set_index(MTIAGuardHandle guard, int32_t device_index) {
  return run_shim([&] { reinterpret_cast<c10::DeviceGuard*>(guard)->set_index(to_device_index(device_index)); });
}

AOTITorchError aoti_torch_delete_mtia_guard(MTIAGuardHandle guard) {
  return run_shim([&] { destroy<c10::DeviceGuard>(guard); });
}

AOTITorchError aoti_torch_get_current_mtia_stream(int32_t device_index, void** ret_stream) {
  return run_shim([&] {
    ensure_initialized();
    *ret_stream = MTIAStream::current(index_or_current(to_device_index(device_index))).core().handle();
  });
}

AOTITorchError aoti_torch_create_mtia_stream_guard(mtia_stream stream, int32_t device_index,
                                                   MTIAStreamGuardHandle* ret_guard) {
  return run_shim([&] {
    ensure_initialized();
    const auto device = index_or_current(to_device_index(device_index));
    *ret_guard =
        handle_of<MTIAStreamGuardHandle>(std::make_unique<c10::StreamGuard>(stream_of(device, stream).unwrap()));
  });
}

AOTITorchError aoti_torch_delete_mtia_stream_guard(MTIAStreamGuardHandle guard) {
  return run_shim([&] { destroy<c10::StreamGuard>(guard); });
}

AOTITorchError aoti_torch_mtia_allocate(uint64_t nbytes, void** ret_address) {
  return run_shim([&] { *ret_address = MTIACachingAllocator::get().raw_allocate(nbytes); });
}

AOTITorchError aoti_torch_mtia_free(void* address) {
  return run_shim([&] { free_memory(address); });
}

AOTITorchError aoti_torch_mtia_copy(void* to, const void* from, uint64_t nbytes) {
  return run_shim([&] { copy(to, from, nbytes); });
}

AOTITorchError aoti_torch_mtia_empty_strided(int64_t ndim, const int64_t* sizes, const int64_t* strides, int32_t dtype,
                                             int32_t device_type, int32_t device_index, AtenTensorHandle* ret) {
  return run_shim([&] {
    const auto dimensions = static_cast<size_t>(ndim);
    const auto type = static_cast<c10::DeviceType>(device_type);
    const c10::Device device(type, type == c10::DeviceType::CPU ? c10::DeviceIndex{-1} : to_device_index(device_index));
    at::Tensor tensor = at::empty_strided({sizes, dimensions}, {strides, dimensions},
                                          at::TensorOptions(device).dtype(static_cast<c10::ScalarType>(dtype)));
    *ret = torch::aot_inductor::new_tensor_handle(std::move(tensor));
  });
}

AOTITorchError aoti_torch_mtia_create_event(MTIAEventHandle* ret_event) {
  return run_shim([&] {
    ensure_initialized();
    *ret_event = handle_of<MTIAEventHandle>(std::make_unique<core::Event>(/*enable_timing=*/false));
  });
}

AOTITorchError aoti_torch_mtia_delete_event(MTIAEventHandle event) {
  return run_shim([&] { destroy<core::Event>(event); });
}

AOTITorchError aoti_torch_mtia_record_event(MTIAEventHandle event, mtia_stream stream) {
  return run_shim([&] {
    core::Stream& recorded = stream_of(current_device(), stream).core();
    if (recorded.graph() == nullptr) event_of(event)->record(recorded);
  });
}

AOTITorchError aoti_torch_mtia_query_event(MTIAEventHandle event, int32_t* ret_is_complete) {
  return run_shim([&] { *ret_is_complete = core::program_queries(*event_of(event)) ? 1 : 0; });
}

AOTITorchError aoti_torch_mtia_synchronize_event(MTIAEventHandle event) {
  return run_shim([&] { core::program_waits_for(*event_of(event)); });
}

AOTITorchError aoti_torch_mtia_load_kernel_file(const char* path, const char* name, MTIAKernelHandle* ret_kernel) {
  return run_shim(
      [&] { *ret_kernel = handle_of<MTIAKernelHandle>(std::make_unique<PackageKernel>(name, read_file(path))); });
}

AOTITorchError aoti_torch_mtia_load_kernel(const void* image, const char* name, MTIAKernelHandle* ret_kernel) {
  return run_shim([&] {
    *ret_kernel = handle_of<MTIAKernelHandle>(std::make_unique<PackageKernel>(name, PackageKernel::image_at(image)));
  });
}

AOTITorchError aoti_torch_mtia_delete_kernel(MTIAKernelHandle kernel) {
  return run_shim([&] { destroy<PackageKernel>(kernel); });
}

AOTITorchError aoti_torch_mtia_launch_kernel(MTIAKernelHandle kernel, uint32_t grid_x, uint32_t grid_y, uint32_t grid_z,
                                             void** arguments, mtia_stream stream) {
  return run_shim([&] {
    const PackageKernel& to_launch = *kernel_of(kernel);
    to_launch.launch(stream_of(to_launch.device(), stream), {grid_x, grid_y, grid_z}, arguments);
  });
}

AOTITorchError aoti_torch_mtia_proxy_executor_call_function(AOTIProxyExecutorHandle proxy_executor,
                                                            int extern_node_index, int num_ints,
                                                            int64_t* flatten_int_args, int num_tensors,
                                                            AtenTensorHandle* flatten_tensor_args) {
  ensure_proxy_kernel();
  const c10::impl::IncludeDispatchKeyGuard through(kProxyKey);
  return aoti_torch_proxy_executor_call_function(proxy_executor, extern_node_index, num_ints, flatten_int_args,
                                                 num_tensors, flatten_tensor_args);
}
