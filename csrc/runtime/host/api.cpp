// The table of functions: checks arguments, turns handles into objects and exceptions into statuses, and nothing else.
#include <cstring>
#include <memory>
#include <string>
#include <type_traits>

#include "driver.h"
#include "error.h"
#include "event.h"
#include "graph.h"
#include "kernel.h"
#include "memory.h"
#include "work.h"

namespace torch_mtia::runtime::host {
namespace {

// Every entry but last_error_message and initialize: refuses to serve before `initialize` and after a fork. A body
// without a status has succeeded when it returns.
template <typename Body>
mtia_status serve(Body&& body) noexcept {
  return guarded([&] {
    if constexpr (std::is_void_v<std::invoke_result_t<Body, Driver&>>) {
      body(Driver::get());
      return MTIA_SUCCESS;
    } else {
      return body(Driver::get());
    }
  });
}

// What has to be released later is made after the check of where it goes. `*require(to, name) = make()` makes it
// before.
template <typename Pointer>
Pointer* require(Pointer* argument, const char* name) {
  if (argument == nullptr) throw Failure(MTIA_ERROR_INVALID_VALUE, std::string(name) + " is null");
  return argument;
}

// Of a device's memory. Checks the device.
template <typename Body>
mtia_status serve_memory(int32_t device, Body&& body) noexcept {
  return serve([&](Driver& driver) {
    driver.device(device);
    body(driver.memory());
  });
}

Stream& checked(mtia_stream handle) {
  return *require(stream_of(handle), "the stream");
}
Event& checked(mtia_event handle) {
  return *require(event_of(handle), "the event");
}

// For calls about the time at which work is done: what is recorded has none.
Stream& not_captured(mtia_stream handle, const char* function) {
  Stream& stream = checked(handle);
  if (stream.is_captured() && !stream.runs_on_this_thread()) {
    throw Failure(MTIA_ERROR_NOT_SUPPORTED, std::string(function) + ": the stream is being captured in a graph");
  }
  return stream;
}

mtia_status finished(bool done) {
  return done ? MTIA_SUCCESS : MTIA_ERROR_NOT_READY;
}

mtia_status initialize(const mtia_init_params* params) {
  return guarded([&] {
    return with_struct(params, MTIA_INIT_PARAMS_SIZE_1, "mtia_init_params", [](const mtia_init_params& whole) {
      Driver::initialize(whole);
      return MTIA_SUCCESS;
    });
  });
}

// Devices -------------------------------------------------------------------------------------------------------------

mtia_status device_count(int32_t* count) {
  return serve([&](Driver& driver) { *require(count, "count") = driver.num_devices(); });
}

mtia_status device_properties(int32_t device, mtia_device_properties* properties) {
  return serve([&](Driver& driver) {
    driver.device(device);
    fill_in(properties, MTIA_DEVICE_PROPERTIES_SIZE_1, "mtia_device_properties",
            describe_device(driver.memory().capacity()));
  });
}

mtia_status device_synchronize(int32_t device) {
  return serve([&](Driver& driver) { return driver.device(device).synchronize(); });
}

// Memory --------------------------------------------------------------------------------------------------------------

mtia_status memory_allocate(int32_t device, uint64_t size, mtia_device_ptr* address) {
  return serve_memory(device, [&](Memory& memory) {
    require(address, "address");
    *address = memory.allocate(device, size);
  });
}

mtia_status memory_free(int32_t device, mtia_device_ptr address) {
  return serve_memory(device, [&](Memory& memory) { memory.free(device, address); });
}

mtia_status memory_info(int32_t device, uint64_t* free_bytes, uint64_t* total_bytes) {
  return serve_memory(device, [&](Memory& memory) {
    memory.info(device, require(free_bytes, "free_bytes"), require(total_bytes, "total_bytes"));
  });
}

mtia_status memory_reserve(int32_t device, uint64_t size, mtia_device_ptr* address) {
  return serve_memory(device, [&](Memory& memory) {
    require(address, "address");
    *address = memory.reserve(device, size);
  });
}

mtia_status memory_release(int32_t device, mtia_device_ptr address) {
  return serve_memory(device, [&](Memory& memory) { memory.release(device, address); });
}

mtia_status memory_map(int32_t device, mtia_device_ptr address, uint64_t size) {
  return serve_memory(device, [&](Memory& memory) { memory.map(device, address, size); });
}

mtia_status memory_unmap(int32_t device, mtia_device_ptr address, uint64_t size) {
  return serve_memory(device, [&](Memory& memory) { memory.unmap(device, address, size); });
}

mtia_status memory_device(const void* address, int32_t* device) {
  return serve([&](Driver& driver) {
    const int32_t found = driver.memory().device_of(reinterpret_cast<uint64_t>(address));
    if (found < 0) throw Failure(MTIA_ERROR_INVALID_VALUE, "the address belongs to no device");
    *require(device, "device") = found;
  });
}

mtia_status memory_host_offset(int64_t* offset) {
  return serve([&](Driver& driver) { *require(offset, "offset") = driver.memory().host_offset(); });
}

mtia_status memory_copy(mtia_stream stream, uint64_t to, uint64_t from, uint64_t size, mtia_copy_kind kind) {
  return serve([&](Driver& driver) {
    return copy(checked(stream), driver.memory(), driver.parallelism(), to, from, size, kind);
  });
}

mtia_status memory_fill(mtia_stream stream, mtia_device_ptr to, const void* pattern, uint32_t pattern_size,
                        uint64_t count) {
  return serve([&](Driver& driver) {
    return fill(checked(stream), driver.memory(), driver.parallelism(), to, pattern, pattern_size, count);
  });
}

// Streams -------------------------------------------------------------------------------------------------------------

mtia_status stream_priority_range(int32_t* lowest, int32_t* highest) {
  return serve([&](Driver&) {
    *require(lowest, "lowest") = Device::kLowestPriority;
    *require(highest, "highest") = Device::kHighestPriority;
  });
}

mtia_status stream_create(int32_t device, int32_t priority, void* tag, mtia_stream* stream) {
  return serve([&](Driver& driver) {
    Device& on = driver.device(device);
    require(stream, "stream");
    *stream = handle_of(on.create_stream(priority, tag));
  });
}

mtia_status stream_destroy(mtia_stream stream) {
  return serve([&](Driver&) { checked(stream).device().retire_stream(stream_of(stream)); });
}

mtia_status stream_query(mtia_stream stream) {
  return serve([&](Driver&) { return finished(not_captured(stream, "stream_query").is_idle()); });
}

mtia_status stream_synchronize(mtia_stream stream) {
  return serve([&](Driver&) {
    not_captured(stream, "stream_synchronize").wait_until_idle();
    const auto failure = checked(stream).take_failure();
    return failure ? Stream::report(*failure) : MTIA_SUCCESS;
  });
}

mtia_status stream_wait_event(mtia_stream stream, mtia_event event) {
  return serve([&](Driver&) { checked(event).delay(checked(stream)); });
}

mtia_status stream_launch(mtia_stream stream, const mtia_work* work) {
  return serve([&](Driver&) {
    return with_struct(work, MTIA_WORK_SIZE_1, "mtia_work", [&](const mtia_work& whole) {
      if (whole.run == nullptr) [[unlikely]]
        throw Failure(MTIA_ERROR_INVALID_VALUE, "stream_launch: the work has no run function");
      return checked(stream).launch(whole);
    });
  });
}

// Events --------------------------------------------------------------------------------------------------------------

mtia_status event_create(int32_t enable_timing, mtia_event* event) {
  return serve([&](Driver&) {
    require(event, "event");
    *event = handle_of(std::make_unique<Event>(enable_timing != 0).release());
  });
}

mtia_status event_destroy(mtia_event event) {
  return serve([&](Driver&) { const std::unique_ptr<Event> owner(&checked(event)); });
}

mtia_status event_record(mtia_event event, mtia_stream stream) {
  return serve([&](Driver&) { checked(event).record(checked(stream)); });
}

mtia_status event_query(mtia_event event) {
  return serve([&](Driver&) { return finished(checked(event).is_complete()); });
}

mtia_status event_synchronize(mtia_event event) {
  return serve([&](Driver&) { checked(event).wait(); });
}

mtia_status event_elapsed_time(mtia_event start, mtia_event end, double* milliseconds) {
  return serve(
      [&](Driver&) { *require(milliseconds, "milliseconds") = checked(start).milliseconds_until(checked(end)); });
}

// Graphs --------------------------------------------------------------------------------------------------------------

GraphHandle& checked(mtia_graph handle) {
  return *require(graph_of(handle), "the graph");
}
GraphExecHandle& checked(mtia_graph_exec handle) {
  return *require(graph_exec_of(handle), "the executable graph");
}

mtia_status stream_begin_capture(mtia_stream stream) {
  return serve([&](Driver&) { Capture::begin(checked(stream)); });
}

mtia_status stream_end_capture(mtia_stream stream, mtia_graph* graph) {
  return serve([&](Driver&) {
    require(graph, "graph");
    auto handle = std::make_unique<GraphHandle>();
    handle->graph = Capture::end(checked(stream));
    *graph = handle_of(handle.release());
  });
}

mtia_status stream_capture_id(mtia_stream stream, uint64_t* capture) {
  return serve([&](Driver&) {
    const auto found = checked(stream).capture();
    *require(capture, "capture") = found != nullptr ? found->id() : 0;
  });
}

mtia_status graph_num_nodes(mtia_graph graph, uint32_t* count) {
  return serve([&](Driver&) { *require(count, "count") = checked(graph).graph->size(); });
}

mtia_status graph_node(mtia_graph handle, uint32_t index, mtia_graph_node* description) {
  return serve([&](Driver&) {
    const Graph& graph = *checked(handle).graph;
    if (index >= graph.size()) {
      throw Failure(MTIA_ERROR_INVALID_VALUE, "graph_node: the graph has " + std::to_string(graph.size()) +
                                                  " nodes, there is none with index " + std::to_string(index));
    }
    const Graph::Node& node = graph.node(index);
    const auto dependencies = graph.dependencies(node);
    fill_in(description, MTIA_GRAPH_NODE_SIZE_1, "mtia_graph_node",
            {.struct_size = sizeof(mtia_graph_node),
             .device = node.stream->device().index(),
             .name = node.work.name,
             .stream_tag = node.stream->tag(),
             .cost = node.work.cost,
             .dependencies = dependencies.data(),
             .num_dependencies = static_cast<uint32_t>(dependencies.size())});
  });
}

mtia_status graph_destroy(mtia_graph graph) {
  return serve([&](Driver&) { const std::unique_ptr<GraphHandle> owner(&checked(graph)); });
}

mtia_status graph_instantiate(mtia_graph graph, mtia_graph_exec* exec) {
  return serve([&](Driver&) {
    require(exec, "exec");
    auto handle = std::make_unique<GraphExecHandle>();
    handle->exec = std::make_shared<GraphExec>(checked(graph).graph);
    *exec = handle_of(handle.release());
  });
}

mtia_status graph_launch(mtia_graph_exec exec, mtia_stream stream, const mtia_graph_parameters* parameters) {
  return serve([&](Driver&) {
    if (parameters != nullptr && parameters->size != 0) {
      require(parameters->to, "parameters->to");
      require(parameters->from, "parameters->from");
    }
    return checked(exec).exec->launch(checked(stream), parameters);
  });
}

mtia_status graph_exec_destroy(mtia_graph_exec exec) {
  return serve([&](Driver&) {
    const std::unique_ptr<GraphExecHandle> owner(&checked(exec));
    owner->exec->wait_for_launches();
  });
}

// Tracing -------------------------------------------------------------------------------------------------------------

mtia_status set_tracer(const mtia_tracer* tracer) {
  return serve([&](Driver&) {
    if (tracer != nullptr) check_size(tracer, MTIA_TRACER_SIZE_1, "mtia_tracer");
    current_tracer.store(tracer, std::memory_order_release);
  });
}

mtia_status memory_map_shared(int32_t device, mtia_device_ptr address, uint64_t size, int32_t file) {
  return serve_memory(device, [&](Memory& memory) { memory.map_shared(device, address, size, file); });
}

// Kernels -------------------------------------------------------------------------------------------------------------

mtia_status module_load(int32_t device, const void* image, uint64_t size, mtia_module* module) {
  return serve([&](Driver& driver) {
    driver.device(device);
    require(module, "module");
    auto loaded = std::make_unique<Module>();
    loaded->kernel = std::make_shared<Kernel>(device, require(image, "the image"), size, driver.parallelism(),
                                              driver.memory().host_offset());
    *module = handle_of(loaded.release());
  });
}

mtia_status module_unload(mtia_module module) {
  return serve([&](Driver&) { const std::unique_ptr<Module> owner(require(module_of(module), "the module")); });
}

mtia_status module_get_function(mtia_module module, const char* name, mtia_function* function) {
  return serve([&](Driver&) {
    Kernel* kernel = require(module_of(module), "the module")->kernel.get();
    if (std::strcmp(require(name, "name"), kernel->image().name()) != 0) {
      throw Failure(MTIA_ERROR_INVALID_VALUE, "the module has no function '" + std::string(name) +
                                                  "', its one function is '" + kernel->image().name() + "'");
    }
    *require(function, "function") = handle_of(kernel);
  });
}

mtia_status stream_launch_kernel(mtia_stream stream, const mtia_kernel_launch* launch) {
  return serve([&](Driver&) {
    return with_struct(launch, MTIA_KERNEL_LAUNCH_SIZE_1, "mtia_kernel_launch", [&](const mtia_kernel_launch& whole) {
      return require(kernel_of(whole.function), "the function")->launch(checked(stream), whole);
    });
  });
}

constexpr mtia_runtime_api make_table() {
  mtia_runtime_api api{};
  api.struct_size = sizeof(mtia_runtime_api);
  api.abi_version = MTIA_RUNTIME_ABI_VERSION;
#define MTIA_ADD(name) api.capabilities |= MTIA_CAPABILITY_##name;
  MTIA_RUNTIME_CAPABILITIES(MTIA_ADD)
#undef MTIA_ADD
  api.name = "host";
  api.version = "1.0";
#define MTIA_SET(function, capability) api.function = function;
  MTIA_RUNTIME_FUNCTIONS(MTIA_SET)
#undef MTIA_SET
  return api;
}

constexpr mtia_runtime_api table = make_table();

}  // namespace
}  // namespace torch_mtia::runtime::host

extern "C" __attribute__((visibility("default"))) const mtia_runtime_api* mtia_runtime_get_api(uint32_t abi_version) {
  return abi_version == MTIA_RUNTIME_ABI_VERSION ? &torch_mtia::runtime::host::table : nullptr;
}
