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
}

TEST(a_driver_without_a_name_or_a_version_is_refused) {
  check_refused(fake_driver("no name"), "has no name");
  check_refused(fake_driver("no version"), "no version");
}

runtime::DriverSettings driver_with_table_of(uint64_t bytes) {
  setenv("MTIA_TEST_TABLE_SIZE", std::to_string(bytes).c_str(), 1);
  return fake_driver("none");
}

TEST(a_table_without_its_head_is_refused) {
  for (const uint64_t size : {0, 4, 8, 31})
    check_refused(driver_with_table_of(size), "has " + std::to_string(size) + " bytes");
  unsetenv("MTIA_TEST_TABLE_SIZE");
}

TEST(functions_that_are_required_and_behind_the_end_of_the_table_are_listed) {
  const std::string last_required = "event_elapsed_time";
  check_refused(driver_with_table_of(offsetof(mtia_runtime_api, last_error_message)), "last_error_message, initialize");
  check_refused(driver_with_table_of(offsetof(mtia_runtime_api, event_elapsed_time)), ": " + last_required);
  for (const int part : {1, 4, 7})  // half a pointer is none
    check_refused(driver_with_table_of(offsetof(mtia_runtime_api, event_elapsed_time) + part), ": " + last_required);
  unsetenv("MTIA_TEST_TABLE_SIZE");
}

TEST(a_table_may_be_shorter_or_longer_than_the_header_has_it) {
  for (const uint64_t size :
       {offsetof(mtia_runtime_api, module_load), offsetof(mtia_runtime_api, set_tracer),
        offsetof(mtia_runtime_api, set_tracer) + 3, sizeof(mtia_runtime_api) + 8, sizeof(mtia_runtime_api) + 2000}) {
    const runtime::DriverSettings driver = driver_with_table_of(size);
    CHECK(child_succeeds([&] {
      runtime::configure(driver);
      CHECK_EQ(std::string(runtime::driver().name), "fake");
      CHECK(runtime::driver().module_load == nullptr);
      CHECK(runtime::driver().set_tracer == nullptr);
      CHECK_EQ(runtime::device_count(), 7);
      runtime::ensure_initialized();
    }));
  }
  unsetenv("MTIA_TEST_TABLE_SIZE");
}

TEST(a_call_of_a_function_that_the_driver_lacks_names_both) {
  CHECK(child_succeeds([] {
    const runtime::DriverSettings driver = fake_driver("none");
    runtime::configure(driver);
    const auto check = [&](const char* function, const auto& call) {
      const std::string message = CHECK_THROWS(runtime::DriverError, call());
      CHECK_CONTAINS(message, function);
      CHECK_CONTAINS(message, driver.library);
    };
    check("device_synchronize", [] { runtime::call(&mtia_runtime_api::device_synchronize, 0); });
    check("stream_destroy", [] { runtime::call(&mtia_runtime_api::stream_destroy, nullptr); });
    check("set_tracer", [] { runtime::call(&mtia_runtime_api::set_tracer, nullptr); });
  }));
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
