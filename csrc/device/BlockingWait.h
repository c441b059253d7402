// What a thread gives up while it waits for the device: the GIL, if it holds it, and its threads.
//
// Several of PyTorch's hooks are entered with the GIL held (torch.mtia.synchronize, empty_cache). Work that needs the
// GIL to finish, such as a Python kernel behind the fallback, would then wait for the waiter.
//
// Note [Threads that are kept]
// libgomp keeps a pool of threads for every thread that opens parallel regions. As soon as all pools together have more
// threads than the machine has cores, no thread spins between two regions any more: each region then wakes sleeping
// threads, and one of 20 us takes 100. So a thread that waits for the device gives its pool up, and so does an executor
// that has nothing to do (mtia_init_params.release_threads): whoever computes is then the only one with a pool.
#pragma once

#include "../core/InterpreterLock.h"
#include "IntraOpThreads.h"

namespace torch_mtia {

using core::WithoutGil;

class BlockingWait {
 public:
  BlockingWait() { release_intra_op_threads(); }

 private:
  const WithoutGil without_gil_;
};

}  // namespace torch_mtia
