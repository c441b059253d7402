#include "Door.h"

#include <c10/util/Exception.h>
#include <torch/library.h>

#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "../runtime/loader.h"
#include "HostView.h"
#include "MTIAHooks.h"

namespace torch_mtia {

constinit c10::DeviceType detail::door_device_type = c10::DeviceType::MTIA;

namespace {

struct LibraryPart {
  std::string name_space;
  DoorLibrary::Key key;
  DoorLibrary::Function define;
};

// Leaked: filled by static constructors, in any order, and used until the process ends.
std::vector<DoorPart::Function>& parts() {
  static auto* const instance = new std::vector<DoorPart::Function>();
  return *instance;
}

std::vector<LibraryPart>& library_parts() {
  static auto* const instance = new std::vector<LibraryPart>();
  return *instance;
}

c10::DispatchKey dispatch_key_of(c10::DeviceType type, DoorLibrary::Key key) {
  const bool is_mtia = type == c10::DeviceType::MTIA;
  switch (key) {
    case DoorLibrary::Key::kSparse:
      return is_mtia ? c10::DispatchKey::SparseMTIA : c10::DispatchKey::SparsePrivateUse1;
    case DoorLibrary::Key::kAutograd:
      return is_mtia ? c10::DispatchKey::AutogradMTIA : c10::DispatchKey::AutogradPrivateUse1;
    case DoorLibrary::Key::kAutocast:
      return c10::DispatchKey::AutocastPrivateUse1;
    case DoorLibrary::Key::kNested:
      return c10::DispatchKey::NestedTensorPrivateUse1;
    case DoorLibrary::Key::kBackend:
    case DoorLibrary::Key::kHostView:
    case DoorLibrary::Key::kNoHostView:
      break;
  }
  return is_mtia ? c10::DispatchKey::MTIA : c10::DispatchKey::PrivateUse1;
}

// Whether there is anything to register under the key.
bool applies(c10::DeviceType type, DoorLibrary::Key key, bool has_host_view) {
  switch (key) {
    case DoorLibrary::Key::kAutocast:
    case DoorLibrary::Key::kNested:
      return type != c10::DeviceType::MTIA;
    case DoorLibrary::Key::kHostView:
      return has_host_view;
    case DoorLibrary::Key::kNoHostView:
      return !has_host_view;
    default:
      return true;
  }
}

// Of a driver that cannot be loaded it makes no difference, and the first use of a device says why.
bool driver_has_host_view() {
  try {
    return HostView::is_offered();
  } catch (const runtime::DriverError&) {
    return true;
  }
}

// Everything that is registered for one door, until it is destroyed.
class OpenDoor {
 public:
  explicit OpenDoor(Door door) : door_(std::move(door)) {
    for (const auto part : parts()) part(door_, /*open=*/true);
    const bool has_host_view = driver_has_host_view();
    for (const LibraryPart& part : library_parts()) {
      if (!applies(door_.type, part.key, has_host_view)) continue;
      auto& library = libraries_[{part.name_space, part.key}];
      if (!library) {
        library.emplace(torch::Library::IMPL, part.name_space, dispatch_key_of(door_.type, part.key), __FILE__,
                        __LINE__);
      }
      part.define(*library);
    }
  }
  ~OpenDoor() {
    for (const auto part : parts()) part(door_, /*open=*/false);
  }
  OpenDoor(const OpenDoor&) = delete;
  OpenDoor& operator=(const OpenDoor&) = delete;

 private:
  const Door door_;
  std::map<std::pair<std::string, DoorLibrary::Key>, std::optional<torch::Library>> libraries_;
};

// Leaked: kernels stay registered until the process ends.
std::unique_ptr<OpenDoor>& open_door() {
  static auto* const instance = new std::unique_ptr<OpenDoor>();
  return *instance;
}

}  // namespace

DoorPart::DoorPart(Function set) {
  parts().push_back(set);
}

DoorLibrary::DoorLibrary(const char* name_space, Key key, Function define) {
  library_parts().push_back({name_space, key, define});
}

void open_mtia() {
  open_door() = std::make_unique<OpenDoor>(Door{c10::DeviceType::MTIA, "mtia"});
}

void open_privateuse1(const std::string& name, const std::function<void()>& rename) {
  TORCH_CHECK(!runtime::is_initialized(), "the device is in use as '", device_name(), "' already");
  // Before kernels are registered: some ask for what the door has already.
  const auto closed = std::exchange(detail::door_device_type, c10::DeviceType::PrivateUse1);
  try {
    auto opened = std::make_unique<OpenDoor>(Door{c10::DeviceType::PrivateUse1, name});
    register_privateuse1_hooks();
    rename();
    open_door() = std::move(opened);
  } catch (...) {
    detail::door_device_type = closed;
    throw;
  }
}

}  // namespace torch_mtia
