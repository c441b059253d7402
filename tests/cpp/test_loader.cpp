// Which drivers are accepted, and what is said about the others. Each case is a process: one has one driver.
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "child_process.h"
#include "device_under_test.h"

namespace torch_mtia::test {
namespace {

runtime::DriverSettings fake_driver(const char* defect) {
  setenv("MTIA_TEST_DEFECT", defect, 1);
  runtime::DriverSettings fake = settings({});
  fake.library = library("libfake_driver.so");
  return fake;
}

// In a child: the driver is refused with a message that contains `part` and names the library.
void check_refused(const runtime::DriverSettings& driver, const std::string& part) {
  CHECK(child_succeeds([&] {
    runtime::configure(driver);
    for (int attempt = 0; attempt < 2; ++attempt) {
      const std::string message = CHECK_THROWS(runtime::DriverError, runtime::driver());
      CHECK_CONTAINS(message, part);
      CHECK_CONTAINS(message, driver.library);
    }
    CHECK(!runtime::is_initialized());
  }));
}

TEST(a_library_that_cannot_be_loaded_is_named) {
  runtime::DriverSettings driver = settings({});
  driver.library = "/nowhere/libdriver.so";
  check_refused(driver, "cannot load");
}

TEST(a_library_that_is_no_driver_is_named) {
  runtime::DriverSettings driver = settings({});
  driver.library = "libm.so.6";
  check_refused(driver, "does not export mtia_runtime_get_api");
}

TEST(a_driver_of_another_abi_version_is_refused) {
  check_refused(fake_driver("other version"), "does not speak ABI version 1");
  check_refused(fake_driver("other version in the table"), "ABI version 99 where version 1 was asked for");
  check_refused(fake_driver("short table"), "64 bytes");
}

TEST(missing_functions_are_listed) {
  check_refused(fake_driver("missing functions"), "memory_copy, event_record");
}

TEST(a_capability_without_its_functions_is_refused) {
  check_refused(fake_driver("missing optional function"), "memory_host_offset");
}

TEST(a_driver_without_defects_and_without_optional_functions_is_accepted) {
  CHECK(child_succeeds([] {
    runtime::configure(fake_driver("none"));
    CHECK_EQ(std::string(runtime::driver().name), "fake");
    CHECK_EQ(runtime::device_count(), 7);  // this driver knows without initialization
    CHECK(!runtime::is_initialized());
  }));
}

TEST(a_failed_initialization_may_be_tried_again) {
  CHECK(child_succeeds([] {
    runtime::configure(fake_driver("initialize fails once"));
    CHECK_CONTAINS(CHECK_THROWS(runtime::DriverError, runtime::ensure_initialized()), "first initialization");
    CHECK(!runtime::is_initialized());
    runtime::ensure_initialized();
    CHECK(runtime::is_initialized());
  }));
}

TEST(nothing_works_before_configure) {
  CHECK(child_succeeds([] {
    CHECK_CONTAINS(CHECK_THROWS(runtime::DriverError, runtime::driver()), "configure()");
    CHECK_CONTAINS(CHECK_THROWS(runtime::DriverError, runtime::ensure_initialized()), "configure()");
    CHECK_CONTAINS(CHECK_THROWS(runtime::DriverError, runtime::device_count()), "configure()");
  }));
}

TEST(the_last_configuration_before_the_driver_is_initialized_counts) {
  CHECK(child_succeeds([] {
    runtime::configure(fake_driver("none"));
    CHECK_EQ(std::string(runtime::driver().name), "fake");
    runtime::configure(settings({.num_devices = 3}));
    CHECK_EQ(runtime::device_count(), 3);
    runtime::ensure_initialized();
    CHECK_CONTAINS(CHECK_THROWS(runtime::DriverError, runtime::configure(settings({}))), "is in use");
  }));
}

TEST(the_host_driver_counts_its_devices_before_initialization) {
  CHECK(child_succeeds([] {
    runtime::configure(settings({.num_devices = 5}));
    CHECK_EQ(runtime::device_count(), 5);
    CHECK(!runtime::is_initialized());
    runtime::ensure_initialized();
    CHECK_EQ(runtime::device_count(), 5);
  }));
}

TEST(the_host_driver_refuses_to_work_before_initialization) {
  CHECK(child_succeeds([] {
    runtime::configure(settings({}));
    CHECK_EQ(api().device_synchronize(0), MTIA_ERROR_NOT_INITIALIZED);
    CHECK_CONTAINS(api().last_error_message(), "initialize");
  }));
}

TEST(the_host_driver_refuses_parameters_that_make_no_sense) {
  CHECK(child_succeeds([] {
    runtime::configure(settings({.num_devices = 0}));
    CHECK_CONTAINS(CHECK_THROWS(runtime::DriverError, runtime::ensure_initialized()), "num_devices is 0");
  }));
  CHECK(child_succeeds([] {
    runtime::configure(settings({.memory_per_device = uint64_t{1} << 60}));
    CHECK_CONTAINS(CHECK_THROWS(runtime::DriverError, runtime::ensure_initialized()), "memory_per_device");
  }));
  CHECK(child_succeeds([] {
    runtime::DriverSettings without_threads = settings({});
    without_threads.parallel_for = nullptr;
    runtime::configure(without_threads);
    CHECK_CONTAINS(CHECK_THROWS(runtime::DriverError, runtime::ensure_initialized()), "parallel_for");
  }));
}

// Last, because this process is configured by it.
TEST(threads_that_initialize_together_do_it_once) {
  runtime::configure(settings({}));
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back([] { runtime::ensure_initialized(); });
  for (std::thread& thread : threads) thread.join();
  CHECK(runtime::is_initialized());
  mtia_init_params params{};
  params.struct_size = sizeof(params);
  CHECK_EQ(api().initialize(&params), MTIA_ERROR_INVALID_VALUE);
  CHECK_CONTAINS(api().last_error_message(), "already");
}

}  // namespace
}  // namespace torch_mtia::test

int main(int argc, char** argv) {
  return torch_mtia::test::run_tests(argc, argv);
}
