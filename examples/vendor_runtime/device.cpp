// The device: a process that has memory, and runs what the driver asks for over sockets (protocol.h). It needs no
// PyTorch, Python or compiler; its kernels are images as mtia_runtime.h specifies them.
//
//   vendor_device MEMORY    with the control socket as file descriptor 3
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "bounds.h"
#include "image.h"
#include "protocol.h"
#include "rare_functions.h"

namespace vendor {
namespace {

// A request that cannot be served; the device goes on.
struct Refused : std::runtime_error {
  Refused(mtia_status status, const std::string& message) : std::runtime_error(message), status(status) {}
  const mtia_status status;
};

class Memory {
 public:
  explicit Memory(uint64_t size)
      : size_(size),
        bytes_(static_cast<char*>(
            mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0))) {
    if (bytes_ == MAP_FAILED) throw std::bad_alloc();
  }
  char* at(uint64_t address, uint64_t size) const {
    if (address > size_ || size > size_ - address) {
      throw Refused(MTIA_ERROR_LAUNCH_FAILED, "an access beyond the device's memory, to " + std::to_string(size) +
                                                  " bytes at " + std::to_string(address));
    }
    return bytes_ + address;
  }
  uint64_t base() const { return reinterpret_cast<uint64_t>(bytes_); }

 private:
  const uint64_t size_;
  char* const bytes_;
};

class Kernels {
 public:
  uint64_t load(const std::vector<char>& bytes) {
    auto image = std::make_shared<Image>(bytes.data(), bytes.size());
    const std::lock_guard lock(mutex_);
    images_[++last_] = std::move(image);
    return last_;
  }
  void unload(uint64_t number) {
    const std::lock_guard lock(mutex_);
    images_.erase(number);
  }
  std::shared_ptr<const Image> get(uint64_t number) {
    const std::lock_guard lock(mutex_);
    const auto found = images_.find(number);
    if (found == images_.end()) throw Refused(MTIA_ERROR_LAUNCH_FAILED, "the kernel was unloaded");
    return found->second;
  }

 private:
  std::mutex mutex_;
  std::map<uint64_t, std::shared_ptr<const Image>> images_;
  uint64_t last_ = 0;
};

class Device {
 public:
  explicit Device(uint64_t memory) : memory_(memory) {}

  // Until the other side closes the socket.
  void serve(int socket) {
    Request request{};
    while (receive_all(socket, &request, sizeof(request))) {
      Reply reply{};
      std::string message;
      try {
        reply.value = run(socket, request);
      } catch (const Refused& refused) {
        reply.status = refused.status;
        message = refused.what();
      } catch (const ImageError& error) {
        reply.status = error.status;
        message = error.what();
      } catch (const std::exception& error) {
        reply.status = MTIA_ERROR_INTERNAL;
        message = error.what();
      }
      reply.message_size = static_cast<uint32_t>(message.size());
      if (!send_all(socket, &reply, sizeof(reply)) || !send_all(socket, message.data(), message.size())) break;
      if (request.command == Command::kRead && reply.status == MTIA_SUCCESS &&
          !send_all(socket, memory_.at(request.from, request.size), request.size)) {
        break;
      }
    }
    close(socket);
  }

 private:
  uint64_t run(int socket, const Request& request) {
    switch (request.command) {
      case Command::kServe:
        std::thread(&Device::serve, this, receive_socket(socket)).detach();
        return 0;
      case Command::kWrite:
        receive_all(socket, memory_.at(request.to, request.size), request.size);
        return 0;
      case Command::kRead:
        memory_.at(request.from, request.size);  // the bytes follow the reply
        return 0;
      case Command::kCopy:
        std::memmove(memory_.at(request.to, request.size), memory_.at(request.from, request.size), request.size);
        return 0;
      case Command::kFill:
        fill(request, receive_bytes(socket, request.from));
        return 0;
      case Command::kLoad:
        return kernels_.load(receive_bytes(socket, request.size));
      case Command::kUnload:
        kernels_.unload(request.to);
        return 0;
      case Command::kLaunch:
        launch(socket, request.to);
        return 0;
    }
    throw Refused(MTIA_ERROR_INTERNAL, "an unknown command");
  }

  static std::vector<char> receive_bytes(int socket, uint64_t size) {
    std::vector<char> bytes(size);
    receive_all(socket, bytes.data(), size);
    return bytes;
  }

  void fill(const Request& request, const std::vector<char>& pattern) {
    char* const to = memory_.at(request.to, request.size * pattern.size());
    for (uint64_t i = 0; i < request.size; ++i) std::memcpy(to + i * pattern.size(), pattern.data(), pattern.size());
  }

  // All programs in turn, on the thread that serves the stream.
  void launch(int socket, uint64_t kernel) {
    LaunchHeader header{};
    receive_all(socket, &header, sizeof(header));
    const std::vector<char> arguments = receive_bytes(socket, header.arguments_size);
    std::vector<mtia_span> live_ranges(static_cast<size_t>(std::max<int64_t>(header.num_live_ranges, 0)));
    receive_all(socket, live_ranges.data(), live_ranges.size() * sizeof(mtia_span));

    const std::shared_ptr<const Image> image = kernels_.get(kernel);
    mtia_error_cell error{};
    mtia_kernel_context context{};
    context.struct_size = sizeof(context);
    std::copy_n(header.grid, 3, context.grid);
    context.host_offset = static_cast<int64_t>(memory_.base() - header.address_base);
    context.error_cell = &error;
    context.print = [](void* /*sink*/, const char* text, uint64_t size) {
      std::fwrite(text, 1, size, stdout);
      std::fflush(stdout);
    };
    // Not null even if there are none: that would mean no checks.
    static constexpr mtia_span kNothing{};
    if (header.num_live_ranges >= 0) context.live_ranges = live_ranges.empty() ? &kNothing : live_ranges.data();
    context.num_live_ranges = live_ranges.size();
    context.rare_functions = rare_functions();
    if (context.live_ranges != nullptr) context.watch = &bounds_watch;

    const std::unique_ptr<char, void (*)(void*)> scratch(
        static_cast<char*>(std::aligned_alloc(64, (image->scratch_size() + 63) / 64 * 64)), &std::free);
    const int64_t programs = int64_t{header.grid[0]} * header.grid[1] * header.grid[2];
    image->entry()(arguments.data(), &context, 0, programs, scratch.get());
    if (error.reported == 0) return;
    throw Refused(MTIA_ERROR_LAUNCH_FAILED,
                  std::string(image->name()) + ": " + error.message + " (program (" + std::to_string(error.program[0]) +
                      ", " + std::to_string(error.program[1]) + ", " + std::to_string(error.program[2]) + "), line " +
                      std::to_string(error.line) + ")");
  }

  const Memory memory_;
  Kernels kernels_;
};

}  // namespace
}  // namespace vendor

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  std::signal(SIGINT, SIG_IGN);  // ctrl-c is for the process that uses the device
  vendor::Device device(std::strtoull(argv[1], nullptr, 10));
  device.serve(vendor::kControlSocket);
  std::fflush(stdout);
  _exit(0);  // streams' threads may still run
}
