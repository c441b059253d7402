// Device memory: addresses, capacity, host view, copies and fills.
#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstring>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "child_process.h"
#include "device_under_test.h"

namespace torch_mtia::test {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

uint64_t free_bytes(int32_t device = 0) {
  uint64_t free = 0;
  uint64_t total = 0;
  runtime::call(&mtia_runtime_api::memory_info, device, &free, &total);
  return free;
}

// Device memory for a scope.
class Allocation {
 public:
  explicit Allocation(uint64_t size, int32_t device = 0) : device_(device) {
    runtime::call(&mtia_runtime_api::memory_allocate, device, size, &address_);
  }
  ~Allocation() { api().memory_free(device_, address_); }
  Allocation(const Allocation&) = delete;
  Allocation& operator=(const Allocation&) = delete;

  mtia_device_ptr address() const { return address_; }

 private:
  const int32_t device_;
  mtia_device_ptr address_ = 0;
};

TEST(addresses_are_aligned_distinct_and_belong_to_their_device) {
  const Allocation small(1);
  const Allocation other(5000);
  const Allocation large(3 * kMiB);
  const Allocation second_device(4096, 1);
  for (const Allocation* allocation : {&small, &other, &large, &second_device}) {
    CHECK(allocation->address() != 0);
    CHECK_EQ(allocation->address() % 4096, uint64_t{0});
  }
  CHECK(small.address() != other.address());
  int32_t device = -1;
  CHECK_EQ(api().memory_device(reinterpret_cast<const void*>(large.address() + 2 * kMiB), &device), MTIA_SUCCESS);
  CHECK_EQ(device, 0);
  CHECK_EQ(api().memory_device(reinterpret_cast<const void*>(second_device.address()), &device), MTIA_SUCCESS);
  CHECK_EQ(device, 1);
}

TEST(a_host_address_belongs_to_no_device) {
  int32_t device = -1;
  const int on_stack = 0;
  CHECK_EQ(api().memory_device(&on_stack, &device), MTIA_ERROR_INVALID_VALUE);
  CHECK_EQ(api().memory_device(nullptr, &device), MTIA_ERROR_INVALID_VALUE);
  const Allocation allocation(4096);
  CHECK_EQ(api().memory_device(host_view(allocation.address()), &device), MTIA_ERROR_INVALID_VALUE);
}

TEST(the_host_faults_at_a_device_address_and_not_at_its_view) {
  const Allocation allocation(4096);
  CHECK(child_faults([&] { *reinterpret_cast<volatile char*>(allocation.address()) = 1; }));
  CHECK(child_faults([&] { (void)*reinterpret_cast<volatile char*>(allocation.address()); }));
  host_view(allocation.address())[17] = std::byte{5};
  CHECK(host_view(allocation.address())[17] == std::byte{5});
}

TEST(freed_memory_comes_back_as_zeros) {
  const uint64_t before = free_bytes();
  mtia_device_ptr first = 0;
  {
    const Allocation allocation(4 * kMiB);
    first = allocation.address();
    CHECK_EQ(free_bytes(), before - 4 * kMiB);
    std::memset(host_view(first), 0xab, 4 * kMiB);
  }
  CHECK_EQ(free_bytes(), before);
  const Allocation again(4 * kMiB);
  CHECK_EQ(again.address(), first);
  const std::byte* bytes = host_view(first);
  CHECK(std::all_of(bytes, bytes + 4 * kMiB, [](std::byte byte) { return byte == std::byte{0}; }));
}

TEST(freed_neighbours_become_one_range_again) {
  uint64_t free = 0;
  uint64_t total = 0;
  runtime::call(&mtia_runtime_api::memory_info, 1, &free, &total);
  CHECK_EQ(free, total);
  for (const bool ascending : {true, false}) {
    std::vector<mtia_device_ptr> pieces(7);
    for (mtia_device_ptr& piece : pieces) runtime::call(&mtia_runtime_api::memory_allocate, 1, 3 * kMiB, &piece);
    if (!ascending) std::reverse(pieces.begin(), pieces.end());
    for (size_t i = 0; i < pieces.size(); i += 2) runtime::call(&mtia_runtime_api::memory_free, 1, pieces[i]);
    for (size_t i = 1; i < pieces.size(); i += 2) runtime::call(&mtia_runtime_api::memory_free, 1, pieces[i]);
    const Allocation everything(total, 1);
    CHECK_EQ(free_bytes(1), uint64_t{0});
  }
}

TEST(memory_that_is_free_in_pieces_serves_one_large_request) {
  const uint64_t total = free_bytes();
  std::vector<mtia_device_ptr> pieces(total / (2 * kMiB));
  for (mtia_device_ptr& piece : pieces) runtime::call(&mtia_runtime_api::memory_allocate, 0, 2 * kMiB, &piece);
  for (size_t i = 0; i < pieces.size(); i += 2) runtime::call(&mtia_runtime_api::memory_free, 0, pieces[i]);
  {
    const Allocation half(total / 2);
    CHECK_EQ(free_bytes(), uint64_t{0});
    std::memset(host_view(half.address()), 1, total / 2);
    mtia_device_ptr address = 0;
    CHECK_EQ(api().memory_allocate(0, 4096, &address), MTIA_ERROR_OUT_OF_MEMORY);
  }
  for (size_t i = 1; i < pieces.size(); i += 2) runtime::call(&mtia_runtime_api::memory_free, 0, pieces[i]);
  CHECK_EQ(free_bytes(), total);
}

TEST(only_reserved_pages_can_be_mapped) {
  const uint64_t all_free = free_bytes();
  mtia_device_ptr address = 0;
  mtia_device_ptr other = 0;
  runtime::call(&mtia_runtime_api::memory_reserve, 0, 4 * kMiB, &address);
  runtime::call(&mtia_runtime_api::memory_reserve, 0, 4 * kMiB, &other);
  CHECK_EQ(api().memory_map(0, std::max(address, other) + 4 * kMiB, 2 * kMiB), MTIA_ERROR_INVALID_VALUE);
  CHECK_CONTAINS(api().last_error_message(), "of a reservation");
  CHECK_EQ(api().memory_map(0, std::min(address, other) + 2 * kMiB, 4 * kMiB), MTIA_ERROR_INVALID_VALUE);
  runtime::call(&mtia_runtime_api::memory_release, 0, address);
  CHECK_EQ(api().memory_map(0, address, 2 * kMiB), MTIA_ERROR_INVALID_VALUE);
  CHECK_EQ(api().memory_unmap(0, address, 2 * kMiB), MTIA_ERROR_INVALID_VALUE);
  CHECK_EQ(free_bytes(), all_free);
  runtime::call(&mtia_runtime_api::memory_release, 0, other);
}

TEST(running_out_of_memory_tells_the_figures) {
  mtia_device_ptr address = 0;
  CHECK_EQ(api().memory_allocate(0, 512 * kMiB, &address), MTIA_ERROR_OUT_OF_MEMORY);
  CHECK_CONTAINS(api().last_error_message(), "512.00 MiB requested");
  CHECK_CONTAINS(api().last_error_message(), "of 256.00 MiB free");
  CHECK_EQ(api().memory_allocate(0, UINT64_MAX, &address), MTIA_ERROR_OUT_OF_MEMORY);
  CHECK_EQ(api().memory_allocate(0, 0, &address), MTIA_ERROR_INVALID_VALUE);
  CHECK_EQ(api().memory_allocate(9, 1, &address), MTIA_ERROR_INVALID_DEVICE);
}

TEST(only_the_beginning_of_an_allocation_can_be_freed_and_only_once) {
  mtia_device_ptr address = 0;
  runtime::call(&mtia_runtime_api::memory_allocate, 0, 8192, &address);
  CHECK_EQ(api().memory_free(0, address + 4096), MTIA_ERROR_INVALID_VALUE);
  CHECK_EQ(api().memory_free(1, address), MTIA_ERROR_INVALID_VALUE);
  CHECK_EQ(api().memory_free(0, address), MTIA_SUCCESS);
  CHECK_EQ(api().memory_free(0, address), MTIA_ERROR_INVALID_VALUE);
}

TEST(reserved_addresses_have_the_memory_that_is_mapped) {
  const uint64_t all_free = free_bytes();
  mtia_device_ptr address = 0;
  runtime::call(&mtia_runtime_api::memory_reserve, 0, all_free, &address);
  CHECK_EQ(free_bytes(), all_free);
  int32_t device = -1;
  runtime::call(&mtia_runtime_api::memory_device, reinterpret_cast<const void*>(address + 10 * kMiB), &device);
  CHECK_EQ(device, 0);
  runtime::call(&mtia_runtime_api::memory_map, 0, address + 4 * kMiB, 4 * kMiB);
  CHECK_EQ(free_bytes(), all_free - 4 * kMiB);

  CHECK_EQ(api().memory_map(0, address + 6 * kMiB, 4 * kMiB), MTIA_ERROR_INVALID_VALUE);
  CHECK_CONTAINS(api().last_error_message(), "is mapped already");
  CHECK_EQ(api().memory_unmap(0, address, 8 * kMiB), MTIA_ERROR_INVALID_VALUE);
  CHECK_CONTAINS(api().last_error_message(), "is not mapped");
  CHECK_EQ(api().memory_map(0, address + 1, 2 * kMiB), MTIA_ERROR_INVALID_VALUE);
  CHECK_CONTAINS(api().last_error_message(), "does not consist of 2 MiB pages");
  CHECK_EQ(api().memory_release(0, address), MTIA_ERROR_INVALID_VALUE);
  CHECK_CONTAINS(api().last_error_message(), "unmap it first");
  CHECK_EQ(free_bytes(), all_free - 4 * kMiB);

  {
    const Allocation rest(all_free - 4 * kMiB);
    CHECK_EQ(api().memory_map(0, address, 2 * kMiB), MTIA_ERROR_OUT_OF_MEMORY);
    CHECK_CONTAINS(api().last_error_message(), "is out of memory");
  }
  mtia_device_ptr too_large = 0;
  CHECK_EQ(api().memory_allocate(0, all_free - 2 * kMiB, &too_large), MTIA_ERROR_OUT_OF_MEMORY);
  CHECK_EQ(api().memory_reserve(0, 100 * all_free, &too_large), MTIA_ERROR_OUT_OF_MEMORY);
  CHECK_CONTAINS(api().last_error_message(), "addresses left to reserve");

  runtime::call(&mtia_runtime_api::memory_unmap, 0, address + 4 * kMiB, 2 * kMiB);
  runtime::call(&mtia_runtime_api::memory_unmap, 0, address + 6 * kMiB, 2 * kMiB);
  runtime::call(&mtia_runtime_api::memory_release, 0, address);
  CHECK_EQ(api().memory_release(0, address), MTIA_ERROR_INVALID_VALUE);
  CHECK_EQ(free_bytes(), all_free);
}

TEST(of_two_threads_that_unmap_one_range_one_is_refused) {
  const uint64_t all_free = free_bytes();
  mtia_device_ptr address = 0;
  runtime::call(&mtia_runtime_api::memory_reserve, 0, 2 * kMiB, &address);
  for (int i = 0; i < 300; ++i) {
    runtime::call(&mtia_runtime_api::memory_map, 0, address, 2 * kMiB);
    std::barrier both(2);
    std::atomic<int> successes{0};
    const auto unmap = [&] {
      both.arrive_and_wait();
      successes += api().memory_unmap(0, address, 2 * kMiB) == MTIA_SUCCESS;
    };
    std::thread other(unmap);
    unmap();
    other.join();
    CHECK_EQ(successes.load(), 1);
    CHECK_EQ(free_bytes(), all_free);
  }
  runtime::call(&mtia_runtime_api::memory_release, 0, address);
}

TEST(bytes_survive_a_round_trip_through_two_devices) {
  core::Stream& stream = new_stream();
  for (const uint64_t size : {uint64_t{1}, uint64_t{4095}, uint64_t{300'000}, 9 * kMiB + 13}) {
    std::vector<unsigned char> from(size);
    std::vector<unsigned char> back(size);
    std::iota(from.begin(), from.end(), static_cast<unsigned char>(1));
    const Allocation first(size);
    const Allocation second(size, 1);
    const auto host = [](const void* address) { return reinterpret_cast<uint64_t>(address); };
    runtime::call(&mtia_runtime_api::memory_copy, stream.handle(), first.address(), host(from.data()), size,
                  MTIA_COPY_HOST_TO_DEVICE);
    runtime::call(&mtia_runtime_api::memory_copy, stream.handle(), second.address(), first.address(), size,
                  MTIA_COPY_DEVICE_TO_DEVICE);
    runtime::call(&mtia_runtime_api::memory_copy, stream.handle(), host(back.data()), second.address(), size,
                  MTIA_COPY_DEVICE_TO_HOST);
    finish(stream);
    CHECK(from == back);
  }
}

TEST(copies_wait_for_their_turn_in_the_stream) {
  core::Stream& stream = new_stream();
  const Allocation allocation(4096);
  Gate gate;
  uint32_t value = 1;
  hold(stream, gate);
  runtime::call(&mtia_runtime_api::memory_copy, stream.handle(), allocation.address(),
                reinterpret_cast<uint64_t>(&value), 4, MTIA_COPY_HOST_TO_DEVICE);
  value = 2;  // the copy has not begun
  gate.open();
  finish(stream);
  uint32_t copied = 0;
  std::memcpy(&copied, host_view(allocation.address()), 4);
  CHECK_EQ(copied, 2U);
}

TEST(large_copies_use_as_many_threads_as_the_caller_wants) {
  core::Stream& stream = new_stream();
  const Allocation from(16 * kMiB);
  const Allocation to(16 * kMiB);
  const auto threads_of_a_copy = [&](int32_t wanted) {
    wanted_threads = wanted;
    used_threads = 1;
    runtime::call(&mtia_runtime_api::memory_copy, stream.handle(), to.address(), from.address(), 16 * kMiB,
                  MTIA_COPY_DEVICE_TO_DEVICE);
    finish(stream);
    wanted_threads = 64;
    return used_threads.load();
  };
  mtia_device_properties properties{};
  properties.struct_size = sizeof(properties);
  runtime::call(&mtia_runtime_api::device_properties, 0, &properties);
  CHECK_EQ(threads_of_a_copy(1), 1);
  CHECK_EQ(threads_of_a_copy(64), properties.multi_processor_count);
}

TEST(a_copy_of_the_wrong_kind_or_beyond_the_end_is_refused) {
  core::Stream& stream = new_stream();
  const Allocation allocation(4096);
  int on_host = 0;
  const auto host = reinterpret_cast<uint64_t>(&on_host);
  const auto copy = [&](uint64_t to, uint64_t from, uint64_t size, mtia_copy_kind kind) {
    return api().memory_copy(stream.handle(), to, from, size, kind);
  };
  CHECK_EQ(copy(host, host, 4, MTIA_COPY_HOST_TO_DEVICE), MTIA_ERROR_INVALID_VALUE);
  CHECK_CONTAINS(api().last_error_message(), "destination is not device memory");
  CHECK_EQ(copy(allocation.address(), allocation.address(), 4, MTIA_COPY_HOST_TO_DEVICE), MTIA_ERROR_INVALID_VALUE);
  CHECK_EQ(copy(allocation.address(), allocation.address(), 4, MTIA_COPY_DEVICE_TO_HOST), MTIA_ERROR_INVALID_VALUE);
  CHECK_EQ(copy(allocation.address(), host, 4, MTIA_COPY_DEVICE_TO_DEVICE), MTIA_ERROR_INVALID_VALUE);
  CHECK_EQ(copy(host, allocation.address(), UINT64_MAX, MTIA_COPY_DEVICE_TO_HOST), MTIA_ERROR_INVALID_VALUE);
  CHECK_EQ(copy(0, 0, 0, MTIA_COPY_DEVICE_TO_HOST), MTIA_SUCCESS);
}

TEST(a_fill_repeats_its_pattern) {
  core::Stream& stream = new_stream();
  const std::string bytes = "0123456789abcdef";
  for (const uint32_t pattern_size : {1U, 2U, 4U, 8U, 16U}) {
    for (const uint64_t count : {uint64_t{1}, uint64_t{3}, uint64_t{1000}, 9 * kMiB / pattern_size + 1}) {
      const uint64_t size = count * pattern_size;
      const Allocation allocation(size + 1);
      host_view(allocation.address())[size] = std::byte{0x5a};
      std::string pattern = bytes.substr(0, pattern_size);
      runtime::call(&mtia_runtime_api::memory_fill, stream.handle(), allocation.address(), pattern.data(), pattern_size,
                    count);
      pattern.assign(pattern_size, '?');  // has been read
      finish(stream);
      const auto* filled = reinterpret_cast<const char*>(host_view(allocation.address()));
      for (uint64_t i = 0; i < size; ++i) {
        if (filled[i] != bytes[i % pattern_size]) CHECK_EQ(i, size);
      }
      CHECK_EQ(filled[size], char{0x5a});
    }
  }
}

TEST(a_fill_with_equal_bytes_and_a_large_pattern) {
  core::Stream& stream = new_stream();
  const Allocation allocation(4096);
  const uint64_t zero = 0;
  std::memset(host_view(allocation.address()), 1, 4096);
  runtime::call(&mtia_runtime_api::memory_fill, stream.handle(), allocation.address(), &zero, 8, 512);
  finish(stream);
  const std::byte* bytes = host_view(allocation.address());
  CHECK(std::all_of(bytes, bytes + 4096, [](std::byte byte) { return byte == std::byte{0}; }));
}

TEST(a_fill_that_does_not_fit_is_refused) {
  core::Stream& stream = new_stream();
  const Allocation allocation(4096);
  const uint64_t zero = 0;
  const auto fill = [&](uint32_t pattern_size, uint64_t count) {
    return api().memory_fill(stream.handle(), allocation.address(), &zero, pattern_size, count);
  };
  CHECK_EQ(fill(3, 1), MTIA_ERROR_INVALID_VALUE);
  CHECK_EQ(fill(32, 1), MTIA_ERROR_INVALID_VALUE);
  CHECK_EQ(fill(8, UINT64_MAX / 4), MTIA_ERROR_INVALID_VALUE);
  CHECK_EQ(fill(8, 0), MTIA_SUCCESS);
}

TEST(a_device_describes_itself) {
  mtia_device_properties properties{};
  CHECK_EQ(api().device_properties(0, &properties), MTIA_ERROR_INVALID_VALUE);  // struct_size is not set
  properties.struct_size = sizeof(properties);
  runtime::call(&mtia_runtime_api::device_properties, 0, &properties);
  CHECK_CONTAINS(properties.name, "MTIA software device");
#if defined(__aarch64__)
  CHECK_CONTAINS(properties.architecture, "aarch64");
#else
  CHECK_CONTAINS(properties.architecture, "x86-64");
#endif
  CHECK_EQ(properties.total_memory, 256 * kMiB);
  CHECK(properties.l2_cache_size > 0);
  CHECK(properties.multi_processor_count > 0);
  CHECK_EQ(properties.warp_size, 32);
}

}  // namespace
}  // namespace torch_mtia::test

int main(int argc, char** argv) {
  return torch_mtia::test::run_tests_on_device(argc, argv);
}
