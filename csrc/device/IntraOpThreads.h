// ATen's intra-operator threads, as far as they are those of the calling thread.
#pragma once

#include <ATen/Parallel.h>
#include <omp.h>

// The functions come from torch's own libgomp. The library is linked without -fopenmp, because a second libgomp in the
// process would have a second set of threads.
namespace torch_mtia {

// Limits them for the duration of a scope.
class IntraOpThreads {
 public:
  // at::set_num_threads would change the process-wide default and MKL's setting too; OpenMP's is per thread.
  explicit IntraOpThreads(int num_threads) : previous_(omp_get_max_threads()), changed_(num_threads != previous_) {
    if (changed_) omp_set_num_threads(num_threads);
  }
  ~IntraOpThreads() {
    if (changed_) omp_set_num_threads(previous_);
  }
  IntraOpThreads(const IntraOpThreads&) = delete;
  IntraOpThreads& operator=(const IntraOpThreads&) = delete;

 private:
  const int previous_;
  const bool changed_;
};

// Ends the threads that wait for this one to open its next parallel region, which starts them again (some 50 us).
inline void release_intra_op_threads() {
  omp_pause_resource_all(omp_pause_soft);  // settings stay
}

}  // namespace torch_mtia
