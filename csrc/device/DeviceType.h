// The device type under which PyTorch knows the devices: `mtia`, or PrivateUse1 under a name that the user chooses. One
// of the two is registered. Whatever PyTorch keeps for a device type or a dispatch key is set when it is.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/DispatchKey.h>
#include <c10/core/DispatchKeySet.h>

#include <functional>
#include <string>

namespace torch {
class Library;
}

namespace torch_mtia {

namespace detail {
extern c10::DeviceType registered_device_type;
}

// Constant from the first use of a device on.
inline c10::DeviceType device_type() noexcept {
  return detail::registered_device_type;
}

inline c10::DispatchKey dispatch_key() noexcept {
  return device_type() == c10::DeviceType::MTIA ? c10::DispatchKey::MTIA : c10::DispatchKey::PrivateUse1;
}

// Whether a device is one of this backend.
inline bool is_ours(c10::Device device) noexcept {
  return device.type() == device_type();
}

// What users call the device: "mtia", or the name that they gave.
inline std::string device_name() {
  return c10::DeviceTypeName(device_type(), /*lower_case=*/true);
}

inline std::string device_name(c10::DeviceIndex index) {
  return c10::Device(device_type(), index).str();
}

struct RegisteredType {
  c10::DeviceType type;
  std::string name;
};

// Something that PyTorch keeps for a device type. Called with true when the type is registered, and with false when the
// other one is registered in its place, which can only be before the first use of a device. A const global of this
// class registers one.
class DeviceTypeRegistration {
 public:
  using Function = void (*)(const RegisteredType& registered, bool active);
  explicit DeviceTypeRegistration(Function set);
};

// The same for kernels: the counterpart of TORCH_LIBRARY_IMPL, with the key of the device type. PyTorch itself
// has the kernels of autocast for mtia, and lets it have no nested tensors of the strided layout (kNested). kHostView
// and kNoHostView are the backend's too, for kernels that only a driver with a host view can serve, and for those that
// stand in for them: one of the two is registered.
class DispatchKeyLibrary {
 public:
  enum class Key { kBackend, kAutograd, kAutocast, kSparse, kNested, kHostView, kNoHostView };
  using Function = void (*)(torch::Library& library);
  DispatchKeyLibrary(const char* name_space, Key key, Function define);
};

#define MTIA_LIBRARY_IMPL(name_space, key, m) MTIA_LIBRARY_IMPL_(name_space, key, m, C10_UID)
#define MTIA_LIBRARY_IMPL_(name_space, key, m, uid)                                                     \
  static void C10_CONCATENATE(define_for_key_, uid)(torch::Library&);                                   \
  static const ::torch_mtia::DispatchKeyLibrary C10_CONCATENATE(dispatch_key_library_, uid)(            \
      #name_space, ::torch_mtia::DispatchKeyLibrary::Key::key, &C10_CONCATENATE(define_for_key_, uid)); \
  static void C10_CONCATENATE(define_for_key_, uid)([[maybe_unused]] torch::Library & m)

// The counterpart of REGISTER_MTIA_DISPATCH and REGISTER_PRIVATEUSE1_DISPATCH.
#define REGISTER_DEVICE_DISPATCH(stub, ...)                                               \
  static const ::torch_mtia::DeviceTypeRegistration stub##__registration(                 \
      [](const ::torch_mtia::RegisteredType& registered, bool active) {                   \
        typename decltype(stub)::FnPtr const function = active ? (__VA_ARGS__) : nullptr; \
        if (registered.type == c10::DeviceType::MTIA) {                                   \
          stub.set_mtia_dispatch_ptr(function);                                           \
        } else {                                                                          \
          stub.set_privateuse1_dispatch_ptr(function);                                    \
        }                                                                                 \
      });

// Registers `mtia`: once, when the package is loaded.
void register_mtia();

// Registers PrivateUse1 in place of `mtia`. `rename`, which gives PrivateUse1 its name, comes last: the name makes it
// the process's accelerator. When anything raises, everything is as before. Raises RuntimeError when a device is in
// use.
void register_privateuse1(const std::string& name, const std::function<void()>& rename);

}  // namespace torch_mtia
