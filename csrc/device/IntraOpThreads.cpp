#include "IntraOpThreads.h"

#include <ATen/Parallel.h>
#include <omp.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <latch>

// The functions of OpenMP come from torch's own libgomp. The library is linked without -fopenmp, because a second
// libgomp in the process would have a second set of threads.

// MKL's number for the calling thread; 0: the process's, which torch.set_num_threads sets, and which goes before
// OpenMP's. Returns what it was. Absent where torch was built without MKL.
extern "C" [[gnu::weak]] int MKL_Set_Num_Threads_Local(int num_threads);

namespace torch_mtia {
namespace {

// Threads that have helped some master and have ended.
std::atomic<uint64_t> num_ended{0};
struct CountsEnd {
  ~CountsEnd() { ++num_ended; }
};

// Note [Helpers stay off the core of their master]
// A thread that has done its part of a region spins until the others have done theirs. A helper on the same core does
// not run meanwhile, for the rest of a time slice, and the kernel may take several to move it to a core that has become
// free: on two cores, where a thread of the host computes while work arrives, steps of 8 ms took up to 50. New threads
// start on the core of their parent, too. So helpers may run on any core but that of their master, who spins there
// whenever they have work.
class Helpers {
 public:
  // The calling thread, their master, is about to open regions of `num_threads`.
  void keep_off_this_core(int num_threads) {
    if (num_threads == num_threads_ && sched_getcpu() == core_) [[likely]]
      return;
    if (unavailable_ || num_threads > kMostThreads || omp_get_proc_bind() != omp_proc_bind_false) return;
    // Somebody else may have opened a smaller region, and another thread may have the number of one that has ended.
    if (num_threads > num_threads_ || num_ended_ != num_ended.load()) find(num_threads);
    num_threads_ = num_threads;  // smaller regions end the threads that they do not need
    core_ = sched_getcpu();
    cpu_set_t cores;
    unavailable_ = core_ < 0 || sched_getaffinity(0, sizeof(cores), &cores) != 0;
    CPU_CLR(core_, &cores);
    if (unavailable_ || CPU_COUNT(&cores) == 0) return;
    for (int i = 1; i < num_threads; ++i) {
      // Another process may have the number now: in a forked child, say.
      if (syscall(SYS_tgkill, getpid(), threads_[i], 0) != 0) return forget();
      if (sched_setaffinity(threads_[i], sizeof(cores), &cores) != 0) unavailable_ = true;
    }
  }

  void forget() { num_threads_ = 0; }

 private:
  // More take longer to move than one of them may delay the others.
  static constexpr int kMostThreads = 8;

  // They answer from a region. All sleep until the last has answered: it may share a core with another.
  void find(int num_threads) {
    num_ended_ = num_ended.load();
    std::latch answers(num_threads);
    at::parallel_for(0, num_threads, 1, [&](int64_t begin, int64_t end) {
      [[maybe_unused]] thread_local const CountsEnd at_end_of_thread;
      std::fill(threads_.begin() + begin, threads_.begin() + end, gettid());
      answers.arrive_and_wait(end - begin);
    });
  }

  std::array<pid_t, kMostThreads> threads_{};  // by their number in a region; the first is the master
  uint64_t num_ended_ = 0;                     // when they were found
  int num_threads_ = 0;
  int core_ = -1;
  bool unavailable_ = false;
};

constinit thread_local Helpers helpers;

// oneDNN leaves parts of its products out where a region has fewer threads than OpenMP promised.
int threads_that_openmp_gives(int num_threads) {
  if (num_threads <= 1) return 1;
  if (omp_get_dynamic() != 0) omp_set_dynamic(0);
  return omp_get_max_active_levels() == 0 ? 1 : std::min(num_threads, omp_get_thread_limit());
}

}  // namespace

// at::set_num_threads would change the process-wide default and MKL's setting too; OpenMP's is per thread.
IntraOpThreads::IntraOpThreads(int num_threads) : previous_(omp_get_max_threads()) {
  num_threads = threads_that_openmp_gives(num_threads);
  if (num_threads != previous_) {
    changed_ = true;
    omp_set_num_threads(num_threads);
    if (MKL_Set_Num_Threads_Local != nullptr) previous_of_mkl_ = MKL_Set_Num_Threads_Local(num_threads);
  }
  if (num_threads > 1) helpers.keep_off_this_core(num_threads);
}

IntraOpThreads::~IntraOpThreads() {
  if (!changed_) return;
  omp_set_num_threads(previous_);
  if (MKL_Set_Num_Threads_Local != nullptr) MKL_Set_Num_Threads_Local(previous_of_mkl_);
}

void release_intra_op_threads() {
  helpers.forget();
  omp_pause_resource_all(omp_pause_soft);  // settings stay
}

}  // namespace torch_mtia
