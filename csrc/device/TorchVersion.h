// What differs between the versions of PyTorch that torch_mtia/_versions.py lists, and nothing else asks for the
// version. The sources are written for the newest: here the older ones get what they lack.
#pragma once

#include <ATen/detail/MTIAHooksInterface.h>
#include <torch/headeronly/version.h>

#define TORCH_MTIA_TORCH_BEFORE(major, minor) \
  (TORCH_VERSION_MAJOR < (major) || (TORCH_VERSION_MAJOR == (major) && TORCH_VERSION_MINOR < (minor)))

namespace torch_mtia {

#if TORCH_MTIA_TORCH_BEFORE(2, 15)
struct MTIAHooksInterface : at::MTIAHooksInterface {
  virtual bool isCurrentStreamCapturing() const = 0;
};
#else
using MTIAHooksInterface = at::MTIAHooksInterface;
#endif

}  // namespace torch_mtia
