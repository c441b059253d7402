#include "kernel.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <limits>
#include <utility>

#include "bounds.h"
#include "cost.h"
#include "device.h"
#include "error.h"
#include "rare_functions.h"
#include "scratch.h"

namespace torch_mtia::runtime::host {
namespace {

// A thread takes its programs in pieces: short ones, so that all threads end together when programs differ.
constexpr int64_t kPiecesPerThread = 16;

// The C library's output, so that text keeps its place among what the application prints; one call, so that it stays
// in one piece.
void print(void* /*sink*/, const char* text, uint64_t size) {
  std::fwrite(text, 1, size, stdout);
  std::fflush(stdout);
}

// Launches that are estimated to take less are timed the first few times, and then now and then.
constexpr uint64_t kShortLaunchNs = 1000;
constexpr uint32_t kFirstLaunches = 16;
constexpr uint32_t kLaunchesForEachTimed = 16;

uint64_t now_ns() {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
          .count());
}

uint64_t multiply_or_max(uint64_t a, uint64_t b) {
  uint64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? std::numeric_limits<uint64_t>::max() : product;
}

void invalid(const std::string& message) {
  throw Failure(MTIA_ERROR_INVALID_VALUE, "stream_launch_kernel: " + message);
}

// How many programs the grid has.
int64_t programs_of(const int32_t (&grid)[3]) {
  int64_t programs = 1;
  for (const int32_t size : grid) {
    if (size < 0) invalid("the grid has a negative size, " + std::to_string(size));
    if (__builtin_mul_overflow(programs, int64_t{size}, &programs)) invalid("the grid has more than 2^63 programs");
  }
  return programs;
}

void check(const Kernel& kernel, const Stream& stream, const mtia_kernel_launch& launch) {
  const auto name = [&] { return std::string(kernel.image().name()); };
  if (stream.device().index() != kernel.device()) {
    invalid(name() + " was loaded on device " + std::to_string(kernel.device()) + ", the stream is of device " +
            std::to_string(stream.device().index()));
  }
  if (launch.packed_arguments_size != kernel.image().packed_arguments_size()) {
    invalid(name() + " takes " + std::to_string(kernel.image().packed_arguments_size()) +
            " bytes of packed arguments, not " + std::to_string(launch.packed_arguments_size));
  }
  if (launch.packed_arguments_size != 0 && launch.packed_arguments == nullptr) invalid("packed_arguments is null");
}

}  // namespace

// The argument block of the work item. It borrows from the launching thread until it is moved into a queue; then its
// packed arguments and live ranges lie behind it, and it keeps the kernel.
class Kernel::Launch {
 public:
  Launch(const Kernel& kernel, const mtia_kernel_launch& launch, int64_t programs)
      : kernel_(&kernel),
        grid_{launch.grid[0], launch.grid[1], launch.grid[2]},
        arguments_size_(launch.packed_arguments_size),
        arguments_(launch.packed_arguments),
        live_ranges_(launch.live_ranges),
        num_live_ranges_(launch.live_ranges != nullptr ? launch.num_live_ranges : 0),
        watch_(launch.watch != nullptr         ? launch.watch
               : launch.live_ranges != nullptr ? &bounds_watch
                                               : nullptr),
        programs_(programs) {}

  // Valid while this object lives.
  mtia_work describe(int32_t num_threads) {
    const uint64_t cost = this->cost();
    mtia_work work{};
    work.struct_size = sizeof(work);
    work.flags = MTIA_WORK_MAY_RUN_INLINE | MTIA_WORK_CAPTURABLE;
    work.run = [](void* args, const mtia_work_context* context) { return static_cast<Launch*>(args)->run(*context); };
    work.relocate = [](void* to, void* from) { ::new (to) Launch(std::move(*static_cast<Launch*>(from)), to); };
    work.destroy = [](void* args) { static_cast<Launch*>(args)->~Launch(); };
    work.args = this;
    work.args_size = sizeof(*this) + arguments_size_ + num_live_ranges_ * sizeof(mtia_span);
    work.name = kernel_->image().name();
    work.cost = cost;
    work.num_threads = static_cast<int32_t>(
        std::clamp<uint64_t>(cost / kThreadCostNs, 1, static_cast<uint64_t>(std::max(num_threads, 1))));
    return work;
  }

 private:
  // Moves into memory of work.args_size bytes.
  Launch(Launch&& other, void* memory) : Launch(other) {
    owner_ = kernel_->shared_from_this();
    auto* behind = static_cast<std::byte*>(memory) + sizeof(*this);
    if (live_ranges_ != nullptr) {
      const size_t size = num_live_ranges_ * sizeof(mtia_span);
      std::memcpy(behind, other.live_ranges_, size);
      live_ranges_ = reinterpret_cast<const mtia_span*>(behind);
      behind += size;
    }
    if (arguments_size_ != 0) std::memcpy(behind, other.arguments_, arguments_size_);
    arguments_ = behind;
  }
  Launch(const Launch&) = default;

  uint64_t cost() const { return multiply_or_max(kernel_->cost_per_program(), static_cast<uint64_t>(programs_)); }

  mtia_status run(const mtia_work_context& context) noexcept {
    mtia_error_cell error;
    error.reported = 0;
    const mtia_kernel_context kernel_context = describe_context(&error);
    const bool is_timed = kernel_->times_next(cost());
    const uint64_t start = is_timed ? now_ns() : 0;
    const int32_t threads = static_cast<int32_t>(std::min<int64_t>(context.num_threads, programs_));
    if (threads <= 1) {
      run_range(kernel_context, 0, programs_);
    } else {
      run_on(threads, kernel_context);
    }
    if (is_timed) kernel_->measured(multiply_or_max(now_ns() - start, static_cast<uint64_t>(threads)), programs_);
    if (__atomic_load_n(&error.reported, __ATOMIC_ACQUIRE) == 0) [[likely]]
      return MTIA_SUCCESS;
    return fail(error);
  }

  mtia_kernel_context describe_context(mtia_error_cell* error) const {
    mtia_kernel_context context{};
    context.struct_size = sizeof(context);
    std::copy_n(grid_, 3, context.grid);
    context.host_offset = kernel_->host_offset_;
    context.error_cell = error;
    context.print = &print;
    context.live_ranges = live_ranges_;
    context.num_live_ranges = num_live_ranges_;
    context.rare_functions = rare_functions();
    context.watch = watch_;
    return context;
  }

  // Each thread takes the next piece until none is left: see Note [Kernel image] for the order.
  void run_on(int32_t threads, const mtia_kernel_context& context) noexcept {
    const auto cost = static_cast<int64_t>(std::max<uint64_t>(kernel_->cost_per_program(), 1));
    struct Pieces {
      const Launch& launch;
      const mtia_kernel_context& context;
      const int64_t length;
      std::atomic<int64_t> next{0};
    } pieces{*this, context,
             std::max(programs_ / (threads * kPiecesPerThread), static_cast<int64_t>(kPieceCostNs) / cost + 1)};
    kernel_->parallelism_.parallel_for(
        0, threads, 1, threads,
        [](void* args, int64_t /*first*/, int64_t /*last*/) {
          auto& pieces = *static_cast<Pieces*>(args);
          const int64_t end = pieces.launch.programs_;
          for (;;) {
            const int64_t first = pieces.next.fetch_add(pieces.length, std::memory_order_relaxed);
            if (first >= end) return;
            pieces.launch.run_range(pieces.context, first, std::min(first + pieces.length, end));
          }
        },
        &pieces);
  }

  void run_range(const mtia_kernel_context& context, int64_t first, int64_t last) const noexcept {
    const uint64_t scratch_size = kernel_->image().scratch_size();
    std::byte* scratch = thread_scratch(scratch_size);
    if (scratch == nullptr && scratch_size != 0) [[unlikely]]
      return report_no_scratch(context, first);
    kernel_->image().entry()(arguments_, &context, first, last, scratch);
  }

  void report_no_scratch(const mtia_kernel_context& context, int64_t program) const noexcept {
    mtia_error_cell& cell = *context.error_cell;
    int64_t none = 0;
    if (!__atomic_compare_exchange_n(&cell.reported, &none, 1, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) return;
    cell.program[0] = static_cast<int32_t>(program % grid_[0]);
    cell.program[1] = static_cast<int32_t>(program / grid_[0] % grid_[1]);
    cell.program[2] = static_cast<int32_t>(program / grid_[0] / grid_[1]);
    cell.line = 0;
    std::snprintf(cell.message, sizeof(cell.message), "the host has no %llu bytes of scratch memory for a program",
                  static_cast<unsigned long long>(kernel_->image().scratch_size()));
  }

  mtia_status fail(const mtia_error_cell& error) const noexcept {
    WorkFailure text{};
    const int message_size = static_cast<int>(strnlen(error.message, sizeof(error.message)));
    const int size = std::snprintf(text.data(), text.size(), "%s: %.*s (program (%d, %d, %d)", kernel_->image().name(),
                                   message_size, error.message, error.program[0], error.program[1], error.program[2]);
    const auto end = static_cast<size_t>(size);  // shorter than the text: name and message are
    std::snprintf(text.data() + end, text.size() - end, error.line > 0 ? ", line %d)" : ")", error.line);
    Stream::explain_failure(text);
    return MTIA_ERROR_LAUNCH_FAILED;
  }

  const Kernel* kernel_;
  std::shared_ptr<const Kernel> owner_;
  int32_t grid_[3];
  uint32_t arguments_size_;
  const void* arguments_;
  const mtia_span* live_ranges_;
  uint64_t num_live_ranges_;
  const mtia_kernel_watch* watch_;
  int64_t programs_;
};

Kernel::Kernel(int32_t device, const void* image, uint64_t size, const Parallelism& parallelism, int64_t host_offset)
    : device_(device),
      image_(image, size),
      parallelism_(parallelism),
      host_offset_(host_offset),
      cost_per_program_(image_.cost_per_program() != 0 ? image_.cost_per_program() : kUnknownProgramCostNs) {}

mtia_status Kernel::launch(Stream& stream, const mtia_kernel_launch& launch) const {
  check(*this, stream, launch);
  const int64_t programs = programs_of(launch.grid);
  if (programs == 0) return MTIA_SUCCESS;
  static_assert(alignof(Launch) <= 16 && sizeof(Launch) % alignof(mtia_span) == 0);
  Launch block(*this, launch, programs);
  return stream.launch(block.describe(launch.num_threads));
}

bool Kernel::times_next(uint64_t cost) const {
  if (cost >= kShortLaunchNs) return true;
  const uint32_t number = num_short_launches_.load(std::memory_order_relaxed);
  num_short_launches_.store(number + 1, std::memory_order_relaxed);  // one that is lost does not matter
  return number < kFirstLaunches || number % kLaunchesForEachTimed == 0;
}

// How long programs really take is worth more than any estimate, which knows no trip counts. Half of the new figure,
// so that one launch that was disturbed does not decide alone.
void Kernel::measured(uint64_t nanoseconds, int64_t programs) const {
  const uint64_t cost = nanoseconds / static_cast<uint64_t>(programs);
  cost_per_program_.store(std::max<uint64_t>(cost / 2 + cost_per_program() / 2, 1), std::memory_order_relaxed);
}

}  // namespace torch_mtia::runtime::host
