// A device, as the driver sees it: another process, sockets to it, and the addresses of its memory.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <initializer_list>
#include <map>
#include <mutex>
#include <string>

#include "protocol.h"

namespace vendor {

class DeviceProcess;

// A socket to a device, for one thread at a time.
class Link {
 public:
  Link(DeviceProcess& device, int socket) : device_(device), socket_(socket) {}
  ~Link();
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  // Sends the request and what follows it, and waits for the reply, whose value it returns. kRead's bytes go to
  // `result`. Throws Failure.
  struct Bytes {
    const void* data;
    size_t size;
  };
  uint64_t call(const Request& request, std::initializer_list<Bytes> payload = {}, void* result = nullptr);
  int socket() const { return socket_; }

 private:
  DeviceProcess& device_;
  const int socket_;
};

// Thread safe.
class DeviceProcess {
 public:
  // Starts the process, whose executable lies beside this library. Throws Failure.
  DeviceProcess(int32_t index, uint64_t memory);

  int32_t index() const { return index_; }
  uint64_t capacity() const { return capacity_; }
  // Device addresses have a bit set that no address of an x86-64 process has: they can be dereferenced nowhere, and
  // tell the device that they belong to.
  static constexpr uint64_t kAddressBit = uint64_t{1} << 60;
  static constexpr uint64_t kAddressesPerDevice = uint64_t{1} << 48;
  uint64_t address_base() const { return kAddressBit + static_cast<uint64_t>(index_) * kAddressesPerDevice; }

  // The driver keeps the books of the device's memory. Throw Failure.
  mtia_device_ptr allocate(uint64_t size);
  void free(mtia_device_ptr address);
  uint64_t free_bytes();

  // A new socket, served by a thread of its own on the device. Throws Failure.
  Link* connect();
  uint64_t load_kernel(const void* image, uint64_t size);
  void unload_kernel(uint64_t kernel);

  // Throws Failure, DEVICE_LOST, that says how the process ended.
  [[noreturn]] void lost();
  void check_alive();

 private:
  const int32_t index_;
  const uint64_t capacity_;
  pid_t pid_ = -1;
  std::mutex control_mutex_;
  Link control_;
  std::mutex memory_mutex_;
  std::map<uint64_t, uint64_t> used_;  // offset -> size
  uint64_t used_bytes_ = 0;
  std::mutex lost_mutex_;
  std::string how_it_ended_;  // empty: nobody has noticed that it did

  static int start(uint64_t memory, pid_t* pid);
};

}  // namespace vendor
