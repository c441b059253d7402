#include "PrivateUse1Hooks.h"

#include <c10/core/DeviceGuard.h>
#include <c10/util/Exception.h>

#include "MTIAFunctions.h"
#include "MTIAGenerator.h"
#include "MTIAHostAllocator.h"
#include "StorageResize.h"

namespace torch_mtia {

void PrivateUse1Hooks::init() const {
  ensure_initialized();
}

bool PrivateUse1Hooks::isBuilt() const {
  return device_type() == c10::DeviceType::PrivateUse1;
}

bool PrivateUse1Hooks::isAvailable() const {
  return deviceCount() > 0;
}

c10::DeviceIndex PrivateUse1Hooks::deviceCount() const {
  return isBuilt() ? device_count() : 0;
}

bool PrivateUse1Hooks::hasPrimaryContext(c10::DeviceIndex device) const {
  return is_in_use(device);
}

void PrivateUse1Hooks::setCurrentDevice(c10::DeviceIndex device) const {
  set_device(device);
}

c10::DeviceIndex PrivateUse1Hooks::getCurrentDevice() const {
  return current_device();
}

c10::DeviceIndex PrivateUse1Hooks::exchangeDevice(c10::DeviceIndex device) const {
  return maybe_exchange_device(device);
}

c10::DeviceIndex PrivateUse1Hooks::maybeExchangeDevice(c10::DeviceIndex device) const {
  return maybe_exchange_device(device);
}

bool PrivateUse1Hooks::isPinnedPtr(const void* data) const {
  return is_pinned(data);
}

at::Allocator* PrivateUse1Hooks::getPinnedMemoryAllocator() const {
  return &host_allocator();
}

c10::Device PrivateUse1Hooks::getDeviceFromPtr(void* data) const {
  return device_of_address(data);
}

void PrivateUse1Hooks::resizePrivateUse1Bytes(const c10::Storage& storage, size_t size) const {
  resize_storage(storage.unsafeGetStorageImpl(), size);
}

const at::Generator& PrivateUse1Hooks::getDefaultGenerator(c10::DeviceIndex device) const {
  return default_generator(device < 0 ? current_device() : device);
}

at::Generator PrivateUse1Hooks::getNewGenerator(c10::DeviceIndex device) const {
  return new_generator(device);
}

void register_privateuse1_hooks() {
  static const PrivateUse1Hooks* registered = nullptr;
  if (registered != nullptr) return;
  TORCH_CHECK(!at::isPrivateUse1HooksRegistered(),
              "another backend has registered its hooks for PrivateUse1 in this process");
  auto* const hooks = new PrivateUse1Hooks();  // leaked: PyTorch keeps the pointer until the process ends
  at::RegisterPrivateUse1HooksInterface(hooks);
  registered = hooks;
}

}  // namespace torch_mtia
