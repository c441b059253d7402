// What memory the machine has, and how much of it this process may still take: the least of what the kernel says to be
// available and of what the limits of the containers (cgroups, version 1 and 2) around the process leave.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace torch_mtia::runtime {

// Thread safe. Limits and usage are read anew by every call; the groups that the process is in, once.
class MachineMemory {
 public:
  // `root` stands in for "/": proc/meminfo, proc/self/cgroup, proc/self/mountinfo and the mount points are read in it.
  explicit MachineMemory(std::string root);
  // With the folder that TORCH_MTIA_SYSTEM_ROOT names, or "/". A variable, because drivers and what loads them have to
  // mean the same machine.
  MachineMemory();

  struct Figures {
    uint64_t total = 0;        // of the machine, or the lowest limit
    uint64_t available = 0;    // that can be taken without other processes' or the container's being killed for it
    bool container = false;    // a limit leaves less available than the machine
    bool has_limit = false;    // a limit is lower than the machine's memory
    uint64_t reserve() const;  // that devices leave for the host's own memory
    uint64_t for_devices() const { return available > reserve() ? available - reserve() : 0; }
  };
  // What cannot be read is taken for unlimited.
  Figures read() const;

  // The memory of each of `num_devices` devices, where nobody says how much: half of what there is for all of them.
  uint64_t default_capacity(int32_t num_devices) const;

 private:
  // A control group, with the names of its files in its version.
  struct Group {
    std::string limit;
    std::string usage;
    std::string statistics;
    const char* inactive_file;  // pages of files, which the kernel gives up before it kills
    const char* active_file;    //
  };

  const std::string root_;
  std::vector<Group> groups_;  // from the process's own to the outermost that is visible
};

}  // namespace torch_mtia::runtime
