// What PyTorch asks of the accelerator `mtia`: at::MTIAHooksInterface, but for what it wants as Python objects, which
// csrc/python/hooks.h adds.
//
// With the other door open, PyTorch is told that there is no mtia. What it says of the devices stays true, and is what
// the module of the other device type is made of.
#pragma once

#include "TorchVersion.h"

namespace torch_mtia {

// deviceCount, getDeviceCount, isBuilt, isAvailable and hasMTIA neither initialize the device nor start a thread: torch
// calls them under locks, at import, and in processes that fork.
struct MTIAHooks : public MTIAHooksInterface {
  void init() const override;
  bool hasMTIA() const override;
  bool isBuilt() const override;
  bool isAvailable() const override;
  c10::DeviceIndex deviceCount() const override;
  c10::DeviceIndex getDeviceCount() const override;
  std::string showConfig() const override;
  bool hasPrimaryContext(c10::DeviceIndex device) const override;

  void deviceSynchronize(c10::DeviceIndex device) const override;
  void setCurrentDevice(c10::DeviceIndex device) const override;
  c10::DeviceIndex getCurrentDevice() const override;
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override;
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override;

  c10::Stream getCurrentStream(c10::DeviceIndex device) const override;
  int64_t getCurrentRawStream(c10::DeviceIndex device) const override;
  c10::Stream getDefaultStream(c10::DeviceIndex device) const override;
  void setCurrentStream(const c10::Stream& stream) const override;
  bool isCurrentStreamCapturing() const override;

  bool isPinnedPtr(const void* data) const override;
  at::Allocator* getPinnedMemoryAllocator() const override;
  c10::Device getDeviceFromPtr(void* data) const override;
  void emptyCache() const override;
  void resetPeakMemoryStats(c10::DeviceIndex device) const override;

  // torch.mtia.MTIAGraph. A handle is a number that is never used again. All but create raise RuntimeError for a handle
  // that was destroyed, except destroy.
  int64_t mtiagraphCreate(bool keep_graph = false) const override;
  void mtiagraphDestroy(int64_t handle) const override;
  void mtiagraphCaptureBegin(int64_t handle, c10::MempoolId_t pool) const override;
  void mtiagraphCaptureEnd(int64_t handle) const override;
  void mtiagraphInstantiate(int64_t handle) const override;
  void mtiagraphReplay(int64_t handle) const override;
  void mtiagraphReset(int64_t handle) const override;
  c10::MempoolId_t mtiagraphPool(int64_t handle) const override;
  c10::MempoolId_t graphPoolHandle() const override;

  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override;
  at::Generator getNewGenerator(c10::DeviceIndex device) const override;
};

// Whether PyTorch already uses our hooks. It looks them up once, at first need; if that happened before this library
// was loaded, the device is unusable for the life of the process.
bool hooks_registered_in_time();

}  // namespace torch_mtia
