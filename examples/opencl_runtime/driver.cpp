// The table of functions: checks arguments, gives commands to streams, and turns exceptions into statuses.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "device.h"
#include "opencl.h"
#include "opencl_driver.h"
#include "stream.h"

namespace opencl_driver {
namespace {

thread_local std::string message_of_thread;

// Note [Opening]
// Implementations of OpenCL start threads when they are asked for devices, and `initialize` may start none. So it keeps
// what it was asked for, and the first call that needs a device opens them.
struct Driver {
  const pid_t process = getpid();
  const size_t num_devices;
  const bool launch_blocking;
  Memory memory;
  std::mutex mutex;
  std::vector<std::shared_ptr<Stream>> streams;

  Driver(size_t num_devices, bool launch_blocking) : num_devices(num_devices), launch_blocking(launch_blocking) {}

  const std::vector<std::unique_ptr<Device>>& devices() {
    const std::lock_guard lock(mutex);
    if (devices_.empty()) devices_ = open_devices(num_devices);
    return devices_;
  }

  Device& device(int32_t index) {
    const auto& all = devices();
    if (index < 0 || static_cast<size_t>(index) >= all.size()) {
      throw Failure(MTIA_ERROR_INVALID_DEVICE, "there is no device " + std::to_string(index) + ", OpenCL has " +
                                                   std::to_string(all.size()) + " of those that were asked for");
    }
    return *all[static_cast<size_t>(index)];
  }

 private:
  std::vector<std::unique_ptr<Device>> devices_;
};
std::atomic<Driver*> the_driver{nullptr};  // leaked: threads of streams may run until the process ends
std::mutex initialization;

template <typename Body>
mtia_status guarded(Body&& body) noexcept {
  try {
    return body();
  } catch (const Failure& failure) {
    message_of_thread = failure.what();
    return failure.status;
  } catch (const std::exception& error) {
    message_of_thread = error.what();
    return MTIA_ERROR_INTERNAL;
  }
}

// Every function but last_error_message and initialize.
template <typename Body>
mtia_status serve(Body&& body) noexcept {
  return guarded([&]() -> mtia_status {
    Driver* const driver = the_driver.load(std::memory_order_acquire);
    if (driver == nullptr) throw Failure(MTIA_ERROR_NOT_INITIALIZED, "initialize has not been called");
    if (driver->process != getpid()) {
      throw Failure(MTIA_ERROR_FORKED,
                    "the process forked after it took the device into use: the child cannot use it. "
                    "Start processes with the method spawn");
    }
    if constexpr (std::is_void_v<decltype(body(*driver))>) {
      body(*driver);
      return MTIA_SUCCESS;
    } else {
      return body(*driver);
    }
  });
}

[[noreturn]] void invalid(const std::string& message) {
  throw Failure(MTIA_ERROR_INVALID_VALUE, message);
}

template <typename Pointer>
Pointer* require(Pointer* argument, const char* name) {
  if (argument == nullptr) invalid(std::string(name) + " is null");
  return argument;
}

// What the caller has of a struct, whose header may be older or newer: the rest is zero. See Growth in mtia_runtime.h.
template <typename Struct>
Struct require_struct(const Struct* argument, uint32_t least, const char* name) {
  if (require(argument, name)->struct_size < least) invalid(std::string(name) + " is shorter than in version 1");
  Struct whole{};
  std::memcpy(&whole, argument, std::min<size_t>(argument->struct_size, sizeof(Struct)));
  return whole;
}

Stream& checked(mtia_stream handle) {
  return *require(reinterpret_cast<Stream*>(handle), "the stream");
}
Event& checked(mtia_event handle) {
  return *require(reinterpret_cast<Event*>(handle), "the event");
}

// With launch blocking, waits for what was submitted. Returns whether it has; throws Failure if the command failed.
bool wait_if_blocking(const Driver& driver, const Command& command) {
  if (!driver.launch_blocking || Stream::is_inside_of_work()) return false;
  check(clWaitForEvents(1, command.list()), "a command of the stream", MTIA_ERROR_LAUNCH_FAILED);
  return true;
}

// Initialization and devices ------------------------------------------------------------------------------------------

const char* last_error_message() {
  return message_of_thread.c_str();
}

mtia_status initialize(const mtia_init_params* given) {
  return guarded([&] {
    const mtia_init_params params = require_struct(given, MTIA_INIT_PARAMS_SIZE_1, "params");
    const std::lock_guard lock(initialization);
    if (the_driver.load() != nullptr) invalid("initialize was called already");
    if (params.num_devices < 1) invalid("initialize: num_devices is " + std::to_string(params.num_devices));
    cl_uint platforms = 0;
    check(clGetPlatformIDs(0, nullptr, &platforms), "clGetPlatformIDs, which looks for implementations of OpenCL,");
    auto driver = std::make_unique<Driver>(static_cast<size_t>(params.num_devices), params.launch_blocking != 0);
    the_driver.store(driver.release(), std::memory_order_release);
    return MTIA_SUCCESS;
  });
}

mtia_status device_count(int32_t* count) {
  return serve([&](Driver& driver) { *require(count, "count") = static_cast<int32_t>(driver.devices().size()); });
}

mtia_status device_properties(int32_t index, mtia_device_properties* properties) {
  return serve([&](Driver& driver) {
    const Device& device = driver.device(index);
    require_struct(properties, MTIA_DEVICE_PROPERTIES_SIZE_1, "properties");
    device.describe(properties);
  });
}

mtia_status device_synchronize(int32_t index) {
  return serve([&](Driver& driver) {
    const Device& device = driver.device(index);
    std::vector<std::shared_ptr<Stream>> streams;
    {
      const std::lock_guard lock(driver.mutex);
      streams = driver.streams;
    }
    std::optional<Failure> first;
    for (const auto& stream : streams) {
      if (&stream->device() != &device) continue;
      try {
        stream->synchronize();
      } catch (const Failure& failure) {
        if (!first) first = failure;
      }
    }
    if (first) throw *first;
  });
}

// Memory --------------------------------------------------------------------------------------------------------------

mtia_status memory_allocate(int32_t device, uint64_t size, mtia_device_ptr* address) {
  return serve([&](Driver& driver) {
    Device& on = driver.device(device);
    require(address, "address");
    *address = driver.memory.allocate(on, size);
  });
}

mtia_status memory_free(int32_t device, mtia_device_ptr address) {
  return serve([&](Driver& driver) { driver.memory.free(driver.device(device), address); });
}

mtia_status memory_info(int32_t index, uint64_t* free_bytes, uint64_t* total_bytes) {
  return serve([&](Driver& driver) {
    const Device& device = driver.device(index);
    require(free_bytes, "free_bytes");
    *require(total_bytes, "total_bytes") = device.total_memory();
    *free_bytes = driver.memory.free_bytes(device);
  });
}

mtia_status memory_device(const void* address, int32_t* device) {
  return serve([&](Driver& driver) {
    require(device, "device");
    *device = driver.memory.find(reinterpret_cast<mtia_device_ptr>(address), 1).device.index();
  });
}

void read(cl_command_queue queue, const Place& from, void* to, uint64_t size, cl_event* last) {
  check(clEnqueueReadBuffer(queue, from.buffer.get(), CL_FALSE, from.offset, size, to, 0, nullptr, last),
        "clEnqueueReadBuffer");
}

void write(cl_command_queue queue, const Place& to, const void* from, uint64_t size, cl_event* last) {
  check(clEnqueueWriteBuffer(queue, to.buffer.get(), CL_FALSE, to.offset, size, from, 0, nullptr, last),
        "clEnqueueWriteBuffer");
}

// OpenCL would move all of the buffers to one device, under whatever else uses them there.
void copy_between_devices(const Place& to, const Place& from, uint64_t size) {
  std::vector<char> bytes(size);
  read(from.device.own_queue().get(), from, bytes.data(), size, nullptr);
  check(clFinish(from.device.own_queue().get()), "clFinish");
  write(to.device.own_queue().get(), to, bytes.data(), size, nullptr);
  check(clFinish(to.device.own_queue().get()), "clFinish");
}

Command copy(Driver& driver, Stream& stream, uint64_t to, uint64_t from, uint64_t size, mtia_copy_kind kind) {
  if (kind == MTIA_COPY_HOST_TO_DEVICE) {
    const Place place = driver.memory.find(to, size);
    return stream.submit([&](cl_command_queue queue, cl_event* last) {
      write(queue, place, reinterpret_cast<const void*>(from), size, last);
    });
  }
  if (kind == MTIA_COPY_DEVICE_TO_HOST) {
    const Place place = driver.memory.find(from, size);
    return stream.submit(
        [&](cl_command_queue queue, cl_event* last) { read(queue, place, reinterpret_cast<void*>(to), size, last); });
  }
  const Place target = driver.memory.find(to, size);
  const Place source = driver.memory.find(from, size);
  if (&target.device != &stream.device() || &source.device != &stream.device()) {
    return stream.submit_to_host([=] { copy_between_devices(target, source, size); });
  }
  return stream.submit([&](cl_command_queue queue, cl_event* last) {
    check(clEnqueueCopyBuffer(queue, source.buffer.get(), target.buffer.get(), source.offset, target.offset, size, 0,
                              nullptr, last),
          "clEnqueueCopyBuffer");
  });
}

mtia_status memory_copy(mtia_stream handle, uint64_t to, uint64_t from, uint64_t size, mtia_copy_kind kind) {
  return serve([&](Driver& driver) {
    Stream& stream = checked(handle);
    if (kind < MTIA_COPY_HOST_TO_DEVICE || kind > MTIA_COPY_DEVICE_TO_DEVICE) invalid("memory_copy: an unknown kind");
    if (size == 0) return MTIA_SUCCESS;
    if (to == 0 || from == 0) invalid("memory_copy: an address is null");
    wait_if_blocking(driver, copy(driver, stream, to, from, size, kind));
    return MTIA_SUCCESS;
  });
}

using Pattern = std::array<unsigned char, 16>;

// OpenCL fills from multiples of the pattern's size on. What lies before the first of them and behind the last is
// filled byte for byte, and the pattern between begins with the byte that is due there.
void fill(cl_command_queue queue, const Place& place, const Pattern& pattern, uint32_t width, uint64_t size,
          cl_event* last) {
  const auto enqueue = [&](const void* bytes, uint32_t count, uint64_t begin, uint64_t end) {
    cl_event* const event = end == size ? last : nullptr;
    check(clEnqueueFillBuffer(queue, place.buffer.get(), bytes, count, place.offset + begin, end - begin, 0, nullptr,
                              event),
          "clEnqueueFillBuffer");
  };
  const uint64_t head = (width - place.offset % width) % width;
  const uint64_t middle = head == 0 ? size : size - width;
  for (uint64_t i = 0; i < head; ++i) enqueue(&pattern[i], 1, i, i + 1);
  if (middle != 0) {
    Pattern shifted{};
    for (uint32_t i = 0; i < width; ++i) shifted[i] = pattern[(head + i) % width];
    enqueue(shifted.data(), width, head, head + middle);
  }
  for (uint64_t i = head + middle; i < size; ++i) enqueue(&pattern[i % width], 1, i, i + 1);
}

mtia_status memory_fill(mtia_stream handle, mtia_device_ptr to, const void* given, uint32_t width, uint64_t count) {
  return serve([&](Driver& driver) {
    Stream& stream = checked(handle);
    Pattern pattern{};
    if (width == 0 || width > pattern.size() || (width & (width - 1)) != 0) {
      invalid("memory_fill: the pattern has " + std::to_string(width) + " bytes");
    }
    std::memcpy(pattern.data(), require(given, "pattern"), width);
    if (count == 0) return MTIA_SUCCESS;
    if (count > UINT64_MAX / width) invalid("memory_fill: count is " + std::to_string(count));
    const uint64_t size = count * width;
    const Place place = driver.memory.find(to, size);
    wait_if_blocking(driver, stream.submit([&](cl_command_queue queue, cl_event* last) {
      fill(queue, place, pattern, width, size, last);
    }));
    return MTIA_SUCCESS;
  });
}

// Streams -------------------------------------------------------------------------------------------------------------

mtia_status stream_priority_range(int32_t* lowest, int32_t* highest) {
  return serve([&](Driver&) {
    *require(lowest, "lowest") = 0;  // all streams are alike
    *require(highest, "highest") = 0;
  });
}

mtia_status stream_create(int32_t device, int32_t /*priority*/, void* tag, mtia_stream* stream) {
  return serve([&](Driver& driver) {
    Device& on = driver.device(device);
    require(stream, "stream");
    const auto made = std::make_shared<Stream>(on, tag);
    const std::lock_guard lock(driver.mutex);
    driver.streams.push_back(made);
    *stream = reinterpret_cast<mtia_stream>(made.get());
  });
}

mtia_status stream_destroy(mtia_stream handle) {
  return serve([&](Driver& driver) {
    Stream& stream = checked(handle);
    stream.retire();
    const std::lock_guard lock(driver.mutex);
    std::erase_if(driver.streams, [&](const auto& known) { return known.get() == &stream; });
  });
}

mtia_status stream_query(mtia_stream stream) {
  return serve([&](Driver&) { return checked(stream).is_idle() ? MTIA_SUCCESS : MTIA_ERROR_NOT_READY; });
}

mtia_status stream_synchronize(mtia_stream stream) {
  return serve([&](Driver&) { checked(stream).synchronize(); });
}

mtia_status stream_wait_event(mtia_stream stream, mtia_event event) {
  return serve([&](Driver&) { checked(event).delay(checked(stream)); });
}

// A work item of the caller's, moved into memory of its own.
class Work {
 public:
  explicit Work(const mtia_work& work)
      : work_(work), block_(std::aligned_alloc(16, (work.args_size + 15) / 16 * 16 + 16)) {
    if (block_ == nullptr) throw std::bad_alloc();
    if (work.relocate != nullptr) {
      work.relocate(block_, work.args);
    } else if (work.args_size != 0) {
      std::memcpy(block_, work.args, work.args_size);
    }
  }
  ~Work() {
    if (work_.destroy != nullptr) work_.destroy(block_);
    std::free(block_);
  }
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;

  void run(int32_t device, void* tag) {
    const mtia_work_context context{device, std::max(work_.num_threads, 1), tag};
    has_failed_ = work_.run(block_, &context) != MTIA_SUCCESS;
    if (has_failed_) throw Failure(MTIA_ERROR_LAUNCH_FAILED, name() + " failed");
  }
  std::string name() const { return work_.name != nullptr ? work_.name : "work"; }
  // For who has waited for it.
  bool has_failed() const { return has_failed_; }

 private:
  const mtia_work work_;
  void* const block_;
  bool has_failed_ = false;
};

mtia_status stream_launch(mtia_stream handle, const mtia_work* given) {
  return serve([&](Driver& driver) {
    const mtia_work work = require_struct(given, MTIA_WORK_SIZE_1, "work");
    Stream& stream = checked(handle);
    if (work.run == nullptr) invalid("stream_launch: the work has no run function");
    const auto owned = std::make_shared<Work>(work);
    const Command done = stream.submit_to_host([owned, &stream] { owned->run(stream.device().index(), stream.tag()); });
    if (wait_if_blocking(driver, done) && owned->has_failed()) {
      throw Failure(MTIA_ERROR_LAUNCH_FAILED, owned->name() + " failed");
    }
  });
}

// Events --------------------------------------------------------------------------------------------------------------

mtia_status event_create(int32_t enable_timing, mtia_event* event) {
  return serve([&](Driver&) {
    require(event, "event");
    *event = reinterpret_cast<mtia_event>(new Event(enable_timing != 0));
  });
}

mtia_status event_destroy(mtia_event event) {
  return serve([&](Driver&) { delete &checked(event); });
}

mtia_status event_record(mtia_event event, mtia_stream stream) {
  return serve([&](Driver&) { checked(event).record(checked(stream)); });
}

mtia_status event_query(mtia_event event) {
  return serve([&](Driver&) { return checked(event).is_complete() ? MTIA_SUCCESS : MTIA_ERROR_NOT_READY; });
}

mtia_status event_synchronize(mtia_event event) {
  return serve([&](Driver&) { checked(event).wait(); });
}

mtia_status event_elapsed_time(mtia_event start, mtia_event end, double* milliseconds) {
  return serve(
      [&](Driver&) { *require(milliseconds, "milliseconds") = checked(start).milliseconds_until(checked(end)); });
}

mtia_runtime_api make_table() {
  mtia_runtime_api api{};
  api.struct_size = sizeof(api);
  api.abi_version = MTIA_RUNTIME_ABI_VERSION;
  api.capabilities = 0;
  api.name = "opencl";
  api.version = "1.0";
  api.last_error_message = last_error_message;
  api.initialize = initialize;
  api.device_count = device_count;
  api.device_properties = device_properties;
  api.device_synchronize = device_synchronize;
  api.memory_allocate = memory_allocate;
  api.memory_free = memory_free;
  api.memory_info = memory_info;
  api.memory_device = memory_device;
  api.memory_copy = memory_copy;
  api.memory_fill = memory_fill;
  api.stream_priority_range = stream_priority_range;
  api.stream_create = stream_create;
  api.stream_destroy = stream_destroy;
  api.stream_query = stream_query;
  api.stream_synchronize = stream_synchronize;
  api.stream_wait_event = stream_wait_event;
  api.stream_launch = stream_launch;
  api.event_create = event_create;
  api.event_destroy = event_destroy;
  api.event_record = event_record;
  api.event_query = event_query;
  api.event_synchronize = event_synchronize;
  api.event_elapsed_time = event_elapsed_time;
  return api;
}

}  // namespace
}  // namespace opencl_driver

#define EXPORTED __attribute__((visibility("default")))

EXPORTED const mtia_runtime_api* mtia_runtime_get_api(uint32_t abi_version) {
  static const mtia_runtime_api table = opencl_driver::make_table();
  return abi_version == MTIA_RUNTIME_ABI_VERSION ? &table : nullptr;
}

EXPORTED mtia_status opencl_driver_buffer(mtia_device_ptr address, uint64_t size, cl_mem* buffer, size_t* offset) {
  using namespace opencl_driver;
  return serve([&](Driver& driver) {
    const Place place = driver.memory.find(address, size);
    *require(buffer, "buffer") = place.buffer.get();
    *require(offset, "offset") = place.offset;
  });
}

EXPORTED mtia_status opencl_driver_enqueue(mtia_stream handle,
                                           cl_int (*enqueue)(void* args, cl_command_queue queue, cl_event* last),
                                           void* args) {
  using namespace opencl_driver;
  return serve([&](Driver& driver) {
    Stream& stream = checked(handle);
    require(enqueue, "enqueue");
    wait_if_blocking(driver, stream.submit([&](cl_command_queue queue, cl_event* last) {
      check(enqueue(args, queue, last), "what an operator enqueues");
    }));
  });
}
