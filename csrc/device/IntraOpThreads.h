// ATen's intra-operator threads, as far as they are those of the calling thread.
#pragma once

namespace torch_mtia {

// How many there are for the duration of a scope, unless OpenMP allows fewer. On a thread that may have so many.
class IntraOpThreads {
 public:
  explicit IntraOpThreads(int num_threads);
  ~IntraOpThreads();
  IntraOpThreads(const IntraOpThreads&) = delete;
  IntraOpThreads& operator=(const IntraOpThreads&) = delete;

 private:
  const int previous_;
  bool changed_ = false;
  int previous_of_mkl_ = 0;
};

// Ends the threads that wait for this one to open its next parallel region, which starts them again (some 50 us).
void release_intra_op_threads();

}  // namespace torch_mtia
