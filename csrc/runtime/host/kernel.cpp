#include "kernel.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>
#include <utility>

#include "../live_ranges.h"
#include "driver.h"
#include "error.h"
#include "interleave.h"
#include "processor.h"

namespace torch_mtia::runtime::host {

// Images --------------------------------------------------------------------------------------------------------------

namespace {

struct Feature {
  uint64_t bit;
  const char* name;
};

constexpr std::array features{
    Feature{MTIA_CPU_AVX2_FMA, "avx2+fma"},       Feature{MTIA_CPU_AVX512_SKX, "avx512f+bw+dq+vl+cd"},
    Feature{MTIA_CPU_AVX512_BF16, "avx512-bf16"}, Feature{MTIA_CPU_AVX512_VNNI, "avx512-vnni"},
    Feature{MTIA_CPU_AVX512_FP16, "avx512-fp16"}, Feature{MTIA_CPU_AMX_BF16, "amx-bf16"},
    Feature{MTIA_CPU_AMX_INT8, "amx-int8"},       Feature{MTIA_CPU_AARCH64, "aarch64"},
};

// "avx2+fma, avx512-bf16"; bits without a name as a number.
std::string cpu_feature_names(uint64_t bits) {
  std::string names;
  const auto add = [&](const std::string& name) { names += (names.empty() ? "" : ", ") + name; };
  for (const Feature& feature : features) {
    if ((bits & feature.bit) != 0) add(feature.name);
    bits &= ~feature.bit;
  }
  if (bits != 0) add("unknown features " + std::to_string(bits));
  return names;
}

constexpr uint64_t kPage = 4096;
// Of one call of an entry; more is a damaged header.
constexpr uint64_t kMaxScratch = uint64_t{1} << 40;

[[noreturn]] void damaged(const std::string& what) {
  throw Failure(MTIA_ERROR_INVALID_VALUE, "the kernel image is damaged: " + what);
}

// Whether [offset, offset + count * unit) lies in `size` bytes.
bool fits(uint64_t offset, uint64_t count, uint64_t unit, uint64_t size) {
  return offset <= size && count <= (size - offset) / unit;
}

template <typename T>
T read(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

mtia_kernel_image_header read_header(const std::byte* bytes, uint64_t size) {
  if (size < sizeof(uint64_t) || read<uint64_t>(bytes) != MTIA_KERNEL_IMAGE_MAGIC) {
    throw Failure(MTIA_ERROR_INVALID_VALUE, "these bytes are not a kernel image: they do not begin with its magic");
  }
  if (size < sizeof(mtia_kernel_image_header)) damaged("it ends within its header");
  const auto header = read<mtia_kernel_image_header>(bytes);
  if (header.version != MTIA_KERNEL_IMAGE_VERSION || header.header_size != sizeof(header)) {
    throw Failure(MTIA_ERROR_NOT_SUPPORTED, "the kernel image has version " + std::to_string(header.version) +
                                                " with a header of " + std::to_string(header.header_size) +
                                                " bytes, this driver loads version 1 with " +
                                                std::to_string(sizeof(header)) + "; compile the kernel again");
  }
  return header;
}

void check_layout(const mtia_kernel_image_header& header, uint64_t size) {
  if (header.image_size != size) {
    damaged("it has " + std::to_string(size) + " bytes where its header says " + std::to_string(header.image_size));
  }
  if (header.name[0] == '\0' || std::memchr(header.name, '\0', sizeof(header.name)) == nullptr) {
    damaged("its name is empty or does not end");
  }
  if (header.code_offset % kPage != 0 || header.code_size == 0 || !fits(header.code_offset, header.code_size, 1, size))
    damaged("its code lies outside of it");
  if (header.entry_offset >= header.code_size) damaged("its entry lies outside of the code");
  if (!fits(header.relocations_offset, header.num_relocations, sizeof(uint64_t), size))
    damaged("its relocations lie outside of it");
  if (!fits(header.header_size, header.num_arguments, sizeof(mtia_kernel_argument), size))
    damaged("its arguments lie outside of it");
  if (header.scratch_size > kMaxScratch) damaged("it asks for too much scratch memory");
}

void check_argument(const mtia_kernel_argument& argument, uint64_t packed_end, uint64_t packed_size) {
  const bool size_is_known = argument.size == 1 || argument.size == 2 || argument.size == 4 || argument.size == 8;
  if (argument.kind > MTIA_ARGUMENT_FLOAT || !size_is_known ||
      (argument.kind == MTIA_ARGUMENT_POINTER && argument.size != 8)) {
    damaged("an argument has unknown kind " + std::to_string(argument.kind) + " and size " +
            std::to_string(argument.size));
  }
  if (argument.offset % argument.size != 0 || argument.offset < packed_end ||
      !fits(argument.offset, 1, argument.size, packed_size)) {
    damaged("an argument lies outside of the packed block, or overlaps another");
  }
}

void check_arguments(const mtia_kernel_image_header& header, const std::byte* bytes) {
  uint64_t end = 0;
  for (uint64_t i = 0; i < header.num_arguments; ++i) {
    const auto argument = read<mtia_kernel_argument>(bytes + header.header_size + i * sizeof(mtia_kernel_argument));
    check_argument(argument, end, header.packed_arguments_size);
    end = uint64_t{argument.offset} + argument.size;
  }
  if (end != header.packed_arguments_size) damaged("the packed block does not end with the last argument");
}

void check_machine(const mtia_kernel_image_header& header) {
  if (((header.cpu_features ^ cpu_features()) & MTIA_CPU_AARCH64) != 0) {
    const bool is_for_aarch64 = (header.cpu_features & MTIA_CPU_AARCH64) != 0;
    throw Failure(MTIA_ERROR_NOT_SUPPORTED, "the kernel '" + std::string(header.name) +
                                                "' was compiled for a processor of another kind, " +
                                                (is_for_aarch64 ? "aarch64" : "x86-64") + "; compile it here");
  }
  const uint64_t missing = header.cpu_features & ~cpu_features();
  if (missing == 0) return;
  throw Failure(MTIA_ERROR_NOT_SUPPORTED, "the kernel '" + std::string(header.name) +
                                              "' was compiled for a processor with " + cpu_feature_names(missing) +
                                              ", which this machine lacks; compile it here");
}

// The code with its load address added where the image says so.
void relocate(const mtia_kernel_image_header& header, const std::byte* bytes, std::byte* code) {
  for (uint64_t i = 0; i < header.num_relocations; ++i) {
    const auto offset = read<uint64_t>(bytes + header.relocations_offset + i * sizeof(uint64_t));
    if (!fits(offset, 1, sizeof(uint64_t), header.code_size)) damaged("a relocation lies outside of the code");
    const uint64_t address = read<uint64_t>(code + offset) + reinterpret_cast<uint64_t>(code);
    std::memcpy(code + offset, &address, sizeof(address));
  }
}

mtia_kernel_image_header checked_header(const std::byte* bytes, uint64_t size) {
  const mtia_kernel_image_header header = read_header(bytes, size);
  check_layout(header, size);
  check_arguments(header, bytes);
  check_machine(header);
  return header;
}

}  // namespace

Image::Image(const void* data, uint64_t size) : header_(checked_header(static_cast<const std::byte*>(data), size)) {
  void* mapping = mmap(nullptr, header_.code_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) throw std::bad_alloc();
  code_ = static_cast<std::byte*>(mapping);
  try {
    std::memcpy(code_, static_cast<const std::byte*>(data) + header_.code_offset, header_.code_size);
    relocate(header_, static_cast<const std::byte*>(data), code_);
    auto* const code = reinterpret_cast<char*>(code_);
    __builtin___clear_cache(code, code + header_.code_size);  // aarch64 fetches instructions past the caches of data
    if (mprotect(code_, header_.code_size, PROT_READ | PROT_EXEC) != 0) {
      throw Failure(MTIA_ERROR_NOT_SUPPORTED,
                    std::string("the system does not let this process make memory executable: ") + strerror(errno));
    }
  } catch (...) {
    munmap(code_, header_.code_size);
    throw;
  }
  entry_ = reinterpret_cast<Entry>(code_ + header_.entry_offset);
}

Image::~Image() {
  munmap(code_, header_.code_size);
}

// What the code calls -------------------------------------------------------------------------------------------------

namespace {

// Whether the caller is the first to fail, and the one that fills the cell in.
bool claim(mtia_error_cell& cell) {
  int64_t none = 0;
  return __atomic_compare_exchange_n(&cell.reported, &none, 1, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
}

void report(mtia_error_cell& cell, const mtia_site& site, const int32_t (&program)[3]) {
  if (!claim(cell)) return;
  std::copy_n(program, 3, cell.program);
  cell.line = site.line;
  const bool reads = (site.kind & MTIA_SITE_READS) != 0;
  const bool writes = (site.kind & MTIA_SITE_WRITES) != 0;
  const char* const slash = std::strrchr(site.file, '/');
  const bool is_named = site.argument[0] != '\0';
  std::snprintf(cell.message, sizeof(cell.message), "%s outside of live memory%s%s (%s:%d)",
                !writes  ? "reads"
                : !reads ? "writes"
                         : "accesses",
                is_named ? " through argument " : "", site.argument, slash != nullptr ? slash + 1 : site.file,
                site.line);
}

uint64_t access(const mtia_kernel_watch* /*watch*/, const mtia_kernel_context* context, const mtia_site* site,
                int32_t program_x, int32_t program_y, int32_t program_z, uint64_t address, int64_t stride,
                const uint64_t* addresses, uint64_t lanes, const void* /*values*/) {
  if (lanes == 0 || (site->kind & MTIA_SITE_COMPUTES) != 0) return lanes;
  uint64_t inside = lanes;
  for (uint64_t left = lanes; left != 0; left &= left - 1) {
    const int lane = __builtin_ctzll(left);
    const uint64_t at = addresses != nullptr ? addresses[lane] : address + static_cast<uint64_t>(lane * stride);
    const mtia_span* range = range_at({context->live_ranges, context->num_live_ranges}, at);
    if (range != nullptr && contains(*range, at, site->size)) continue;
    inside &= ~(uint64_t{1} << lane);
    report(*context->error_cell, *site, {program_x, program_y, program_z});
  }
  return inside;
}

using Unary = double (*)(double);
using Indexed = double (*)(int32_t, double);
using Binary = double (*)(double, double);

// I0 is even and I1 odd; the standard library has them for arguments from 0 on, and throws where it does not converge.
// Computed in double precision it loses up to five bits.
double cyl_bessel_i(double order, double x) noexcept {
  if (std::isnan(x)) return x;
  const double magnitude = std::fabs(x);
  // Beyond, the result overflows.
  const double value =
      magnitude > 720 ? HUGE_VAL : static_cast<double>(std::cyl_bessel_i(static_cast<long double>(order), magnitude));
  return order == 1 && x < 0 ? -value : value;
}

using Table = std::array<const void*, MTIA_RARE_COUNT>;

template <typename Function>
void set(Table& table, mtia_rare_function index, Function function) {
  table[index] = reinterpret_cast<const void*>(function);
}

Table make_rare_functions() {
  Table table{};
  set<Unary>(table, MTIA_RARE_LGAMMA, [](double x) {
    int sign = 0;  // of Gamma(x); plain lgamma keeps it in a global variable
    return ::lgamma_r(x, &sign);
  });
  set<Unary>(table, MTIA_RARE_TGAMMA, ::tgamma);
  set<Unary>(table, MTIA_RARE_J0, ::j0);
  set<Unary>(table, MTIA_RARE_J1, ::j1);
  set<Unary>(table, MTIA_RARE_Y0, ::y0);
  set<Unary>(table, MTIA_RARE_Y1, ::y1);
  set<Unary>(table, MTIA_RARE_CYL_BESSEL_I0, [](double x) { return cyl_bessel_i(0, x); });
  set<Unary>(table, MTIA_RARE_CYL_BESSEL_I1, [](double x) { return cyl_bessel_i(1, x); });
  set<Unary>(table, MTIA_RARE_SIN, ::sin);
  set<Unary>(table, MTIA_RARE_COS, ::cos);
  set<Unary>(table, MTIA_RARE_TAN, ::tan);
  set<Indexed>(table, MTIA_RARE_JN, ::jn);
  set<Indexed>(table, MTIA_RARE_YN, ::yn);
  set<Binary>(table, MTIA_RARE_POW, ::pow);
  set<Binary>(table, MTIA_RARE_FMOD, ::fmod);
  set<Binary>(table, MTIA_RARE_REMAINDER, ::remainder);
  return table;
}

// The table that kernels call rare mathematical functions through: see mtia_rare_function.
const void* const* rare_functions() {
  static const Table table = make_rare_functions();
  return table.data();
}

constexpr uint64_t kAlignment = 64;

// Without a destructor, as in error.cpp.
struct Scratch {
  std::byte* memory = nullptr;
  uint64_t size = 0;
  bool is_over = false;  // the thread ends
};

constinit thread_local Scratch scratch_of_thread;

struct FreesScratch {
  ~FreesScratch() {
    std::free(scratch_of_thread.memory);
    scratch_of_thread = {nullptr, 0, /*is_over=*/true};
  }
};

// Scratch memory for kernels, one block for each thread that runs programs. At least `size` bytes for the calling
// thread, aligned to 64, until its next call. The block grows with the largest request and is kept until the thread
// ends, so that its pages stay warm. Null: there is no memory, or size is 0.
std::byte* thread_scratch(uint64_t size) noexcept {
  Scratch& scratch = scratch_of_thread;
  if (size == 0 || scratch.is_over) return nullptr;
  [[maybe_unused]] thread_local const FreesScratch at_end_of_thread;
  if (size > scratch.size) {
    const uint64_t rounded = (size + kAlignment - 1) / kAlignment * kAlignment;
    std::free(scratch.memory);
    scratch.memory = static_cast<std::byte*>(std::aligned_alloc(kAlignment, rounded));
    scratch.size = scratch.memory != nullptr ? rounded : 0;
  }
  return scratch.memory;
}

}  // namespace

const mtia_kernel_watch bounds_watch{&access};

// Launches ------------------------------------------------------------------------------------------------------------

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
// packed arguments and live ranges follow it, and it owns a reference to the kernel.
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
    Context kernel_context(*this, &error);
    const bool is_timed = kernel_->times_next(cost());
    const int64_t start = is_timed ? now_ns() : 0;
    const int32_t threads = static_cast<int32_t>(std::min<int64_t>(context.num_threads, programs_));
    if (threads <= 1) {
      run_range(kernel_context, 0, programs_);
    } else {
      run_on(threads, kernel_context);
    }
    if (is_timed)
      kernel_->measured(multiply_or_max(static_cast<uint64_t>(now_ns() - start), static_cast<uint64_t>(threads)),
                        programs_);
    if (__atomic_load_n(&error.reported, __ATOMIC_ACQUIRE) == 0) [[likely]]
      return MTIA_SUCCESS;
    return fail(error);
  }

  // What the programs of one run share, and how they take turns.
  struct Context : mtia_kernel_context {
    Context(const Launch& launch, mtia_error_cell* error) : mtia_kernel_context{}, launch(launch) {
      struct_size = sizeof(mtia_kernel_context);
      std::copy_n(launch.grid_, 3, grid);
      host_offset = launch.kernel_->host_offset_;
      error_cell = error;
      print = &host::print;
      live_ranges = launch.live_ranges_;
      num_live_ranges = launch.num_live_ranges_;
      rare_functions = host::rare_functions();
      watch = launch.watch_;
      interleave = [](const mtia_kernel_context* self, uint64_t seed, int32_t may_wait, RunOne run_one) {
        auto& context = const_cast<Context&>(*static_cast<const Context*>(self));
        if (!context.is_interleaved.exchange(true)) context.run_interleaved(seed, may_wait != 0, run_one);
      };
      yield = [](const mtia_kernel_context* self) {
        if (Interleaver* turns = static_cast<const Context*>(self)->turns) turns->yield();
      };
    }

    using RunOne = void (*)(const void* packed_arguments, const mtia_kernel_context* context, int64_t program,
                            void* scratch);

    void run_interleaved(uint64_t seed, bool may_wait, RunOne run_one) {
      struct Program {
        const Context& context;
        RunOne run_one;
      } program{*this, run_one};
      Interleaver interleaver(
          seed, launch.kernel_->image().scratch_size(),
          [](void* args, int64_t number, std::byte* scratch) {
            const auto& [context, run_one] = *static_cast<const Program*>(args);
            run_one(context.launch.arguments_, &context, number, scratch);
          },
          &program);
      turns = &interleaver;
      if (!interleaver.run(launch.programs_, may_wait)) launch.report_no_scratch(*this, 0);
      turns = nullptr;
    }

    const Launch& launch;
    std::atomic<bool> is_interleaved{false};
    Interleaver* turns = nullptr;  // of the thread that runs all programs
  };

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
    if (!claim(cell)) return;
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
