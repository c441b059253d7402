/* mtia_runtime.h: the driver boundary of torch_mtia, a versioned C ABI.
 *
 * A driver is a shared library that exports one symbol, `mtia_runtime_get_api`. Everything above this header
 * (csrc/core, csrc/device, csrc/aten) reaches the device through the table which that function returns, and through
 * nothing else; everything a vendor has to write is behind it. The driver in csrc/runtime/host is a software device.
 *
 * Conventions: what the comment of a function does not say is as here
 *   - Every function returns an mtia_status. After any value but MTIA_SUCCESS and MTIA_ERROR_NOT_READY,
 *     `last_error_message` describes the failure of the calling thread's last call.
 *   - Every function may be called from any thread, and from several at a time. A handle must not be destroyed while
 *     another call with it is under way.
 *   - No function may throw or call back into Python. Only the functions marked BLOCKS may wait for the device.
 *   - Handles are opaque. Destroying a handle never waits for work already submitted with it, which still runs.
 *   - What a pointer argument leads to belongs to the caller, and is read before the return. What a function gives
 *     through a pointer is written only with MTIA_SUCCESS.
 *   - Table entries marked OPTIONAL may be null; the capability bit named beside them, if there is one, says so in
 *     advance. All others are required.
 *
 * Growth: a driver and a caller that were built with different headers of one ABI version work together
 *   - Later headers append: functions to the table, each OPTIONAL with a capability bit of its own, and fields to the
 *     structs that have a `struct_size`, behind all of their bytes. Everything else stays as it is.
 *   - Later headers add flags of work items too. A driver ignores flags that it does not know.
 *   - Each side knows a struct as its header has it, and `struct_size` says how much of it there is. What there is not
 *     counts as zero: a function is absent, a field is as if nobody had set it. What is beyond the header is left
 * alone.
 *   - No struct is shorter than MTIA_<name>_SIZE_1: its bytes when ABI version 1 began.
 *
 * Errors that every function may return
 *   - MTIA_ERROR_INVALID_VALUE: a handle or a pointer is null that must not be; a struct is too short
 *   - MTIA_ERROR_INVALID_DEVICE: there is no device of this index
 *   - MTIA_ERROR_NOT_INITIALIZED, MTIA_ERROR_FORKED: see mtia_status
 *   - MTIA_ERROR_DEVICE_LOST: from the first call that notices on, all that need the device return it
 *   - MTIA_ERROR_INTERNAL: anything else that the caller is not to blame for
 *
 * `python -m torch_mtia.conformance --driver LIBRARY` puts a driver through all of this.
 */
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
  MTIA_ERROR_NOT_READY = 1,       /* a query: the work has not finished; not a failure */
  MTIA_ERROR_INVALID_VALUE = 2,   /* an argument is wrong */
  MTIA_ERROR_INVALID_DEVICE = 3,  /* no such device */
  MTIA_ERROR_OUT_OF_MEMORY = 4,   /* the device's memory is used up */
  MTIA_ERROR_NOT_SUPPORTED = 5,   /* the driver lacks this capability */
  MTIA_ERROR_NOT_INITIALIZED = 6, /* `initialize` has not been called */
  MTIA_ERROR_FORKED = 7,          /* the process forked after `initialize`; the child cannot use the device */
  MTIA_ERROR_LAUNCH_FAILED = 8,   /* work on the stream failed; reported once, at a synchronizing call */
  MTIA_ERROR_DEVICE_LOST = 9,     /* the device is gone, and with it everything it held */
  MTIA_ERROR_INTERNAL = 10
} mtia_status;

typedef uint64_t mtia_device_ptr; /* an address in device memory; 0 is never valid */
typedef struct mtia_stream_s* mtia_stream;
typedef struct mtia_event_s* mtia_event;
typedef struct mtia_module_s* mtia_module;
typedef struct mtia_function_s* mtia_function;
typedef struct mtia_graph_s* mtia_graph;
typedef struct mtia_graph_exec_s* mtia_graph_exec;

/* Capabilities ----------------------------------------------------------------------------------------------------- */

/* The driver can turn a device address into one that the host may dereference by adding the constant which
 * `memory_host_offset` returns. Kernels and the CPU fallback then run ATen's CPU code on device memory without a copy.
 */
#define MTIA_CAPABILITY_HOST_VIEW (UINT64_C(1) << 0)
/* `module_*` and `stream_launch_kernel` are present. */
#define MTIA_CAPABILITY_KERNELS (UINT64_C(1) << 1)
/* `stream_begin_capture`, the functions beside it and `graph_*` are present. */
#define MTIA_CAPABILITY_GRAPHS (UINT64_C(1) << 2)
/* Kernel contexts carry the table of rare mathematical functions (mtia_kernel_context.rare_functions). */
#define MTIA_CAPABILITY_RARE_FUNCTIONS (UINT64_C(1) << 3)
/* `set_tracer` is present. */
#define MTIA_CAPABILITY_TRACING (UINT64_C(1) << 4)
/* `memory_reserve` and the three functions beside it are present. */
#define MTIA_CAPABILITY_VIRTUAL_MEMORY (UINT64_C(1) << 5)
/* `memory_map_shared` is present, and so are the functions of virtual memory. */
#define MTIA_CAPABILITY_SHARED_MEMORY (UINT64_C(1) << 6)

/* All of them, for who goes through a list. */
#define MTIA_RUNTIME_CAPABILITIES(CAPABILITY) \
  CAPABILITY(HOST_VIEW)                       \
  CAPABILITY(KERNELS)                         \
  CAPABILITY(GRAPHS)                          \
  CAPABILITY(RARE_FUNCTIONS)                  \
  CAPABILITY(TRACING)                         \
  CAPABILITY(VIRTUAL_MEMORY)                  \
  CAPABILITY(SHARED_MEMORY)

/* Initialization --------------------------------------------------------------------------------------------------- */

/* Runs body(body_args, first, last) over disjoint pieces that cover [begin, end), each of at least `grain` elements
 * where there are that many, on at most `num_threads` threads, and returns when all pieces are done. The driver
 * contains no thread pool of its own for this: the caller of `initialize` lends it his. */
typedef void (*mtia_parallel_for)(int64_t begin, int64_t end, int64_t grain, int32_t num_threads,
                                  void (*body)(void* body_args, int64_t first, int64_t last), void* body_args);

typedef struct mtia_init_params {
  uint32_t struct_size;       /* sizeof(mtia_init_params) as the caller knows it */
  int32_t num_devices;        /* software devices to offer; a driver of real hardware ignores it */
  uint64_t memory_per_device; /* bytes; likewise */
  /* Not 0: every launch returns only when its work is done; not those by work that runs itself, into another stream. */
  int32_t launch_blocking;
  mtia_parallel_for parallel_for;
  /* Gives up the threads that `parallel_for` and the work items keep for the calling thread. A driver calls it on a
   * thread of its own that ran work for several threads and has had none for a while; the next such work starts them
   * again. Threads that are kept make other users of the same thread library slower. May be null. */
  void (*release_threads)(void);
  /* Not 0: holds every stream back, for random times that follow from this seed, until somebody waits for it, so that
   * missing synchronization shows as wrong data. For debugging; a driver of real hardware may ignore it. */
  uint64_t delay_seed;
  /* How many threads the calling thread wants its work to use: asked for where work does not say it itself, as in
   * copies and fills. May be null: as many as there are cores. */
  int32_t (*num_threads)(void);
} mtia_init_params;
#define MTIA_INIT_PARAMS_SIZE_1 56u

typedef struct mtia_device_properties {
  uint32_t struct_size; /* set by the caller to sizeof(mtia_device_properties) */
  char name[64];
  char architecture[32];         /* names the Triton target, for example "x86-64-v4" */
  uint64_t total_memory;         /* bytes */
  uint64_t l2_cache_size;        /* bytes of last-level cache that one core may count on */
  int32_t multi_processor_count; /* cores that run work */
  int32_t warp_size;
  int32_t capability_major;
  int32_t capability_minor;
} mtia_device_properties;
#define MTIA_DEVICE_PROPERTIES_SIZE_1 136u

/* Work items ------------------------------------------------------------------------------------------------------- */

/* The stream's queue is empty and the work is small: the driver may run it inside `stream_launch`, on the caller. */
#define MTIA_WORK_MAY_RUN_INLINE (1u << 0)
/* The work may be recorded in a graph: it reads nothing that changes between replays but device memory. */
#define MTIA_WORK_CAPTURABLE (1u << 1)
/* The work may wait for other work, of any stream or process, or for a thread of the program. While it waits, a replay
 * of a graph still runs every node that does not depend on it; see graph_launch. Not together with
 * MTIA_WORK_MAY_RUN_INLINE. */
#define MTIA_WORK_BLOCKS (1u << 2)

/* Where a work item runs: the second argument of mtia_work.run. */
typedef struct mtia_work_context {
  int32_t device;
  int32_t num_threads; /* threads granted; work must not use more. 1 when it runs on the launching thread */
  void* stream_tag;    /* the `tag` given to `stream_create` */
} mtia_work_context;

/* A range of device memory. */
typedef struct mtia_span {
  mtia_device_ptr address;
  uint64_t size; /* bytes */
} mtia_span;

typedef struct mtia_access {
  mtia_span span;
  int32_t writes; /* 0: only reads */
} mtia_access;

/* Note [Work item]
 * The one form of everything that runs in a stream: operators, copies, fills, host functions, and so also the node of
 * a graph. `run` may be called any number of times on one argument block.
 *
 * `args` points to a block that belongs to the launching thread. A driver that runs the work before `stream_launch`
 * returns uses it in place; any other moves it into memory of its own with `relocate` and calls `destroy` on its copy
 * when the copy will not run again, on any thread. The launching thread destroys the original in either case. So small
 * work costs no allocation, and the block may hold C++ objects.
 *
 * A block never owns a tensor, a storage, a generator or a Python object: their last reference would die on a thread
 * of the driver. Device memory is kept alive by the stream-ordered allocator.
 *
 * `run` returns MTIA_SUCCESS or the error that the stream then holds until its next synchronizing call. */
typedef struct mtia_work {
  uint32_t struct_size;
  uint32_t flags; /* MTIA_WORK_* */
  mtia_status (*run)(void* args, const mtia_work_context* context);
  void (*relocate)(void* to, void* from); /* move-constructs; null: the block is plain bytes */
  void (*destroy)(void* args);            /* null: nothing to destroy */
  void* args;
  uint64_t args_size;  /* bytes; the block's alignment is at most 16 */
  const char* name;    /* operator name, valid while the work exists */
  uint64_t cost;       /* estimated nanoseconds on one thread */
  int32_t num_threads; /* threads that the launching thread would use */
  /* Lists the device memory that the work reads and writes, for dependencies and checks: up to `capacity` entries; the
   * result is how many there are. Null: unknown. May be called on any block, the original or a copy. */
  uint32_t (*accesses)(const void* args, mtia_access* list, uint32_t capacity);
} mtia_work;
#define MTIA_WORK_SIZE_1 80u

/* Note [Tracing]
 * A tracer is told of every work item: when it is submitted and when it ran. That includes the driver's own items, such
 * as copies, fills and waits for events. `submitting` and `submitted` are called on the submitting thread, around the
 * submission. The result of the first names the item in the other two calls; it is 0 for an item that is not to be
 * traced. `ran` is called on any thread, before or after `submitted`, after each run of the item, with the times at
 * which the run began and ended: nanoseconds since the epoch, as CLOCK_REALTIME counts them.
 *
 * The functions are called from many threads at a time, must not throw, and must not call the driver. A tracer lives
 * as long as the process: a thread may be about to call it when it is replaced. */
typedef struct mtia_tracer {
  uint32_t struct_size; /* sizeof(mtia_tracer) */
  uint64_t (*submitting)(void* stream_tag, const mtia_work* work);
  void (*submitted)(uint64_t trace_id);
  void (*ran)(uint64_t trace_id, int64_t start_ns, int64_t end_ns);
} mtia_tracer;
#define MTIA_TRACER_SIZE_1 32u

/* Kernel images ---------------------------------------------------------------------------------------------------- */

/* Note [Kernel image]
 * What a Triton kernel is compiled to and any driver loads: position-independent machine code without undefined
 * symbols and without relocations other than `relative` ones (base + addend, 8 bytes), so loading is: map the file, add
 * the base to each listed word, make it executable. It contains nothing of the process that compiled it.
 *
 *   offset 0              mtia_kernel_image_header
 *   header_size           mtia_kernel_argument[num_arguments]
 *   relocations_offset    uint64_t[num_relocations]: offsets in the code of 8-byte words to which its address is added
 *   code_offset           code and read-only data, aligned to 4096
 *
 * The entry runs the programs [first_program, last_program) of the grid, in ascending order:
 *   void entry(const void* packed_arguments, const mtia_kernel_context* context,
 *              int64_t first_program, int64_t last_program, void* scratch)
 * Programs are numbered with x fastest: program x + grid[0] * (y + grid[1] * z). An image in which no program can wait
 * for another may number them otherwise. A launch calls the entry for disjoint ranges that cover the grid, on several
 * threads; each thread takes its ranges in ascending order, and a range starts only when all lower ones have, so a
 * program may wait for a lower one. `scratch` is `scratch_size` bytes, aligned to
 * 64, that nobody else uses during the call; their contents are undefined. It is null if scratch_size is 0.
 *
 * Arguments are packed in the order of mtia_kernel_argument, each aligned to its own size; the block is as long as its
 * last argument needs. Pointers take 8 bytes, booleans 1, integers and floating-point numbers (IEEE half, bfloat16,
 * single, double) their width. Pointers, in arguments and in memory, are device addresses; the code adds
 * context->host_offset at each access. */
#define MTIA_KERNEL_IMAGE_MAGIC UINT64_C(0x316c6e6b6169746d) /* "mtiaknl1" */
#define MTIA_KERNEL_IMAGE_VERSION UINT64_C(1)

typedef enum mtia_argument_kind {
  MTIA_ARGUMENT_POINTER = 0,
  MTIA_ARGUMENT_INTEGER = 1,
  MTIA_ARGUMENT_FLOAT = 2
} mtia_argument_kind;

typedef struct mtia_kernel_argument {
  uint32_t kind;   /* mtia_argument_kind */
  uint32_t size;   /* bytes: 1, 2, 4 or 8 */
  uint32_t offset; /* in the packed block */
  uint32_t reserved;
} mtia_kernel_argument;

/* CPU features that the code needs; a driver refuses an image whose features the machine lacks. */
#define MTIA_CPU_AVX2_FMA (UINT64_C(1) << 0)
#define MTIA_CPU_AVX512_SKX (UINT64_C(1) << 1) /* F, BW, DQ, VL, CD */
#define MTIA_CPU_AVX512_BF16 (UINT64_C(1) << 2)
#define MTIA_CPU_AVX512_VNNI (UINT64_C(1) << 3)
#define MTIA_CPU_AVX512_FP16 (UINT64_C(1) << 4)
#define MTIA_CPU_AMX_BF16 (UINT64_C(1) << 5)
#define MTIA_CPU_AMX_INT8 (UINT64_C(1) << 6)
#define MTIA_CPU_AARCH64 (UINT64_C(1) << 7) /* aarch64 with NEON; without this bit, the code is of x86-64 */

typedef struct mtia_kernel_image_header {
  uint64_t magic;
  uint32_t version;     /* MTIA_KERNEL_IMAGE_VERSION */
  uint32_t header_size; /* sizeof(mtia_kernel_image_header) */
  uint64_t image_size;
  uint64_t cpu_features; /* MTIA_CPU_* */
  uint64_t code_offset;
  uint64_t code_size;
  uint64_t entry_offset; /* from code_offset */
  uint64_t relocations_offset;
  uint32_t num_relocations;
  uint32_t num_arguments;
  uint32_t packed_arguments_size;
  uint32_t cost_per_program; /* estimated nanoseconds of one program; 0: unknown */
  uint64_t scratch_size;     /* bytes that a call of the entry needs */
  char name[128];
} mtia_kernel_image_header;

/* Mathematical functions that are too rare, or too long, to be part of every image that might need them. Their results
 * are those of the C library. Indices into mtia_kernel_context.rare_functions; later versions only append. */
typedef enum mtia_rare_function {
  /* double (*)(double) */
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
  /* double (*)(int32_t, double) */
  MTIA_RARE_JN = 11,
  MTIA_RARE_YN = 12,
  /* double (*)(double, double) */
  MTIA_RARE_POW = 13,
  MTIA_RARE_FMOD = 14,
  MTIA_RARE_REMAINDER = 15,
  MTIA_RARE_COUNT = 16
} mtia_rare_function;

/* Where a program reports a failed assertion or an access out of bounds; the first report wins, and fills in all of it:
 * a driver need only set `reported` to 0. */
typedef struct mtia_error_cell {
  int64_t reported; /* 0: none; set by compare-and-swap */
  int32_t program[3];
  int32_t line;
  char message[256];
} mtia_error_cell;

/* Note [Watched kernels]
 * A kernel may be compiled to ask, before each access, which lanes may go on, and to say what they are about to do: for
 * checks (live_ranges), and for who follows what a launch touches. It asks the watch of its context. Without one, and
 * where the context is too short to have one, all lanes go on.
 *
 * Programs ask for a strip of up to 64 lanes at a time. Each program that begins says so once (`site` null), and so
 * does each statement that stores, every time it runs (`lanes` 0): lanes of one run that have one address are in no
 * order. */

/* What a site does. */
#define MTIA_SITE_READS UINT64_C(1)
#define MTIA_SITE_WRITES UINT64_C(2)
#define MTIA_SITE_ATOMIC UINT64_C(4) /* in one piece; so are volatile loads */
/* What the program does behind it comes after what others have released there. */
#define MTIA_SITE_ACQUIRES UINT64_C(8)
#define MTIA_SITE_RELEASES UINT64_C(16)
/* No access: an operation that makes, in these lanes, NaN of operands that are not NaN, or infinity of finite ones.
 * Lanes that are masked off later are told, too. All lanes go on. With MTIA_SITE_FLOAT: of NaN only. With
 * MTIA_SITE_READS: an operation across lanes passes on what is not finite. With MTIA_SITE_WRITES: an atomic one has
 * stored `values`; what kind of numbers they are is told as of an access. */
#define MTIA_SITE_COMPUTES UINT64_C(32)
/* Elements are floating-point numbers: of their size as IEEE has them, of 8 bits e5m2, or bfloat16. */
#define MTIA_SITE_FLOAT UINT64_C(64)
#define MTIA_SITE_BFLOAT16 UINT64_C(128)
/* Of what it reads, lanes are chosen, as by `where`: nothing is computed from the others. */
#define MTIA_SITE_CHOOSES UINT64_C(256)

/* A place in a kernel's source that accesses memory. It is a constant of the image. */
typedef struct mtia_site {
  uint32_t number; /* among those of the image, from 0 on */
  uint32_t kind;   /* MTIA_SITE_* */
  uint32_t size;   /* bytes of an element */
  int32_t line;
  int64_t argument_offset; /* in the packed block, of the pointer that addresses are computed from; -1: not known */
  const char* file;
  const char* argument; /* the pointer's name; "": not known */
} mtia_site;

/* `access` gives the lanes that may go on, of `lanes`, a bit for each. They access `addresses`, or, if that is null,
 * address + stride * lane: device addresses. `values` are what is to be stored, one for each lane, or null. */
typedef struct mtia_kernel_watch {
  uint64_t (*access)(const struct mtia_kernel_watch* watch, const struct mtia_kernel_context* context,
                     const mtia_site* site, int32_t program_x, int32_t program_y, int32_t program_z, uint64_t address,
                     int64_t stride, const uint64_t* addresses, uint64_t lanes, const void* values);
} mtia_kernel_watch;

/* Note [Interleaved programs]
 * A kernel may be compiled so that its programs take turns, to find what relies on their order. Its entry then calls
 * `interleave` of its context: the first of these calls in a launch runs all programs of the grid, each by `run_one`
 * with scratch memory of its own, on the calling thread, and the others do nothing. Programs call `yield` at atomic
 * operations, stores, volatile loads, and in each round of a loop that has no known end: there the driver may suspend
 * them and run others. Which, and in which order programs start, depends only on the seed and on the programs. If
 * `may_wait`, programs may wait for one another, so no program waits for ever for one that cannot start while those
 * with lower numbers have not ended. Where the context is too short to have the functions, or they are null, the entry
 * runs its range in order.
 *
 * Where programs are watched, they say at `address` that they begin among others, and that they end: with `site` null
 * and `lanes` 0. */
#define MTIA_PROGRAM_BEGINS UINT64_C(0)
#define MTIA_PROGRAM_BEGINS_AMONG_OTHERS UINT64_C(1)
#define MTIA_PROGRAM_ENDS UINT64_C(2)

/* What all programs of a launch share. */
typedef struct mtia_kernel_context {
  uint32_t struct_size;
  int32_t grid[3];
  int64_t host_offset; /* added to a device address at each access */
  mtia_error_cell* error_cell;
  void (*print)(void* sink, const char* text, uint64_t size); /* text of one print: whole lines, written as a whole */
  void* print_sink;
  const mtia_span* live_ranges; /* see mtia_kernel_launch */
  uint64_t num_live_ranges;
  const void* const* rare_functions; /* MTIA_CAPABILITY_RARE_FUNCTIONS, else null */
  const mtia_kernel_watch* watch;    /* the launch's; else one of the driver's own if there are live_ranges, or null */
  /* See Note [Interleaved programs]. Null: the driver does not do it. */
  void (*interleave)(const struct mtia_kernel_context* context, uint64_t seed, int32_t may_wait,
                     void (*run_one)(const void* packed_arguments, const struct mtia_kernel_context* context,
                                     int64_t program, void* scratch));
  void (*yield)(const struct mtia_kernel_context* context);
} mtia_kernel_context;

/* One launch of a kernel. The driver reads everything it points to before stream_launch_kernel returns, but for
 * `watch`, which must stay until the launch has run for the last time. */
typedef struct mtia_kernel_launch {
  uint32_t struct_size;
  int32_t num_threads; /* threads that the launching thread would use */
  mtia_function function;
  int32_t grid[3]; /* if one is 0, nothing runs */
  uint32_t packed_arguments_size;
  const void* packed_arguments; /* the block that the image describes */
  /* For kernels that check bounds: the memory that the launch may touch, disjoint and in ascending order. Null: no
   * checks. */
  const mtia_span* live_ranges;
  uint64_t num_live_ranges;
  const mtia_kernel_watch* watch; /* see Note [Watched kernels]; null: none. A driver that cannot call it ignores it. */
} mtia_kernel_launch;
#define MTIA_KERNEL_LAUNCH_SIZE_1 56u

/* The table -------------------------------------------------------------------------------------------------------- */

typedef enum mtia_copy_kind {
  MTIA_COPY_HOST_TO_DEVICE = 0,
  MTIA_COPY_DEVICE_TO_HOST = 1,
  MTIA_COPY_DEVICE_TO_DEVICE = 2 /* the two addresses may belong to different devices */
} mtia_copy_kind;

/* Note [Capture]
 * Between begin and end of a capture, work submitted to the stream is recorded in a graph and not run. So is work of
 * streams that join: a stream joins when it waits for an event that was recorded in a stream of the capture. A node
 * depends on the one before it in its stream and on what the stream waited for in between. Work without
 * MTIA_WORK_CAPTURABLE is refused with MTIA_ERROR_NOT_SUPPORTED, and nothing is recorded for it.
 *
 * An event recorded in a capture stands for a point in the graph and not in time. To query it, to synchronize with it
 * or to time it is refused with MTIA_ERROR_NOT_SUPPORTED until it is recorded again. The same goes for querying and
 * synchronizing a stream that is being captured, and for making it wait for an event recorded outside the capture:
 * a replay would have nothing to wait for. */

/* A node of a graph, for display. */
typedef struct mtia_graph_node {
  uint32_t struct_size; /* set by the caller to sizeof(mtia_graph_node) */
  int32_t device;
  const char* name; /* as in mtia_work; valid while the graph exists */
  void* stream_tag; /* of the stream in which it was captured */
  uint64_t cost;
  const uint32_t* dependencies; /* nodes with lower indices; valid while the graph exists */
  uint32_t num_dependencies;
} mtia_graph_node;
#define MTIA_GRAPH_NODE_SIZE_1 48u

/* Bytes of host memory that a launch of a graph sets before its first node runs and after all earlier launches of the
 * graph: how nodes are told what differs between launches. `from` is read before graph_launch returns. */
typedef struct mtia_graph_parameters {
  void* to;
  const void* from;
  uint64_t size;
} mtia_graph_parameters;

typedef struct mtia_runtime_api {
  uint32_t struct_size; /* sizeof(mtia_runtime_api) as the driver knows it; later versions only append */
  uint32_t abi_version;
  uint64_t capabilities; /* MTIA_CAPABILITY_* */
  const char* name;      /* for reports, for example "host" */
  const char* version;

  /* Description of the calling thread's last failure; valid until its next call. Never null. */
  const char* (*last_error_message)(void);

  /* Takes the devices into use. Called once, before any function but last_error_message and device_count; by one thread
   * at a time. It may take as long as it needs. Starts no thread: threads start with the first work that needs one.
   * MTIA_ERROR_INVALID_VALUE: a parameter makes no sense, or an earlier call succeeded. After a failure it may be
   * called again. */
  mtia_status (*initialize)(const mtia_init_params* params);

  /* Devices. `device_count` may be called before `initialize`, starts nothing, and may answer
   * MTIA_ERROR_NOT_INITIALIZED then: a driver that offers as many devices as it is asked for does not know yet. */
  mtia_status (*device_count)(int32_t* count);
  /* Fills in the struct. Texts end with a zero, and there is at least one multiprocessor. */
  mtia_status (*device_properties)(int32_t device, mtia_device_properties* properties);
  /* OPTIONAL: torch_mtia waits for the streams instead, to tell whose the errors are. BLOCKS until everything submitted
   * to the device before the call is done. Reports and clears the first error of its streams, as stream_synchronize
   * does. Streams that are being captured are left out. */
  mtia_status (*device_synchronize)(int32_t device);

  /* Memory. `memory_allocate` returns zero-filled or recycled bytes, aligned to 4096, which stay the caller's until
   * `memory_free` gets the same address. MTIA_ERROR_OUT_OF_MEMORY: the device has no such piece, and everything is as
   * before. MTIA_ERROR_INVALID_VALUE: a size of 0, or an address that memory_allocate has not given. Both may be slow:
   * the caching allocator above calls them rarely, and frees only memory that no submitted work uses. */
  mtia_status (*memory_allocate)(int32_t device, uint64_t size, mtia_device_ptr* address);
  mtia_status (*memory_free)(int32_t device, mtia_device_ptr address);
  /* Bytes that memory_allocate has not given away, and all there are. */
  mtia_status (*memory_info)(int32_t device, uint64_t* free_bytes, uint64_t* total_bytes);
  /* OPTIONAL, MTIA_CAPABILITY_VIRTUAL_MEMORY: addresses first, memory later. `memory_reserve` sets `size` bytes of the
   * device's addresses aside, more in all than it has memory; MTIA_ERROR_OUT_OF_MEMORY when there are none left.
   * `memory_map` gives part of a reservation memory, as memory_allocate does; `memory_unmap` takes it away again.
   * `memory_release` ends a reservation in which nothing is mapped. Addresses and sizes are multiples of 2 MiB.
   * MTIA_ERROR_INVALID_VALUE: of what is named, a part is not reserved, or is mapped, or is not, already. */
  mtia_status (*memory_reserve)(int32_t device, uint64_t size, mtia_device_ptr* address);
  mtia_status (*memory_release)(int32_t device, mtia_device_ptr address);
  mtia_status (*memory_map)(int32_t device, mtia_device_ptr address, uint64_t size);
  mtia_status (*memory_unmap)(int32_t device, mtia_device_ptr address, uint64_t size);
  /* The device that an address belongs to; MTIA_ERROR_INVALID_VALUE for a host address. */
  mtia_status (*memory_device)(const void* address, int32_t* device);
  /* OPTIONAL, MTIA_CAPABILITY_HOST_VIEW. One constant for all devices of the process. */
  mtia_status (*memory_host_offset)(int64_t* offset);
  /* Enqueues a copy of `size` bytes. Host memory must stay valid until the copy is done; `size` may be 0, and addresses
   * of any alignment. The two ranges do not overlap. MTIA_ERROR_INVALID_VALUE: an unknown kind, or what has to be
   * device memory is none. */
  mtia_status (*memory_copy)(mtia_stream stream, uint64_t to, uint64_t from, uint64_t size, mtia_copy_kind kind);
  /* Enqueues a fill of `count` elements with a pattern of 1, 2, 4, 8 or 16 bytes, which is read before the return.
   * MTIA_ERROR_INVALID_VALUE: a pattern of another size, or what has to be device memory is none. */
  mtia_status (*memory_fill)(mtia_stream stream, mtia_device_ptr to, const void* pattern, uint32_t pattern_size,
                             uint64_t count);

  /* Streams: in order within one, concurrent between several. `tag` is handed to each work item. A lower number is a
   * higher priority; one outside of the range is taken for the nearest within. The range is OPTIONAL, since torch_mtia
   * has two priorities only: 0, and -1 for streams of high priority. */
  mtia_status (*stream_priority_range)(int32_t* lowest, int32_t* highest);
  mtia_status (*stream_create)(int32_t device, int32_t priority, void* tag, mtia_stream* stream);
  /* OPTIONAL: torch_mtia's streams live as long as the process. */
  mtia_status (*stream_destroy)(mtia_stream stream);
  /* MTIA_SUCCESS: idle; MTIA_ERROR_NOT_READY: busy. Does not report errors of work. */
  mtia_status (*stream_query)(mtia_stream stream);
  /* BLOCKS until everything submitted to the stream before the call is done. Reports and clears the stream's first
   * error, for work and kernels MTIA_ERROR_LAUNCH_FAILED; the stream is usable afterwards. */
  mtia_status (*stream_synchronize)(mtia_stream stream);
  /* Work submitted to the stream after this call waits for the event's last record, on any device. An event that was
   * never recorded is complete. Does not block the caller. */
  mtia_status (*stream_wait_event)(mtia_stream stream, mtia_event event);
  /* See Note [Work item]. Called from inside a work item of the same stream, runs the work at once.
   * MTIA_ERROR_LAUNCH_FAILED: with launch blocking only, this work failed; stream_synchronize may say so too.
   * MTIA_ERROR_NOT_SUPPORTED: it cannot be captured. */
  mtia_status (*stream_launch)(mtia_stream stream, const mtia_work* work);

  /* Events. Recording again replaces what an event stands for; who waits already, waits for what it stood for. An event
   * may be destroyed at any time. */
  mtia_status (*event_create)(int32_t enable_timing, mtia_event* event);
  mtia_status (*event_destroy)(mtia_event event);
  mtia_status (*event_record)(mtia_event event, mtia_stream stream);
  mtia_status (*event_query)(mtia_event event);       /* as stream_query */
  mtia_status (*event_synchronize)(mtia_event event); /* BLOCKS. Does not report errors of work. */
  /* Milliseconds between two recorded events. MTIA_ERROR_NOT_READY: one is not complete; MTIA_ERROR_INVALID_VALUE:
   * one was never recorded or has no timing. */
  mtia_status (*event_elapsed_time)(mtia_event start, mtia_event end, double* milliseconds);

  /* Kernels. OPTIONAL, MTIA_CAPABILITY_KERNELS; see Note [Kernel image]. A module may be unloaded while launches of it
   * are under way; its functions are gone with it. A launch is an item of the stream like any other: small ones may run
   * on the caller, failures show at the next synchronizing call, with the kernel's name in the message.
   * MTIA_ERROR_INVALID_VALUE: a damaged image; no function of the name; packed arguments of another size than the
   * image's, a negative grid, a kernel that was loaded on another device. MTIA_ERROR_NOT_SUPPORTED: an image of another
   * version, or for another machine. */
  mtia_status (*module_load)(int32_t device, const void* image, uint64_t size, mtia_module* module);
  mtia_status (*module_unload)(mtia_module module);
  mtia_status (*module_get_function)(mtia_module module, const char* name, mtia_function* function);
  mtia_status (*stream_launch_kernel)(mtia_stream stream, const mtia_kernel_launch* launch);

  /* Graphs. OPTIONAL, MTIA_CAPABILITY_GRAPHS; see Note [Capture]. `stream_end_capture` is called with the stream that
   * the capture began with; it releases all streams of the capture. `stream_capture_id` gives a number unique to the
   * capture that the stream is part of, 0 if there is none. MTIA_ERROR_INVALID_VALUE: a capture that began already, or
   * never; a node that is not there; different captures that would have to become one. */
  mtia_status (*stream_begin_capture)(mtia_stream stream);
  mtia_status (*stream_end_capture)(mtia_stream stream, mtia_graph* graph);
  mtia_status (*stream_capture_id)(mtia_stream stream, uint64_t* capture);
  mtia_status (*graph_num_nodes)(mtia_graph graph, uint32_t* count);
  mtia_status (*graph_node)(mtia_graph graph, uint32_t index, mtia_graph_node* node);
  /* The graph and what is instantiated from it are destroyed separately, in any order. */
  mtia_status (*graph_destroy)(mtia_graph graph);
  mtia_status (*graph_instantiate)(mtia_graph graph, mtia_graph_exec* exec);
  /* Submits all nodes as one item of the stream. Launches of one graph exclude each other, in whichever streams they
   * are. Nodes that no dependency orders run in any order; one with MTIA_WORK_BLOCKS that waits holds back only what
   * depends on it. `parameters` may be null. MTIA_ERROR_INVALID_VALUE: called by a node of the same graph, with the
   * stream that the node runs in. */
  mtia_status (*graph_launch)(mtia_graph_exec exec, mtia_stream stream, const mtia_graph_parameters* parameters);
  /* BLOCKS until every launch is done. */
  mtia_status (*graph_exec_destroy)(mtia_graph_exec exec);

  /* OPTIONAL, MTIA_CAPABILITY_TRACING. See Note [Tracing]. There is at most one tracer, which stays the caller's; null:
   * none. */
  mtia_status (*set_tracer)(const mtia_tracer* tracer);

  /* OPTIONAL, MTIA_CAPABILITY_SHARED_MEMORY. As memory_map, with the memory of a file: of the first `size` bytes of one
   * that memfd_create has made, in this process or in another. What any of the processes that map it writes, all read.
   * It does not count as the device's. The descriptor may be closed afterwards; memory_unmap takes the memory away.
   * MTIA_ERROR_INVALID_VALUE also for a file that is shorter or cannot be mapped. */
  mtia_status (*memory_map_shared)(int32_t device, mtia_device_ptr address, uint64_t size, int32_t file);
} mtia_runtime_api;

/* The functions of the table, all and in its order, for who goes through a list: each with the capability bits of a
 * driver that has to offer it. */
#define MTIA_REQUIRED UINT64_C(0)
#define MTIA_OPTIONAL (~UINT64_C(0))
#define MTIA_RUNTIME_FUNCTIONS(FUNCTION)                   \
  FUNCTION(last_error_message, MTIA_REQUIRED)              \
  FUNCTION(initialize, MTIA_REQUIRED)                      \
  FUNCTION(device_count, MTIA_REQUIRED)                    \
  FUNCTION(device_properties, MTIA_REQUIRED)               \
  FUNCTION(device_synchronize, MTIA_OPTIONAL)              \
  FUNCTION(memory_allocate, MTIA_REQUIRED)                 \
  FUNCTION(memory_free, MTIA_REQUIRED)                     \
  FUNCTION(memory_info, MTIA_REQUIRED)                     \
  FUNCTION(memory_reserve, MTIA_CAPABILITY_VIRTUAL_MEMORY) \
  FUNCTION(memory_release, MTIA_CAPABILITY_VIRTUAL_MEMORY) \
  FUNCTION(memory_map, MTIA_CAPABILITY_VIRTUAL_MEMORY)     \
  FUNCTION(memory_unmap, MTIA_CAPABILITY_VIRTUAL_MEMORY)   \
  FUNCTION(memory_device, MTIA_REQUIRED)                   \
  FUNCTION(memory_host_offset, MTIA_CAPABILITY_HOST_VIEW)  \
  FUNCTION(memory_copy, MTIA_REQUIRED)                     \
  FUNCTION(memory_fill, MTIA_REQUIRED)                     \
  FUNCTION(stream_priority_range, MTIA_OPTIONAL)           \
  FUNCTION(stream_create, MTIA_REQUIRED)                   \
  FUNCTION(stream_destroy, MTIA_OPTIONAL)                  \
  FUNCTION(stream_query, MTIA_REQUIRED)                    \
  FUNCTION(stream_synchronize, MTIA_REQUIRED)              \
  FUNCTION(stream_wait_event, MTIA_REQUIRED)               \
  FUNCTION(stream_launch, MTIA_REQUIRED)                   \
  FUNCTION(event_create, MTIA_REQUIRED)                    \
  FUNCTION(event_destroy, MTIA_REQUIRED)                   \
  FUNCTION(event_record, MTIA_REQUIRED)                    \
  FUNCTION(event_query, MTIA_REQUIRED)                     \
  FUNCTION(event_synchronize, MTIA_REQUIRED)               \
  FUNCTION(event_elapsed_time, MTIA_REQUIRED)              \
  FUNCTION(module_load, MTIA_CAPABILITY_KERNELS)           \
  FUNCTION(module_unload, MTIA_CAPABILITY_KERNELS)         \
  FUNCTION(module_get_function, MTIA_CAPABILITY_KERNELS)   \
  FUNCTION(stream_launch_kernel, MTIA_CAPABILITY_KERNELS)  \
  FUNCTION(stream_begin_capture, MTIA_CAPABILITY_GRAPHS)   \
  FUNCTION(stream_end_capture, MTIA_CAPABILITY_GRAPHS)     \
  FUNCTION(stream_capture_id, MTIA_CAPABILITY_GRAPHS)      \
  FUNCTION(graph_num_nodes, MTIA_CAPABILITY_GRAPHS)        \
  FUNCTION(graph_node, MTIA_CAPABILITY_GRAPHS)             \
  FUNCTION(graph_destroy, MTIA_CAPABILITY_GRAPHS)          \
  FUNCTION(graph_instantiate, MTIA_CAPABILITY_GRAPHS)      \
  FUNCTION(graph_launch, MTIA_CAPABILITY_GRAPHS)           \
  FUNCTION(graph_exec_destroy, MTIA_CAPABILITY_GRAPHS)     \
  FUNCTION(set_tracer, MTIA_CAPABILITY_TRACING)            \
  FUNCTION(memory_map_shared, MTIA_CAPABILITY_SHARED_MEMORY)

/* The one exported symbol. Returns the driver's table, or null if it does not speak `abi_version`. The table lives as
 * long as the process. */
const mtia_runtime_api* mtia_runtime_get_api(uint32_t abi_version);
typedef const mtia_runtime_api* (*mtia_runtime_get_api_fn)(uint32_t abi_version);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* MTIA_RUNTIME_H_ */
