// A process that was forked from one that uses the device gets errors that say what to do; nothing hangs or crashes.
#include <string>

#include "child_process.h"
#include "device_under_test.h"

namespace torch_mtia::test {
namespace {

TEST(a_child_forked_before_initialization_can_use_the_device) {
  runtime::configure(settings({}));
  CHECK_EQ(runtime::device_count(), 2);  // loads the driver, and starts nothing
  CHECK(child_succeeds([] {
    runtime::ensure_initialized();
    core::Stream& stream = new_stream();
    bool ran = false;
    stream.launch(kSmall, [&](const mtia_work_context&) { ran = true; });
    finish(stream);
    CHECK(ran);
  }));
}

TEST(every_function_refuses_in_a_child_forked_later) {
  runtime::ensure_initialized();
  core::Stream& stream = new_stream();
  core::Event event(true);
  core::BlockAllocator& allocator = new_allocator();
  core::Block* block = allocator.allocate(512, &stream);
  core::Block* shared_block = allocator.allocate(512, &stream);
  allocator.record_stream(shared_block, &new_stream());
  Gate gate;
  hold(stream, gate);  // also while the device is busy

  CHECK(child_succeeds([&] {
    int32_t number = 0;
    int64_t offset = 0;
    uint64_t bytes = 0;
    double milliseconds = 0;
    mtia_device_ptr address = core::block_address(block);
    mtia_stream new_handle = nullptr;
    mtia_event new_event = nullptr;
    mtia_device_properties properties{};
    properties.struct_size = sizeof(properties);
    mtia_work work{};
    work.struct_size = sizeof(work);
    work.run = [](void*, const mtia_work_context*) { return MTIA_SUCCESS; };
    for (const mtia_status status :
         {api().device_count(&number),
          api().device_properties(0, &properties),
          api().device_synchronize(0),
          api().memory_allocate(0, 1, &address),
          api().memory_free(0, address),
          api().memory_info(0, &bytes, &bytes),
          api().memory_device(&number, &number),
          api().memory_host_offset(&offset),
          api().memory_copy(stream.handle(), address, address, 1, MTIA_COPY_DEVICE_TO_DEVICE),
          api().memory_fill(stream.handle(), address, &number, 4, 1),
          api().stream_priority_range(&number, &number),
          api().stream_create(0, 0, nullptr, &new_handle),
          api().stream_destroy(stream.handle()),
          api().stream_query(stream.handle()),
          api().stream_synchronize(stream.handle()),
          api().stream_wait_event(stream.handle(), event.handle()),
          api().stream_launch(stream.handle(), &work),
          api().event_create(0, &new_event),
          api().event_destroy(event.handle()),
          api().event_record(event.handle(), stream.handle()),
          api().event_query(event.handle()),
          api().event_synchronize(event.handle()),
          api().event_elapsed_time(event.handle(), event.handle(), &milliseconds)}) {
      CHECK_EQ(status, MTIA_ERROR_FORKED);
    }
    CHECK_CONTAINS(api().last_error_message(), "spawn");
    CHECK_CONTAINS(CHECK_THROWS(runtime::DriverError, stream.launch(kSmall, [](const mtia_work_context&) {})), "spawn");
    // Objects that the child inherited may still go away.
    allocator.free(block);
    allocator.free(shared_block);
  }));

  gate.open();
  finish(stream);  // the parent goes on as before
  allocator.free(block);
  allocator.free(shared_block);
}

}  // namespace
}  // namespace torch_mtia::test

int main(int argc, char** argv) {
  return torch_mtia::test::run_tests(argc, argv);
}
