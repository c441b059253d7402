#include "DeviceType.h"

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

constinit c10::DeviceType detail::registered_device_type = c10::DeviceType::MTIA;

namespace {

struct LibraryPart {
  std::string name_space;
  DispatchKeyLibrary::Key key;
  DispatchKeyLibrary::Function define;
};

// Leaked: filled by static constructors, in any order, and used until the process ends.
std::vector<DeviceTypeRegistration::Function>& parts() {
  static auto* const instance = new std::vector<DeviceTypeRegistration::Function>();
  return *instance;
}

std::vector<LibraryPart>& library_parts() {
  static auto* const instance = new std::vector<LibraryPart>();
  return *instance;
}

c10::DispatchKey dispatch_key_of(c10::DeviceType type, DispatchKeyLibrary::Key key) {
  const bool is_mtia = type == c10::DeviceType::MTIA;
  switch (key) {
    case DispatchKeyLibrary::Key::kSparse:
      return is_mtia ? c10::DispatchKey::SparseMTIA : c10::DispatchKey::SparsePrivateUse1;
    case DispatchKeyLibrary::Key::kAutograd:
      return is_mtia ? c10::DispatchKey::AutogradMTIA : c10::DispatchKey::AutogradPrivateUse1;
    case DispatchKeyLibrary::Key::kAutocast:
      return c10::DispatchKey::AutocastPrivateUse1;
    case DispatchKeyLibrary::Key::kNested:
      return c10::DispatchKey::NestedTensorPrivateUse1;
    case DispatchKeyLibrary::Key::kBackend:
    case DispatchKeyLibrary::Key::kHostView:
    case DispatchKeyLibrary::Key::kNoHostView:
      break;
  }
  return is_mtia ? c10::DispatchKey::MTIA : c10::DispatchKey::PrivateUse1;
}

// Whether there is anything to register under the key.
bool applies(c10::DeviceType type, DispatchKeyLibrary::Key key, bool has_host_view) {
  switch (key) {
    case DispatchKeyLibrary::Key::kAutocast:
    case DispatchKeyLibrary::Key::kNested:
      return type != c10::DeviceType::MTIA;
    case DispatchKeyLibrary::Key::kHostView:
      return has_host_view;
    case DispatchKeyLibrary::Key::kNoHostView:
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

// Everything that is registered for one device type, until it is destroyed.
class ActiveRegistration {
 public:
  explicit ActiveRegistration(RegisteredType registered) : registered_(std::move(registered)) {
    for (const auto part : parts()) part(registered_, /*active=*/true);
    const bool has_host_view = driver_has_host_view();
    for (const LibraryPart& part : library_parts()) {
      if (!applies(registered_.type, part.key, has_host_view)) continue;
      auto& library = libraries_[{part.name_space, part.key}];
      if (!library) {
        library.emplace(torch::Library::IMPL, part.name_space, dispatch_key_of(registered_.type, part.key), __FILE__,
                        __LINE__);
      }
      part.define(*library);
    }
  }
  ~ActiveRegistration() {
    for (const auto part : parts()) part(registered_, /*active=*/false);
  }
  ActiveRegistration(const ActiveRegistration&) = delete;
  ActiveRegistration& operator=(const ActiveRegistration&) = delete;

 private:
  const RegisteredType registered_;
  std::map<std::pair<std::string, DispatchKeyLibrary::Key>, std::optional<torch::Library>> libraries_;
};

// Leaked: kernels stay registered until the process ends.
std::unique_ptr<ActiveRegistration>& active_registration() {
  static auto* const instance = new std::unique_ptr<ActiveRegistration>();
  return *instance;
}

}  // namespace

DeviceTypeRegistration::DeviceTypeRegistration(Function set) {
  parts().push_back(set);
}

DispatchKeyLibrary::DispatchKeyLibrary(const char* name_space, Key key, Function define) {
  library_parts().push_back({name_space, key, define});
}

void register_mtia() {
  active_registration() = std::make_unique<ActiveRegistration>(RegisteredType{c10::DeviceType::MTIA, "mtia"});
}

void register_privateuse1(const std::string& name, const std::function<void()>& rename) {
  TORCH_CHECK(!runtime::is_initialized(), "the device is in use as '", device_name(), "' already");
  // Before kernels are registered: some ask for the device type already.
  const auto previous = std::exchange(detail::registered_device_type, c10::DeviceType::PrivateUse1);
  try {
    auto registration = std::make_unique<ActiveRegistration>(RegisteredType{c10::DeviceType::PrivateUse1, name});
    register_privateuse1_hooks();
    rename();
    active_registration() = std::move(registration);
  } catch (...) {
    detail::registered_device_type = previous;
    throw;
  }
}

}  // namespace torch_mtia
