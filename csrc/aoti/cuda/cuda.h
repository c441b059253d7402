// What torch/csrc/inductor/aoti_runtime uses of CUDA's driver, for mtia: those headers know CUDA, XPU and MPS, and are
// taken as they are, with USE_CUDA. Nothing else is to include this file.
#pragma once

#include <torch_mtia/aoti/shim.h>

// The device type that a model's device string, "cuda:0", stands for.
#define aoti_torch_device_type_cuda aoti_torch_device_type_mtia

// With the option weight_use_caching_allocator; all memory is that allocator's.
#define aoti_torch_cuda_caching_allocator_raw_alloc aoti_torch_mtia_allocate
#define aoti_torch_cuda_caching_allocator_raw_delete aoti_torch_mtia_free

using CUresult = AOTITorchError;
using CUmodule = MTIAKernelHandle;
inline constexpr CUresult CUDA_SUCCESS = AOTI_TORCH_SUCCESS;

inline CUresult cuModuleUnload(CUmodule kernel) {
  return aoti_torch_mtia_delete_kernel(kernel);
}

inline CUresult cuGetErrorString(CUresult /*error*/, const char** message) {
  *message = torch_exception_get_what_without_backtrace();
  return CUDA_SUCCESS;
}
