// Runs what AOTInductor has compiled for mtia: the counterpart of AOTIModelContainerRunnerCuda. libtorch's
// AOTIModelPackageLoader and torch._inductor.aoti_load_package find it by the name of the device.
#pragma once

#include <torch/csrc/inductor/aoti_runner/model_container_runner.h>

#include <mutex>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "../device/MTIAFunctions.h"

namespace torch_mtia {

class ModelRunner final : public torch::inductor::AOTIModelContainerRunner {
 public:
  // `device` is "mtia" or "mtia:1". Raises RuntimeError for a package that was made for something else.
  ModelRunner(const std::string& library, size_t num_models, const std::string& device, const std::string& folder,
              bool run_single_threaded);
  ~ModelRunner() override;

  // In the stream of that handle (mtia_stream), or else the current one of the model's device. Errors have the types
  // that operators have raised them with.
  std::vector<at::Tensor> run_impl(std::vector<AtenTensorHandle>& inputs, void* stream_handle) override;

 private:
  using Update = decltype(&AOTInductorModelContainerUpdateConstantBuffer);
  template <Update ModelRunner::* update>
  static AOTIRuntimeError update_constants(AOTInductorModelContainerHandle container,
                                           AOTInductorConstantMapHandle constants, bool use_inactive,
                                           bool validate_full_update);
  static AOTIRuntimeError swap_constants(AOTInductorModelContainerHandle container);
  template <typename Original>
  AOTIRuntimeError change(const Original& original) const;
  template <typename Original>
  AOTIRuntimeError change_between_runs(const Original& original);
  void fold_constants(void* stream_handle);
  void check_constants(AOTInductorConstantMapHandle constants, bool are_copied) const;

  struct Constant {
    int32_t dtype;
    size_t num_bytes;
  };

  const c10::DeviceIndex device_;
  // The first lets an update in among runs that follow each other closely: readers of the second would keep it out.
  std::mutex next_;
  std::shared_mutex constants_in_use_;
  bool has_folded_constants_ = false;
  std::unordered_map<std::string, Constant> constants_;  // that are not computed from others
  bool is_folded_ = false;                               // what constants are computed from others, of those in use
  Update update_;
  Update update_from_cpu_;
  Update update_user_managed_;
  decltype(&AOTInductorModelContainerSwapConstantBuffer) swap_;
};

}  // namespace torch_mtia
