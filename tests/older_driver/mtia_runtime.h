/* The driver boundary as it was before tracing, without its comments: see driver.cpp. It does not change. */
#ifndef MTIA_RUNTIME_H_
#define MTIA_RUNTIME_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MTIA_RUNTIME_ABI_VERSION 1u

typedef enum mtia_status {
  MTIA_SUCCESS = 0,
  MTIA_ERROR_NOT_READY = 1,
  MTIA_ERROR_INVALID_VALUE = 2,
  MTIA_ERROR_INVALID_DEVICE = 3,
  MTIA_ERROR_OUT_OF_MEMORY = 4,
  MTIA_ERROR_NOT_SUPPORTED = 5,
  MTIA_ERROR_NOT_INITIALIZED = 6,
  MTIA_ERROR_FORKED = 7,
  MTIA_ERROR_LAUNCH_FAILED = 8,
  MTIA_ERROR_DEVICE_LOST = 9,
  MTIA_ERROR_INTERNAL = 10
} mtia_status;

typedef uint64_t mtia_device_ptr;
typedef struct mtia_stream_s* mtia_stream;
typedef struct mtia_event_s* mtia_event;
typedef struct mtia_module_s* mtia_module;
typedef struct mtia_function_s* mtia_function;
typedef struct mtia_graph_s* mtia_graph;
typedef struct mtia_graph_exec_s* mtia_graph_exec;

#define MTIA_CAPABILITY_HOST_VIEW (UINT64_C(1) << 0)

#define MTIA_CAPABILITY_KERNELS (UINT64_C(1) << 1)

#define MTIA_CAPABILITY_GRAPHS (UINT64_C(1) << 2)

#define MTIA_CAPABILITY_RARE_FUNCTIONS (UINT64_C(1) << 3)

#define MTIA_CAPABILITY_VIRTUAL_MEMORY (UINT64_C(1) << 5)

typedef void (*mtia_parallel_for)(int64_t begin, int64_t end, int64_t grain, int32_t num_threads,
                                  void (*body)(void* body_args, int64_t first, int64_t last), void* body_args);

typedef struct mtia_init_params {
  uint32_t struct_size;
  int32_t num_devices;
  uint64_t memory_per_device;
  int32_t launch_blocking;
  mtia_parallel_for parallel_for;
  void (*release_threads)(void);
  uint64_t delay_seed;
  int32_t (*num_threads)(void);
} mtia_init_params;

typedef struct mtia_device_properties {
  uint32_t struct_size;
  char name[64];
  char architecture[32];
  uint64_t total_memory;
  uint64_t l2_cache_size;
  int32_t multi_processor_count;
  int32_t warp_size;
  int32_t capability_major;
  int32_t capability_minor;
} mtia_device_properties;

#define MTIA_WORK_MAY_RUN_INLINE (1u << 0)

#define MTIA_WORK_CAPTURABLE (1u << 1)

typedef struct mtia_work_context {
  int32_t device;
  int32_t num_threads;
  void* stream_tag;
} mtia_work_context;

typedef struct mtia_span {
  mtia_device_ptr address;
  uint64_t size;
} mtia_span;

typedef struct mtia_access {
  mtia_span span;
  int32_t writes;
} mtia_access;

typedef struct mtia_work {
  uint32_t struct_size;
  uint32_t flags;
  mtia_status (*run)(void* args, const mtia_work_context* context);
  void (*relocate)(void* to, void* from);
  void (*destroy)(void* args);
  void* args;
  uint64_t args_size;
  const char* name;
  uint64_t cost;
  int32_t num_threads;
  uint32_t (*accesses)(const void* args, mtia_access* list, uint32_t capacity);
} mtia_work;

#define MTIA_KERNEL_IMAGE_MAGIC UINT64_C(0x316c6e6b6169746d)
#define MTIA_KERNEL_IMAGE_VERSION UINT64_C(1)

typedef enum mtia_argument_kind {
  MTIA_ARGUMENT_POINTER = 0,
  MTIA_ARGUMENT_INTEGER = 1,
  MTIA_ARGUMENT_FLOAT = 2
} mtia_argument_kind;

typedef struct mtia_kernel_argument {
  uint32_t kind;
  uint32_t size;
  uint32_t offset;
  uint32_t reserved;
} mtia_kernel_argument;

#define MTIA_CPU_AVX2_FMA (UINT64_C(1) << 0)
#define MTIA_CPU_AVX512_SKX (UINT64_C(1) << 1)
#define MTIA_CPU_AVX512_BF16 (UINT64_C(1) << 2)
#define MTIA_CPU_AVX512_VNNI (UINT64_C(1) << 3)
#define MTIA_CPU_AVX512_FP16 (UINT64_C(1) << 4)
#define MTIA_CPU_AMX_BF16 (UINT64_C(1) << 5)
#define MTIA_CPU_AMX_INT8 (UINT64_C(1) << 6)

typedef struct mtia_kernel_image_header {
  uint64_t magic;
  uint32_t version;
  uint32_t header_size;
  uint64_t image_size;
  uint64_t cpu_features;
  uint64_t code_offset;
  uint64_t code_size;
  uint64_t entry_offset;
  uint64_t relocations_offset;
  uint32_t num_relocations;
  uint32_t num_arguments;
  uint32_t packed_arguments_size;
  uint32_t cost_per_program;
  uint64_t scratch_size;
  char name[128];
} mtia_kernel_image_header;

typedef enum mtia_rare_function {
  MTIA_RARE_LGAMMA = 0,
  MTIA_RARE_TGAMMA = 1,
  MTIA_RARE_J0 = 2,
  MTIA_RARE_J1 = 3,
  MTIA_RARE_Y0 = 4,
  MTIA_RARE_Y1 = 5,
  MTIA_RARE_CYL_BESSEL_I0 = 6,
  MTIA_RARE_CYL_BESSEL_I1 = 7,
  MTIA_RARE_SIN = 8,
  MTIA_RARE_COS = 9,
  MTIA_RARE_TAN = 10,
  MTIA_RARE_JN = 11,
  MTIA_RARE_YN = 12,
  MTIA_RARE_POW = 13,
  MTIA_RARE_FMOD = 14,
  MTIA_RARE_REMAINDER = 15,
  MTIA_RARE_COUNT = 16
} mtia_rare_function;

typedef struct mtia_error_cell {
  int64_t reported;
  int32_t program[3];
  int32_t line;
  char message[256];
} mtia_error_cell;

typedef struct mtia_kernel_context {
  uint32_t struct_size;
  int32_t grid[3];
  int64_t host_offset;
  mtia_error_cell* error_cell;
  void (*print)(void* sink, const char* text, uint64_t size);
  void* print_sink;
  const mtia_span* live_ranges;
  uint64_t num_live_ranges;
  const void* const* rare_functions;
} mtia_kernel_context;

typedef struct mtia_kernel_launch {
  uint32_t struct_size;
  int32_t num_threads;
  mtia_function function;
  int32_t grid[3];
  uint32_t packed_arguments_size;
  const void* packed_arguments;
  const mtia_span* live_ranges;
  uint64_t num_live_ranges;
} mtia_kernel_launch;

typedef enum mtia_copy_kind {
  MTIA_COPY_HOST_TO_DEVICE = 0,
  MTIA_COPY_DEVICE_TO_HOST = 1,
  MTIA_COPY_DEVICE_TO_DEVICE = 2
} mtia_copy_kind;

typedef struct mtia_graph_node {
  uint32_t struct_size;
  int32_t device;
  const char* name;
  void* stream_tag;
  uint64_t cost;
  const uint32_t* dependencies;
  uint32_t num_dependencies;
} mtia_graph_node;

typedef struct mtia_graph_parameters {
  void* to;
  const void* from;
  uint64_t size;
} mtia_graph_parameters;

typedef struct mtia_runtime_api {
  uint32_t struct_size;
  uint32_t abi_version;
  uint64_t capabilities;
  const char* name;
  const char* version;
  const char* (*last_error_message)(void);
  mtia_status (*initialize)(const mtia_init_params* params);
  mtia_status (*device_count)(int32_t* count);
  mtia_status (*device_properties)(int32_t device, mtia_device_properties* properties);
  mtia_status (*device_synchronize)(int32_t device);
  mtia_status (*memory_allocate)(int32_t device, uint64_t size, mtia_device_ptr* address);
  mtia_status (*memory_free)(int32_t device, mtia_device_ptr address);
  mtia_status (*memory_info)(int32_t device, uint64_t* free_bytes, uint64_t* total_bytes);
  mtia_status (*memory_reserve)(int32_t device, uint64_t size, mtia_device_ptr* address);
  mtia_status (*memory_release)(int32_t device, mtia_device_ptr address);
  mtia_status (*memory_map)(int32_t device, mtia_device_ptr address, uint64_t size);
  mtia_status (*memory_unmap)(int32_t device, mtia_device_ptr address, uint64_t size);
  mtia_status (*memory_device)(const void* address, int32_t* device);
  mtia_status (*memory_host_offset)(int64_t* offset);
  mtia_status (*memory_copy)(mtia_stream stream, uint64_t to, uint64_t from, uint64_t size, mtia_copy_kind kind);
  mtia_status (*memory_fill)(mtia_stream stream, mtia_device_ptr to, const void* pattern, uint32_t pattern_size,
                             uint64_t count);
  mtia_status (*stream_priority_range)(int32_t* lowest, int32_t* highest);
  mtia_status (*stream_create)(int32_t device, int32_t priority, void* tag, mtia_stream* stream);
  mtia_status (*stream_destroy)(mtia_stream stream);
  mtia_status (*stream_query)(mtia_stream stream);
  mtia_status (*stream_synchronize)(mtia_stream stream);
  mtia_status (*stream_wait_event)(mtia_stream stream, mtia_event event);
  mtia_status (*stream_launch)(mtia_stream stream, const mtia_work* work);
  mtia_status (*event_create)(int32_t enable_timing, mtia_event* event);
  mtia_status (*event_destroy)(mtia_event event);
  mtia_status (*event_record)(mtia_event event, mtia_stream stream);
  mtia_status (*event_query)(mtia_event event);
  mtia_status (*event_synchronize)(mtia_event event);
  mtia_status (*event_elapsed_time)(mtia_event start, mtia_event end, double* milliseconds);
  mtia_status (*module_load)(int32_t device, const void* image, uint64_t size, mtia_module* module);
  mtia_status (*module_unload)(mtia_module module);
  mtia_status (*module_get_function)(mtia_module module, const char* name, mtia_function* function);
  mtia_status (*stream_launch_kernel)(mtia_stream stream, const mtia_kernel_launch* launch);
  mtia_status (*stream_begin_capture)(mtia_stream stream);
  mtia_status (*stream_end_capture)(mtia_stream stream, mtia_graph* graph);
  mtia_status (*stream_capture_id)(mtia_stream stream, uint64_t* capture);
  mtia_status (*graph_num_nodes)(mtia_graph graph, uint32_t* count);
  mtia_status (*graph_node)(mtia_graph graph, uint32_t index, mtia_graph_node* node);
  mtia_status (*graph_destroy)(mtia_graph graph);
  mtia_status (*graph_instantiate)(mtia_graph graph, mtia_graph_exec* exec);
  mtia_status (*graph_launch)(mtia_graph_exec exec, mtia_stream stream, const mtia_graph_parameters* parameters);
  mtia_status (*graph_exec_destroy)(mtia_graph_exec exec);
} mtia_runtime_api;

const mtia_runtime_api* mtia_runtime_get_api(uint32_t abi_version);
typedef const mtia_runtime_api* (*mtia_runtime_get_api_fn)(uint32_t abi_version);

#ifdef __cplusplus
}
#endif

#endif
