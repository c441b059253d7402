#include "MTIAFunctions.h"

#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/log_cpu_dispatch.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <mutex>

#include "../core/Driver.h"
#include "../core/Waits.h"
#include "../core/WorkTrace.h"
#include "../runtime/forks.h"
#include "../runtime/loader.h"
#include "AllocationScopes.h"
#include "HostView.h"
#include "IntraOpThreads.h"
#include "MTIAGraph.h"
#include "MTIAProfiler.h"
#include "MTIAStream.h"

namespace torch_mtia {
namespace {

// Lends the driver PyTorch's intra-operator threads.
void parallel_for(int64_t begin, int64_t end, int64_t grain, int32_t num_threads, void (*body)(void*, int64_t, int64_t),
                  void* body_args) {
  IntraOpThreads threads(num_threads);
  at::parallel_for(begin, end, grain, [&](int64_t first, int64_t last) { body(body_args, first, last); });
}

// MKL sets its vector functions up at their first use. When several threads use them first at the same time, one of
// them can get a variant with 12 correct bits (exp of a large CPU tensor as the first such call of a process, about one
// run in ten); so one thread does it before the executors can.
void initialize_mkl() {
  const at::Tensor number = at::detail::empty_cpu({1}, at::kFloat);
  *number.mutable_data_ptr<float>() = 1;
  at::cpu::log(number);
}

}  // namespace

constinit thread_local c10::DeviceIndex detail::current_device = 0;

void configure(const std::string& driver_library, int32_t num_devices, uint64_t memory_per_device, bool launch_blocking,
               uint64_t delay_seed, bool poison, bool log_launches) {
  if (log_launches) enable_launch_log();
  runtime::DriverSettings settings;
  settings.library = driver_library;
  settings.num_devices = num_devices;
  settings.memory_per_device = memory_per_device;
  settings.launch_blocking = launch_blocking;
  settings.delay_seed = delay_seed;
  settings.poison = poison;
  settings.parallel_for = &parallel_for;
  settings.num_threads = &at::get_num_threads;
  settings.release_threads = core::hooks.release_threads = &release_intra_op_threads;
  runtime::configure(settings);
}

c10::DeviceIndex device_count() noexcept {
  static const c10::DeviceIndex count = []() noexcept -> c10::DeviceIndex {
    try {
      return static_cast<c10::DeviceIndex>(std::min<int32_t>(runtime::device_count(), kMaxDevices));
    } catch (const std::exception& error) {
      TORCH_WARN("torch_mtia: no devices, because the driver cannot be used: ", error.what());
      return 0;
    }
  }();
  return count;
}

void ensure_initialized() {
  static constinit std::atomic<bool> ready{false};  // whether all of it has succeeded
  if (C10_LIKELY(ready.load(std::memory_order_acquire))) return;
  runtime::check_not_forked();  // else the mutex may be a thread's that is not here
  static auto* const mutex = new std::mutex();
  const core::WithoutGil without_gil;  // the thread that is at it may want the GIL, to warn
  const std::lock_guard<std::mutex> lock(*mutex);
  if (ready.load(std::memory_order_relaxed)) return;
  runtime::ensure_initialized();
  HostView::initialize();
  MTIAStream::initialize();
  core::WorkTrace::attach();
  initialize_mkl();
  DeviceAllocation::install();
  device_count();  // a child that is forked cannot ask the driver
  if (core::hooks.on_first_use != nullptr) core::hooks.on_first_use();
  ready.store(true, std::memory_order_release);
}

bool is_in_use(c10::DeviceIndex index) noexcept {
  return runtime::is_initialized() && index >= 0 && index < device_count();
}

c10::DeviceIndex to_device_index(int64_t number) {
  TORCH_CHECK(number < device_count(), device_name(), ":", number, " does not exist: this process has ",
              static_cast<int>(device_count()),
              " of them. Set TORCH_MTIA_DEVICES before the process starts to have more.");
  return static_cast<c10::DeviceIndex>(std::max<int64_t>(number, std::numeric_limits<c10::DeviceIndex>::min()));
}

void check_device_index(c10::DeviceIndex index) {
  TORCH_CHECK(index >= 0 && index < device_count(), device_name(index), " does not exist: this process has ",
              static_cast<int>(device_count()),
              " of them. Set TORCH_MTIA_DEVICES before the process starts to have more.");
}

c10::DeviceIndex index_or_current(c10::DeviceIndex index) {
  if (index < 0) return current_device();
  check_device_index(index);
  return index;
}

void set_device(c10::DeviceIndex index) {
  if (index == detail::current_device && runtime::is_initialized()) return;
  check_device_index(index);
  detail::current_device = index;
}

c10::DeviceIndex exchange_device(c10::DeviceIndex index) {
  const auto previous = detail::current_device;
  set_device(index);
  return previous;
}

c10::DeviceIndex maybe_exchange_device(c10::DeviceIndex index) {
  return index < 0 ? detail::current_device : exchange_device(index);
}

void set_device_unchecked(c10::DeviceIndex index) noexcept {
  if (index != detail::current_device && index >= 0 && index < device_count()) detail::current_device = index;
}

c10::Device device_of_address(const void* address) {
  ensure_initialized();
  const auto device = core::device_of_address(address);
  TORCH_CHECK(device.has_value(), "the address ", address, " does not belong to a device of type ", device_name());
  return {device_type(), static_cast<c10::DeviceIndex>(*device)};
}

void synchronize_device(c10::DeviceIndex index) {
  check_device_index(index);
  ensure_initialized();
  MTIAGraph::refuse_on_devices("synchronize()");
  const auto notify = [&] {
    if (core::current_observer() == nullptr || core::RunningWork::on_this_thread()) return;
    const MTIAStream first = MTIAStream::default_stream(index);
    if (first.core().graph() == nullptr) core::program_has_waited(first.core());
    for (const MTIAStream& other : first.others()) core::program_has_waited(other.core());
  };
  try {
    MTIAStream::synchronize_all(index);
  } catch (...) {
    notify();  // an error of work is raised when all are idle; running work has not waited
    throw;
  }
  notify();
}

}  // namespace torch_mtia
