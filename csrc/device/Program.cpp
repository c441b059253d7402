#include "Program.h"

#include <c10/util/Exception.h>
#include <dlfcn.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <memory>
#include <string>
#include <string_view>

#include "DeviceType.h"
#include "MTIAFunctions.h"
#include "MTIAHooks.h"
#include "MTIAKernel.h"

namespace torch_mtia {
namespace {

std::string_view setting(const char* name, const char* otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : value;
}

[[noreturn]] void refuse(const char* name, const char* valid) {
  C10_THROW_ERROR(ValueError, c10::str(name, "='", setting(name, ""), "' is not valid. Valid: ", valid, "."));
}

uint64_t number(const char* name, std::string_view text, const char* valid) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) refuse(name, valid);
  return value;
}

bool flag(const char* name) {
  const uint64_t value = number(name, setting(name, "0"), "0 or 1");
  if (value > 1) refuse(name, "0 or 1");
  return value == 1;
}

int32_t num_devices() {
  constexpr const char* kName = "TORCH_MTIA_DEVICES";
  const std::string_view text = setting(kName, "auto");
  if (text == "auto") {  // torchrun says how many processes of one job the machine has
    const std::string_view local_ranks = setting("LOCAL_WORLD_SIZE", "");
    uint64_t ranks = 0;
    const auto [end, error] = std::from_chars(local_ranks.data(), local_ranks.data() + local_ranks.size(), ranks);
    const bool is_number = error == std::errc() && end == local_ranks.data() + local_ranks.size() && ranks > 0;
    return is_number ? static_cast<int32_t>(std::min<uint64_t>(ranks, kMaxDevices)) : 1;
  }
  const uint64_t value = number(kName, text, "an integer from 1 to 64, or auto");
  if (value < 1 || value > kMaxDevices) refuse(kName, "an integer from 1 to 64, or auto");
  return static_cast<int32_t>(value);
}

uint64_t memory_per_device() {
  constexpr const char* kName = "TORCH_MTIA_MEMORY";
  constexpr const char* kValid = "bytes, at least 64M, with or without a suffix K, M, G or T; or auto";
  std::string text(setting(kName, "auto"));
  if (text == "auto") return 0;
  for (char& letter : text) letter = static_cast<char>(std::toupper(static_cast<unsigned char>(letter)));
  const size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  std::string_view suffix = std::string_view(text).substr(digits);
  int shift = 0;
  if (!suffix.empty()) {
    const size_t unit = std::string_view("KMGT").find(suffix.front());
    suffix.remove_prefix(1);
    if (unit == std::string_view::npos || !(suffix.empty() || suffix == "B" || suffix == "IB")) refuse(kName, kValid);
    shift = 10 * (static_cast<int>(unit) + 1);
  }
  const uint64_t units = number(kName, std::string_view(text).substr(0, digits), kValid);
  const uint64_t bytes = units << shift;
  const bool fits = bytes >> shift == units && bytes <= uint64_t{std::numeric_limits<int64_t>::max()};
  if (!fits || bytes < uint64_t{64} << 20) refuse(kName, kValid);
  return bytes;
}

std::string driver_library() {
  constexpr const char* kName = "TORCH_MTIA_RUNTIME";
  const std::string text(setting(kName, "host"));
  if (text != "host") {
    const char* home = std::getenv("HOME");
    const bool is_at_home = text.starts_with("~/") && home != nullptr;
    const std::filesystem::path path =
        is_at_home ? std::filesystem::path(home) / text.substr(2) : std::filesystem::path(text);
    if (!std::filesystem::is_regular_file(path)) refuse(kName, "host, or the path of a shared library");
    return std::filesystem::absolute(path).string();
  }
  Dl_info here{};
  TORCH_CHECK(dladdr(reinterpret_cast<const void*>(&initialize_program), &here) != 0, "libtorch_mtia.so is nowhere");
  return (std::filesystem::absolute(here.dli_fname).parent_path() / "libmtia_host.so").string();
}

bool logs_launches() {
  bool launches = false;
  std::string_view names = setting("TORCH_MTIA_LOG", "");
  while (!names.empty()) {
    const std::string_view name = names.substr(0, names.find(','));
    if (!name.empty() && name != "launch")
      refuse("TORCH_MTIA_LOG", "a list, separated by commas, of launch; or nothing");
    launches |= name == "launch";
    names.remove_prefix(std::min(name.size() + 1, names.size()));
  }
  return launches;
}

}  // namespace

void initialize_program() {
  at::MTIAHooksRegistry()->Register(
      "MTIAHooks", []() -> std::unique_ptr<at::MTIAHooksInterface> { return std::make_unique<MTIAHooks>(); });
  TORCH_CHECK(hooks_registered_in_time(),
              "torch_mtia::initialize_program() was called too late: PyTorch has looked for "
              "the hooks of its accelerator, which it does once. Call it before anything else of PyTorch.");
  configure(driver_library(), num_devices(), memory_per_device(), flag("TORCH_MTIA_LAUNCH_BLOCKING"),
            number("TORCH_MTIA_DELAY", setting("TORCH_MTIA_DELAY", "0"), "an integer"), flag("TORCH_MTIA_POISON"),
            logs_launches());
  MTIAKernel::set_check_bounds(flag("TORCH_MTIA_CHECK_BOUNDS"));
  register_mtia();
}

}  // namespace torch_mtia
