// What packages made by AOTInductor, and code generated with cpp_wrapper, call of the device: a C ABI, beside that of
// libtorch (torch/csrc/inductor/aoti_torch/c/shim.h). The operators are in c_shim_mtia.h, which is generated.
//
// Functions return AOTI_TORCH_SUCCESS or AOTI_TORCH_FAILURE, with a message that libtorch keeps for the thread.
#pragma once

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/c/shim.h>

#include "../runtime/mtia_runtime.h"

// Changes whenever a function here changes: a package made for another is refused.
#define TORCH_MTIA_PACKAGE_VERSION 1

extern "C" {

// What a package was made with: a symbol in it, `torch_mtia_package`.
struct torch_mtia_package_info {
  int32_t version;         // TORCH_MTIA_PACKAGE_VERSION
  const char* torch_mtia;  // versions
  const char* torch;
  const char* driver;  // its name: kernel images are the driver's
};

// Of whichever is registered: `mtia`, or PrivateUse1.
AOTI_TORCH_EXPORT int32_t aoti_torch_device_type_mtia();

// The device of this thread.
AOTI_TORCH_EXPORT AOTITorchError aoti_torch_mtia_get_device(int32_t* ret_index);
AOTI_TORCH_EXPORT AOTITorchError aoti_torch_mtia_set_device(int32_t index);

using MTIAGuardHandle = struct MTIAGuardOpaque*;
AOTI_TORCH_EXPORT AOTITorchError aoti_torch_create_mtia_guard(int32_t device_index, MTIAGuardHandle* ret_guard);
AOTI_TORCH_EXPORT AOTITorchError aoti_torch_mtia_guard_set_index(MTIAGuardHandle guard, int32_t device_index);
AOTI_TORCH_EXPORT AOTITorchError aoti_torch_delete_mtia_guard(MTIAGuardHandle guard);

// Streams are the driver's handles; null is the current stream.
using MTIAStreamGuardHandle = struct MTIAStreamGuardOpaque*;
AOTI_TORCH_EXPORT AOTITorchError aoti_torch_get_current_mtia_stream(int32_t device_index, void** ret_stream);
AOTI_TORCH_EXPORT AOTITorchError aoti_torch_create_mtia_stream_guard(mtia_stream stream, int32_t device_index,
                                                                     MTIAStreamGuardHandle* ret_guard);
AOTI_TORCH_EXPORT AOTITorchError aoti_torch_delete_mtia_stream_guard(MTIAStreamGuardHandle guard);

// Memory of the current device, from the caching allocator. Freeing waits for what the device's streams were given.
AOTI_TORCH_EXPORT AOTITorchError aoti_torch_mtia_allocate(uint64_t nbytes, void** ret_address);
AOTI_TORCH_EXPORT AOTITorchError aoti_torch_mtia_free(void* address);
// Between any two places, in the current stream; done when it returns.
AOTI_TORCH_EXPORT AOTITorchError aoti_torch_mtia_copy(void* to, const void* from, uint64_t nbytes);
// As libtorch's, which would name the type of every error RuntimeError: packages allocate by this one.
AOTI_TORCH_EXPORT AOTITorchError aoti_torch_mtia_empty_strided(int64_t ndim, const int64_t* sizes,
                                                               const int64_t* strides, int32_t dtype,
                                                               int32_t device_type, int32_t device_index,
                                                               AtenTensorHandle* ret);

// As libtorch's, for operators that take a device: it gives them that of CUDA.
AOTI_TORCH_EXPORT AOTITorchError aoti_torch_mtia_proxy_executor_call_function(AOTIProxyExecutorHandle proxy_executor,
                                                                              int extern_node_index, int num_ints,
                                                                              int64_t* flatten_int_args,
                                                                              int num_tensors,
                                                                              AtenTensorHandle* flatten_tensor_args);

using MTIAEventHandle = struct MTIAEventOpaque*;
AOTI_TORCH_EXPORT AOTITorchError aoti_torch_mtia_create_event(MTIAEventHandle* ret_event);
AOTI_TORCH_EXPORT AOTITorchError aoti_torch_mtia_delete_event(MTIAEventHandle event);
// Does nothing in a stream that is being captured: a replay is nobody's run of the model.
AOTI_TORCH_EXPORT AOTITorchError aoti_torch_mtia_record_event(MTIAEventHandle event, mtia_stream stream);
AOTI_TORCH_EXPORT AOTITorchError aoti_torch_mtia_query_event(MTIAEventHandle event, int32_t* ret_is_complete);
AOTI_TORCH_EXPORT AOTITorchError aoti_torch_mtia_synchronize_event(MTIAEventHandle event);

// A kernel image on the current device: from a file, or from memory, as long as its header says.
using MTIAKernelHandle = struct MTIAKernelOpaque*;
AOTI_TORCH_EXPORT AOTITorchError aoti_torch_mtia_load_kernel_file(const char* path, const char* name,
                                                                  MTIAKernelHandle* ret_kernel);
AOTI_TORCH_EXPORT AOTITorchError aoti_torch_mtia_load_kernel(const void* image, const char* name,
                                                             MTIAKernelHandle* ret_kernel);
AOTI_TORCH_EXPORT AOTITorchError aoti_torch_mtia_delete_kernel(MTIAKernelHandle kernel);
// `arguments` points to a value for each argument of the image, of its size; what follows is not looked at. Pointers
// must be null or lie on the kernel's device.
AOTI_TORCH_EXPORT AOTITorchError aoti_torch_mtia_launch_kernel(MTIAKernelHandle kernel, uint32_t grid_x,
                                                               uint32_t grid_y, uint32_t grid_z, void** arguments,
                                                               mtia_stream stream);

}  // extern "C"
