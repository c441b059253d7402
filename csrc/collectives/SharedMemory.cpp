#include "SharedMemory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <system_error>
#include <utility>

namespace torch_mtia::collectives {
namespace {

constexpr int kFixedSize = F_SEAL_SHRINK | F_SEAL_GROW;

bool has_fixed_size(int file) {
  const int seals = fcntl(file, F_GET_SEALS);
  return seals >= 0 && (seals & kFixedSize) == kFixedSize;
}

}  // namespace

FileDescriptor::~FileDescriptor() {
  if (number_ >= 0) close(number_);
}

SharedMemory::SharedMemory(FileDescriptor file, size_t size) : file_(std::move(file)), size_(size) {
  if (file_.number() < 0) return;
  void* const data = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file_.number(), 0);
  if (data != MAP_FAILED) data_ = static_cast<std::byte*>(data);
}

SharedMemory::SharedMemory(SharedMemory&& other) noexcept
    : file_(std::move(other.file_)), data_(std::exchange(other.data_, nullptr)), size_(other.size_) {}

SharedMemory::~SharedMemory() {
  if (data_ != nullptr) munmap(data_, size_);
}

SharedMemory SharedMemory::create(size_t size) {
  FileDescriptor file(memfd_create("torch_mtia", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (file.number() < 0 || ftruncate(file.number(), static_cast<off_t>(size)) != 0 ||
      fcntl(file.number(), F_ADD_SEALS, kFixedSize) != 0) {
    throw std::system_error(errno, std::generic_category(), "shared memory for collectives");
  }
  SharedMemory memory(std::move(file), size);
  if (memory.data() == nullptr) {
    throw std::system_error(errno, std::generic_category(), "shared memory for collectives");
  }
  return memory;
}

SharedMemory SharedMemory::open(pid_t process, int descriptor, size_t size) {
  const std::string path = "/proc/" + std::to_string(process) + "/fd/" + std::to_string(descriptor);
  FileDescriptor file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  struct stat status{};
  // Anything may have this number in a process that is not the peer: only what has the size is mapped.
  const bool fits = file.number() >= 0 && fstat(file.number(), &status) == 0 && S_ISREG(status.st_mode) &&
                    status.st_size == static_cast<off_t>(size) && has_fixed_size(file.number());
  return SharedMemory(fits ? std::move(file) : FileDescriptor(-1), size);
}

}  // namespace torch_mtia::collectives
