// Limits ATen's intra-operator threads on this thread for the duration of a scope.
#pragma once

#include <ATen/Parallel.h>

// torch's own libgomp provides these. They are declared here, and the library is linked without -fopenmp, because a
// second libgomp in the process would have a second pool of threads.
extern "C" {
void omp_set_num_threads(int);
}

namespace torch_mtia {

class IntraOpThreads {
 public:
  // at::set_num_threads would change the process-wide default and MKL's setting too; OpenMP's is per thread.
  explicit IntraOpThreads(int num_threads) : previous_(at::get_num_threads()) {
    if (num_threads != previous_) omp_set_num_threads(num_threads);
    changed_ = num_threads != previous_;
  }
  ~IntraOpThreads() {
    if (changed_) omp_set_num_threads(previous_);
  }
  IntraOpThreads(const IntraOpThreads&) = delete;
  IntraOpThreads& operator=(const IntraOpThreads&) = delete;

 private:
  const int previous_;
  bool changed_;
};

}  // namespace torch_mtia
