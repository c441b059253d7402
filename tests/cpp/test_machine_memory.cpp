// What memory there is, by files that stand in for the kernel's; and that the driver gives away no more.
#include <stdlib.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "child_process.h"
#include "device_under_test.h"
#include "runtime/machine_memory.h"

namespace torch_mtia::test {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kGiB = uint64_t{1} << 30;

// A folder that stands in for "/", for a scope.
class System {
 public:
  System(uint64_t total, uint64_t available) {
    std::string name = std::filesystem::temp_directory_path() / "system-XXXXXX";
    root_ = mkdtemp(name.data());
    set_machine(total, available);
  }
  ~System() { std::filesystem::remove_all(root_); }
  System(const System&) = delete;
  System& operator=(const System&) = delete;

  void write(const std::string& path, const std::string& text) const {
    const auto file = std::filesystem::path(root_) / path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  void set_machine(uint64_t total, uint64_t available) const {
    write("proc/meminfo", "MemTotal:       " + std::to_string(total / 1024) +
                              " kB\nMemFree:        1 kB\nMemAvailable:   " + std::to_string(available / 1024) +
                              " kB\n");
  }
  void put_in_groups(const std::string& groups, const std::string& mounts) const {
    write("proc/self/cgroup", groups);
    write("proc/self/mountinfo", "23 1 0:5 / / rw - ext4 /dev/root rw\n" + mounts);
  }
  void put_in_version_2(const std::string& path, const std::string& mounted = "/") const {
    put_in_groups("0::" + path + "\n", "30 23 0:26 " + mounted + " /sys/fs/cgroup rw shared:9 - cgroup2 cgroup2 rw\n");
  }
  void set_version_2(const std::string& path, const std::string& limit, uint64_t used, uint64_t files = 0) const {
    write("sys/fs/cgroup" + path + "/memory.max", limit + "\n");
    write("sys/fs/cgroup" + path + "/memory.current", std::to_string(used) + "\n");
    write("sys/fs/cgroup" + path + "/memory.stat",
          "anon 5\ninactive_file " + std::to_string(files) + "\nactive_file 0\ntotal_inactive_file 99999999\n");
  }
  void set_version_1(const std::string& path, uint64_t limit, uint64_t used, uint64_t files = 0) const {
    const std::string folder = "sys/fs/cgroup/memory" + path;
    write(folder + "/memory.limit_in_bytes", std::to_string(limit) + "\n");
    write(folder + "/memory.usage_in_bytes", std::to_string(used) + "\n");
    write(folder + "/memory.stat",
          "inactive_file 0\ntotal_inactive_file 0\ntotal_active_file " + std::to_string(files) + "\n");
  }
  // In a child process: the driver's machine is this one.
  void start_driver(const DriverOptions& options) const {
    setenv("TORCH_MTIA_SYSTEM_ROOT", root_.c_str(), /*overwrite=*/1);
    test::start_driver(options);
  }
  const std::string& root() const { return root_; }
  runtime::MachineMemory::Figures figures() const { return runtime::MachineMemory(root_).read(); }

 private:
  std::string root_;
};

constexpr auto kVersion1Groups = "5:cpu,cpuacct:/elsewhere\n4:memory:/job/step\n0::/\n";
constexpr auto kVersion1Mounts =
    "31 23 0:28 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
    "35 23 0:32 / /sys/fs/cgroup/memory rw,relatime master:3 - cgroup cgroup rw,memory\n"
    "41 23 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";

TEST(without_groups_the_machine_decides) {
  const System system(16 * kGiB, 5 * kGiB);
  CHECK_EQ(system.figures().total, 16 * kGiB);
  CHECK_EQ(system.figures().available, 5 * kGiB);
  CHECK(!system.figures().container);
}

TEST(the_lowest_limit_of_nested_groups_counts) {
  const System system(16 * kGiB, 12 * kGiB);
  system.put_in_version_2("/outer/inner");
  system.set_version_2("/outer/inner", "max", kGiB);
  system.set_version_2("/outer", std::to_string(4 * kGiB), 3 * kGiB);
  CHECK_EQ(system.figures().total, 4 * kGiB);
  CHECK_EQ(system.figures().available, kGiB);
  CHECK(system.figures().container);
  system.set_version_2("/outer/inner", std::to_string(2 * kGiB), 2 * kGiB - 5 * kMiB);
  CHECK_EQ(system.figures().total, 2 * kGiB);
  CHECK_EQ(system.figures().available, 5 * kMiB);
}

TEST(a_limit_that_leaves_more_than_the_machine_has_does_not_count) {
  const System system(16 * kGiB, 2 * kGiB);
  system.put_in_version_2("/job");
  system.set_version_2("/job", std::to_string(8 * kGiB), kGiB);
  CHECK_EQ(system.figures().total, 8 * kGiB);
  CHECK_EQ(system.figures().available, 2 * kGiB);
  CHECK(!system.figures().container);
}

TEST(pages_of_files_are_available) {
  const System system(16 * kGiB, 12 * kGiB);
  system.put_in_version_2("/job");
  system.set_version_2("/job", std::to_string(4 * kGiB), 4 * kGiB, 3 * kGiB);
  CHECK_EQ(system.figures().available, 3 * kGiB);
}

TEST(the_group_of_a_container_is_where_its_part_is_mounted) {
  const System system(16 * kGiB, 12 * kGiB);
  for (const char* path : {"/docker/abc", "/", "/../other"}) {
    system.put_in_version_2(path, "/docker/abc");
    system.set_version_2("", std::to_string(4 * kGiB), kGiB);
    CHECK_EQ(system.figures().available, 3 * kGiB);
  }
}

TEST(a_group_beside_the_mounted_one_whose_name_begins_like_it_is_outside) {
  const System system(64 * kGiB, 50 * kGiB);
  system.put_in_version_2("/pods/job-2", "/pods/job");
  system.set_version_2("", std::to_string(4 * kGiB), 1 * kGiB);
  CHECK_EQ(system.figures().total, 4 * kGiB);
}

TEST(version_1_has_other_names_and_a_huge_number_for_no_limit) {
  const System system(16 * kGiB, 12 * kGiB);
  system.put_in_groups(kVersion1Groups, kVersion1Mounts);
  system.set_version_1("/job/step", 9223372036854771712ULL, 3 * kGiB);
  CHECK_EQ(system.figures().total, 16 * kGiB);
  CHECK_EQ(system.figures().available, 12 * kGiB);
  system.set_version_1("/job", 4 * kGiB, 4 * kGiB, kGiB);
  CHECK_EQ(system.figures().total, 4 * kGiB);
  CHECK_EQ(system.figures().available, kGiB);
  CHECK(system.figures().container);
}

TEST(damaged_files_are_no_limit) {
  const System system(16 * kGiB, 12 * kGiB);
  system.put_in_version_2("/job");
  system.set_version_2("/job", "many", 3);
  CHECK_EQ(system.figures().available, 12 * kGiB);
  system.put_in_groups("nonsense\n", "nonsense\n");
  CHECK_EQ(system.figures().available, 12 * kGiB);
}

TEST(the_default_is_half_of_what_there_is_for_all_devices) {
  const System system(16 * kGiB, 12 * kGiB);
  CHECK_EQ(runtime::MachineMemory(system.root()).default_capacity(1), 8 * kGiB);
  CHECK_EQ(runtime::MachineMemory(system.root()).default_capacity(4), 2 * kGiB);
  system.put_in_version_2("/job");
  system.set_version_2("/job", std::to_string(3 * kGiB), 0);
  CHECK_EQ(runtime::MachineMemory(system.root()).default_capacity(1), 3 * kGiB / 2);
  system.set_version_2("/job", std::to_string(100 * kMiB), 0);
  CHECK_EQ(runtime::MachineMemory(system.root()).default_capacity(1), 64 * kMiB);
}

TEST(a_machine_without_these_files_has_no_known_limit) {
  const runtime::MachineMemory memory("/does/not/exist");
  CHECK(memory.read().for_devices() > (uint64_t{1} << 60));
}

mtia_status allocate(uint64_t size, mtia_device_ptr* address, int32_t device = 0) {
  return api().memory_allocate(device, size, address);
}

// The reserve of a machine of 3,200 MiB is 100 MiB.
constexpr uint64_t kMachine = 3200 * kMiB;

TEST(the_driver_refuses_what_the_machine_has_no_room_for) {
  CHECK(child_succeeds([] {
    const System system(kMachine, 160 * kMiB);
    system.start_driver({.memory_per_device = 1024 * kMiB});
    mtia_device_ptr address = 0;
    CHECK_EQ(allocate(62 * kMiB, &address), MTIA_ERROR_OUT_OF_MEMORY);
    CHECK_CONTAINS(api().last_error_message(), "the machine leaves no room");
    CHECK_CONTAINS(api().last_error_message(), "160.00 MiB of 3.12 GiB available");
    CHECK_EQ(allocate(60 * kMiB, &address), MTIA_SUCCESS);
    runtime::call(&mtia_runtime_api::memory_free, 0, address);
    CHECK_EQ(allocate(60 * kMiB, &address, 1), MTIA_SUCCESS);

    mtia_device_ptr reserved = 0;
    runtime::call(&mtia_runtime_api::memory_reserve, 0, 64 * kMiB, &reserved);
    CHECK_EQ(api().memory_map(0, reserved, 2 * kMiB), MTIA_ERROR_OUT_OF_MEMORY);
    system.set_machine(kMachine, 162 * kMiB);
    CHECK_EQ(api().memory_map(0, reserved, 2 * kMiB), MTIA_SUCCESS);
  }));
}

TEST(memory_that_was_given_and_not_touched_is_not_given_twice) {
  CHECK(child_succeeds([] {
    const System system(kMachine, 200 * kMiB);
    system.start_driver({.memory_per_device = 1024 * kMiB});
    mtia_device_ptr first = 0;
    mtia_device_ptr second = 0;
    CHECK_EQ(allocate(60 * kMiB, &first), MTIA_SUCCESS);
    CHECK_EQ(allocate(60 * kMiB, &second), MTIA_ERROR_OUT_OF_MEMORY);
    CHECK_CONTAINS(api().last_error_message(), "60.00 MiB are promised");
    std::memset(host_view(first), 1, 40 * kMiB);
    CHECK_EQ(allocate(60 * kMiB, &second), MTIA_SUCCESS);
    CHECK_EQ(allocate(21 * kMiB, &second), MTIA_ERROR_OUT_OF_MEMORY);
    runtime::call(&mtia_runtime_api::memory_free, 0, first);
    CHECK_EQ(allocate(40 * kMiB, &first), MTIA_SUCCESS);
  }));
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they bring a malloc of their own
uint64_t resident_pages() {
  uint64_t all = 0;
  uint64_t resident = 0;
  std::ifstream("/proc/self/statm") >> all >> resident;
  return resident;
}

TEST(the_heap_of_the_host_gives_back_what_it_keeps_before_an_allocation_is_refused) {
  CHECK(child_succeeds([] {
    const System system(kMachine, 160 * kMiB);
    system.start_driver({.memory_per_device = 1024 * kMiB});
    std::vector<std::unique_ptr<std::vector<char>>> pieces;
    for (int i = 0; i < 20000; ++i) pieces.push_back(std::make_unique<std::vector<char>>(4000, 'x'));
    for (size_t i = 0; i + 1 < pieces.size(); ++i) pieces[i].reset();
    const uint64_t kept = resident_pages();
    mtia_device_ptr address = 0;
    CHECK_EQ(allocate(62 * kMiB, &address), MTIA_ERROR_OUT_OF_MEMORY);
    CHECK(resident_pages() + 10000 < kept);
  }));
}
#endif

TEST(a_container_and_the_device_are_named_where_they_are_the_limit) {
  CHECK(child_succeeds([] {
    const System system(kMachine, 2000 * kMiB);
    system.put_in_version_2("/job");
    system.set_version_2("/job", std::to_string(320 * kMiB), 270 * kMiB);
    system.start_driver({.memory_per_device = 1024 * kMiB});
    mtia_device_ptr address = 0;
    CHECK_EQ(allocate(42 * kMiB, &address), MTIA_ERROR_OUT_OF_MEMORY);
    CHECK_CONTAINS(api().last_error_message(), "the container's limit leaves no room");
    CHECK_CONTAINS(api().last_error_message(), "raise the container's memory limit");
    CHECK_EQ(allocate(1025 * kMiB, &address), MTIA_ERROR_OUT_OF_MEMORY);
    CHECK_CONTAINS(api().last_error_message(), "of 1.00 GiB free");
    CHECK_EQ(allocate(40 * kMiB, &address), MTIA_SUCCESS);
  }));
}

TEST(the_cache_goes_back_before_an_allocation_is_refused) {
  CHECK(child_succeeds([] {
    const System system(kMachine, 200 * kMiB);
    system.start_driver({.memory_per_device = 1024 * kMiB});
    core::BlockAllocator& allocator = new_allocator();
    core::Stream& stream = new_stream();
    allocator.free(allocator.allocate(60 * kMiB, &stream));
    allocator.free(allocator.allocate(80 * kMiB, &stream));
    CHECK_EQ(allocator.stats().reserved_bytes[core::kAll].current, static_cast<int64_t>(80 * kMiB));
    const auto error = CHECK_THROWS(core::OutOfDeviceMemory, allocator.allocate(120 * kMiB, &stream));
    CHECK_CONTAINS(error, "the machine leaves no room");
    CHECK_EQ(allocator.stats().reserved_bytes[core::kAll].current, int64_t{0});
  }));
}

TEST(a_driver_without_a_figure_takes_the_default) {
  CHECK(child_succeeds([] {
    const System system(kMachine, 200 * kMiB);
    system.start_driver({.memory_per_device = 0});
    CHECK_EQ(runtime::memory_info(1).total_bytes, 800 * kMiB);
  }));
}

}  // namespace
}  // namespace torch_mtia::test

int main(int argc, char** argv) {
  return torch_mtia::test::run_tests(argc, argv);
}
