#include "Errors.h"

#include <c10/util/Exception.h>
#include <torch/csrc/shim_exception_state.h>

#include <utility>

namespace torch_mtia {
namespace {

thread_local std::exception_ptr kept;

void set_message(const std::string& what, const std::string& what_without_backtrace) {
  torch::csrc::shim::details::set_torch_exception_what(what);
  torch::csrc::shim::details::set_torch_exception_what_without_backtrace(what_without_backtrace);
}

}  // namespace

AOTITorchError keep_shim_error(std::exception_ptr error) {
  kept = std::move(error);
  try {
    std::rethrow_exception(kept);
  } catch (const c10::Error& e) {
    set_message(e.what(), e.what_without_backtrace());
  } catch (const std::exception& e) {
    set_message(e.what(), e.what());
  } catch (...) {
    set_message("unknown error", "unknown error");
  }
  return AOTI_TORCH_FAILURE;
}

std::exception_ptr take_shim_error() {
  return std::exchange(kept, nullptr);
}

}  // namespace torch_mtia
