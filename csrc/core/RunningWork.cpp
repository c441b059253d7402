#include "RunningWork.h"

namespace torch_mtia::core {

constinit thread_local const RunningWork* RunningWork::innermost = nullptr;

}  // namespace torch_mtia::core
