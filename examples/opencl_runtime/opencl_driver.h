/* What the driver offers beside its table: a way for operators in OpenCL to the queues and the buffers of OpenCL behind
 * streams and addresses. They return as the functions of the table do, with `last_error_message` there. */
#ifndef OPENCL_DRIVER_H_
#define OPENCL_DRIVER_H_

#include <CL/cl.h>

#include "mtia_runtime.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The buffer that has `size` bytes from the address on, which stays the driver's, and where in it they begin.
 * MTIA_ERROR_INVALID_VALUE: none has. */
mtia_status opencl_driver_buffer(mtia_device_ptr address, uint64_t size, cl_mem* buffer, size_t* offset);

/* Calls `enqueue`, which puts commands into the stream's queue, gives the event of the last of them and returns a
 * status of OpenCL's. It must not wait for them. */
mtia_status opencl_driver_enqueue(mtia_stream stream,
                                  cl_int (*enqueue)(void* args, cl_command_queue queue, cl_event* last), void* args);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* OPENCL_DRIVER_H_ */
