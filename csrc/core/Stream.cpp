#include "Stream.h"

#include <cstddef>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <tuple>
#include <vector>

#include "Event.h"
#include "Graph.h"

namespace torch_mtia::core {

constinit Hooks hooks;

namespace {

struct Copied {
  uint64_t to;
  uint64_t from;
  uint64_t size;
  mtia_copy_kind kind;
  CopyUse use;
};

void list_copied(const void* work, OperandSink& sink) {
  const auto& [to, from, size, kind, use] = *static_cast<const Copied*>(work);
  const auto list = [&](uint64_t address, bool writes, bool is_host) {
    const bool passes_through = use == CopyUse::kByFallback || kind == MTIA_COPY_DEVICE_TO_DEVICE;
    const OldBytes old_bytes = writes           ? OldBytes::kOverwritten
                               : passes_through ? OldBytes::kPassedThrough
                                                : OldBytes::kRead;
    Operand operand{address, size, {}, {}, 1, writes, old_bytes, ""};
    operand.is_shared = is_host && use == CopyUse::kNotWaitedFor;
    is_host ? sink.add_host(operand) : sink.add(operand);
  };
  list(from, /*writes=*/false, kind == MTIA_COPY_HOST_TO_DEVICE);
  list(to, /*writes=*/true, kind == MTIA_COPY_DEVICE_TO_HOST);
}

// The argument block of an item around another one, which stays where it is until the driver moves it: then its block
// lies after this one. See Note [Work item] in mtia_runtime.h.
class ObservedWork {
 public:
  ObservedWork(std::shared_ptr<RunObserver> observer, const mtia_work& work, OperandList list)
      : observer_(std::move(observer)), list_(list), work_(work) {}

  // Describes this as a work item; valid while it lives.
  mtia_work work() {
    mtia_work outer = work_;
    outer.run = &run;
    outer.relocate = &relocate;
    outer.destroy = &destroy;
    outer.args = this;
    outer.args_size = inner() + work_.args_size;
    if (work_.accesses != nullptr) outer.accesses = &accesses;
    return outer;
  }

 private:
  static mtia_status run(void* args, const mtia_work_context* context) noexcept {
    auto* self = static_cast<ObservedWork*>(args);
    return self->observer_->run(self->work_, self->list_, context);
  }
  static void relocate(void* to, void* from) noexcept {
    auto* moved = ::new (to) ObservedWork(std::move(*static_cast<ObservedWork*>(from)));
    void* args = static_cast<std::byte*>(to) + inner();
    if (moved->work_.relocate != nullptr) {
      moved->work_.relocate(args, moved->work_.args);
    } else {
      std::memcpy(args, moved->work_.args, moved->work_.args_size);
    }
    moved->work_.args = args;
  }
  static void destroy(void* args) noexcept {
    auto* self = static_cast<ObservedWork*>(args);
    if (self->work_.destroy != nullptr) self->work_.destroy(self->work_.args);
    self->~ObservedWork();
  }
  static uint32_t accesses(const void* args, mtia_access* list, uint32_t capacity) noexcept {
    const mtia_work& work = static_cast<const ObservedWork*>(args)->work_;
    return work.accesses(work.args, list, capacity);
  }

  // Where the other block lies.
  static constexpr size_t inner() { return (sizeof(ObservedWork) + 15) / 16 * 16; }

  std::shared_ptr<RunObserver> observer_;
  OperandList list_;
  mtia_work work_;
};

}  // namespace

void Stream::launch_observed(Observer& observer, const mtia_work& work, OperandList list) {
  std::shared_ptr<RunObserver> run_observer = observer.submits(*this, work.name, list, work.args);
  if (run_observer == nullptr) return submit(&mtia_runtime_api::stream_launch, handle_, &work);
  ObservedWork observed(std::move(run_observer), work, list);
  const mtia_work wrapped = observed.work();
  submit(&mtia_runtime_api::stream_launch, handle_, &wrapped);
}

void Stream::notify_copy(uint64_t to, uint64_t from, uint64_t size, mtia_copy_kind kind, CopyUse use) const {
  const Copied copied{to, from, size, kind, use};
  check_capture("copy", &list_copied, &copied);
  if (Observer* observer = current_observer()) observer->submits(*this, "copy", &list_copied, &copied);
}

void Stream::notify_fill(uint64_t to, uint64_t size) const {
  const mtia_span filled{to, size};
  const auto list = [](const void* work, OperandSink& sink) {
    const auto& [address, size] = *static_cast<const mtia_span*>(work);
    sink.add({address, size, {}, {}, 1, /*writes=*/true, OldBytes::kOverwritten, ""});
  };
  if (Observer* observer = current_observer()) observer->submits(*this, "fill", list, &filled);
}

void Stream::list_spans(const void* work, OperandSink& sink) {
  const auto& of = *static_cast<const mtia_work*>(work);
  std::vector<mtia_access> list(of.accesses(of.args, nullptr, 0));
  of.accesses(of.args, list.data(), static_cast<uint32_t>(list.size()));
  for (const mtia_access& each : list) {
    const bool writes = each.writes != 0;
    const OldBytes old_bytes = writes ? OldBytes::kPassedThrough : OldBytes::kRead;  // or it is read, which nobody says
    sink.add({each.span.address, each.span.size, {}, {}, 1, writes, old_bytes, ""});
  }
}

// An item after the kernel reports that it has run, and owns the watcher as long as the driver owns the kernel.
void Stream::launch_watched(Observer& observer, const char* name, const mtia_kernel_launch& launch) {
  struct Finish {
    std::shared_ptr<KernelWatcher> watcher;
    void operator()(const mtia_work_context& /*context*/) const noexcept { watcher->finished(); }
  };
  const std::shared_ptr<KernelWatcher> watcher = observer.submits(*this, name, launch);
  mtia_kernel_launch watched = launch;
  if (watcher == nullptr) {
    watched.live_ranges = nullptr;  // they were for the watcher
    return submit(&mtia_runtime_api::stream_launch_kernel, handle_, &watched);
  }
  WorkBlock<Finish> finish{{watcher}, "sanitizer"};
  auto forever = std::make_unique<std::shared_ptr<KernelWatcher>>(watcher);
  watched.num_threads = 1;
  watched.watch = watcher.get();
  try {
    submit(&mtia_runtime_api::stream_launch_kernel, handle_, &watched);
  } catch (...) {
    watcher->finished();
    throw;
  }
  const mtia_work work = make_work({finish.name}, finish);
  try {
    submit(&mtia_runtime_api::stream_launch, handle_, &work);
  } catch (...) {
    std::ignore = forever.release();  // the kernel may run at any time, and nothing tells when it has
    throw;
  }
}

Stream* Stream::create(int32_t device, int32_t priority) {
  std::unique_ptr<Stream> stream(new Stream(device, priority));
  runtime::call(&mtia_runtime_api::stream_create, device, priority, /*tag=*/stream.get(), &stream->handle_);
  return stream.release();  // leaked, see the class
}

void Stream::refuse(mtia_status status, const std::string& function) {
  const auto error = runtime::last_error(status, function);
  if (status == MTIA_ERROR_LAUNCH_FAILED) {
    // What the work threw is here already and wins. The driver may say it once more when the stream is synchronized.
    record_error("work", nullptr, runtime::driver().last_error_message());
    wait_unless_captured();
    raise_error();
    throw error;  // another thread took the error of the stream
  }
  if (graph() != nullptr) Graph::with_capture_of(*this, [&](Graph& graph) { graph.invalidate(error.what()); });
  throw error;
}

bool Stream::query() const {
  const mtia_status status = runtime::driver().stream_query(handle_);
  if (status != MTIA_ERROR_NOT_READY) runtime::check(status, &mtia_runtime_api::stream_query);
  return status == MTIA_SUCCESS;
}

bool Stream::is_idle() const {
  return graph() == nullptr && runtime::driver().stream_query(handle_) == MTIA_SUCCESS;
}

void Stream::wait_until_idle() {
  if (!wait_unless_captured())
    throw runtime::last_error(MTIA_ERROR_NOT_SUPPORTED, &mtia_runtime_api::stream_synchronize);
}

bool Stream::wait_unless_captured() {
  const mtia_runtime_api& driver = runtime::driver();
  const mtia_status status = [&] {
    const BlockingWait wait(driver.stream_query(handle_) == MTIA_ERROR_NOT_READY);
    return driver.stream_synchronize(handle_);  // of an idle stream too: only the driver knows of a kernel that failed
  }();
  if (status == MTIA_ERROR_NOT_SUPPORTED) return false;
  if (status == MTIA_SUCCESS) return true;
  if (status != MTIA_ERROR_LAUNCH_FAILED) runtime::check(status, &mtia_runtime_api::stream_synchronize);
  // If the work threw a C++ exception, that is here already and wins; else the failure is the driver's own.
  record_error("work", nullptr, driver.last_error_message());
  return true;
}

void Stream::wait(const Event& event) {
  submit(&mtia_runtime_api::stream_wait_event, handle_, event.handle());
  Graph::notice_join(*this);
  if (Observer* observer = current_observer()) [[unlikely]]
    observer->waits(*this, event);
}

std::optional<WorkError> Stream::take_error() {
  if (!has_error_.load(std::memory_order_acquire)) return std::nullopt;
  const std::lock_guard lock(error_mutex_);
  has_error_.store(false, std::memory_order_relaxed);
  return std::exchange(error_, std::nullopt);
}

void Stream::raise_error() {
  const std::optional<WorkError> error = take_error();
  if (!error) return;
  if (hooks.raise_error != nullptr) hooks.raise_error(*this, *error);
  if (error->exception != nullptr) std::rethrow_exception(error->exception);
  throw runtime::DriverError(MTIA_ERROR_LAUNCH_FAILED, error->message);
}

void Stream::record_error(const char* operator_name, std::exception_ptr exception, std::string message) noexcept {
  const std::lock_guard lock(error_mutex_);
  if (error_) return;
  error_.emplace(WorkError{std::move(exception), "work", std::move(message)});
  try {
    error_->operator_name = operator_name;
  } catch (const std::bad_alloc&) {
    // The host may be out of memory, which may be the error: then it goes without the name.
  }
  has_error_.store(true, std::memory_order_release);
}

void record_work_error(void* stream_tag, const char* name, std::exception_ptr error) noexcept {
  static_cast<Stream*>(stream_tag)->record_error(name, std::move(error), {});
}

bool give_work_error(uint64_t awaited, const std::exception_ptr& error) noexcept {
  return Awaited::give(awaited, error);
}

}  // namespace torch_mtia::core
