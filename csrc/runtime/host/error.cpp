#include "error.h"

#include <array>
#include <cstdio>
#include <new>
#include <utility>

namespace torch_mtia::runtime::host {
namespace {

constexpr size_t kMessageSize = 1024;

// Not in the block of the thread's variables, which is small: see processor/attributes.h. Without a destructor, so
// that the two are there until the thread has ended.
constinit thread_local char* message_of_thread = nullptr;
constinit thread_local bool thread_ends = false;

struct FreesMessage {
  ~FreesMessage() {
    delete[] std::exchange(message_of_thread, nullptr);
    thread_ends = true;
  }
};

}  // namespace

const char* last_error_message() noexcept {
  return message_of_thread != nullptr ? message_of_thread : "";
}

void set_last_error_message(const char* message) noexcept {
  if (thread_ends) return;
  [[maybe_unused]] thread_local const FreesMessage at_end_of_thread;
  if (message_of_thread == nullptr) message_of_thread = new (std::nothrow) char[kMessageSize];
  if (message_of_thread == nullptr) return;  // a message is lost, not the error
  std::snprintf(message_of_thread, kMessageSize, "%s", message);
}

mtia_status report_current_exception() noexcept {
  try {
    throw;
  } catch (const Failure& failure) {
    set_last_error_message(failure.what());
    return failure.status;
  } catch (const std::bad_alloc&) {
    set_last_error_message("the host is out of memory");
    return MTIA_ERROR_INTERNAL;
  } catch (const std::exception& error) {
    set_last_error_message(error.what());
    return MTIA_ERROR_INTERNAL;
  } catch (...) {
    set_last_error_message("an exception of unknown type");
    return MTIA_ERROR_INTERNAL;
  }
}

std::string format_bytes(uint64_t bytes) {
  static constexpr std::array<const char*, 5> units{"bytes", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024.0 && unit + 1 < units.size()) {
    value /= 1024.0;
    ++unit;
  }
  std::array<char, 48> text{};
  std::snprintf(text.data(), text.size(), unit == 0 ? "%.0f %s" : "%.2f %s", value, units[unit]);
  return text.data();
}

}  // namespace torch_mtia::runtime::host
