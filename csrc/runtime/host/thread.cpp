#include "thread.h"

#include <pthread.h>
#include <signal.h>

#include <thread>
#include <utility>

namespace torch_mtia::runtime::host {
namespace {

// Blocks the calling thread's signals for a scope; a thread started in it inherits that. Those that the code itself
// raises stay, for the sake of crash handlers.
class BlockedSignals {
 public:
  BlockedSignals() {
    sigset_t blocked;
    sigfillset(&blocked);
    for (const int raised_by_code : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS}) {
      sigdelset(&blocked, raised_by_code);
    }
    pthread_sigmask(SIG_SETMASK, &blocked, &before_);
  }
  ~BlockedSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

 private:
  sigset_t before_;
};

}  // namespace

void start_thread(const std::string& name, std::function<void()> body) {
  const BlockedSignals blocked;
  std::thread thread(std::move(body));
  pthread_setname_np(thread.native_handle(), name.c_str());
  thread.detach();
}

}  // namespace torch_mtia::runtime::host
