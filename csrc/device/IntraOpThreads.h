// ATen's intra-operator threads, as far as they are those of the calling thread.
#pragma once

#include <ATen/Parallel.h>
#include <omp.h>

// The functions come from torch's own libgomp. The library is linked without -fopenmp, because a second libgomp in the
// process would have a second set of threads.

// MKL's number for the calling thread; 0: the process's, which torch.set_num_threads sets, and which goes before
// OpenMP's. Returns what it was. Absent where torch was built without MKL.
extern "C" [[gnu::weak]] int MKL_Set_Num_Threads_Local(int num_threads);

namespace torch_mtia {

// Limits them for the duration of a scope.
class IntraOpThreads {
 public:
  // at::set_num_threads would change the process-wide default and MKL's setting too; OpenMP's is per thread.
  explicit IntraOpThreads(int num_threads) : previous_(omp_get_max_threads()), changed_(num_threads != previous_) {
    if (!changed_) return;
    omp_set_num_threads(num_threads);
    if (MKL_Set_Num_Threads_Local != nullptr) previous_of_mkl_ = MKL_Set_Num_Threads_Local(num_threads);
  }
  ~IntraOpThreads() {
    if (!changed_) return;
    omp_set_num_threads(previous_);
    if (MKL_Set_Num_Threads_Local != nullptr) MKL_Set_Num_Threads_Local(previous_of_mkl_);
  }
  IntraOpThreads(const IntraOpThreads&) = delete;
  IntraOpThreads& operator=(const IntraOpThreads&) = delete;

 private:
  const int previous_;
  const bool changed_;
  int previous_of_mkl_ = 0;
};

// Ends the threads that wait for this one to open its next parallel region, which starts them again (some 50 us).
inline void release_intra_op_threads() {
  omp_pause_resource_all(omp_pause_soft);  // settings stay
}

}  // namespace torch_mtia
