// The door through which PyTorch reaches the devices: the in-tree device type `mtia`, or PrivateUse1 under a name that
// the user chooses. One is open. Whatever PyTorch keeps for a device type or a dispatch key is set when the door opens.
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
extern c10::DeviceType door_device_type;
}

// Constant from the first use of a device on.
inline c10::DeviceType device_type() noexcept {
  return detail::door_device_type;
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

struct Door {
  c10::DeviceType type;
  std::string name;
};

// Something that PyTorch keeps for a device type. Called with true when the door opens, and with false when another one
// opens in its place, which can only be before the first use of a device. A const global of this type registers one.
class DoorPart {
 public:
  using Function = void (*)(const Door& door, bool open);
  explicit DoorPart(Function set);
};

// The same for kernels: the counterpart of TORCH_LIBRARY_IMPL, with the key that belongs to the door. PyTorch itself
// has the kernels of autocast for mtia, and lets it have no nested tensors of the strided layout (kNested). kHostView
// and kNoHostView are the backend's too, for kernels that only a driver with a host view can serve, and for those that
// stand in for them: one of the two is registered.
class DoorLibrary {
 public:
  enum class Key { kBackend, kAutograd, kAutocast, kSparse, kNested, kHostView, kNoHostView };
  using Function = void (*)(torch::Library& library);
  DoorLibrary(const char* name_space, Key key, Function define);
};

#define MTIA_LIBRARY_IMPL(name_space, key, m) MTIA_LIBRARY_IMPL_(name_space, key, m, C10_UID)
#define MTIA_LIBRARY_IMPL_(name_space, key, m, uid)                                               \
  static void C10_CONCATENATE(define_for_door_, uid)(torch::Library&);                            \
  static const ::torch_mtia::DoorLibrary C10_CONCATENATE(door_library_, uid)(                     \
      #name_space, ::torch_mtia::DoorLibrary::Key::key, &C10_CONCATENATE(define_for_door_, uid)); \
  static void C10_CONCATENATE(define_for_door_, uid)([[maybe_unused]] torch::Library & m)

// The counterpart of REGISTER_MTIA_DISPATCH and REGISTER_PRIVATEUSE1_DISPATCH.
#define REGISTER_DOOR_DISPATCH(stub, ...)                                                          \
  static const ::torch_mtia::DoorPart stub##__door([](const ::torch_mtia::Door& door, bool open) { \
    typename decltype(stub)::FnPtr const function = open ? (__VA_ARGS__) : nullptr;                \
    if (door.type == c10::DeviceType::MTIA) {                                                      \
      stub.set_mtia_dispatch_ptr(function);                                                        \
    } else {                                                                                       \
      stub.set_privateuse1_dispatch_ptr(function);                                                 \
    }                                                                                              \
  });

// Opens the door of `mtia`: once, when the package is loaded.
void open_mtia();

// Opens the door of PrivateUse1 and closes the other. `rename`, which gives PrivateUse1 its name, comes last: the name
// makes it the process's accelerator. When anything raises, everything is as before. Raises RuntimeError when a device
// is in use.
void open_privateuse1(const std::string& name, const std::function<void()>& rename);

}  // namespace torch_mtia
