// c10 streams of mtia devices. The counterpart of c10/cuda/CUDAStream.h.
#pragma once

#include <c10/core/Stream.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <vector>

#include "../core/Stream.h"
#include "../processor/attributes.h"
#include "DeviceType.h"
#include "MTIAFunctions.h"

namespace torch_mtia {

// Note [Stream ids]
// 0 is the device's default stream. The others are made on demand, kStreamsPerPool for each of the two priorities, and
// handed out round robin, as CUDA does: 1 .. 32 have normal priority, 33 .. 64 high. The last pool is for recordings of
// compiled code: what a program gives to its own streams meanwhile must not become part of them. The ids from
// kFirstOwned on are streams with one owner at a time: work that waits for other processes runs there, and no
// other work may be queued after it.
class MTIAStream {
 public:
  static constexpr int kStreamsPerPool = 32;

  static MTIAStream current(c10::DeviceIndex device) { return {device, current_ids[device]}; }
  static MTIAStream default_stream(c10::DeviceIndex device);
  static MTIAStream from_pool(c10::DeviceIndex device, int priority);  // a priority below 0 is high
  static MTIAStream for_recording(c10::DeviceIndex device);
  // A stream of high priority for one owner, who gives it back. Work may be left in it then.
  static MTIAStream acquire_owned(c10::DeviceIndex device);
  void release_owned() const noexcept;

  // The stream with this driver handle; empty: the device has none.
  static std::optional<MTIAStream> find(c10::DeviceIndex device, const void* handle);

  // Sets how errors of work are raised. Called once the device is initialized.
  static void initialize();

  // Raises RuntimeError for a stream of another device type or one that was never handed out.
  explicit MTIAStream(const c10::Stream& stream);

  // The stream that `core` belongs to.
  static MTIAStream of(const core::Stream& core);

  // Makes this the current stream of its device on this thread; returns the previous one.
  MTIAStream make_current() const;

  c10::Stream unwrap() const { return c10::Stream(c10::Stream::UNSAFE, c10::Device(device_type(), device_), id_); }
  c10::DeviceIndex device() const { return device_; }
  core::Stream& core() const { return *core_; }

  bool query() const;

  // Blocks, with the GIL released, until everything submitted before is done. Raises nothing of it: an error of work
  // is raised by the next call of synchronize, whoever had to wait in between.
  void wait() const;

  // Waits, and raises the first error of the stream's work, with the exception type that the
  // operator threw and its name.
  void synchronize() const;

  // The same for all streams of the device, but those that are captured in graphs.
  static void synchronize_all(c10::DeviceIndex device);

  // Work submitted later waits for all that `other`, of any device, was given before.
  void wait_for(const MTIAStream& other) const;

  // The device's other streams that there are, but those that are captured and those for recordings: what is done there
  // is captured, so they have nothing to do and nothing to wait for.
  std::vector<MTIAStream> others() const;
  // Waits for all of those.
  void wait_for_others() const;
  // The device's streams that have work that is not done, but those that are captured. For observers, nobody has
  // waited.
  static std::vector<MTIAStream> busy(c10::DeviceIndex device);

 private:
  // Pools, in the order of their ids.
  enum Pool : int { kNormal, kHigh, kRecording, kNumPools };
  static constexpr int kFirstOwned = 1 + kNumPools * kStreamsPerPool;
  static constexpr int kMaxOwned = 4096;
  static constexpr int kNumStreams = kFirstOwned + kMaxOwned;

  struct DeviceStreams {
    std::array<std::atomic<core::Stream*>, kNumStreams> streams{};
    std::array<std::atomic<uint32_t>, kNumPools> next{};
    std::array<std::atomic<bool>, kMaxOwned> is_taken{};
    std::atomic<int> num_owned{0};  // that were taken ever
    std::mutex create_mutex;

    int num_ids() const { return kFirstOwned + num_owned.load(std::memory_order_acquire); }
  };
  // Of each device. The streams are leaked: work refers to them until the process ends.
  static std::array<DeviceStreams, kMaxDevices> device_streams;
  static_assert(std::is_trivially_destructible_v<DeviceStreams>);
  INITIAL_EXEC static constinit thread_local std::array<uint16_t, kMaxDevices> current_ids;

  static bool is_owned(c10::StreamId id) { return id >= kFirstOwned; }
  // Of an id that is not the default stream's nor owned.
  static Pool pool_of(c10::StreamId id) { return static_cast<Pool>((id - 1) / kStreamsPerPool); }
  static bool is_for_recordings(c10::StreamId id) { return id > 0 && !is_owned(id) && pool_of(id) == kRecording; }
  static bool is_high(c10::StreamId id) { return is_owned(id) || (id > 0 && pool_of(id) == kHigh); }
  static c10::StreamId next_of(Pool pool, c10::DeviceIndex device);
  static core::Stream* create_core_stream(c10::DeviceIndex device, c10::StreamId id);

  MTIAStream(c10::DeviceIndex device, c10::StreamId id)
      : device_(device), id_(id), core_(device_streams[device].streams[id].load(std::memory_order_acquire)) {
    if (core_ == nullptr) [[unlikely]]
      core_ = create_core_stream(device, id);
  }

  c10::DeviceIndex device_;
  c10::StreamId id_;
  core::Stream* core_;
};

// The counterpart of cudaLaunchHostFunc: has `function` called in the stream, never within this call but with launch
// blocking, which waits for it. It may allocate and free memory of the device, be called any number of times by a
// graph, and die on any thread. What it throws is raised at the stream's next synchronizing call.
void launch_callback(const MTIAStream& stream, std::function<void()> function);

}  // namespace torch_mtia
