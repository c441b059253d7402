// What generated C++ code calls to load and launch kernels on mtia: the counterpart of what Inductor writes into the
// code for CUDA.
#pragma once

#include <torch/csrc/inductor/aoti_runtime/utils.h>
#include <torch_mtia/aoti/c_shim_mtia.h>
#include <torch_mtia/aoti/shim.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#define aoti_torch_empty_strided aoti_torch_mtia_empty_strided
#define aoti_torch_proxy_executor_call_function aoti_torch_mtia_proxy_executor_call_function

namespace torch::aot_inductor {

inline void check_mtia(AOTITorchError error) {
  if (error != AOTI_TORCH_SUCCESS) throw std::runtime_error(torch_exception_get_what_without_backtrace());
}

class AOTIMtiaGuard {
 public:
  explicit AOTIMtiaGuard(int32_t device_index) { check_mtia(aoti_torch_create_mtia_guard(device_index, &guard_)); }
  ~AOTIMtiaGuard() { aoti_torch_delete_mtia_guard(guard_); }
  AOTIMtiaGuard(const AOTIMtiaGuard&) = delete;
  AOTIMtiaGuard& operator=(const AOTIMtiaGuard&) = delete;

  void set_index(int32_t device_index) { check_mtia(aoti_torch_mtia_guard_set_index(guard_, device_index)); }

 private:
  MTIAGuardHandle guard_ = nullptr;
};

class AOTIMtiaStreamGuard {
 public:
  AOTIMtiaStreamGuard(mtia_stream stream, int32_t device_index) {
    check_mtia(aoti_torch_create_mtia_stream_guard(stream, device_index, &guard_));
  }
  ~AOTIMtiaStreamGuard() { aoti_torch_delete_mtia_stream_guard(guard_); }
  AOTIMtiaStreamGuard(const AOTIMtiaStreamGuard&) = delete;
  AOTIMtiaStreamGuard& operator=(const AOTIMtiaStreamGuard&) = delete;

 private:
  MTIAStreamGuardHandle guard_ = nullptr;
};

}  // namespace torch::aot_inductor

[[maybe_unused]] static inline MTIAKernelHandle keep_kernel(MTIAKernelHandle kernel,
                                                            std::vector<MTIAKernelHandle>* loaded_modules) {
  if (loaded_modules != nullptr) loaded_modules->push_back(kernel);  // which are deleted with the model
  return kernel;
}

// From a file: the one of that name in the folder of the package, or, without one, where it was written.
[[maybe_unused]] static inline MTIAKernelHandle loadKernel(const std::string& path, const std::string& name,
                                                           uint32_t /*shared_memory*/,
                                                           const std::optional<std::string>& folder = std::nullopt,
                                                           std::vector<MTIAKernelHandle>* loaded_modules = nullptr) {
  std::filesystem::path file(path);
  if (folder) file = *folder / file.filename();
  MTIAKernelHandle kernel = nullptr;
  torch::aot_inductor::check_mtia(aoti_torch_mtia_load_kernel_file(file.c_str(), name.c_str(), &kernel));
  return keep_kernel(kernel, loaded_modules);
}

// From the library itself.
[[maybe_unused]] static inline MTIAKernelHandle loadKernel(const void* image, const std::string& name,
                                                           uint32_t /*shared_memory*/,
                                                           std::vector<MTIAKernelHandle>* loaded_modules = nullptr) {
  MTIAKernelHandle kernel = nullptr;
  torch::aot_inductor::check_mtia(aoti_torch_mtia_load_kernel(image, name.c_str(), &kernel));
  return keep_kernel(kernel, loaded_modules);
}

[[maybe_unused]] static inline void launchKernel(MTIAKernelHandle kernel, uint32_t grid_x, uint32_t grid_y,
                                                 uint32_t grid_z, uint32_t /*num_warps*/, uint32_t /*shared_memory*/,
                                                 void* arguments[], mtia_stream stream) {
  torch::aot_inductor::check_mtia(aoti_torch_mtia_launch_kernel(kernel, grid_x, grid_y, grid_z, arguments, stream));
}
