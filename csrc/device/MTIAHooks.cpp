#include "MTIAHooks.h"

#include <c10/util/Exception.h>

#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "../core/Driver.h"
#include "../runtime/forks.h"
#include "MTIACachingAllocator.h"
#include "MTIAFunctions.h"
#include "MTIAGenerator.h"
#include "MTIAGraph.h"
#include "MTIAHostAllocator.h"
#include "MTIAStream.h"

namespace torch_mtia {
namespace {

// The graphs of torch.mtia.MTIAGraph objects, by handle.
class Graphs {
 public:
  Graphs() { runtime::hold_at_forks(runtime::ForkOrder::kTable, mutex_); }

  int64_t create(bool keep_graph) {
    at::GraphImplArgs args;
    args.keep_graph = keep_graph;
    auto graph = std::make_shared<MTIAGraph>(args);
    const std::lock_guard<std::mutex> lock(mutex_);
    graphs_.emplace(++last_, std::move(graph));
    return last_;
  }
  std::shared_ptr<MTIAGraph> get(int64_t handle) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = graphs_.find(handle);
    TORCH_CHECK(found != graphs_.end(), "the MTIAGraph was destroyed");
    return found->second;
  }
  void destroy(int64_t handle) noexcept {
    std::shared_ptr<MTIAGraph> graph;  // dies without the lock
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = graphs_.find(handle);
    if (found == graphs_.end()) return;
    graph = std::move(found->second);
    graphs_.erase(found);
  }

 private:
  std::mutex mutex_;
  std::map<int64_t, std::shared_ptr<MTIAGraph>> graphs_;
  int64_t last_ = 0;
};

Graphs& graphs() {
  static auto* const instance = new Graphs();  // leaked: graphs die after static destructors have run
  return *instance;
}

}  // namespace

void MTIAHooks::init() const {
  ensure_initialized();
}

bool MTIAHooks::hasMTIA() const {
  return device_type() == c10::DeviceType::MTIA;
}

bool MTIAHooks::isBuilt() const {
  return true;
}

bool MTIAHooks::isAvailable() const {
  return deviceCount() > 0;
}

c10::DeviceIndex MTIAHooks::deviceCount() const {
  return hasMTIA() ? device_count() : 0;
}

c10::DeviceIndex MTIAHooks::getDeviceCount() const {
  return deviceCount();
}

std::string MTIAHooks::showConfig() const {
  const core::DriverInfo driver = core::driver_info();
  return c10::str("MTIA driver: ", driver.name, " ", driver.version, " (ABI ", driver.abi_version, ")");
}

bool MTIAHooks::hasPrimaryContext(c10::DeviceIndex device) const {
  return is_in_use(device);
}

void MTIAHooks::deviceSynchronize(c10::DeviceIndex device) const {
  synchronize_device(index_or_current(device));
}

void MTIAHooks::setCurrentDevice(c10::DeviceIndex device) const {
  set_device(device);
}

c10::DeviceIndex MTIAHooks::getCurrentDevice() const {
  return current_device();
}

c10::DeviceIndex MTIAHooks::exchangeDevice(c10::DeviceIndex device) const {
  return maybe_exchange_device(device);
}

c10::DeviceIndex MTIAHooks::maybeExchangeDevice(c10::DeviceIndex device) const {
  return maybe_exchange_device(device);
}

c10::Stream MTIAHooks::getCurrentStream(c10::DeviceIndex device) const {
  return MTIAStream::current(index_or_current(device)).unwrap();
}

int64_t MTIAHooks::getCurrentRawStream(c10::DeviceIndex device) const {
  return reinterpret_cast<int64_t>(MTIAStream::current(index_or_current(device)).core().handle());
}

c10::Stream MTIAHooks::getDefaultStream(c10::DeviceIndex device) const {
  return MTIAStream::default_stream(index_or_current(device)).unwrap();
}

void MTIAHooks::setCurrentStream(const c10::Stream& stream) const {
  MTIAStream(stream).make_current();
}

bool MTIAHooks::isCurrentStreamCapturing() const {
  const auto device = current_device();
  return is_in_use(device) && MTIAStream::current(device).core().graph() != nullptr;
}

bool MTIAHooks::isPinnedPtr(const void* data) const {
  return is_pinned(data);
}

at::Allocator* MTIAHooks::getPinnedMemoryAllocator() const {
  return &host_allocator();
}

c10::Device MTIAHooks::getDeviceFromPtr(void* data) const {
  return device_of_address(data);
}

void MTIAHooks::emptyCache() const {
  MTIACachingAllocator::get().emptyCache();
}

void MTIAHooks::resetPeakMemoryStats(c10::DeviceIndex device) const {
  MTIACachingAllocator::get().resetPeakStats(index_or_current(device));
}

int64_t MTIAHooks::mtiagraphCreate(bool keep_graph) const {
  return graphs().create(keep_graph);
}

void MTIAHooks::mtiagraphDestroy(int64_t handle) const {
  graphs().destroy(handle);
}

void MTIAHooks::mtiagraphCaptureBegin(int64_t handle, c10::MempoolId_t pool) const {
  graphs().get(handle)->capture_begin(pool);
}

void MTIAHooks::mtiagraphCaptureEnd(int64_t handle) const {
  graphs().get(handle)->capture_end();
}

void MTIAHooks::mtiagraphInstantiate(int64_t handle) const {
  graphs().get(handle)->instantiate();
}

void MTIAHooks::mtiagraphReplay(int64_t handle) const {
  graphs().get(handle)->replay();
}

void MTIAHooks::mtiagraphReset(int64_t handle) const {
  graphs().get(handle)->reset();
}

c10::MempoolId_t MTIAHooks::mtiagraphPool(int64_t handle) const {
  return graphs().get(handle)->pool();
}

c10::MempoolId_t MTIAHooks::graphPoolHandle() const {
  return MTIAGraph::new_pool_handle();
}

const at::Generator& MTIAHooks::getDefaultGenerator(c10::DeviceIndex device) const {
  return default_generator(device);
}

at::Generator MTIAHooks::getNewGenerator(c10::DeviceIndex device) const {
  return new_generator(device);
}

bool hooks_registered_in_time() {
  return dynamic_cast<const MTIAHooks*>(&at::detail::getMTIAHooks()) != nullptr;
}

}  // namespace torch_mtia
