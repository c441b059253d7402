// An operator of the device's own, in OpenCL C: opencl_example::axpy(a, x, y) = a * x + y, on float32.
//
// Nothing of it runs on the host but the checks. It goes the way of every command of the driver's: into the queue of
// the stream that is current.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/library.h>
#include <torch_mtia/device/Extension.h>

#include "opencl_driver.h"

namespace {

constexpr const char* kSource = R"(
  kernel void axpy(float a, global const float* x, ulong x_at, global const float* y, ulong y_at,
                   global float* result, ulong result_at) {
    const size_t i = get_global_id(0);
    result[result_at + i] = a * x[x_at + i] + y[y_at + i];
  }
)";

void check(mtia_status status) {
  TORCH_CHECK(status == MTIA_SUCCESS, torch_mtia::extension_driver().last_error_message());
}

// The program, compiled at the first call for all devices of the one context that the driver has.
cl_program program(cl_command_queue queue) {
  static const cl_program made = [queue]() -> cl_program {
    cl_context context = nullptr;
    clGetCommandQueueInfo(queue, CL_QUEUE_CONTEXT, sizeof(context), &context, nullptr);
    const char* source = kSource;
    cl_program compiled = clCreateProgramWithSource(context, 1, &source, nullptr, nullptr);
    return clBuildProgram(compiled, 0, nullptr, "", nullptr, nullptr) == CL_SUCCESS ? compiled : nullptr;
  }();
  return made;
}

// The bytes of a tensor, as the kernel takes them.
struct Argument {
  cl_mem buffer = nullptr;
  cl_ulong first = 0;  // element

  explicit Argument(const at::Tensor& tensor) {
    const auto address = reinterpret_cast<mtia_device_ptr>(tensor.const_data_ptr());
    size_t offset = 0;
    check(opencl_driver_buffer(address, tensor.nbytes(), &buffer, &offset));
    first = offset / sizeof(float);
  }
};

struct Axpy {
  float a;
  Argument x, y, result;
  size_t count;

  static cl_int enqueue(void* args, cl_command_queue queue, cl_event* last) {
    auto& self = *static_cast<Axpy*>(args);
    cl_int status = CL_SUCCESS;
    cl_kernel kernel = clCreateKernel(program(queue), "axpy", &status);  // of this call: a kernel keeps its arguments
    if (status != CL_SUCCESS) return status;
    clSetKernelArg(kernel, 0, sizeof(self.a), &self.a);
    cl_uint index = 1;
    for (Argument* argument : {&self.x, &self.y, &self.result}) {
      clSetKernelArg(kernel, index++, sizeof(argument->buffer), &argument->buffer);
      clSetKernelArg(kernel, index++, sizeof(argument->first), &argument->first);
    }
    status = clEnqueueNDRangeKernel(queue, kernel, 1, nullptr, &self.count, nullptr, 0, nullptr, last);
    clReleaseKernel(kernel);
    return status;
  }
};

at::Tensor axpy(double a, const at::Tensor& x, const at::Tensor& y) {
  TORCH_CHECK(x.sizes() == y.sizes(), "axpy: x has shape ", x.sizes(), " and y ", y.sizes());
  TORCH_CHECK(x.device() == y.device(), "axpy: x is on ", x.device(), " and y on ", y.device());
  TORCH_CHECK(x.scalar_type() == at::kFloat && y.scalar_type() == at::kFloat, "axpy: x and y must be float32");
  TORCH_CHECK(x.is_contiguous() && y.is_contiguous(), "axpy: x and y must be contiguous");
  at::Tensor result = at::empty_like(x);
  if (x.numel() == 0) return result;
  Axpy call{static_cast<float>(a), Argument(x), Argument(y), Argument(result), static_cast<size_t>(x.numel())};
  const c10::Stream stream = c10::impl::VirtualGuardImpl(c10::kMTIA).getStream(x.device());
  check(opencl_driver_enqueue(static_cast<mtia_stream>(stream.native_handle()), &Axpy::enqueue, &call));
  return result;
}

}  // namespace

TORCH_LIBRARY(opencl_example, library) {
  library.def("axpy(float a, Tensor x, Tensor y) -> Tensor");
}
TORCH_LIBRARY_IMPL(opencl_example, MTIA, library) {
  library.impl("axpy", axpy);
}
