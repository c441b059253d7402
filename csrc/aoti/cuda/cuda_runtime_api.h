// What torch/csrc/inductor/aoti_runtime uses of CUDA's runtime, for mtia: see cuda.h.
#pragma once

#include <torch_mtia/aoti/shim.h>

using cudaError_t = AOTITorchError;
using cudaStream_t = mtia_stream;
using cudaEvent_t = MTIAEventHandle;
inline constexpr cudaError_t cudaSuccess = AOTI_TORCH_SUCCESS;
inline constexpr cudaError_t cudaErrorNotReady = 600;
enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice, cudaMemcpyDefault };

// Of this thread's last call that failed: the functions keep the message, not a number.
inline const char* cudaGetErrorString(cudaError_t /*error*/) {
  return torch_exception_get_what_without_backtrace();
}
inline cudaError_t cudaGetLastError() {
  return AOTI_TORCH_FAILURE;
}

inline cudaError_t cudaGetDevice(int* device) {
  return aoti_torch_mtia_get_device(device);
}
inline cudaError_t cudaSetDevice(int device) {
  return aoti_torch_mtia_set_device(device);
}

inline cudaError_t cudaMalloc(void** address, size_t nbytes) {
  return aoti_torch_mtia_allocate(nbytes, address);
}
inline cudaError_t cudaFree(void* address) {
  return aoti_torch_mtia_free(address);
}
inline cudaError_t cudaMemcpy(void* to, const void* from, size_t nbytes, cudaMemcpyKind /*kind*/) {
  return aoti_torch_mtia_copy(to, from, nbytes);
}

inline cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return aoti_torch_mtia_create_event(event);
}
inline cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return aoti_torch_mtia_delete_event(event);
}
inline cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return aoti_torch_mtia_record_event(event, stream);
}
inline cudaError_t cudaEventQuery(cudaEvent_t event) {
  int32_t is_complete = 0;
  const cudaError_t error = aoti_torch_mtia_query_event(event, &is_complete);
  return error == cudaSuccess && is_complete == 0 ? cudaErrorNotReady : error;
}
inline cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return aoti_torch_mtia_synchronize_event(event);
}

// What PyTorch 2.14 and later stage constants with, in pinned memory on a stream of their own, is refused at its first
// step. Upstream then copies them as before.
inline constexpr unsigned cudaStreamNonBlocking = 1;
inline constexpr unsigned cudaEventDisableTiming = 2;
inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t* /*stream*/, unsigned /*flags*/) {
  return AOTI_TORCH_FAILURE;
}
inline cudaError_t cudaEventCreateWithFlags(cudaEvent_t* /*event*/, unsigned /*flags*/) {
  return AOTI_TORCH_FAILURE;
}
// Of the default stream, after copies of constants: cudaMemcpy above has waited for them.
inline cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return stream == nullptr ? cudaSuccess : AOTI_TORCH_FAILURE;
}
inline cudaError_t cudaStreamDestroy(cudaStream_t /*stream*/) {
  return AOTI_TORCH_FAILURE;
}
inline cudaError_t cudaMemcpyAsync(void* /*to*/, const void* /*from*/, size_t /*nbytes*/, cudaMemcpyKind /*kind*/,
                                   cudaStream_t /*stream*/) {
  return AOTI_TORCH_FAILURE;
}
enum cudaMemoryType { cudaMemoryTypeUnregistered };
struct cudaPointerAttributes {
  cudaMemoryType type;
};
inline cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* /*attributes*/, const void* /*address*/) {
  return AOTI_TORCH_FAILURE;
}
