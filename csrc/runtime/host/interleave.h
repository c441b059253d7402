// Programs of a kernel that take turns on one thread: see Note [Interleaved programs] in mtia_runtime.h.
#pragma once

#include <ucontext.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <vector>

namespace torch_mtia::runtime::host {

// A launch. A program that yields is suspended, in every second case, and goes on when it is drawn again. Others that
// are suspended and the next one that has not started are drawn with the same probability. All follows from the seed.
class Interleaver {
 public:
  // Runs one program; called once for each, on a stack of its own. `scratch` is `scratch_size` bytes.
  using Run = void (*)(void* args, int64_t program, std::byte* scratch);

  Interleaver(uint64_t seed, uint64_t scratch_size, Run run, void* args);
  ~Interleaver();
  Interleaver(const Interleaver&) = delete;
  Interleaver& operator=(const Interleaver&) = delete;

  // Runs the programs from 0 on, on the calling thread. `may_wait`: for each other, so that they start in order if not
  // all can be suspended at a time. False: there is no memory for one of them; then some have not run.
  bool run(int64_t programs, bool may_wait);
  // Called by a program.
  void yield();

 private:
  struct Fiber;

  uint64_t below(uint64_t bound) { return random_() % bound; }
  bool start(int64_t program);
  void begin(Fiber& fiber, int64_t program);
  void resume(size_t index);
  static void enter(unsigned high, unsigned low);

  std::mt19937_64 random_;
  const uint64_t scratch_size_;
  const Run run_;
  void* const args_;
  ucontext_t scheduler_{};
  Fiber* running_ = nullptr;
  std::vector<std::unique_ptr<Fiber>> suspended_;
  std::vector<std::unique_ptr<Fiber>> ended_;  // whose stacks and scratch memory the next ones take
};

}  // namespace torch_mtia::runtime::host
