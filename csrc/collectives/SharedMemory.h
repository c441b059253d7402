// Memory of one process that others map. It has no name anywhere: it is gone with the last process that maps it,
// however that ends.
#pragma once

#include <sys/types.h>

#include <cstddef>

namespace torch_mtia::collectives {

class FileDescriptor {
 public:
  explicit FileDescriptor(int number) : number_(number) {}
  FileDescriptor(FileDescriptor&& other) noexcept : number_(other.number_) { other.number_ = -1; }
  FileDescriptor& operator=(FileDescriptor&&) = delete;
  ~FileDescriptor();

  int number() const { return number_; }

 private:
  int number_;
};

class SharedMemory {
 public:
  // Zeros. Nobody can change the file's size, so accesses to the mapping never fail. Raises std::system_error.
  static SharedMemory create(size_t size);
  // What another process has created: `descriptor` is its number there. Empty where this process may not, where that
  // process is of another machine or container and is not there, and for a file whose size can change.
  static SharedMemory open(pid_t process, int descriptor, size_t size);

  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&&) = delete;
  ~SharedMemory();

  std::byte* data() const { return data_; }
  int descriptor() const { return file_.number(); }

 private:
  SharedMemory(FileDescriptor file, size_t size);

  FileDescriptor file_;
  std::byte* data_ = nullptr;
  size_t size_;
};

}  // namespace torch_mtia::collectives
