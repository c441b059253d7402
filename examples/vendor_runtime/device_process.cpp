#include "device_process.h"

#include <dlfcn.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstring>

#include "failure.h"

extern char** environ;

namespace vendor {
namespace {

constexpr uint64_t kPage = 4096;

std::string executable() {
  Dl_info library{};
  dladdr(reinterpret_cast<const void*>(&mtia_runtime_get_api), &library);
  const std::string path = library.dli_fname;
  return path.substr(0, path.rfind('/') + 1) + "vendor_device";
}

// Two connected sockets, which no other program inherits.
std::array<int, 2> socket_pair() {
  std::array<int, 2> sockets{};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets.data()) != 0) {
    throw Failure(MTIA_ERROR_INTERNAL, std::string("no socket to the device: ") + std::strerror(errno));
  }
  return sockets;
}

std::string describe_end(pid_t pid) {
  const std::string process = "the device's process (" + std::to_string(pid) + ")";
  int status = 0;
  kill(pid, SIGKILL);  // it does not answer: it has ended, or is of no use
  if (waitpid(pid, &status, 0) != pid) return process + " has ended";
  if (WIFSIGNALED(status)) return process + " was killed by signal " + std::to_string(WTERMSIG(status));
  return process + " has ended with status " + std::to_string(WEXITSTATUS(status));
}

}  // namespace

Link::~Link() {
  close(socket_);
}

uint64_t Link::call(const Request& request, std::initializer_list<Bytes> payload, void* result) {
  bool alive = send_all(socket_, &request, sizeof(request));
  for (const Bytes& bytes : payload) alive = alive && send_all(socket_, bytes.data, bytes.size);
  Reply reply{};
  alive = alive && receive_all(socket_, &reply, sizeof(reply));
  std::string message(alive ? reply.message_size : 0, ' ');
  alive = alive && receive_all(socket_, message.data(), message.size());
  if (alive && reply.status != MTIA_SUCCESS) throw Failure(reply.status, message);
  if (result != nullptr) alive = alive && receive_all(socket_, result, request.size);
  if (!alive) device_.lost();
  return reply.value;
}

int DeviceProcess::start(uint64_t memory, pid_t* pid) {
  const auto [ours, theirs] = socket_pair();
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, theirs, kControlSocket);
  std::string path = executable();
  std::string size = std::to_string(memory);
  const std::array<char*, 3> arguments{path.data(), size.data(), nullptr};
  const int error = posix_spawn(pid, path.c_str(), &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(theirs);
  if (error == 0) return ours;
  close(ours);
  throw Failure(MTIA_ERROR_INTERNAL, "cannot start the device's process " + path + ": " + std::strerror(error));
}

DeviceProcess::DeviceProcess(int32_t index, uint64_t memory)
    : index_(index), capacity_(memory / kPage * kPage), control_(*this, start(capacity_, &pid_)) {}

void DeviceProcess::lost() {
  const std::lock_guard lock(lost_mutex_);
  if (how_it_ended_.empty()) how_it_ended_ = describe_end(pid_);
  throw Failure(MTIA_ERROR_DEVICE_LOST, "device " + std::to_string(index_) + " is lost with all that it held: " +
                                            how_it_ended_ + ". Start a new process to use the device again");
}

void DeviceProcess::check_alive() {
  siginfo_t ended{};
  const bool has_ended = waitid(P_PID, static_cast<id_t>(pid_), &ended, WEXITED | WNOHANG | WNOWAIT) != 0;
  if (has_ended || ended.si_pid != 0) lost();  // reaped already, or about to be
}

// The first gap that is large enough.
mtia_device_ptr DeviceProcess::allocate(uint64_t size) {
  check_alive();
  if (size == 0) throw Failure(MTIA_ERROR_INVALID_VALUE, "memory_allocate: the size is 0");
  const std::lock_guard lock(memory_mutex_);
  uint64_t offset = 0;
  if (size <= capacity_) {
    size = (size + kPage - 1) / kPage * kPage;
    for (const auto& [used, used_size] : used_) {
      if (used - offset >= size) break;
      offset = used + used_size;
    }
    if (size <= capacity_ - offset) {
      used_.emplace(offset, size);
      used_bytes_ += size;
      return address_base() + offset;
    }
  }
  throw Failure(MTIA_ERROR_OUT_OF_MEMORY, "memory_allocate: device " + std::to_string(index_) + " has no " +
                                              std::to_string(size) + " bytes in one piece");
}

void DeviceProcess::free(mtia_device_ptr address) {
  const std::lock_guard lock(memory_mutex_);
  const auto found = used_.find(address - address_base());
  if (found == used_.end()) throw Failure(MTIA_ERROR_INVALID_VALUE, "memory_free: nothing was allocated there");
  used_bytes_ -= found->second;
  used_.erase(found);
}

uint64_t DeviceProcess::free_bytes() {
  const std::lock_guard lock(memory_mutex_);
  return capacity_ - used_bytes_;
}

Link* DeviceProcess::connect() {
  const auto [ours, theirs] = socket_pair();
  Link* const link = new Link(*this, ours);
  const std::lock_guard lock(control_mutex_);
  const Request request{Command::kServe, 0, 0, 0};
  bool alive = send_all(control_.socket(), &request, sizeof(request)) && send_socket(control_.socket(), theirs);
  close(theirs);
  Reply reply{};
  alive = alive && receive_all(control_.socket(), &reply, sizeof(reply));
  if (alive) return link;
  delete link;
  lost();
}

uint64_t DeviceProcess::load_kernel(const void* image, uint64_t size) {
  const std::lock_guard lock(control_mutex_);
  return control_.call({Command::kLoad, 0, 0, size}, {{image, size}});
}

void DeviceProcess::unload_kernel(uint64_t kernel) {
  const std::lock_guard lock(control_mutex_);
  control_.call({Command::kUnload, kernel, 0, 0});
}

}  // namespace vendor
