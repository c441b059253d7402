// Kernel images: what is loaded and what is refused, and how launches run and fail.
#include <unistd.h>

#include <array>
#include <fstream>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "device_under_test.h"
#include "kernel_code.h"
#include "kernel_image.h"

namespace torch_mtia::test {
namespace {

struct PackedArguments {
  mtia_device_ptr out;
  int64_t addend;
};

ImageOptions two_arguments() {
  return {.arguments = {kPointerFirst, kInt64Second}};
}

class LoadedKernel {
 public:
  explicit LoadedKernel(const KernelImage& image, int32_t device = 0) {
    runtime::call(&mtia_runtime_api::module_load, device, image.bytes.data(), image.bytes.size(), &module_);
    const auto* header = reinterpret_cast<const mtia_kernel_image_header*>(image.bytes.data());
    runtime::call(&mtia_runtime_api::module_get_function, module_, header->name, &function_);
  }
  ~LoadedKernel() { unload(); }
  LoadedKernel(const LoadedKernel&) = delete;
  LoadedKernel& operator=(const LoadedKernel&) = delete;

  void unload() {
    if (module_ != nullptr) api().module_unload(module_);
    module_ = nullptr;
  }
  mtia_kernel_launch describe(const PackedArguments& arguments, std::array<int32_t, 3> grid) const {
    mtia_kernel_launch launch{};
    launch.struct_size = sizeof(launch);
    launch.num_threads = 4;
    launch.function = function_;
    std::copy(grid.begin(), grid.end(), launch.grid);
    launch.packed_arguments = &arguments;
    launch.packed_arguments_size = sizeof(arguments);
    return launch;
  }
  void launch(core::Stream& stream, const PackedArguments& arguments, std::array<int32_t, 3> grid) const {
    const mtia_kernel_launch launch = describe(arguments, grid);
    runtime::call(&mtia_runtime_api::stream_launch_kernel, stream.handle(), &launch);
  }

 private:
  mtia_module module_ = nullptr;
  mtia_function function_ = nullptr;
};

// Device memory for a test, as 64-bit words.
class Words {
 public:
  explicit Words(size_t count, int32_t device = 0) : device_(device), count_(count) {
    runtime::call(&mtia_runtime_api::memory_allocate, device, count * sizeof(int64_t), &address_);
    std::fill_n(view(), count, -1);
  }
  ~Words() { api().memory_free(device_, address_); }
  Words(const Words&) = delete;
  Words& operator=(const Words&) = delete;

  mtia_device_ptr address() const { return address_; }
  int64_t* view() const { return reinterpret_cast<int64_t*>(host_view(address_)); }
  std::vector<int64_t> read() const { return {view(), view() + count_}; }

 private:
  const int32_t device_;
  const size_t count_;
  mtia_device_ptr address_ = 0;
};

std::vector<int64_t> counting_from(int64_t first, size_t count) {
  std::vector<int64_t> numbers(count);
  std::iota(numbers.begin(), numbers.end(), first);
  return numbers;
}

std::string refusal(const KernelImage& image) {
  mtia_module module = nullptr;
  const mtia_status status = api().module_load(0, image.bytes.data(), image.bytes.size(), &module);
  CHECK(status != MTIA_SUCCESS);
  return api().last_error_message();
}

std::string damage(const std::function<void(mtia_kernel_image_header&)>& change) {
  ImageOptions options = two_arguments();
  options.relocations = {24};
  KernelImage image = make_image(relocated_code, options);
  change(image.header());
  return refusal(image);
}

TEST(a_launch_runs_every_program_of_the_grid_once_with_x_fastest) {
  const LoadedKernel kernel(make_image(store_code, two_arguments()));
  core::Stream& stream = new_stream();
  const Words out(2 * 3 * 5);
  kernel.launch(stream, {out.address(), 1000}, {2, 3, 5});
  finish(stream);
  CHECK(out.read() == counting_from(1000, 30));
}

TEST(a_large_launch_covers_the_grid_on_several_threads) {
  ImageOptions options = two_arguments();
  options.cost_per_program = 1000;
  const LoadedKernel kernel(make_image(store_code, options));
  core::Stream& stream = new_stream();
  constexpr int kPrograms = 100'003;
  const Words out(kPrograms);
  kernel.launch(stream, {out.address(), 5}, {kPrograms, 1, 1});
  finish(stream);
  CHECK(out.read() == counting_from(5, kPrograms));
}

TEST(launches_run_in_the_order_of_their_stream) {
  const LoadedKernel kernel(make_image(store_code, two_arguments()));
  core::Stream& stream = new_stream();
  Gate gate;
  hold(stream, gate);
  const Words out(8);
  kernel.launch(stream, {out.address(), 1}, {8, 1, 1});
  kernel.launch(stream, {out.address(), 2}, {4, 1, 1});
  CHECK_EQ(out.read()[0], -1);
  gate.open();
  finish(stream);
  CHECK(out.read() == (std::vector<int64_t>{2, 3, 4, 5, 5, 6, 7, 8}));
}

TEST(a_queued_launch_keeps_its_arguments_and_its_code) {
  core::Stream& stream = new_stream();
  Gate gate;
  const Words out(4);
  {
    LoadedKernel kernel(make_image(store_code, two_arguments()));
    hold(stream, gate);
    PackedArguments arguments{out.address(), 7};
    kernel.launch(stream, arguments, {4, 1, 1});
    arguments = {};
    kernel.unload();
  }
  gate.open();
  finish(stream);
  CHECK(out.read() == counting_from(7, 4));
}

TEST(an_empty_grid_runs_nothing) {
  const LoadedKernel kernel(make_image(store_code, two_arguments()));
  core::Stream& stream = new_stream();
  kernel.launch(stream, {0, 0}, {4, 0, 1});
  finish(stream);
}

TEST(a_wrong_launch_is_refused) {
  const LoadedKernel kernel(make_image(store_code, two_arguments()));
  core::Stream& stream = new_stream();
  core::Stream& stream_of_other_device = new_stream(1);
  const PackedArguments arguments{};
  const auto refuse = [&](core::Stream& stream, const mtia_kernel_launch& launch) {
    CHECK_EQ(api().stream_launch_kernel(stream.handle(), &launch), MTIA_ERROR_INVALID_VALUE);
    return std::string(api().last_error_message());
  };
  CHECK_CONTAINS(refuse(stream, kernel.describe(arguments, {1, -2, 1})), "negative size, -2");
  CHECK_CONTAINS(refuse(stream_of_other_device, kernel.describe(arguments, {1, 1, 1})), "loaded on device 0");
  mtia_kernel_launch launch = kernel.describe(arguments, {1, 1, 1});
  launch.packed_arguments_size = 8;
  CHECK_CONTAINS(refuse(stream, launch), "takes 16 bytes of packed arguments, not 8");
  constexpr int32_t kMost = std::numeric_limits<int32_t>::max();
  CHECK_CONTAINS(refuse(stream, kernel.describe(arguments, {kMost, kMost, kMost})), "more than 2^63 programs");
}

TEST(a_program_that_reports_an_error_fails_the_stream_at_its_next_synchronization) {
  ImageOptions options = two_arguments();
  options.name = "checker";
  for (const uint32_t cost : {1U, 1'000'000U}) {  // on the launching thread, on the executor
    options.cost_per_program = cost;
    const LoadedKernel kernel(make_image(fail_code, options));
    core::Stream& stream = new_stream();
    kernel.launch(stream, {0, 3}, {10, 1, 1});
    CHECK_EQ(CHECK_THROWS(std::runtime_error, finish(stream)),
             std::string("checker: boom (program (3, 0, 0), line 7)"));
    const Words out(1);
    const LoadedKernel next(make_image(store_code, two_arguments()));
    next.launch(stream, {out.address(), 9}, {1, 1, 1});
    finish(stream);
    CHECK_EQ(out.read()[0], 9);
  }
}

TEST(scratch_is_aligned_and_large_enough) {
  for (const uint64_t size : {uint64_t{100}, uint64_t{3} << 20, uint64_t{64}}) {
    ImageOptions options = two_arguments();
    options.scratch_size = size;
    options.cost_per_program = 100'000;
    const LoadedKernel kernel(make_image(scratch_code, options));
    core::Stream& stream = new_stream();
    const Words out(64);
    kernel.launch(stream, {out.address(), static_cast<int64_t>(size)}, {64, 1, 1});
    finish(stream);
    for (const int64_t address : out.read()) CHECK(address != 0 && address % 64 == 0);
  }
}

TEST(scratch_that_the_host_does_not_have_fails_the_stream) {
  ImageOptions options = two_arguments();
  options.scratch_size = uint64_t{1} << 40;
  const LoadedKernel kernel(make_image(store_code, options));
  core::Stream& stream = new_stream();
  kernel.launch(stream, {0, 0}, {1, 1, 1});
  // With a host that promises more memory than it has, there is nothing to see.
  try {
    finish(stream);
  } catch (const std::runtime_error& error) {
    CHECK_CONTAINS(error.what(), "1099511627776 bytes of scratch memory");
  }
}

TEST(relocated_words_point_into_the_loaded_code) {
  ImageOptions options = two_arguments();
  options.relocations = {24};
  CHECK_EQ(relocated_code.size(), size_t{40});
  const LoadedKernel kernel(make_image(relocated_code, options));
  core::Stream& stream = new_stream();
  const Words out(1);
  kernel.launch(stream, {out.address(), 0}, {1, 1, 1});
  finish(stream);
  CHECK_EQ(out.read()[0], 4242);
}

TEST(the_code_is_not_writable) {
  const LoadedKernel kernel(make_image(store_code, two_arguments()));
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) CHECK(line.find("rwx") == std::string::npos);
}

TEST(live_ranges_reach_the_kernel_also_when_it_is_queued) {
  const LoadedKernel kernel(make_image(ranges_code, two_arguments()));
  core::Stream& stream = new_stream();
  Gate gate;
  hold(stream, gate);
  const Words out(2);
  const PackedArguments arguments{out.address(), 0};
  {
    const std::vector<mtia_span> ranges{{100, 1}, {200, 2}};
    mtia_kernel_launch launch = kernel.describe(arguments, {1, 1, 1});
    launch.live_ranges = ranges.data();
    launch.num_live_ranges = ranges.size();
    runtime::call(&mtia_runtime_api::stream_launch_kernel, stream.handle(), &launch);
  }
  gate.open();
  finish(stream);
  CHECK(out.read() == (std::vector<int64_t>{100, 200}));
}

TEST(rare_functions_can_be_called) {
  const LoadedKernel kernel(make_image(rare_code, two_arguments()));
  core::Stream& stream = new_stream();
  const Words out(1);
  for (int64_t index = 0; index < MTIA_RARE_JN; ++index) {
    kernel.launch(stream, {out.address(), index}, {1, 1, 1});
    finish(stream);
  }
  kernel.launch(stream, {out.address(), MTIA_RARE_TGAMMA}, {1, 1, 1});
  finish(stream);
  CHECK_EQ(*reinterpret_cast<double*>(out.view()), 1.0);
}

TEST(prints_go_to_standard_output) {
  const LoadedKernel kernel(make_image(print_code, two_arguments()));
  core::Stream& stream = new_stream();
  std::fflush(stdout);
  std::array<int, 2> ends{};
  CHECK_EQ(pipe(ends.data()), 0);
  const int before = dup(STDOUT_FILENO);
  dup2(ends[1], STDOUT_FILENO);
  PackedArguments arguments{};
  std::memcpy(&arguments.addend, "printed\n", 8);
  kernel.launch(stream, arguments, {1, 1, 1});
  stream.wait_until_idle();
  dup2(before, STDOUT_FILENO);
  std::array<char, 9> text{};
  CHECK_EQ(read(ends[0], text.data(), 8), 8);
  CHECK_EQ(std::string(text.data()), std::string("printed\n"));
  for (const int file : {ends[0], ends[1], before}) close(file);
}

TEST(an_image_for_another_processor_is_refused) {
  ImageOptions options = two_arguments();
  options.cpu_features |= uint64_t{1} << 40;
  CHECK_CONTAINS(refusal(make_image(store_code, options)), "which this machine lacks");
  options.cpu_features = kKindOfProcessor ^ MTIA_CPU_AARCH64;
  CHECK_CONTAINS(refusal(make_image(store_code, options)), "a processor of another kind");
}

TEST(a_damaged_image_is_refused) {
  using Header = mtia_kernel_image_header;
  constexpr uint64_t kHuge = ~uint64_t{0} - 100;
  CHECK_CONTAINS(damage([](Header& h) { h.magic = 1; }), "not a kernel image");
  CHECK_CONTAINS(damage([](Header& h) { h.version = 2; }), "version 2");
  CHECK_CONTAINS(damage([](Header& h) { h.header_size = 8; }), "header of 8 bytes");
  CHECK_CONTAINS(damage([](Header& h) { h.image_size += 1; }), "its header says");
  CHECK_CONTAINS(damage([](Header& h) { h.code_offset = kHuge; }), "code");
  CHECK_CONTAINS(damage([](Header& h) { h.code_offset = 4096 * 1000; }), "code");
  CHECK_CONTAINS(damage([](Header& h) { h.code_size = kHuge; }), "code");
  CHECK_CONTAINS(damage([](Header& h) { h.code_size = 0; }), "code");
  CHECK_CONTAINS(damage([](Header& h) { h.entry_offset = h.code_size; }), "entry");
  CHECK_CONTAINS(damage([](Header& h) { h.relocations_offset = kHuge; }), "relocations");
  CHECK_CONTAINS(damage([](Header& h) { h.num_relocations = ~0U; }), "relocations");
  CHECK_CONTAINS(damage([](Header& h) { h.num_arguments = ~0U; }), "arguments");
  CHECK_CONTAINS(damage([](Header& h) { h.packed_arguments_size = 8; }), "argument");
  CHECK_CONTAINS(damage([](Header& h) { h.packed_arguments_size = 24; }), "last argument");
  CHECK_CONTAINS(damage([](Header& h) { h.scratch_size = kHuge; }), "scratch");
  CHECK_CONTAINS(damage([](Header& h) { std::memset(h.name, 'x', sizeof(h.name)); }), "name");
  ImageOptions options = two_arguments();
  options.relocations = {relocated_code.size() - 7};
  CHECK_CONTAINS(refusal(make_image(relocated_code, options)), "relocation");
  options.relocations = {kHuge};
  CHECK_CONTAINS(refusal(make_image(relocated_code, options)), "relocation");
  options = two_arguments();
  options.arguments[1].size = 3;
  CHECK_CONTAINS(refusal(make_image(store_code, options)), "unknown kind 1 and size 3");
  options.arguments[1] = kPointerFirst;
  CHECK_CONTAINS(refusal(make_image(store_code, options)), "overlaps");
  KernelImage cut = make_image(store_code, two_arguments());
  cut.bytes.resize(100);
  CHECK_CONTAINS(refusal(cut), "ends within its header");
}

TEST(a_module_has_the_function_of_its_image_and_no_other) {
  const KernelImage image = make_image(store_code, two_arguments());
  mtia_module module = nullptr;
  runtime::call(&mtia_runtime_api::module_load, 0, image.bytes.data(), image.bytes.size(), &module);
  mtia_function function = nullptr;
  CHECK_EQ(api().module_get_function(module, "other", &function), MTIA_ERROR_INVALID_VALUE);
  CHECK_CONTAINS(api().last_error_message(), "its one function is 'kernel'");
  runtime::call(&mtia_runtime_api::module_unload, module);
}

}  // namespace
}  // namespace torch_mtia::test

int main(int argc, char** argv) {
  return torch_mtia::test::run_tests_on_device(argc, argv);
}
