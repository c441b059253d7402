#include "protocol.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>

namespace vendor {
namespace {

// Room for one socket beside a message.
union SocketMessage {
  cmsghdr header;
  char bytes[CMSG_SPACE(sizeof(int))];
};

msghdr message_of(iovec& byte, SocketMessage& room) {
  msghdr message{};
  message.msg_iov = &byte;
  message.msg_iovlen = 1;
  message.msg_control = room.bytes;
  message.msg_controllen = sizeof(room.bytes);
  return message;
}

}  // namespace

bool send_all(int socket, const void* bytes, size_t size) {
  const char* next = static_cast<const char*>(bytes);
  while (size > 0) {
    const ssize_t sent = send(socket, next, size, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    next += sent;
    size -= static_cast<size_t>(sent);
  }
  return true;
}

bool receive_all(int socket, void* bytes, size_t size) {
  char* next = static_cast<char*>(bytes);
  while (size > 0) {
    const ssize_t received = recv(socket, next, size, MSG_WAITALL);
    if (received < 0 && errno == EINTR) continue;
    if (received <= 0) return false;
    next += received;
    size -= static_cast<size_t>(received);
  }
  return true;
}

bool send_socket(int over, int socket) {
  char nothing = 0;
  iovec byte{&nothing, 1};
  SocketMessage room{};
  const msghdr message = message_of(byte, room);
  cmsghdr* attached = CMSG_FIRSTHDR(&message);
  attached->cmsg_level = SOL_SOCKET;
  attached->cmsg_type = SCM_RIGHTS;
  attached->cmsg_len = CMSG_LEN(sizeof(socket));
  std::memcpy(CMSG_DATA(attached), &socket, sizeof(socket));
  return sendmsg(over, &message, MSG_NOSIGNAL) == 1;
}

int receive_socket(int over) {
  char nothing = 0;
  iovec byte{&nothing, 1};
  SocketMessage room{};
  msghdr message = message_of(byte, room);
  if (recvmsg(over, &message, MSG_CMSG_CLOEXEC) != 1) return -1;
  const cmsghdr* attached = CMSG_FIRSTHDR(&message);
  if (attached == nullptr || attached->cmsg_type != SCM_RIGHTS) return -1;
  int socket = -1;
  std::memcpy(&socket, CMSG_DATA(attached), sizeof(socket));
  return socket;
}

}  // namespace vendor
