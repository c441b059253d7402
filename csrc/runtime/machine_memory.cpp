#include "machine_memory.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <limits>
#include <optional>
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

// Empty: it cannot be read.
std::string contents(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Cuts off what is before the separator, and returns it.
std::string_view cut(std::string_view& text, char separator) {
  const size_t end = std::min(text.find(separator), text.size());
  const std::string_view first = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return first;
}

// A file of one number; nothing: there is none, or "max".
std::optional<uint64_t> number_in(const std::string& path) {
  return parse(contents(path));
}

// Of lines "name value ...".
uint64_t value_in(std::string_view lines, std::string_view name, uint64_t otherwise) {
  while (!lines.empty()) {
    std::string_view line = cut(lines, '\n');
    if (cut(line, ' ') != name) continue;
    line.remove_prefix(std::min(line.find_first_not_of(' '), line.size()));
    return parse(line).value_or(otherwise);
  }
  return otherwise;
}

bool lists(std::string_view names, std::string_view name) {
  while (!names.empty()) {
    if (cut(names, ',') == name) return true;
  }
  return false;
}

// The process's group in the hierarchy of version 2, or in that of version 1 which counts memory: of lines
// "number:controllers:path".
std::optional<std::string> own_group(std::string_view lines, bool version_2) {
  while (!lines.empty()) {
    std::string_view path = cut(lines, '\n');
    cut(path, ':');
    const std::string_view controllers = cut(path, ':');
    if (!path.empty() && (version_2 ? controllers.empty() : lists(controllers, "memory"))) return std::string(path);
  }
  return std::nullopt;
}

struct Mount {
  std::string group;  // which part of the hierarchy is there
  std::string point;  // where
};

// Of lines "id parent device group point options optional... - type source options".
std::optional<Mount> mount_of(std::string_view lines, bool version_2) {
  while (!lines.empty()) {
    std::string_view line = cut(lines, '\n');
    for (int i = 0; i < 3; ++i) cut(line, ' ');
    const std::string_view group = cut(line, ' ');
    const std::string_view point = cut(line, ' ');
    while (!line.empty() && cut(line, ' ') != "-") continue;
    const std::string_view type = cut(line, ' ');
    cut(line, ' ');
    if (version_2 ? type == "cgroup2" : type == "cgroup" && lists(line, "memory")) {
      return Mount{std::string(group), std::string(point)};
    }
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
  const std::string mounts = contents(root_ + "/proc/self/mountinfo");
  const std::string own_groups = contents(root_ + "/proc/self/cgroup");
  for (const bool version_2 : {true, false}) {
    const auto mount = mount_of(mounts, version_2);
    auto path = own_group(own_groups, version_2);
    if (!mount || !path) continue;
    // In a container, a part of the hierarchy may be all that is mounted.
    const std::string above = mount->group == "/" ? "" : mount->group;
    *path = (*path + "/").starts_with(above + "/") ? path->substr(above.size()) : "";
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
  const std::string meminfo = contents(root_ + "/proc/meminfo");
  const auto bytes = [&](const char* name) {
    const uint64_t kibibytes = value_in(meminfo, name, kUnlimited);
    return kibibytes > kUnlimited / 1024 ? kUnlimited : kibibytes * 1024;
  };
  const uint64_t total = bytes("MemTotal:");
  Figures figures;
  figures.total = total;
  figures.available = std::min(bytes("MemAvailable:"), total);
  for (const Group& group : groups_) {
    const auto limit = number_in(group.limit);
    if (!limit || *limit >= total) continue;  // the machine has no more in any case
    if (*limit < figures.total) {
      figures.total = *limit;
      figures.has_limit = true;
    }
    uint64_t used = number_in(group.usage).value_or(0);
    if (*limit < used || *limit - used < figures.available) {
      const std::string statistics = contents(group.statistics);
      const uint64_t files = value_in(statistics, group.inactive_file, 0) + value_in(statistics, group.active_file, 0);
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
