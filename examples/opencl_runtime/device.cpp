#include "device.h"

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <string>

namespace opencl_driver {
namespace {

template <typename Value>
Value info(cl_device_id device, cl_device_info name) {
  Value value{};
  check(clGetDeviceInfo(device, name, sizeof(value), &value, nullptr), "clGetDeviceInfo");
  return value;
}

std::string text(cl_device_id device, cl_device_info name) {
  size_t size = 0;
  check(clGetDeviceInfo(device, name, 0, nullptr, &size), "clGetDeviceInfo");
  std::string value(size, '\0');
  check(clGetDeviceInfo(device, name, size, value.data(), nullptr), "clGetDeviceInfo");
  return value.c_str();  // without the zero at its end
}

}  // namespace

Device::Device(const Context& context, cl_device_id id, int32_t index)
    : context_(context),
      id_(id),
      index_(index),
      total_memory_(info<cl_ulong>(id, CL_DEVICE_GLOBAL_MEM_SIZE)),
      own_queue_(new_queue()) {}

Queue Device::new_queue() const {
  const cl_queue_properties properties[] = {CL_QUEUE_PROPERTIES, CL_QUEUE_PROFILING_ENABLE, 0};
  cl_int status = CL_SUCCESS;
  Queue queue(clCreateCommandQueueWithProperties(context_.get(), id_, properties, &status));
  check(status, "clCreateCommandQueueWithProperties");
  return queue;
}

void Device::describe(mtia_device_properties* properties) const {
  std::snprintf(properties->name, sizeof(properties->name), "%s", text(id_, CL_DEVICE_NAME).c_str());
  std::snprintf(properties->architecture, sizeof(properties->architecture), "opencl");
  properties->total_memory = total_memory_;
  properties->l2_cache_size = info<cl_ulong>(id_, CL_DEVICE_GLOBAL_MEM_CACHE_SIZE);
  properties->multi_processor_count = static_cast<int32_t>(info<cl_uint>(id_, CL_DEVICE_MAX_COMPUTE_UNITS));
  properties->warp_size = 1;  // OpenCL says it of kernels only
  std::sscanf(text(id_, CL_DEVICE_VERSION).c_str(), "OpenCL %d.%d", &properties->capability_major,
              &properties->capability_minor);
}

std::vector<std::unique_ptr<Device>> open_devices(size_t at_most) {
  cl_platform_id platform = nullptr;
  check(clGetPlatformIDs(1, &platform, nullptr), "clGetPlatformIDs");
  cl_uint count = 0;
  check(clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 0, nullptr, &count), "clGetDeviceIDs");
  std::vector<cl_device_id> ids(count);
  check(clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, count, ids.data(), nullptr), "clGetDeviceIDs");
  ids.resize(std::min(ids.size(), at_most));
  cl_int status = CL_SUCCESS;
  const auto size = static_cast<cl_uint>(ids.size());
  const Context context(clCreateContext(nullptr, size, ids.data(), nullptr, nullptr, &status));
  check(status, "clCreateContext");
  std::vector<std::unique_ptr<Device>> devices;
  for (size_t index = 0; index < ids.size(); ++index) {
    devices.push_back(std::make_unique<Device>(context, ids[index], static_cast<int32_t>(index)));
  }
  return devices;
}

mtia_device_ptr Memory::allocate(Device& device, uint64_t size) {
  if (size == 0) throw Failure(MTIA_ERROR_INVALID_VALUE, "memory_allocate: the size is 0");
  const std::lock_guard lock(mutex_);
  const uint64_t left = device.total_memory() - used_[device.index()];
  if (size > left) {
    throw Failure(MTIA_ERROR_OUT_OF_MEMORY,
                  std::to_string(size) + " bytes are wanted, and " + std::to_string(left) + " are free");
  }
  cl_int status = CL_SUCCESS;
  Buffer buffer(clCreateBuffer(device.context().get(), CL_MEM_READ_WRITE, size, nullptr, &status));
  check(status, "clCreateBuffer", MTIA_ERROR_OUT_OF_MEMORY);
  // A buffer has no memory before a device uses it: whether there is any is to be known now.
  check(clEnqueueMigrateMemObjects(device.own_queue().get(), 1, buffer.list(), CL_MIGRATE_MEM_OBJECT_CONTENT_UNDEFINED,
                                   0, nullptr, nullptr),
        "clEnqueueMigrateMemObjects", MTIA_ERROR_OUT_OF_MEMORY);
  check(clFinish(device.own_queue().get()), "clFinish", MTIA_ERROR_OUT_OF_MEMORY);
  const mtia_device_ptr address = next_;
  next_ += (size + 2 * kAlignment - 1) / kAlignment * kAlignment;  // and a gap, into which nothing may run
  allocations_.emplace(address, Allocation{device, std::move(buffer), size});
  used_[device.index()] += size;
  return address;
}

void Memory::free(const Device& device, mtia_device_ptr address) {
  const std::lock_guard lock(mutex_);
  const auto found = allocations_.find(address);
  if (found == allocations_.end() || &found->second.device != &device) {
    throw Failure(MTIA_ERROR_INVALID_VALUE, "memory_free: nothing was allocated at " + std::to_string(address));
  }
  used_[device.index()] -= found->second.size;
  allocations_.erase(found);
}

uint64_t Memory::free_bytes(const Device& device) {
  const std::lock_guard lock(mutex_);
  return device.total_memory() - used_[device.index()];
}

Place Memory::find(mtia_device_ptr address, uint64_t size) {
  const std::lock_guard lock(mutex_);
  const auto above = allocations_.upper_bound(address);
  if (above != allocations_.begin()) {
    const auto& [start, allocation] = *std::prev(above);
    const uint64_t offset = address - start;
    if (offset < allocation.size && size <= allocation.size - offset) {
      return {allocation.device, allocation.buffer, offset};
    }
  }
  throw Failure(MTIA_ERROR_INVALID_VALUE,
                std::to_string(size) + " bytes from " + std::to_string(address) + " on are not memory of a device");
}

}  // namespace opencl_driver
