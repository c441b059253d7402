#include "MTIACachingAllocator.h"

#include <c10/core/AllocatorConfig.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/COW.h>
#include <c10/core/impl/COWDeleter.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "../core/Event.h"
#include "../processor/assertion.h"
#include "../runtime/forks.h"
#include "MTIAGraph.h"
#include "MTIAStream.h"

namespace torch_mtia {
namespace {

// Of each device, once it is used. Leaked: blocks are freed by tensors that die after static destructors have run.
constinit std::array<std::atomic<core::BlockAllocator*>, kMaxDevices> block_allocators{};
constinit std::mutex create_mutex;

// What PYTORCH_ALLOC_CONF, or torch._C._accelerator_setAllocatorSettings, sets.
core::AllocatorOptions allocator_options() {
  using Config = c10::CachingAllocator::AcceleratorAllocatorConfig;
  core::AllocatorOptions options;
  options.max_split_size = Config::max_split_size();
  options.max_non_split_rounding = Config::max_non_split_rounding_size();
  options.garbage_collection_threshold = Config::garbage_collection_threshold();
  options.expandable_segments = Config::use_expandable_segments();
  return options;
}

core::BlockAllocator& create_block_allocator(c10::DeviceIndex device) {
  check_device_index(device);
  ensure_initialized();
  runtime::check_not_forked();  // as in ensure_initialized
  auto& slot = block_allocators[device];
  std::lock_guard<std::mutex> lock(create_mutex);
  auto* allocator = slot.load(std::memory_order_relaxed);
  if (allocator == nullptr) {
    allocator = core::BlockAllocator::create(device, &allocator_options);
    slot.store(allocator, std::memory_order_release);
  }
  return *allocator;
}

C10_ALWAYS_INLINE core::BlockAllocator& block_allocator(c10::DeviceIndex device) {
  auto* allocator = block_allocators[device].load(std::memory_order_acquire);
  return C10_LIKELY(allocator != nullptr) ? *allocator : create_block_allocator(device);
}

core::BlockAllocator& allocator_of(const core::Stream& stream) {
  return block_allocator(static_cast<c10::DeviceIndex>(stream.device()));
}

core::BlockAllocator& allocator_of(const c10::DataPtr& data) {
  return block_allocator(data.device().index());
}

// Reports to the calling thread's profiler, if there is one, that `size` bytes at `address` were allocated or, with a
// negative size, freed.
void report_to_profiler(c10::DeviceIndex device, void* address, int64_t size) {
  const auto stats = block_allocator(device).stats();
  c10::reportMemoryUsageToProfiler(address, size, stats.allocated_bytes[core::kAll].current,
                                   stats.reserved_bytes[core::kAll].current, c10::Device(device_type(), device));
}

mtia_device_ptr device_ptr(const void* address) {
  return reinterpret_cast<mtia_device_ptr>(address);
}

// Nearly always the block is one of the current device.
void delete_block(void* address) {
  c10::DeviceIndex device = current_device();
  core::BlockAllocator* allocator = block_allocators[device].load(std::memory_order_acquire);
  size_t size = allocator != nullptr ? allocator->free(device_ptr(address)) : 0;
  if (C10_UNLIKELY(size == 0)) {
    allocator = MTIACachingAllocator::owner_of(address);
    MTIA_ASSERT(allocator != nullptr || address == nullptr);  // it is not freed twice
    if (allocator == nullptr) return;
    device = static_cast<c10::DeviceIndex>(allocator->device());
    size = allocator->free(device_ptr(address));
  }
  if (C10_LIKELY(!c10::memoryProfilingEnabled())) return;
  try {
    report_to_profiler(device, address, -static_cast<int64_t>(size));
  } catch (...) {
    // A deleter does not throw; the profile lacks the figure.
  }
}

// How many storages share the memory. c10 keeps it private; who explicitly instantiates a template may name it.
const std::atomic<int64_t>& num_references(const c10::impl::cow::COWDeleterContext& context);
template <auto kCount>
struct CountAccess {
  friend const std::atomic<int64_t>& num_references(const c10::impl::cow::COWDeleterContext& context) {
    return context.*kCount;
  }
};
template struct CountAccess<&c10::impl::cow::COWDeleterContext::refcount_>;

// The current stream of its device copies from the memory, which is about to lose this owner.
void keep_for_copy(const c10::DataPtr& data) {
  core::Stream& stream = MTIAStream::current(data.device().index()).core();
  core::Stream* const owner = allocator_of(data).record_stream(device_ptr(data.get()), &stream);
  if (owner == nullptr || owner == &stream || !c10::impl::cow::is_cow_data_ptr(data)) return;
  // Whoever shares the memory may write it in place without knowing of the copy.
  if (owner->graph() != stream.graph()) return;  // neither may wait for the other
  core::Event copied(/*enable_timing=*/false);
  copied.record(stream);
  owner->wait(copied);
}

// c10's gives its reference to the shared memory up before it asks for memory of its own, and holds a lock meanwhile.
// But to get memory may mean to wait for host functions, which may want that lock, and may fail. So the copy is made
// first.
void materialize(c10::StorageImpl* storage) {
  namespace cow = c10::impl::cow;
  const c10::DataPtr& data = storage->_mutable_data_ptr_no_checks();
  const auto* shared = data.cast_context<cow::COWDeleterContext>(cow::cow_deleter);
  if (shared == nullptr || num_references(*shared) == 1) {
    allocator_of(data).set_tag(device_ptr(data.get()), nullptr);  // `shared` dies now
    return cow::materialize_cow(storage);
  }
  const c10::DeviceGuard guard(data.device());  // the storage's, whatever is the current one when it is written
  c10::DataPtr own = MTIACachingAllocator::get().clone(data.get(), storage->nbytes());
  keep_for_copy(data);
  storage->clear_materializer();
  storage->set_data_ptr(std::move(own));  // the deleter of what it replaces gives the reference up
}

// Note [Lazy clones and graphs]
// Memory that lazy clones share belongs to the first tensor that is written to no longer: that one moves. A graph would
// go on with the old memory. So graphs use no shared memory: what was shared before the capture is refused in it, and
// of memory that a graph may use, or may come to use, a lazy clone is copied at once.
void refuse_shared(const core::Stream& stream, const char* name, core::OperandList list, const void* work) {
  std::vector<core::BlockInfo> tagged;
  for (c10::DeviceIndex device = 0; device < device_count(); ++device) {
    const std::vector<core::BlockInfo> of_device = block_allocator(device).tagged();
    tagged.insert(tagged.end(), of_device.begin(), of_device.end());
  }
  if (tagged.empty()) return;
  struct Look final : core::OperandSink {
    explicit Look(const std::vector<core::BlockInfo>& tagged) : tagged(tagged) {}
    void add(const core::Operand& operand) override {
      for (const core::BlockInfo& block : tagged) {
        if (operand.address < block.address || operand.address >= block.address + block.size) continue;
        if (block.tag == MTIACachingAllocator::tag_of_host_memory()) continue;
        // Its tensor is an argument of the work, so what it is shared through is still there.
        const auto* context = static_cast<const c10::impl::cow::COWDeleterContext*>(block.tag);
        is_found = is_found || num_references(*context) > 1;
      }
    }
    const std::vector<core::BlockInfo>& tagged;
    bool is_found = false;
  } look(tagged);
  list(work, look);
  if (!look.is_found) return;
  MTIAGraph::refuse(MTIAStream::of(stream), name != nullptr ? name : "work",
                    "it uses memory that lazily cloned tensors share, and a tensor that is written moves elsewhere. "
                    "Call clone() for one of them, in place of _lazy_clone(), or write to it before the capture");
}

std::string format_size(uint64_t bytes) {
  std::ostringstream text;
  text.precision(2);
  text << std::fixed;
  if (bytes <= 1024) {
    text << bytes << " bytes";
  } else if (bytes <= 1048576) {
    text << static_cast<double>(bytes) / 1024.0 << " KiB";
  } else if (bytes <= 1073741824) {
    text << static_cast<double>(bytes) / 1048576.0 << " MiB";
  } else {
    text << static_cast<double>(bytes) / 1073741824.0 << " GiB";
  }
  return text.str();
}

c10::CachingAllocator::Stat to_c10(const core::Stat& stat) {
  c10::CachingAllocator::Stat result;
  result.current = stat.current;
  result.peak = stat.peak;
  result.allocated = stat.allocated;
  result.freed = stat.freed;
  return result;
}

c10::CachingAllocator::StatArray to_c10(const core::StatArray& stats) {
  c10::CachingAllocator::StatArray result;
  for (size_t i = 0; i < stats.size(); ++i) result[i] = to_c10(stats[i]);
  return result;
}

}  // namespace

MTIACachingAllocator& MTIACachingAllocator::get() {
  static auto* const allocator = new MTIACachingAllocator();
  return *allocator;
}

core::BlockAllocator& MTIACachingAllocator::of(c10::DeviceIndex device) {
  check_device_index(device);
  return block_allocator(device);
}

void MTIACachingAllocator::raise_out_of_memory(c10::DeviceIndex device, const core::OutOfDeviceMemory& error) {
  auto& allocator = block_allocator(device);
  const auto stats = allocator.stats();
  const auto allocated = static_cast<uint64_t>(stats.allocated_bytes[core::kAll].current);
  const auto reserved = static_cast<uint64_t>(stats.reserved_bytes[core::kAll].current);
  c10::reportOutOfMemoryToProfiler(static_cast<int64_t>(error.requested), allocated, reserved,
                                   c10::Device(device_type(), device));
  notify_out_of_memory_observers(device, error);
  const std::string limit = allocator.memory_fraction() < 1
                                ? c10::str(" ",
                                           format_size(static_cast<uint64_t>(allocator.memory_fraction() *
                                                                             static_cast<double>(error.device_total))),
                                           " allowed;")
                                : "";
  // The device has as much: something else has not, and the driver has said what.
  const std::string reason = error.what();
  const std::string remedy = error.requested <= error.device_free && !reason.empty()
                                 ? c10::str("Refused, because ", reason, ".")
                                 : "Set TORCH_MTIA_MEMORY to give the device more.";
  TORCH_CHECK_WITH(OutOfMemoryError, false, c10::DeviceTypeName(device_type()), " out of memory. Tried to allocate ",
                   format_size(error.requested), ". ", device_name(device), " has a total capacity of ",
                   format_size(error.device_total), " of which ", format_size(error.device_free), " is free.", limit,
                   " Of the allocated memory ", format_size(allocated), " is allocated by PyTorch, and ",
                   format_size(reserved - allocated), " is reserved by PyTorch but unallocated. ", remedy);
}

void* MTIACachingAllocator::allocate_block(size_t size) {
  const auto device = current_device();
  try {
    return reinterpret_cast<void*>(block_allocator(device).allocate(size, &MTIAStream::current(device).core()));
  } catch (const core::OutOfDeviceMemory& error) {
    if (!core::Graph::destroy_late()) get().raise_out_of_memory(device, error);
  }
  return allocate_block(size);
}

c10::DataPtr MTIACachingAllocator::wrap_block(c10::DeviceIndex device, void* address) {
  if (C10_UNLIKELY(c10::memoryProfilingEnabled())) {
    const auto block = block_allocator(device).find(device_ptr(address));
    report_to_profiler(device, address, static_cast<int64_t>(block->size));
  }
  return {address, address, &delete_block, c10::Device(device_type(), device)};
}

core::BlockAllocator* MTIACachingAllocator::owner_of(const void* address) noexcept {
  for (c10::DeviceIndex device = 0; device < device_count(); ++device) {
    core::BlockAllocator* allocator = block_allocators[device].load(std::memory_order_acquire);
    if (allocator != nullptr && allocator->find(device_ptr(address))) return allocator;
  }
  return nullptr;
}

const void* MTIACachingAllocator::tag_of_host_memory() {
  static const char tag = 0;
  return &tag;
}

void MTIACachingAllocator::attachOutOfMemoryObserver(OutOfMemoryObserver observer) {
  const std::lock_guard<std::mutex> lock(observers_mutex_);
  observers_.push_back(std::move(observer));
}

void MTIACachingAllocator::notify_out_of_memory_observers(c10::DeviceIndex device,
                                                          const core::OutOfDeviceMemory& error) {
  std::vector<OutOfMemoryObserver> observers;
  {
    const std::lock_guard<std::mutex> lock(observers_mutex_);
    observers = observers_;
  }
  for (const auto& observer : observers) observer(device, error.requested, error.device_total, error.device_free);
}

MTIACachingAllocator::Window::Window(core::Stream& stream)
    : stream_(stream), id_(allocator_of(stream).open_window(&stream)) {}

MTIACachingAllocator::Window::~Window() {
  allocator_of(stream_).close_window(&stream_, id_);
}

c10::DataPtr MTIACachingAllocator::allocate(size_t size) {
  if (size == 0) return {nullptr, nullptr, &delete_block, c10::Device(device_type(), current_device())};
  void* const address = allocate_block(size);
  return wrap_block(current_device(), address);
}

c10::DeleterFnPtr MTIACachingAllocator::raw_deleter() const {
  return &delete_block;
}

void MTIACachingAllocator::copy_data(void* to, const void* from, size_t size) const {
  core::Stream& stream = MTIAStream::current(current_device()).core();
  stream.copy(reinterpret_cast<uint64_t>(to), reinterpret_cast<uint64_t>(from), size, MTIA_COPY_DEVICE_TO_DEVICE);
}

bool MTIACachingAllocator::initialized() {
  return runtime::is_initialized();
}

void MTIACachingAllocator::emptyCache(c10::MempoolId_t pool) {
  if (!runtime::is_initialized()) return;
  MTIAGraph::refuse_on_devices("empty_cache()");
  core::Graph::destroy_late();
  const core::WithoutGil without_gil;
  for (c10::DeviceIndex device = 0; device < device_count(); ++device) {
    core::BlockAllocator& allocator = block_allocator(device);
    pool == c10::MempoolId_t{0, 0} ? allocator.empty_cache() : allocator.empty_cache(pool);
  }
}

void MTIACachingAllocator::recordStream(const c10::DataPtr& data, c10::Stream stream) {
  if (data.get() == nullptr) return;
  allocator_of(data).record_stream(device_ptr(data.get()), &MTIAStream(stream).core());
}

bool MTIACachingAllocator::may_be_of_graph(const c10::StorageImpl& storage) {
  if (!MTIAGraph::any()) return false;
  const c10::DataPtr& data = storage.data_ptr();
  if (core::Graph::any_capture()) return true;
  const auto block = allocator_of(data).find(device_ptr(data.get()));
  return !block.has_value() || block->captures_before < core::Graph::num_ended();
}

void MTIACachingAllocator::finish_lazy_clone(c10::StorageImpl& storage) {
  if (!storage.has_materializer()) return;
  storage.clear_materializer();
  storage.set_materializer(&materialize);
  // Set once, and before anything can be captured with it.
  core::hooks.check_capture = &refuse_shared;
  const c10::DataPtr& data = storage._mutable_data_ptr_no_checks();
  allocator_of(data).set_tag(device_ptr(data.get()), data.get_context());
}

c10::CachingDeviceAllocator::DeviceStats MTIACachingAllocator::getDeviceStats(c10::DeviceIndex device) {
  const auto stats = of(device).stats();
  c10::CachingDeviceAllocator::DeviceStats result;
  result.allocation = to_c10(stats.allocation);
  result.segment = to_c10(stats.segment);
  result.active = to_c10(stats.active);
  result.inactive_split = to_c10(stats.inactive_split);
  result.allocated_bytes = to_c10(stats.allocated_bytes);
  result.reserved_bytes = to_c10(stats.reserved_bytes);
  result.active_bytes = to_c10(stats.active_bytes);
  result.inactive_split_bytes = to_c10(stats.inactive_split_bytes);
  result.requested_bytes = to_c10(stats.requested_bytes);
  result.oversize_allocations = to_c10(stats.oversize_allocations);
  result.oversize_segments = to_c10(stats.oversize_segments);
  result.num_alloc_retries = stats.num_alloc_retries;
  result.num_ooms = stats.num_ooms;
  result.num_sync_all_streams = stats.num_sync_all_streams;
  result.num_device_alloc = stats.num_device_alloc;
  result.num_device_free = stats.num_device_free;
  result.max_split_size = static_cast<int64_t>(c10::CachingAllocator::AcceleratorAllocatorConfig::max_split_size());
  return result;
}

void MTIACachingAllocator::resetAccumulatedStats(c10::DeviceIndex device) {
  of(device).reset_accumulated_stats();
}

void MTIACachingAllocator::resetPeakStats(c10::DeviceIndex device) {
  of(device).reset_peak_stats();
}

std::pair<size_t, size_t> MTIACachingAllocator::getMemoryInfo(c10::DeviceIndex device) {
  check_device_index(device);
  ensure_initialized();
  const auto info = runtime::memory_info(device);
  return {info.free_bytes, info.total_bytes};
}

void resize_storage(c10::StorageImpl* storage, size_t size) {
  TORCH_CHECK(storage->resizable(), "Trying to resize storage that is not resizable");
  const c10::DeviceGuard guard(storage->device());
  move_storage(storage, MTIACachingAllocator::get().allocate(size), size);
}

void move_storage(c10::StorageImpl* storage, c10::DataPtr to, size_t size) {
  const c10::DeviceGuard guard(storage->device());
  const size_t kept = std::min(size, storage->nbytes());
  if (kept > 0) {
    MTIACachingAllocator::get().copy_data(to.get(), storage->data(), kept);
    keep_for_copy(storage->data_ptr());
  }
  storage->clear_materializer();  // of a lazy clone: the memory is its own now
  storage->set_data_ptr_noswap(std::move(to));
  storage->set_nbytes(size);
}

namespace {
// The highest priority: nobody else may set the allocator of this device type afterwards.
const DeviceTypeRegistration allocator_registration([](const RegisteredType& registered, bool active) {
  c10::SetAllocator(registered.type, active ? &MTIACachingAllocator::get() : nullptr, /*priority=*/255);
});
}  // namespace

}  // namespace torch_mtia
