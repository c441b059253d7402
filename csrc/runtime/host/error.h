// The C boundary: how a failure inside the driver becomes a status and a message, and how structs of callers are read.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

#include "../mtia_runtime.h"

namespace torch_mtia::runtime::host {

// Thrown anywhere in the driver; turned into `status` and a message by `guarded`.
class Failure : public std::runtime_error {
 public:
  Failure(mtia_status status, const std::string& message) : std::runtime_error(message), status(status) {}
  const mtia_status status;
};

// The calling thread's message. Destructors of the thread's other variables may fail, too, when the message is gone:
// theirs is empty.
const char* last_error_message() noexcept;
void set_last_error_message(const char* message) noexcept;

// To be called in a catch block: stores the exception's message for the thread and returns its status.
mtia_status report_current_exception() noexcept;

// The only way from the C table into C++: no exception passes it.
template <typename Body>
mtia_status guarded(Body&& body) noexcept {
  try {
    return body();
  } catch (...) {
    return report_current_exception();
  }
}

// "1.50 GiB"
std::string format_bytes(uint64_t bytes);

// Structs of a caller whose header may be older or newer than ours: see Growth in mtia_runtime.h.
//
// `size`: null where there is no struct.
[[noreturn, gnu::cold, gnu::noinline]] inline void refuse_size(const uint32_t* size, const char* name) {
  if (size == nullptr) throw Failure(MTIA_ERROR_INVALID_VALUE, std::string(name) + " is null");
  throw Failure(MTIA_ERROR_INVALID_VALUE,
                std::string(name) + " has " + std::to_string(*size) + " bytes, it is shorter than in ABI version 1");
}

template <typename Struct>
void check_size(const Struct* given, uint32_t least, const char* name) {
  if (given == nullptr || given->struct_size < least) [[unlikely]]
    refuse_size(given == nullptr ? nullptr : &given->struct_size, name);
}

// Calls body(struct), in which the fields that the given one lacks are zero.
template <typename Struct, typename Body>
auto with_struct(const Struct* given, uint32_t least, const char* name, Body&& body) {
  check_size(given, least, name);
  if (given->struct_size >= sizeof(Struct)) [[likely]]
    return body(*given);
  Struct whole{};
  std::memcpy(&whole, given, given->struct_size);
  return body(std::as_const(whole));
}

// Fills in what the caller's struct has room for, and leaves its size alone.
template <typename Struct>
void fill_in(Struct* to, uint32_t least, const char* name, const Struct& values) {
  check_size(to, least, name);
  constexpr size_t kSize = sizeof(to->struct_size);
  std::memcpy(reinterpret_cast<std::byte*>(to) + kSize, reinterpret_cast<const std::byte*>(&values) + kSize,
              std::min<size_t>(to->struct_size, sizeof(Struct)) - kSize);
}

}  // namespace torch_mtia::runtime::host
