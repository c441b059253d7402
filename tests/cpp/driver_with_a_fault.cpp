// The host driver with one fault, for tests/test_conformance_faults.py, which builds it.
//
// MTIA_TEST_DRIVER names the driver to wrap, MTIA_TEST_FAULT the fault: one of kFaults. With the
// fault `none` it is the host driver, which passes.
#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>
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

// What the driver was told, for the faults that depend on it. The tests call from one thread at a time.
std::map<mtia_stream, int32_t> devices;
std::map<mtia_event, mtia_stream> recorded;

void keep_books(mtia_runtime_api& api) {
  api.stream_create = [](int32_t device, int32_t priority, void* tag, mtia_stream* stream) {
    const mtia_status status = wrapped->stream_create(device, priority, tag, stream);
    if (status == MTIA_SUCCESS) devices[*stream] = device;
    return status;
  };
  api.event_record = [](mtia_event event, mtia_stream stream) {
    const mtia_status status = wrapped->event_record(event, stream);
    if (status == MTIA_SUCCESS) recorded[event] = stream;
    return status;
  };
  api.event_destroy = [](mtia_event event) {
    recorded.erase(event);
    return wrapped->event_destroy(event);
  };
  api.stream_destroy = [](mtia_stream stream) {
    devices.erase(stream);
    return wrapped->stream_destroy(stream);
  };
}

bool is_of_second_device(mtia_event event) {
  const auto found = recorded.find(event);
  return found != recorded.end() && devices[found->second] == 1;
}

int32_t device_of(uint64_t address) {
  int32_t device = -1;
  wrapped->memory_device(reinterpret_cast<const void*>(address), &device);
  return device;
}

constexpr uint64_t page_of(uint64_t address) {
  return address & ~UINT64_C(4095);
}

// A stream that nobody else has: what goes there overtakes all others.
mtia_stream fast_lane(mtia_stream stream) {
  static std::map<int32_t, mtia_stream> lanes;
  mtia_stream& lane = lanes[devices[stream]];
  if (lane == nullptr) wrapped->stream_create(devices[stream], 0, nullptr, &lane);
  return lane;
}

template <class Submit>
mtia_status at_once(mtia_stream stream, Submit submit) {
  if (stream == nullptr || !runs_work(stream)) return submit(stream);
  const mtia_status status = submit(fast_lane(stream));
  return status == MTIA_SUCCESS ? wrapped->stream_synchronize(fast_lane(stream)) : status;
}

// Work that calls `run` in the stream's turn.
mtia_status later(mtia_stream stream, void* what, mtia_status (*run)(void*, const mtia_work_context*)) {
  mtia_work work{.struct_size = sizeof(mtia_work), .run = run, .num_threads = 1};
  work.args = &what;
  work.args_size = sizeof(what);
  work.name = "later";
  return wrapped->stream_launch(stream, &work);
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
    {"a_copy_within_the_device_ignores_an_offset",
     [](auto& api) {
       api.memory_copy = [](mtia_stream stream, uint64_t to, uint64_t from, uint64_t size, mtia_copy_kind kind) {
         return wrapped->memory_copy(stream, to, kind == MTIA_COPY_DEVICE_TO_DEVICE ? page_of(from) : from, size, kind);
       };
     }},
    {"a_copy_within_the_device_loses_its_end",
     [](auto& api) {
       api.memory_copy = [](mtia_stream stream, uint64_t to, uint64_t from, uint64_t size, mtia_copy_kind kind) {
         const bool loses = kind == MTIA_COPY_DEVICE_TO_DEVICE && size > 8;
         return wrapped->memory_copy(stream, to, from, loses ? size - 1 : size, kind);
       };
     }},
    {"a_copy_to_another_device_ignores_an_offset",
     [](auto& api) {
       api.memory_copy = [](mtia_stream stream, uint64_t to, uint64_t from, uint64_t size, mtia_copy_kind kind) {
         const bool leaves = kind == MTIA_COPY_DEVICE_TO_DEVICE && device_of(to) != device_of(from);
         return wrapped->memory_copy(stream, leaves ? page_of(to) : to, from, size, kind);
       };
     }},
    {"a_large_copy_loses_its_end",
     [](auto& api) {
       api.memory_copy = [](mtia_stream stream, uint64_t to, uint64_t from, uint64_t size, mtia_copy_kind kind) {
         return wrapped->memory_copy(stream, to, from, std::min(size, UINT64_C(1) << 20), kind);
       };
     }},
    {"a_fill_ignores_the_end_of_an_address",
     [](auto& api) {
       api.memory_fill = [](mtia_stream stream, mtia_device_ptr to, const void* pattern, uint32_t size,
                            uint64_t count) {
         return wrapped->memory_fill(stream, size > 0 ? to - to % size : to, pattern, size, count);
       };
     }},
    {"a_large_fill_loses_its_end",
     [](auto& api) {
       api.memory_fill = [](mtia_stream stream, mtia_device_ptr to, const void* pattern, uint32_t size,
                            uint64_t count) {
         return wrapped->memory_fill(stream, to, pattern, size, std::min(count, UINT64_C(65536)));
       };
     }},
    {"copies_do_not_wait_for_their_turn",
     [](auto& api) {
       keep_books(api);
       api.memory_copy = [](mtia_stream stream, uint64_t to, uint64_t from, uint64_t size, mtia_copy_kind kind) {
         return at_once(stream, [&](mtia_stream lane) { return wrapped->memory_copy(lane, to, from, size, kind); });
       };
     }},
    {"fills_do_not_wait_for_their_turn",
     [](auto& api) {
       keep_books(api);
       api.memory_fill = [](mtia_stream stream, mtia_device_ptr to, const void* pattern, uint32_t size,
                            uint64_t count) {
         return at_once(stream, [&](mtia_stream lane) { return wrapped->memory_fill(lane, to, pattern, size, count); });
       };
     }},
    {"kernels_do_not_wait_for_their_turn",
     [](auto& api) {
       keep_books(api);
       api.stream_launch_kernel = [](mtia_stream stream, const mtia_kernel_launch* launch) {
         return at_once(stream, [&](mtia_stream lane) { return wrapped->stream_launch_kernel(lane, launch); });
       };
     }},
    {"graphs_do_not_wait_for_their_turn",
     [](auto& api) {
       keep_books(api);
       api.graph_launch = [](mtia_graph_exec graph, mtia_stream stream, const mtia_graph_parameters* parameters) {
         return at_once(stream, [&](mtia_stream lane) { return wrapped->graph_launch(graph, lane, parameters); });
       };
     }},
    {"a_kernels_arguments_are_read_late",
     [](auto& api) {
       api.stream_launch_kernel = [](mtia_stream stream, const mtia_kernel_launch* launch) {
         if (launch == nullptr || !runs_work(stream) || launch->packed_arguments_size != 16)
           return wrapped->stream_launch_kernel(stream, launch);
         using Late = std::pair<mtia_stream, mtia_kernel_launch>;
         return later(stream, new Late(stream, *launch), [](void* args, const mtia_work_context*) {
           const auto* late = *static_cast<const Late**>(args);
           return wrapped->stream_launch_kernel(late->first, &late->second);
         });
       };
     }},
    {"a_kernel_in_a_graph_is_lost",
     [](auto& api) {
       api.stream_launch_kernel = [](mtia_stream stream, const mtia_kernel_launch* launch) {
         const bool is_lost = stream != nullptr && launch != nullptr && !runs_work(stream);
         return is_lost ? MTIA_SUCCESS : wrapped->stream_launch_kernel(stream, launch);
       };
     }},
    {"an_event_of_the_second_device_is_complete",
     [](auto& api) {
       keep_books(api);
       api.event_query = [](mtia_event event) {
         const mtia_status status = wrapped->event_query(event);
         return is_of_second_device(event) ? without_waiting(status) : status;
       };
     }},
    {"an_event_of_another_device_does_not_wait",
     [](auto& api) {
       keep_books(api);
       api.stream_wait_event = [](mtia_stream stream, mtia_event event) {
         return is_of_second_device(event) && devices[stream] == 0 ? MTIA_SUCCESS
                                                                   : wrapped->stream_wait_event(stream, event);
       };
     }},
    {"who_waits_waits_for_a_later_record",
     [](auto& api) {
       api.stream_wait_event = [](mtia_stream stream, mtia_event event) {
         if (event == nullptr || !runs_work(stream) || wrapped->event_query(event) != MTIA_ERROR_NOT_READY)
           return wrapped->stream_wait_event(stream, event);
         return later(stream, event, [](void* args, const mtia_work_context*) {
           return wrapped->event_synchronize(*static_cast<mtia_event*>(args));
         });
       };
     }},
    {"an_event_stands_for_its_first_record",
     [](auto& api) {
       keep_books(api);
       api.event_record = [](mtia_event event, mtia_stream stream) {
         if (recorded.contains(event) && runs_work(stream)) return MTIA_SUCCESS;
         const mtia_status status = wrapped->event_record(event, stream);
         if (status == MTIA_SUCCESS && runs_work(stream)) recorded[event] = stream;
         return status;
       };
     }},
    {"times_are_in_seconds",
     [](auto& api) {
       api.event_elapsed_time = [](mtia_event start, mtia_event end, double* milliseconds) {
         const mtia_status status = wrapped->event_elapsed_time(start, end, milliseconds);
         if (status == MTIA_SUCCESS) *milliseconds /= 1000;
         return status;
       };
     }},
    {"an_error_is_reported_by_another_stream",
     [](auto& api) {
       keep_books(api);
       api.stream_synchronize = [](mtia_stream stream) {
         mtia_status status = wrapped->stream_synchronize(stream);
         for (const auto& [other, device] : devices) {
           if (status == MTIA_SUCCESS && wrapped->stream_query(other) == MTIA_SUCCESS) {
             status = wrapped->stream_synchronize(other);
           }
         }
         return status;
       };
     }},
    {"a_query_reports_errors",
     [](auto& api) {
       api.stream_query = [](mtia_stream stream) {
         const mtia_status status = wrapped->stream_query(stream);
         return status == MTIA_SUCCESS ? wrapped->stream_synchronize(stream) : status;
       };
     }},
    {"an_event_reports_errors",
     [](auto& api) {
       keep_books(api);
       api.event_synchronize = [](mtia_event event) {
         const mtia_status status = wrapped->event_synchronize(event);
         return status == MTIA_SUCCESS && recorded.contains(event) ? wrapped->stream_synchronize(recorded[event])
                                                                   : status;
       };
     }},
    {"streams_are_of_the_first_device",
     [](auto& api) {
       api.stream_create = [](int32_t device, int32_t priority, void* tag, mtia_stream* stream) {
         return wrapped->stream_create(device == 1 ? 0 : device, priority, tag, stream);
       };
     }},
    {"a_priority_outside_of_the_range_is_refused",
     [](auto& api) {
       api.stream_create = [](int32_t device, int32_t priority, void* tag, mtia_stream* stream) {
         const bool is_outside = priority > 0 || priority < -1;
         return is_outside ? MTIA_ERROR_INVALID_VALUE : wrapped->stream_create(device, priority, tag, stream);
       };
     }},
    {"memory_of_the_second_device_is_not_counted",
     [](auto& api) {
       api.memory_info = [](int32_t device, uint64_t* free_bytes, uint64_t* total_bytes) {
         return wrapped->memory_info(device == 1 ? 0 : device, free_bytes, total_bytes);
       };
     }},
    {"twice_the_memory_is_free",
     [](auto& api) {
       api.memory_info = [](int32_t device, uint64_t* free_bytes, uint64_t* total_bytes) {
         const mtia_status status = wrapped->memory_info(device, free_bytes, total_bytes);
         if (status == MTIA_SUCCESS) {
           *free_bytes *= 2;
           *total_bytes *= 2;
         }
         return status;
       };
       api.device_properties = [](int32_t device, mtia_device_properties* properties) {
         const mtia_status status = wrapped->device_properties(device, properties);
         if (status == MTIA_SUCCESS) properties->total_memory *= 2;
         return status;
       };
     }},
    {"the_properties_have_twice_the_memory",
     [](auto& api) {
       api.device_properties = [](int32_t device, mtia_device_properties* properties) {
         const mtia_status status = wrapped->device_properties(device, properties);
         if (status == MTIA_SUCCESS) properties->total_memory *= 2;
         return status;
       };
     }},
    {"addresses_are_of_the_first_device",
     [](auto& api) {
       api.memory_device = [](const void* address, int32_t* device) {
         const mtia_status status = wrapped->memory_device(address, device);
         if (status == MTIA_SUCCESS) *device = 0;
         return status;
       };
     }},
    {"memory_is_freed_twice",
     [](auto& api) {
       api.memory_free = [](int32_t device, mtia_device_ptr address) {
         static std::set<mtia_device_ptr> freed;
         const mtia_status status = wrapped->memory_free(device, address);
         if (status == MTIA_SUCCESS) freed.insert(address);
         return status == MTIA_ERROR_INVALID_VALUE && freed.contains(address) ? MTIA_SUCCESS : status;
       };
     }},
    {"no_bytes_are_allocated",
     [](auto& api) {
       api.memory_allocate = [](int32_t device, uint64_t size, mtia_device_ptr* address) {
         return wrapped->memory_allocate(device, std::max(size, UINT64_C(1)), address);
       };
     }},
    {"memory_that_is_used_up_is_an_internal_error",
     [](auto& api) {
       api.memory_allocate = [](int32_t device, uint64_t size, mtia_device_ptr* address) {
         const mtia_status status = wrapped->memory_allocate(device, size, address);
         const bool is_other = status == MTIA_ERROR_OUT_OF_MEMORY && size < UINT64_C(1) << 40;
         return is_other ? MTIA_ERROR_INTERNAL : status;
       };
     }},
    {"what_is_not_mapped_is_unmapped",
     [](auto& api) {
       api.memory_unmap = [](int32_t device, mtia_device_ptr address, uint64_t size) {
         const mtia_status status = wrapped->memory_unmap(device, address, size);
         return status == MTIA_ERROR_INVALID_VALUE && address != 0 ? MTIA_SUCCESS : status;
       };
     }},
    {"all_captures_have_one_number",
     [](auto& api) {
       api.stream_capture_id = [](mtia_stream stream, uint64_t* capture) {
         const mtia_status status = wrapped->stream_capture_id(stream, capture);
         if (status == MTIA_SUCCESS && *capture != 0) *capture = 1;
         return status;
       };
     }},
    {"a_tracer_cannot_be_taken_away",
     [](auto& api) {
       api.set_tracer = [](const mtia_tracer* tracer) {
         return tracer == nullptr ? MTIA_SUCCESS : wrapped->set_tracer(tracer);
       };
     }},
    {"a_tracer_is_not_told_of_copies",
     [](auto& api) {
       static const mtia_tracer* current = nullptr;
       api.set_tracer = [](const mtia_tracer* tracer) {
         current = tracer;
         return wrapped->set_tracer(tracer);
       };
       api.memory_copy = [](mtia_stream stream, uint64_t to, uint64_t from, uint64_t size, mtia_copy_kind kind) {
         wrapped->set_tracer(nullptr);
         const mtia_status status = wrapped->memory_copy(stream, to, from, size, kind);
         wrapped->set_tracer(current);
         return status;
       };
     }},
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
