#include "device.h"

#include <algorithm>
#include <memory>
#include <optional>

namespace torch_mtia::runtime::host {

Stream* Device::create_stream(int32_t priority, void* tag) {
  priority = std::clamp(priority, kHighestPriority, kLowestPriority);
  const std::lock_guard lock(mutex_);
  const auto idle =
      std::find_if(retired_.begin(), retired_.end(), [](const Stream* stream) { return stream->is_idle(); });
  if (idle != retired_.end()) {
    Stream* stream = *idle;
    retired_.erase(idle);
    stream->reuse(priority, tag);
    return stream;
  }
  auto stream = std::make_unique<Stream>(*this, static_cast<int32_t>(streams_.size()), priority, tag);
  streams_.push_back(stream.get());
  return stream.release();  // leaked, see Stream
}

void Device::retire_stream(Stream* stream) {
  const std::lock_guard lock(mutex_);
  retired_.push_back(stream);
}

mtia_status Device::synchronize() {
  std::vector<Stream*> streams;
  {
    const std::lock_guard lock(mutex_);
    streams = streams_;
  }
  // All positions first: the call waits for nothing that is submitted while it waits.
  std::vector<Executor::Position> positions;
  positions.reserve(streams.size());
  for (Stream* stream : streams) positions.push_back(stream->position());
  for (size_t i = 0; i < streams.size(); ++i) streams[i]->wait(positions[i]);

  mtia_status status = MTIA_SUCCESS;
  for (Stream* stream : streams) {
    const std::optional<WorkFailure> failure = stream->take_failure();
    if (failure && status == MTIA_SUCCESS) status = Stream::report(*failure);
  }
  return status;
}

}  // namespace torch_mtia::runtime::host
