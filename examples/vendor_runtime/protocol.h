// What the two halves of the runtime say to each other, over sockets: the driver in the process that uses the device,
// and the device, which is another process. Every request gets one reply. Requests over one socket are served in order;
// each socket is served by a thread of its own.
#pragma once

#include <cstddef>
#include <cstdint>

#include "mtia_runtime.h"

namespace vendor {

// The device's first socket has this number in its process. It carries kServe and the loading of kernels; when it
// closes, the device ends.
inline constexpr int kControlSocket = 3;

enum class Command : uint32_t {
  kServe,   // comes with a socket, which the device serves from now on
  kWrite,   // `size` bytes follow, for the address `to`
  kRead,    // `size` bytes follow the reply, from the address `from`
  kCopy,    // `size` bytes, from `from` to `to`
  kFill,    // `to`: `size` elements; a pattern of `from` bytes follows
  kLoad,    // an image of `size` bytes follows; the reply's value is the kernel's number
  kUnload,  // the kernel `to`
  kLaunch,  // the kernel `to`; a LaunchHeader, arguments and live ranges follow
};

// Addresses count from the begin of the device's memory.
struct Request {
  Command command;
  uint64_t to;
  uint64_t from;
  uint64_t size;
};

struct LaunchHeader {
  int32_t grid[3];
  uint32_t arguments_size;
  uint64_t address_base;    // of the device's memory, in the addresses that kernels know
  int64_t num_live_ranges;  // -1: no checks
};

struct Reply {
  mtia_status status;
  uint32_t message_size;  // that many characters follow: what went wrong
  uint64_t value;
};

// Sends or receives all of the bytes. False: the other side is gone.
bool send_all(int socket, const void* bytes, size_t size);
bool receive_all(int socket, void* bytes, size_t size);

// A socket as the companion of one byte.
bool send_socket(int over, int socket);
int receive_socket(int over);  // -1: the other side is gone

}  // namespace vendor
