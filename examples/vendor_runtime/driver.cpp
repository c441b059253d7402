// The table of functions: checks arguments, makes items for streams, and turns exceptions into statuses.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "device_process.h"
#include "failure.h"
#include "graph.h"
#include "image.h"
#include "stream.h"

namespace vendor {
namespace {

thread_local std::string message_of_thread;

// Leaked: threads of streams may run until the process ends.
struct Driver {
  pid_t process = getpid();
  bool launch_blocking = false;
  std::vector<std::unique_ptr<DeviceProcess>> devices;
  std::mutex mutex;
  std::vector<std::shared_ptr<Stream>> streams;

  DeviceProcess& device(int32_t index) {
    if (index < 0 || static_cast<size_t>(index) >= devices.size()) {
      throw Failure(MTIA_ERROR_INVALID_DEVICE,
                    "there is no device " + std::to_string(index) + ", there are " + std::to_string(devices.size()));
    }
    return *devices[static_cast<size_t>(index)];
  }
};
std::atomic<Driver*> the_driver{nullptr};
std::mutex initialization;

// A module is one kernel, of which mtia_function is the address, too.
struct Kernel {
  DeviceProcess& device;
  uint64_t number;
  mtia_kernel_image_header header;

  ~Kernel() {
    try {
      device.unload_kernel(number);
    } catch (const Failure&) {  // the device is lost, and the kernel with it
    }
  }
};

// The handles of what items share with their handles.
using KernelHandle = std::shared_ptr<Kernel>;
using GraphHandle = std::shared_ptr<Graph>;
using GraphExecHandle = std::shared_ptr<GraphExec>;

template <typename Body>
mtia_status guarded(Body&& body) noexcept {
  try {
    return body();
  } catch (const Failure& failure) {
    message_of_thread = failure.what();
    return failure.status;
  } catch (const ImageError& error) {
    message_of_thread = error.what();
    return error.status;
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
KernelHandle& checked(mtia_module handle) {
  return *require(reinterpret_cast<KernelHandle*>(handle), "the module");
}
GraphHandle& checked(mtia_graph handle) {
  return *require(reinterpret_cast<GraphHandle*>(handle), "the graph");
}
GraphExecHandle& checked(mtia_graph_exec handle) {
  return *require(reinterpret_cast<GraphExecHandle*>(handle), "the executable graph");
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
    if (params.memory_per_device == 0 || params.memory_per_device > DeviceProcess::kAddressesPerDevice) {
      invalid("initialize: memory_per_device is " + std::to_string(params.memory_per_device));
    }
    auto driver = std::make_unique<Driver>();
    driver->launch_blocking = params.launch_blocking != 0;
    for (int32_t index = 0; index < params.num_devices; ++index) {
      driver->devices.push_back(std::make_unique<DeviceProcess>(index, params.memory_per_device));
    }
    the_driver.store(driver.release(), std::memory_order_release);
    return MTIA_SUCCESS;
  });
}

mtia_status device_count(int32_t* count) {
  return serve([&](Driver& driver) { *require(count, "count") = static_cast<int32_t>(driver.devices.size()); });
}

mtia_status device_properties(int32_t index, mtia_device_properties* properties) {
  return serve([&](Driver& driver) {
    const DeviceProcess& device = driver.device(index);
    require_struct(properties, MTIA_DEVICE_PROPERTIES_SIZE_1, "properties");
    std::snprintf(properties->name, sizeof(properties->name), "Vendor example, in another process");
    std::snprintf(properties->architecture, sizeof(properties->architecture), "x86-64");
    properties->total_memory = device.capacity();
    properties->l2_cache_size = uint64_t{1} << 20;
    properties->multi_processor_count = 1;  // a launch runs its programs in turn
    properties->warp_size = 32;
    properties->capability_major = 1;
    properties->capability_minor = 0;
  });
}

mtia_status device_synchronize(int32_t index) {
  return serve([&](Driver& driver) {
    driver.device(index);
    std::vector<std::shared_ptr<Stream>> streams;
    {
      const std::lock_guard lock(driver.mutex);
      streams = driver.streams;
    }
    std::optional<Failure> first;
    for (const auto& stream : streams) {
      if (stream->device() != index || stream->capture() != nullptr) continue;
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

// A range of the device's memory, as the device counts.
struct Place {
  DeviceProcess& device;
  uint64_t offset;
};

Place place_of(Driver& driver, uint64_t address, uint64_t size) {
  const uint64_t number = address - DeviceProcess::kAddressBit;
  const uint64_t index = number / DeviceProcess::kAddressesPerDevice;
  if (address < DeviceProcess::kAddressBit || index >= driver.devices.size()) {
    invalid("the address " + std::to_string(address) + " belongs to no device");
  }
  DeviceProcess& device = *driver.devices[index];
  const uint64_t offset = number % DeviceProcess::kAddressesPerDevice;
  if (offset >= device.capacity() || size > device.capacity() - offset) invalid("the memory ends beyond the device's");
  return {device, offset};
}

mtia_status memory_allocate(int32_t device, uint64_t size, mtia_device_ptr* address) {
  return serve([&](Driver& driver) {
    require(address, "address");
    *address = driver.device(device).allocate(size);
  });
}

mtia_status memory_free(int32_t device, mtia_device_ptr address) {
  return serve([&](Driver& driver) { driver.device(device).free(address); });
}

mtia_status memory_info(int32_t index, uint64_t* free_bytes, uint64_t* total_bytes) {
  return serve([&](Driver& driver) {
    DeviceProcess& device = driver.device(index);
    *require(free_bytes, "free_bytes") = device.free_bytes();
    *require(total_bytes, "total_bytes") = device.capacity();
  });
}

mtia_status memory_device(const void* address, int32_t* device) {
  return serve([&](Driver& driver) {
    *require(device, "device") = place_of(driver, reinterpret_cast<uint64_t>(address), 0).device.index();
  });
}

std::function<void(Stream&)> copy_to_device(const Place& to, const void* from, uint64_t size) {
  return [=](Stream& stream) {
    stream.link(to.device.index()).call({Command::kWrite, to.offset, 0, size}, {{from, size}});
  };
}

std::function<void(Stream&)> copy_to_host(void* to, const Place& from, uint64_t size) {
  return [=](Stream& stream) { stream.link(from.device.index()).call({Command::kRead, 0, from.offset, size}, {}, to); };
}

std::function<void(Stream&)> copy_on_devices(const Place& to, const Place& from, uint64_t size) {
  if (&to.device == &from.device) {
    return [=](Stream& stream) { stream.link(to.device.index()).call({Command::kCopy, to.offset, from.offset, size}); };
  }
  return [=](Stream& stream) {  // the devices know nothing of each other
    std::vector<char> bytes(size);
    copy_to_host(bytes.data(), from, size)(stream);
    copy_to_device(to, bytes.data(), size)(stream);
  };
}

mtia_status memory_copy(mtia_stream handle, uint64_t to, uint64_t from, uint64_t size, mtia_copy_kind kind) {
  return serve([&](Driver& driver) {
    Stream& stream = checked(handle);
    if (kind < MTIA_COPY_HOST_TO_DEVICE || kind > MTIA_COPY_DEVICE_TO_DEVICE) invalid("memory_copy: an unknown kind");
    if (size == 0) return;
    if (to == 0 || from == 0) invalid("memory_copy: an address is null");
    if (kind == MTIA_COPY_HOST_TO_DEVICE) {
      const auto* host = reinterpret_cast<const void*>(from);
      return stream.submit({"memory_copy", copy_to_device(place_of(driver, to, size), host, size), size});
    }
    if (kind == MTIA_COPY_DEVICE_TO_HOST) {
      auto* host = reinterpret_cast<void*>(to);
      return stream.submit({"memory_copy", copy_to_host(host, place_of(driver, from, size), size), size});
    }
    const auto run = copy_on_devices(place_of(driver, to, size), place_of(driver, from, size), size);
    return stream.submit({"memory_copy", run, size});
  });
}

mtia_status memory_fill(mtia_stream handle, mtia_device_ptr to, const void* pattern, uint32_t pattern_size,
                        uint64_t count) {
  return serve([&](Driver& driver) {
    Stream& stream = checked(handle);
    static constexpr std::array<uint32_t, 5> kSizes{1, 2, 4, 8, 16};
    if (std::find(kSizes.begin(), kSizes.end(), pattern_size) == kSizes.end()) {
      invalid("memory_fill: the pattern has " + std::to_string(pattern_size) + " bytes");
    }
    require(pattern, "pattern");
    if (count == 0) return;
    if (count > UINT64_MAX / pattern_size) invalid("memory_fill: count is " + std::to_string(count));
    const Place place = place_of(driver, to, count * pattern_size);
    std::array<char, 16> bytes{};
    std::memcpy(bytes.data(), pattern, pattern_size);
    const auto run = [=](Stream& runs_in) {
      runs_in.link(place.device.index())
          .call({Command::kFill, place.offset, pattern_size, count}, {{bytes.data(), pattern_size}});
    };
    return stream.submit({"memory_fill", run, count * pattern_size});
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
    driver.device(device);
    require(stream, "stream");
    const auto made = std::make_shared<Stream>(driver.devices, device, tag, driver.launch_blocking);
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

  void run(const Stream& stream) const {
    const mtia_work_context context{stream.device(), std::max(work_.num_threads, 1), stream.tag()};
    const mtia_status status = work_.run(block_, &context);
    if (status != MTIA_SUCCESS) throw Failure(MTIA_ERROR_LAUNCH_FAILED, name() + " failed");
  }
  std::string name() const { return work_.name != nullptr ? work_.name : "work"; }

 private:
  const mtia_work work_;
  void* const block_;
};

mtia_status stream_launch(mtia_stream handle, const mtia_work* given) {
  return serve([&](Driver&) {
    const mtia_work work = require_struct(given, MTIA_WORK_SIZE_1, "work");
    Stream& stream = checked(handle);
    if (work.run == nullptr) invalid("stream_launch: the work has no run function");
    const bool capturable = (work.flags & MTIA_WORK_CAPTURABLE) != 0;
    if (!capturable && stream.capture() != nullptr) {  // before the block is moved
      throw Failure(MTIA_ERROR_NOT_SUPPORTED,
                    std::string(work.name != nullptr ? work.name : "the work") + " cannot be captured in a graph");
    }
    const auto owned = std::make_shared<const Work>(work);
    return stream.submit({owned->name(), [owned](Stream& runs_in) { owned->run(runs_in); }, work.cost, capturable});
  });
}

// Events --------------------------------------------------------------------------------------------------------------

mtia_status event_create(int32_t enable_timing, mtia_event* event) {
  return serve(
      [&](Driver&) { *require(event, "event") = reinterpret_cast<mtia_event>(new Event(enable_timing != 0)); });
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

// Kernels -------------------------------------------------------------------------------------------------------------

mtia_status module_load(int32_t index, const void* image, uint64_t size, mtia_module* module) {
  return serve([&](Driver& driver) {
    DeviceProcess& device = driver.device(index);
    require(module, "module");
    const mtia_kernel_image_header header = checked_header(image, size);
    const auto kernel = std::make_shared<Kernel>(device, device.load_kernel(image, size), header);
    *module = reinterpret_cast<mtia_module>(new KernelHandle(kernel));
  });
}

mtia_status module_unload(mtia_module module) {
  return serve([&](Driver&) { delete &checked(module); });
}

mtia_status module_get_function(mtia_module module, const char* name, mtia_function* function) {
  return serve([&](Driver&) {
    const KernelHandle& kernel = checked(module);
    require(function, "function");
    if (std::strcmp(require(name, "name"), kernel->header.name) != 0) {
      invalid("the module has no function '" + std::string(name) + "', its one function is '" + kernel->header.name +
              "'");
    }
    *function = reinterpret_cast<mtia_function>(&checked(module));
  });
}

mtia_status stream_launch_kernel(mtia_stream handle, const mtia_kernel_launch* given) {
  return serve([&](Driver&) {
    Stream& stream = checked(handle);
    const mtia_kernel_launch launch = require_struct(given, MTIA_KERNEL_LAUNCH_SIZE_1, "launch");
    const KernelHandle kernel = *require(reinterpret_cast<KernelHandle*>(launch.function), "the function");
    if (kernel->device.index() != stream.device()) invalid("stream_launch_kernel: the kernel is on another device");
    if (launch.packed_arguments_size != kernel->header.packed_arguments_size) {
      invalid("stream_launch_kernel: " + std::to_string(launch.packed_arguments_size) + " bytes of arguments, and " +
              std::to_string(kernel->header.packed_arguments_size) + " are needed");
    }
    LaunchHeader header{{launch.grid[0], launch.grid[1], launch.grid[2]},
                        launch.packed_arguments_size,
                        kernel->device.address_base(),
                        launch.live_ranges != nullptr ? static_cast<int64_t>(launch.num_live_ranges) : -1};
    for (const int32_t size : header.grid) {
      if (size < 0) invalid("stream_launch_kernel: the grid has a size of " + std::to_string(size));
      if (size == 0) return;
    }
    std::vector<char> payload(sizeof(header));
    std::memcpy(payload.data(), &header, sizeof(header));
    const auto append = [&](const void* bytes, size_t size) {
      if (size != 0)
        payload.insert(payload.end(), static_cast<const char*>(bytes), static_cast<const char*>(bytes) + size);
    };
    append(launch.packed_arguments_size != 0 ? require(launch.packed_arguments, "packed_arguments") : nullptr,
           launch.packed_arguments_size);
    if (header.num_live_ranges > 0) append(launch.live_ranges, launch.num_live_ranges * sizeof(mtia_span));
    const auto run = [kernel, payload = std::move(payload)](Stream& runs_in) {
      runs_in.link(kernel->device.index())
          .call({Command::kLaunch, kernel->number, 0, 0}, {{payload.data(), payload.size()}});
    };
    return stream.submit({kernel->header.name, run, kernel->header.cost_per_program});
  });
}

// Graphs --------------------------------------------------------------------------------------------------------------

mtia_status stream_begin_capture(mtia_stream stream) {
  return serve([&](Driver&) { Capture::begin(checked(stream)); });
}

mtia_status stream_end_capture(mtia_stream stream, mtia_graph* graph) {
  return serve([&](Driver&) {
    require(graph, "graph");
    *graph = reinterpret_cast<mtia_graph>(new GraphHandle(Capture::end(checked(stream))));
  });
}

mtia_status stream_capture_id(mtia_stream stream, uint64_t* id) {
  return serve([&](Driver&) {
    const auto capture = checked(stream).capture();
    *require(id, "capture") = capture != nullptr ? capture->id() : 0;
  });
}

mtia_status graph_num_nodes(mtia_graph graph, uint32_t* count) {
  return serve([&](Driver&) { *require(count, "count") = static_cast<uint32_t>(checked(graph)->nodes.size()); });
}

mtia_status graph_node(mtia_graph handle, uint32_t index, mtia_graph_node* description) {
  return serve([&](Driver&) {
    const Graph& graph = *checked(handle);
    require_struct(description, MTIA_GRAPH_NODE_SIZE_1, "node");
    if (index >= graph.nodes.size()) invalid("graph_node: there is no node " + std::to_string(index));
    const Node& node = graph.nodes[index];
    description->device = node.device;
    description->name = node.item.name.c_str();
    description->stream_tag = node.stream_tag;
    description->cost = node.item.cost;
    description->dependencies = node.dependencies.data();
    description->num_dependencies = static_cast<uint32_t>(node.dependencies.size());
  });
}

mtia_status graph_destroy(mtia_graph graph) {
  return serve([&](Driver&) { delete &checked(graph); });
}

mtia_status graph_instantiate(mtia_graph graph, mtia_graph_exec* exec) {
  return serve([&](Driver&) {
    require(exec, "exec");
    *exec = reinterpret_cast<mtia_graph_exec>(new GraphExecHandle(std::make_shared<GraphExec>(checked(graph))));
  });
}

mtia_status graph_launch(mtia_graph_exec exec, mtia_stream stream, const mtia_graph_parameters* parameters) {
  return serve([&](Driver&) { return checked(exec)->launch(checked(stream), parameters); });
}

mtia_status graph_exec_destroy(mtia_graph_exec exec) {
  return serve([&](Driver&) {
    checked(exec)->wait_for_launches();
    delete &checked(exec);
  });
}

mtia_runtime_api make_table() {
  mtia_runtime_api api{};
  api.struct_size = sizeof(api);
  api.abi_version = MTIA_RUNTIME_ABI_VERSION;
  api.capabilities = MTIA_CAPABILITY_KERNELS | MTIA_CAPABILITY_GRAPHS | MTIA_CAPABILITY_RARE_FUNCTIONS;
  api.name = "vendor";
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
  api.module_load = module_load;
  api.module_unload = module_unload;
  api.module_get_function = module_get_function;
  api.stream_launch_kernel = stream_launch_kernel;
  api.stream_begin_capture = stream_begin_capture;
  api.stream_end_capture = stream_end_capture;
  api.stream_capture_id = stream_capture_id;
  api.graph_num_nodes = graph_num_nodes;
  api.graph_node = graph_node;
  api.graph_destroy = graph_destroy;
  api.graph_instantiate = graph_instantiate;
  api.graph_launch = graph_launch;
  api.graph_exec_destroy = graph_exec_destroy;
  return api;
}

}  // namespace
}  // namespace vendor

__attribute__((visibility("default"))) const mtia_runtime_api* mtia_runtime_get_api(uint32_t abi_version) {
  static const mtia_runtime_api table = vendor::make_table();
  return abi_version == MTIA_RUNTIME_ABI_VERSION ? &table : nullptr;
}
