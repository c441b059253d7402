// The device guard, which c10 finds through its registry.
#include <c10/core/DeviceCapability.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>

#include <memory>

#include "../core/Event.h"
#include "../core/Waits.h"
#include "MTIACachingAllocator.h"
#include "MTIAFunctions.h"
#include "MTIAStream.h"
#include "ScalarTypes.h"

namespace torch_mtia {
namespace {

struct MTIAGuardImpl final : public c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return device_type(); }
  c10::Device exchangeDevice(c10::Device device) const override;
  c10::Device getDevice() const override { return {device_type(), current_device()}; }
  void setDevice(c10::Device device) const override;
  void uncheckedSetDevice(c10::Device device) const noexcept override { set_device_unchecked(device.index()); }
  c10::DeviceIndex deviceCount() const noexcept override { return device_count(); }
  c10::DeviceCapability getDeviceCapability(c10::Device device) const override;

  c10::Stream getStream(c10::Device device) const override;
  c10::Stream getDefaultStream(c10::Device device) const override;
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool is_high_priority) const override;
  c10::Stream getNewStream(c10::Device device, int priority) const override;
  c10::Stream exchangeStream(c10::Stream stream) const override;
  void* getStreamNativeHandle(const c10::Stream stream) const override;
  bool queryStream(const c10::Stream& stream) const override;
  bool isStreamCapturing(const c10::Stream& stream) const override;
  void synchronizeStream(const c10::Stream& stream) const override;
  void synchronizeDevice(const c10::DeviceIndex index) const override { synchronize_device(index); }

  void destroyEvent(void* event, const c10::DeviceIndex index) const noexcept override;
  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex index,
              const c10::EventFlag flag) const override;
  void block(void* event, const c10::Stream& stream) const override;
  bool queryEvent(void* event) const override;
  void synchronizeEvent(void* event) const override;
  double elapsedTime(void* start, void* end, const c10::DeviceIndex index) const override;
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override;
};

void check_device_type(c10::Device device) {
  TORCH_CHECK(is_ours(device), "expected a device of type ", device_name(), ", got ", device);
}

core::Event& event_of(void* event) {
  return *static_cast<core::Event*>(event);
}

c10::Device MTIAGuardImpl::exchangeDevice(c10::Device device) const {
  check_device_type(device);
  return {device_type(), exchange_device(device.index())};
}

void MTIAGuardImpl::setDevice(c10::Device device) const {
  check_device_type(device);
  set_device(device.index());
}

c10::DeviceCapability MTIAGuardImpl::getDeviceCapability(c10::Device device) const {
  if (device.has_index()) check_device_index(device.index());
  c10::DeviceCapability supported;
  supported.capability_data.capability_bits = 0;
#define ADD_IF_SUPPORTED(_1, name) \
  supported.capability_data.supported_scalar_types.has_##name = is_supported(c10::ScalarType::name);
  AT_FORALL_SCALAR_TYPES_WITH_COMPLEX_AND_QINTS(ADD_IF_SUPPORTED)
#undef ADD_IF_SUPPORTED
  return supported;
}

c10::Stream MTIAGuardImpl::getStream(c10::Device device) const {
  return MTIAStream::current(index_or_current(device.index())).unwrap();
}

c10::Stream MTIAGuardImpl::getDefaultStream(c10::Device device) const {
  return MTIAStream::default_stream(index_or_current(device.index())).unwrap();
}

c10::Stream MTIAGuardImpl::getStreamFromGlobalPool(c10::Device device, bool is_high_priority) const {
  return MTIAStream::from_pool(index_or_current(device.index()), is_high_priority ? -1 : 0).unwrap();
}

c10::Stream MTIAGuardImpl::getNewStream(c10::Device device, int priority) const {
  return MTIAStream::from_pool(index_or_current(device.index()), priority).unwrap();
}

c10::Stream MTIAGuardImpl::exchangeStream(c10::Stream stream) const {
  return MTIAStream(stream).make_current().unwrap();
}

void* MTIAGuardImpl::getStreamNativeHandle(const c10::Stream stream) const {
  return MTIAStream(stream).core().handle();
}

bool MTIAGuardImpl::queryStream(const c10::Stream& stream) const {
  return MTIAStream(stream).query();
}

bool MTIAGuardImpl::isStreamCapturing(const c10::Stream& stream) const {
  return MTIAStream(stream).core().graph() != nullptr;
}

void MTIAGuardImpl::synchronizeStream(const c10::Stream& stream) const {
  MTIAStream(stream).synchronize();
}

void MTIAGuardImpl::destroyEvent(void* event, const c10::DeviceIndex /*index*/) const noexcept {
  std::unique_ptr<core::Event>(static_cast<core::Event*>(event));
}

void MTIAGuardImpl::record(void** event, const c10::Stream& stream, const c10::DeviceIndex index,
                           const c10::EventFlag flag) const {
  TORCH_CHECK(index == -1 || index == stream.device_index(), "an event of ", device_name(index),
              " cannot be recorded on a stream of ", stream.device());
  MTIAStream target(stream);
  if (*event == nullptr) {
    *event = std::make_unique<core::Event>(/*enable_timing=*/flag == c10::EventFlag::BACKEND_DEFAULT).release();
  }
  event_of(*event).record(target.core());
}

void MTIAGuardImpl::block(void* event, const c10::Stream& stream) const {
  if (event != nullptr) MTIAStream(stream).core().wait(event_of(event));
}

bool MTIAGuardImpl::queryEvent(void* event) const {
  return event == nullptr || core::program_queries(event_of(event));
}

void MTIAGuardImpl::synchronizeEvent(void* event) const {
  if (event != nullptr) core::program_waits_for(event_of(event));
}

double MTIAGuardImpl::elapsedTime(void* start, void* end, const c10::DeviceIndex /*index*/) const {
  TORCH_CHECK(start != nullptr && end != nullptr, "Both events must be recorded before calculating elapsed time.");
  try {
    return event_of(start).elapsed_time(event_of(end));
  } catch (const runtime::DriverError& error) {
    TORCH_CHECK(error.status != MTIA_ERROR_NOT_READY, "Both events must be completed before calculating elapsed time.");
    throw;
  }
}

void MTIAGuardImpl::recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const {
  MTIACachingAllocator::get().recordStream(data, stream);
}

const DeviceTypeRegistration guard([](const RegisteredType& registered, bool active) {
  static const auto* const instance = new MTIAGuardImpl();  // leaked: c10 keeps the pointer until the process ends
  c10::impl::DeviceGuardImplRegistrar(registered.type, active ? instance : nullptr);
});
}  // namespace

}  // namespace torch_mtia
