// The host is out of memory: what deletes, and what reports an error, does not fail.
#include <cstdlib>
#include <memory>
#include <new>
#include <string>

#include "device_under_test.h"

namespace {
thread_local bool fails = false;  // every allocation of this thread
}

void* operator new(size_t size) {
  void* memory = fails ? nullptr : std::malloc(size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, size_t /*size*/) noexcept {
  std::free(memory);
}
// The standard library's call those above; the compiler's sanitizers have their own.
void* operator new[](size_t size) {
  return operator new(size);
}
void* operator new[](size_t size, const std::nothrow_t& /*tag*/) noexcept {
  return fails ? nullptr : std::malloc(size);
}
void operator delete[](void* memory) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, size_t /*size*/) noexcept {
  std::free(memory);
}

namespace torch_mtia::test {
namespace {

struct WithoutMemory {
  WithoutMemory() { fails = true; }
  ~WithoutMemory() { fails = false; }
};

TEST(an_error_of_work_is_kept_without_memory_for_its_name) {
  core::Stream& stream = new_stream();
  core::WorkInfo info = kSmall;
  info.name = "an operator with a name that needs memory of its own";
  stream.launch(info, [](const mtia_work_context&) {
    const WithoutMemory in_this_item;
    throw std::bad_alloc();
  });
  CHECK_THROWS(std::bad_alloc, finish(stream));

  stream.launch(info, [](const mtia_work_context& context) {
    const WithoutMemory in_this_item;
    core::record_work_error(context.stream_tag, "an operator with a name that needs memory of its own",
                            std::make_exception_ptr(std::bad_alloc()));
  });
  CHECK_THROWS(std::bad_alloc, finish(stream));
}

TEST(blocks_are_freed_without_memory) {
  core::Stream& stream = new_stream();
  core::Stream& other = new_stream();
  core::BlockAllocator& allocator = new_allocator();
  mtia_device_ptr small = allocator.allocate(512, &stream);
  mtia_device_ptr large = allocator.allocate(size_t{4} << 20, &stream);
  mtia_device_ptr shared = allocator.allocate(size_t{4} << 20, &stream);
  allocator.record_stream(shared, &other);
  Gate gate;
  hold(other, gate);
  {
    const WithoutMemory in_this_scope;
    allocator.free(small);
    allocator.free(large);
    allocator.free(shared);  // nothing can tell when `other` is done with it
  }
  gate.open();
  finish(other);
  CHECK_EQ(allocator.stats().allocation[core::kAll].current, int64_t{0});
}

TEST(an_error_has_no_text_without_memory_for_it) {
  std::thread first_call([] {
    const WithoutMemory in_this_thread;
    CHECK_EQ(api().event_query(nullptr), MTIA_ERROR_INTERNAL);  // that it is null needs memory to say
    CHECK_EQ(std::string(api().last_error_message()), "");
  });
  first_call.join();
}

}  // namespace
}  // namespace torch_mtia::test

int main(int argc, char** argv) {
  return torch_mtia::test::run_tests_on_device(argc, argv);
}
