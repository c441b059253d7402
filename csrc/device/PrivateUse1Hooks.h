// What PyTorch asks of the accelerator behind PrivateUse1: at::PrivateUse1HooksInterface.
#pragma once

#include <ATen/detail/PrivateUse1HooksInterface.h>

namespace torch_mtia {

// As MTIAHooks, of which it is the part that PyTorch asks of every accelerator.
struct PrivateUse1Hooks final : public at::PrivateUse1HooksInterface {
  void init() const override;
  bool isBuilt() const override;
  bool isAvailable() const override;
  c10::DeviceIndex deviceCount() const override;
  bool hasPrimaryContext(c10::DeviceIndex device) const override;

  void setCurrentDevice(c10::DeviceIndex device) const override;
  c10::DeviceIndex getCurrentDevice() const override;
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override;
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override;

  bool isPinnedPtr(const void* data) const override;
  at::Allocator* getPinnedMemoryAllocator() const override;
  c10::Device getDeviceFromPtr(void* data) const override;
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t size) const override;

  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override;
  at::Generator getNewGenerator(c10::DeviceIndex device) const override;
};

// Makes them PyTorch's, which it can be asked once in a process. Raises RuntimeError if somebody else has.
void register_privateuse1_hooks();

}  // namespace torch_mtia
