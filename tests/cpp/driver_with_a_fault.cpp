// The host driver with one fault, for tests/test_conformance_faults.py, which builds it.
//
// MTIA_TEST_DRIVER names the driver to wrap, MTIA_TEST_FAULT the fault: one of kFaults. With the
// fault `none` it is the host driver, which passes.
#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <string_view>

#include "runtime/mtia_runtime.h"

namespace {

const mtia_runtime_api* wrapped = nullptr;
mtia_stream first_stream = nullptr;

using Plant = void (*)(mtia_runtime_api& api);

// Each fault is nothing else than what it is called: what is refused stays refused, and captures are as they were.

mtia_status without_waiting(mtia_status status) {
  return status == MTIA_ERROR_NOT_READY ? MTIA_SUCCESS : status;
}

bool runs_work(mtia_stream stream) {
  const mtia_status status = wrapped->stream_query(stream);
  return status == MTIA_SUCCESS || status == MTIA_ERROR_NOT_READY;
}

const std::map<std::string_view, Plant> kFaults = {
    {"none", [](auto&) {}},
    {"event_does_not_wait",
     [](auto& api) {
       api.stream_wait_event = [](mtia_stream stream, mtia_event event) {
         const bool waits = stream != nullptr && wrapped->event_query(event) == MTIA_ERROR_NOT_READY;
         return waits ? MTIA_SUCCESS : wrapped->stream_wait_event(stream, event);
       };
     }},
    {"event_is_always_complete",
     [](auto& api) {
       api.event_query = [](mtia_event event) { return without_waiting(wrapped->event_query(event)); };
     }},
    {"event_synchronize_returns_early",
     [](auto& api) {
       api.event_synchronize = [](mtia_event event) { return without_waiting(wrapped->event_query(event)); };
     }},
    {"event_is_recorded_nowhere",
     [](auto& api) {
       api.event_record = [](mtia_event event, mtia_stream stream) {
         return event != nullptr && runs_work(stream) ? MTIA_SUCCESS : wrapped->event_record(event, stream);
       };
     }},
    {"times_are_negative",
     [](auto& api) {
       api.event_elapsed_time = [](mtia_event start, mtia_event end, double* milliseconds) {
         const mtia_status status = wrapped->event_elapsed_time(start, end, milliseconds);
         if (status == MTIA_SUCCESS) *milliseconds = -1 - *milliseconds;
         return status;
       };
     }},
    {"stream_synchronize_returns_early",
     [](auto& api) {
       api.stream_synchronize = [](mtia_stream stream) { return without_waiting(wrapped->stream_query(stream)); };
     }},
    {"stream_is_always_idle",
     [](auto& api) {
       api.stream_query = [](mtia_stream stream) { return without_waiting(wrapped->stream_query(stream)); };
     }},
    {"errors_are_lost",
     [](auto& api) {
       api.stream_synchronize = [](mtia_stream stream) {
         const mtia_status status = wrapped->stream_synchronize(stream);
         return status == MTIA_ERROR_LAUNCH_FAILED ? MTIA_SUCCESS : status;
       };
     }},
    {"device_synchronize_returns_early",
     [](auto& api) {
       api.device_synchronize = [](int32_t device) {
         return device == 0 ? MTIA_SUCCESS : wrapped->device_synchronize(device);
       };
     }},
    {"work_runs_on_another_stream",
     [](auto& api) {
       api.stream_create = [](int32_t device, int32_t priority, void* tag, mtia_stream* stream) {
         const mtia_status status = wrapped->stream_create(device, priority, tag, stream);
         if (status == MTIA_SUCCESS && first_stream == nullptr) first_stream = *stream;
         return status;
       };
       api.stream_launch = [](mtia_stream stream, const mtia_work* work) {
         return wrapped->stream_launch(runs_work(stream) ? first_stream : stream, work);
       };
     }},
    {"work_runs_before_its_turn",
     [](auto& api) {
       api.stream_launch = [](mtia_stream stream, const mtia_work* work) {
         if (work == nullptr || !runs_work(stream)) return wrapped->stream_launch(stream, work);
         const mtia_work_context context{.num_threads = 1};
         return work->run(work->args, &context);
       };
     }},
    {"arguments_are_not_moved",
     [](auto& api) {
       api.stream_launch = [](mtia_stream stream, const mtia_work* work) {
         if (work == nullptr) return wrapped->stream_launch(stream, work);
         mtia_work bytes = *work;
         bytes.relocate = nullptr;
         bytes.destroy = nullptr;
         return wrapped->stream_launch(stream, &bytes);
       };
     }},
    {"a_copy_loses_its_last_byte",
     [](auto& api) {
       api.memory_copy = [](mtia_stream stream, uint64_t to, uint64_t from, uint64_t size, mtia_copy_kind kind) {
         return wrapped->memory_copy(stream, to, from, size > 0 ? size - 1 : 0, kind);
       };
     }},
    {"a_fill_loses_its_last_element",
     [](auto& api) {
       api.memory_fill = [](mtia_stream stream, mtia_device_ptr to, const void* pattern, uint32_t size,
                            uint64_t count) {
         return wrapped->memory_fill(stream, to, pattern, size, count > 0 ? count - 1 : 0);
       };
     }},
    {"memory_is_not_freed",
     [](auto& api) {
       api.memory_free = [](int32_t device, mtia_device_ptr address) {
         return device == 0 ? MTIA_SUCCESS : wrapped->memory_free(device, address);
       };
     }},
    {"addresses_are_not_aligned",
     [](auto& api) {
       api.memory_allocate = [](int32_t device, uint64_t size, mtia_device_ptr* address) {
         const mtia_status status = wrapped->memory_allocate(device, size + 8, address);
         if (status == MTIA_SUCCESS) *address += 8;
         return status;
       };
       api.memory_free = [](int32_t device, mtia_device_ptr address) {
         return wrapped->memory_free(device, address - 8);
       };
     }},
    {"a_kernel_loses_its_last_program",
     [](auto& api) {
       api.stream_launch_kernel = [](mtia_stream stream, const mtia_kernel_launch* launch) {
         if (launch == nullptr) return wrapped->stream_launch_kernel(stream, launch);
         mtia_kernel_launch shorter = *launch;
         if (shorter.grid[0] > 1) --shorter.grid[0];
         return wrapped->stream_launch_kernel(stream, &shorter);
       };
     }},
    {"a_graph_runs_when_it_is_captured",
     [](auto& api) {
       api.stream_begin_capture = [](mtia_stream stream) {
         return runs_work(stream) ? MTIA_SUCCESS : wrapped->stream_begin_capture(stream);
       };
     }},
    {"a_launched_graph_does_nothing",
     [](auto& api) {
       api.graph_launch = [](mtia_graph_exec graph, mtia_stream stream, const mtia_graph_parameters* parameters) {
         return graph != nullptr && runs_work(stream) ? MTIA_SUCCESS : wrapped->graph_launch(graph, stream, parameters);
       };
     }},
    {"the_tracer_is_forgotten", [](auto& api) { api.set_tracer = [](const mtia_tracer*) { return MTIA_SUCCESS; }; }},
};

}  // namespace

__attribute__((visibility("default"))) const mtia_runtime_api* mtia_runtime_get_api(uint32_t abi_version) {
  void* library = dlopen(std::getenv("MTIA_TEST_DRIVER"), RTLD_NOW | RTLD_LOCAL);
  const auto get_api = reinterpret_cast<mtia_runtime_get_api_fn>(dlsym(library, "mtia_runtime_get_api"));
  const mtia_runtime_api* const served = get_api(abi_version);
  if (served == nullptr) return nullptr;
  static const mtia_runtime_api table = [served] {
    wrapped = served;
    mtia_runtime_api api = *served;
    kFaults.at(std::getenv("MTIA_TEST_FAULT"))(api);
    return api;
  }();
  return &table;
}
