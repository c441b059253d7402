#include "BlockingWait.h"

namespace torch_mtia::core {

constinit InterpreterLock interpreter_lock{};
constinit ReleaseThreads release_threads = nullptr;

}  // namespace torch_mtia::core
