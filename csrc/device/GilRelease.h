// Releases the GIL, if this thread holds it, while the thread waits for the device.
//
// Several of PyTorch's hooks are entered with the GIL held (torch.mtia.synchronize, empty_cache). Work that needs the
// GIL to finish, such as a Python kernel behind the fallback, would then wait for the waiter.
#pragma once

#include <Python.h>

namespace torch_mtia {

class GilRelease {
 public:
  GilRelease() : state_(Py_IsInitialized() && PyGILState_Check() ? PyEval_SaveThread() : nullptr) {}
  ~GilRelease() {
    if (state_ != nullptr) PyEval_RestoreThread(state_);
  }
  GilRelease(const GilRelease&) = delete;
  GilRelease& operator=(const GilRelease&) = delete;

 private:
  PyThreadState* state_;
};

}  // namespace torch_mtia
