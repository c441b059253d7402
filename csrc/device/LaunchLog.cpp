#include "LaunchLog.h"

#include <cstdio>

#include "../core/WorkTrace.h"
#include "Door.h"
#include "MTIAStream.h"

namespace torch_mtia {
namespace {

void log_launch(const core::Stream& stream, const char* name) noexcept {
  const c10::Stream public_stream = MTIAStream::of(stream).unwrap();
  // One call, so that the lines of several threads do not mix.
  std::fprintf(stderr, "torch_mtia: launch %s stream %lld %s\n", device_name(public_stream.device_index()).c_str(),
               static_cast<long long>(public_stream.id()), name);
}

}  // namespace

void enable_launch_log() {
  core::WorkTrace::set_launch_listener(&log_launch);
}

}  // namespace torch_mtia
