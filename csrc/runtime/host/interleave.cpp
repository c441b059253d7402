#include "interleave.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <utility>

namespace torch_mtia::runtime::host {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kStack = size_t{1} << 20;  // of a program, with what watches it; pages that it touches take memory
constexpr size_t kMaxSuspended = 256;
constexpr uint64_t kMaxScratch = uint64_t{1} << 28;  // of all programs at a time, if two can have it
constexpr int64_t kMaxShuffled = int64_t{1} << 24;   // larger grids start in order

}  // namespace

struct Interleaver::Fiber {
  explicit Fiber(uint64_t scratch_size)
      : stack(
            mmap(nullptr, kPage + kStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)),
        scratch(scratch_size == 0 ? nullptr
                                  : static_cast<std::byte*>(std::aligned_alloc(64, (scratch_size + 63) / 64 * 64))) {
    if (stack != MAP_FAILED) mprotect(stack, kPage, PROT_NONE);  // an overflow stops the process
  }
  ~Fiber() {
    if (stack != MAP_FAILED) munmap(stack, kPage + kStack);
    std::free(scratch);
  }
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  void* const stack;
  std::byte* const scratch;
  ucontext_t context{};
  int64_t program = 0;
  bool has_ended = false;
};

Interleaver::Interleaver(uint64_t seed, uint64_t scratch_size, Run run, void* args)
    : random_(seed), scratch_size_(scratch_size), run_(run), args_(args) {}

Interleaver::~Interleaver() = default;

bool Interleaver::run(int64_t programs, bool may_wait) {
  const uint64_t with_scratch = std::max<uint64_t>(kMaxScratch / std::max<uint64_t>(scratch_size_, 1), 2);
  const size_t max_suspended = std::min<uint64_t>(kMaxSuspended, with_scratch);
  std::vector<uint32_t> order;
  if (programs <= (may_wait ? static_cast<int64_t>(max_suspended) : kMaxShuffled)) {
    order.resize(static_cast<size_t>(programs));
    std::iota(order.begin(), order.end(), 0);
    for (size_t left = order.size(); left > 1; --left) std::swap(order[left - 1], order[below(left)]);
  }
  int64_t next = 0;
  while (next < programs || !suspended_.empty()) {
    const bool may_start = next < programs && suspended_.size() < max_suspended;
    const uint64_t drawn = below(suspended_.size() + (may_start ? 1 : 0));
    if (drawn < suspended_.size()) {
      resume(drawn);
    } else {
      if (!start(order.empty() ? next : order[static_cast<size_t>(next)])) return false;
      ++next;
    }
  }
  return true;
}

void Interleaver::yield() {
  if (below(2) == 0) swapcontext(&running_->context, &scheduler_);
}

bool Interleaver::start(int64_t program) {
  std::unique_ptr<Fiber> fiber;
  if (ended_.empty()) {
    fiber = std::make_unique<Fiber>(scratch_size_);
    if (fiber->stack == MAP_FAILED || (fiber->scratch == nullptr && scratch_size_ != 0)) return false;
  } else {
    fiber = std::move(ended_.back());
    ended_.pop_back();
  }
  begin(*fiber, program);
  suspended_.push_back(std::move(fiber));
  resume(suspended_.size() - 1);
  return true;
}

// In a function of its own: getcontext returns twice as far as the compiler knows.
void Interleaver::begin(Fiber& fiber, int64_t program) {
  fiber.program = program;
  fiber.has_ended = false;
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = static_cast<std::byte*>(fiber.stack) + kPage;
  fiber.context.uc_stack.ss_size = kStack;
  fiber.context.uc_link = &scheduler_;
  const auto address = reinterpret_cast<uintptr_t>(this);
  makecontext(&fiber.context, reinterpret_cast<void (*)()>(reinterpret_cast<void*>(&enter)), 2,
              static_cast<unsigned>(address >> 32), static_cast<unsigned>(address));
}

void Interleaver::resume(size_t index) {
  running_ = suspended_[index].get();
  swapcontext(&scheduler_, &running_->context);
  if (!running_->has_ended) return;
  std::swap(suspended_[index], suspended_.back());
  ended_.push_back(std::move(suspended_.back()));
  suspended_.pop_back();
}

// The first function on a program's stack. makecontext passes numbers of 32 bits.
void Interleaver::enter(unsigned high, unsigned low) {
  auto& self = *reinterpret_cast<Interleaver*>((uintptr_t{high} << 32) | low);
  self.run_(self.args_, self.running_->program, self.running_->scratch);
  self.running_->has_ended = true;
}

}  // namespace torch_mtia::runtime::host
