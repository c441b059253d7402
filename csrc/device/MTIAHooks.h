// What PyTorch asks of the accelerator: at::MTIAHooksInterface, and at::PrivateUse1HooksInterface for the other device
// type. csrc/python/hooks.cpp adds what MTIAHooksInterface wants as Python objects.
//
// While the device type is PrivateUse1, hasMTIA() returns false. What MTIAHooks returns about the devices stays true
// then, and torch_mtia/device_module.py uses it.
#pragma once

#include <memory>

#include "MTIACachingAllocator.h"
#include "MTIAFunctions.h"
#include "MTIAGenerator.h"
#include "MTIAGraph.h"
#include "MTIAHostAllocator.h"
#include "MTIAStream.h"
#include "TorchVersion.h"

namespace torch_mtia {

// What PyTorch asks of every accelerator.
//
// deviceCount, isBuilt, isAvailable and hasMTIA neither initialize the device nor start a thread: torch calls them
// under locks, at import, and in processes that fork.
template <typename Interface, c10::DeviceType kType>
struct AcceleratorHooks : public Interface {
  static bool is_registered() { return device_type() == kType; }

  void init() const override { ensure_initialized(); }
  bool isBuilt() const override { return kType == c10::DeviceType::MTIA || is_registered(); }
  bool isAvailable() const override { return deviceCount() > 0; }
  c10::DeviceIndex deviceCount() const override { return is_registered() ? device_count() : c10::DeviceIndex{0}; }
  bool hasPrimaryContext(c10::DeviceIndex device) const override { return is_in_use(device); }

  void setCurrentDevice(c10::DeviceIndex device) const override { set_device(device); }
  c10::DeviceIndex getCurrentDevice() const override { return current_device(); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override { return maybe_exchange_device(device); }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override { return maybe_exchange_device(device); }

  bool isPinnedPtr(const void* data) const override { return is_pinned(data); }
  at::Allocator* getPinnedMemoryAllocator() const override { return &host_allocator(); }
  c10::Device getDeviceFromPtr(void* data) const override { return device_of_address(data); }

  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override { return default_generator(device); }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override { return new_generator(device); }
};

struct MTIAHooks : public AcceleratorHooks<MTIAHooksInterface, c10::DeviceType::MTIA> {
  bool hasMTIA() const override { return is_registered(); }
  c10::DeviceIndex getDeviceCount() const override { return deviceCount(); }
  std::string showConfig() const override;
  void deviceSynchronize(c10::DeviceIndex device) const override { synchronize_device(index_or_current(device)); }

  c10::Stream getCurrentStream(c10::DeviceIndex device) const override { return current_stream(device).unwrap(); }
  int64_t getCurrentRawStream(c10::DeviceIndex device) const override {
    return reinterpret_cast<int64_t>(current_stream(device).core().handle());
  }
  c10::Stream getDefaultStream(c10::DeviceIndex device) const override {
    return MTIAStream::default_stream(index_or_current(device)).unwrap();
  }
  void setCurrentStream(const c10::Stream& stream) const override { MTIAStream(stream).make_current(); }
  bool isCurrentStreamCapturing() const override {
    return is_in_use(current_device()) && current_stream(-1).core().graph() != nullptr;
  }

  void emptyCache() const override { MTIACachingAllocator::get().emptyCache(); }
  void resetPeakMemoryStats(c10::DeviceIndex device) const override {
    MTIACachingAllocator::get().resetPeakStats(index_or_current(device));
  }

  // torch.mtia.MTIAGraph. A handle is a number that is never used again. All but create raise RuntimeError for a handle
  // that was destroyed, except destroy.
  int64_t mtiagraphCreate(bool keep_graph = false) const override;
  void mtiagraphDestroy(int64_t handle) const override;
  void mtiagraphCaptureBegin(int64_t handle, c10::MempoolId_t pool) const override {
    graph(handle)->capture_begin(pool);
  }
  void mtiagraphCaptureEnd(int64_t handle) const override { graph(handle)->capture_end(); }
  void mtiagraphInstantiate(int64_t handle) const override { graph(handle)->instantiate(); }
  void mtiagraphReplay(int64_t handle) const override { graph(handle)->replay(); }
  void mtiagraphReset(int64_t handle) const override { graph(handle)->reset(); }
  c10::MempoolId_t mtiagraphPool(int64_t handle) const override { return graph(handle)->pool(); }
  c10::MempoolId_t graphPoolHandle() const override { return MTIAGraph::new_pool_handle(); }

 private:
  static MTIAStream current_stream(c10::DeviceIndex device) { return MTIAStream::current(index_or_current(device)); }
  static std::shared_ptr<MTIAGraph> graph(int64_t handle);
};

// Whether PyTorch already uses our hooks. It looks them up once, at first need; if that happened before this library
// was loaded, the device is unusable for the life of the process.
bool hooks_registered_in_time();

// Makes those of PrivateUse1 PyTorch's, which it can be asked once in a process. Raises RuntimeError if somebody else
// has.
void register_privateuse1_hooks();

}  // namespace torch_mtia
