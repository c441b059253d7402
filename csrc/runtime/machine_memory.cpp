#include "machine_memory.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <string_view>
#include <utility>

namespace torch_mtia::runtime {
namespace {

constexpr uint64_t kUnlimited = std::numeric_limits<uint64_t>::max();
constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kLeastCapacity = 64 * kMiB;
constexpr uint64_t kLargestReserve = 1024 * kMiB;
constexpr uint64_t kReservedPart = 32;

std::optional<uint64_t> parse(std::string_view text) {
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end == text.data()) return std::nullopt;
  return number;
}

// A file of one number; nothing: there is none, or "max".
std::optional<uint64_t> number_in(const std::string& path) {
  std::ifstream file(path);
  std::string word;
  if (!(file >> word)) return std::nullopt;
  return parse(word);
}

// Of a file of lines "name value ...".
uint64_t value_in(const std::string& path, std::string_view name, uint64_t otherwise) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string word;
    std::string value;
    if (words >> word >> value && word == name) return parse(value).value_or(otherwise);
  }
  return otherwise;
}

bool lists(const std::string& names, std::string_view name) {
  std::istringstream list(names);
  std::string item;
  while (std::getline(list, item, ',')) {
    if (item == name) return true;
  }
  return false;
}

// The process's group in the hierarchy of version 2, or in that of version 1 which counts memory.
std::optional<std::string> own_group(const std::string& root, bool version_2) {
  std::ifstream file(root + "/proc/self/cgroup");  // lines "number:controllers:path"
  std::string line;
  while (std::getline(file, line)) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (version_2 ? controllers.empty() : lists(controllers, "memory")) return line.substr(second + 1);
  }
  return std::nullopt;
}

struct Mount {
  std::string point;  // where
  std::string group;  // which part of the hierarchy is there
};

std::optional<Mount> mount_of(const std::string& root, bool version_2) {
  // Lines "id parent device group point options optional... - type source options".
  std::ifstream file(root + "/proc/self/mountinfo");
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string word;
    Mount mount;
    words >> word >> word >> word >> mount.group >> mount.point;
    while (words >> word && word != "-") continue;
    std::string type;
    std::string options;
    words >> type >> word >> options;
    if (version_2 ? type == "cgroup2" : type == "cgroup" && lists(options, "memory")) return mount;
  }
  return std::nullopt;
}

}  // namespace

uint64_t MachineMemory::Figures::reserve() const {
  return std::min(total / kReservedPart, kLargestReserve);
}

MachineMemory::MachineMemory()
    : MachineMemory([] {
        const char* root = std::getenv("TORCH_MTIA_SYSTEM_ROOT");
        return std::string(root != nullptr ? root : "");
      }()) {}

MachineMemory::MachineMemory(std::string root) : root_(std::move(root)) {
  for (const bool version_2 : {true, false}) {
    const auto mount = mount_of(root_, version_2);
    auto path = own_group(root_, version_2);
    if (!mount || !path) continue;
    // In a container, a part of the hierarchy may be all that is mounted.
    const std::string above = mount->group == "/" ? "" : mount->group;
    *path = path->starts_with(above) ? path->substr(above.size()) : "";
    if (path->find("..") != std::string::npos) path->clear();  // a group outside of what is mounted
    while (true) {
      while (path->ends_with('/')) path->pop_back();
      const std::string folder = root_ + mount->point + *path;
      if (version_2) {
        groups_.push_back({folder + "/memory.max", folder + "/memory.current", folder + "/memory.stat", "inactive_file",
                           "active_file"});
      } else {
        groups_.push_back({folder + "/memory.limit_in_bytes", folder + "/memory.usage_in_bytes",
                           folder + "/memory.stat", "total_inactive_file", "total_active_file"});
      }
      if (path->empty()) break;
      path->erase(path->rfind('/'));
    }
  }
}

MachineMemory::Figures MachineMemory::read() const {
  const std::string meminfo = root_ + "/proc/meminfo";
  const auto bytes = [&](const char* name) {
    const uint64_t kibibytes = value_in(meminfo, name, kUnlimited);
    return kibibytes > kUnlimited / 1024 ? kUnlimited : kibibytes * 1024;
  };
  Figures figures;
  figures.total = bytes("MemTotal:");
  figures.available = std::min(bytes("MemAvailable:"), figures.total);
  for (const Group& group : groups_) {
    const auto limit = number_in(group.limit);
    if (!limit) continue;
    if (*limit < figures.total) {
      figures.total = *limit;
      figures.has_limit = true;
    }
    uint64_t used = number_in(group.usage).value_or(0);
    if (*limit < used || *limit - used < figures.available) {
      const uint64_t files =
          value_in(group.statistics, group.inactive_file, 0) + value_in(group.statistics, group.active_file, 0);
      used -= std::min(used, files);
      const uint64_t left = *limit > used ? *limit - used : 0;
      if (left < figures.available) {
        figures.available = left;
        figures.container = true;
      }
    }
  }
  return figures;
}

uint64_t MachineMemory::default_capacity(int32_t num_devices) const {
  const uint64_t each = read().total / 2 / static_cast<uint64_t>(std::max(num_devices, 1));
  return std::clamp(each / kMiB * kMiB, kLeastCapacity, uint64_t{1} << 40);
}

}  // namespace torch_mtia::runtime
