#include "MTIAProfiler.h"

// The headers of kineto format metadata with fmt, whose compiled part torch keeps to itself.
#define FMT_HEADER_ONLY 1
#include <kineto/libkineto.h>
#include <kineto/output_base.h>

#include <c10/util/Exception.h>

#include <cstdio>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "../core/WorkTrace.h"
#include "DeviceType.h"
#include "MTIAStream.h"

namespace torch_mtia {
namespace {

using libkineto::ActivityType;
using libkineto::GenericTraceActivity;

// Of the types that ProfilerActivity.MTIA stands for, or ProfilerActivity.PrivateUse1, these are the ones that PyTorch
// shows as the host's and as the device's.
ActivityType submission_type() {
  return device_type() == c10::DeviceType::MTIA ? ActivityType::MTIA_RUNTIME : ActivityType::PRIVATEUSE1_RUNTIME;
}
ActivityType run_type() {
  return device_type() == c10::DeviceType::MTIA ? ActivityType::MTIA_CCP_EVENTS : ActivityType::CONCURRENT_KERNEL;
}

// An activity's id is a signed 32-bit number, and an operator has one too. These keep apart from the operators' ids,
// which count from 1 in each trace.
int32_t activity_id(const core::WorkRecord& record) {
  return static_cast<int32_t>((record.id & 0x3fff'ffff) | 0x4000'0000);
}

class Session final : public libkineto::IActivityProfilerSession {
 public:
  void start() override {
    if (!core::WorkTrace::start()) {
      errors_.emplace_back("another profiler is recording the devices already");
      status_ = libkineto::TraceStatus::ERROR;
      return;
    }
    status_ = libkineto::TraceStatus::RECORDING;
  }

  void stop() override {
    if (status_ != libkineto::TraceStatus::RECORDING) return;
    records_ = core::WorkTrace::stop();
    status_ = libkineto::TraceStatus::PROCESSING;
  }

  std::vector<std::string> errors() override { return errors_; }

  void processTrace(libkineto::ActivityLogger& logger) override {
    processTrace(logger, [](int32_t) { return nullptr; }, 0, 0);
  }

  void processTrace(libkineto::ActivityLogger& logger, libkineto::getLinkedActivityCallback linked_activity,
                    int64_t start_ns, int64_t end_ns) override {
    buffer_ = std::make_unique<libkineto::CpuTraceBuffer>();
    buffer_->span = libkineto::TraceSpan(start_ns, end_ns, device_name());
    buffer_->gpuOpCount = static_cast<int>(records_.size());
    for (const core::WorkRecord& record : records_) {
      const libkineto::ITraceActivity* operation =
          record.operation != 0 ? linked_activity(static_cast<int32_t>(record.operation)) : nullptr;
      add_submission(record, operation);
      if (record.end_ns != 0) add_run(record, operation);
    }
    for (const auto& activity : buffer_->activities) activity->log(logger);
    for (c10::DeviceIndex device = 1; device < device_count(); ++device) {
      logger.handleDeviceInfo(describe(device), start_ns);
    }
    records_.clear();
  }

  // Only one device fits here; processTrace describes the others. It has to be described here, or kineto takes the
  // devices of the trace for GPUs.
  std::unique_ptr<libkineto::DeviceInfo> getDeviceInfo() override {
    return std::make_unique<libkineto::DeviceInfo>(describe(/*device=*/0));
  }
  std::vector<libkineto::ResourceInfo> getResourceInfos() override {
    std::vector<libkineto::ResourceInfo> streams;
    for (const auto& [device, stream] : rows_) streams.push_back({stream, stream, device, c10::str("stream ", stream)});
    return streams;
  }

  std::unique_ptr<libkineto::CpuTraceBuffer> getTraceBuffer() override { return std::move(buffer_); }

  // Kineto calls these around each operator, on its thread, and around each record_function.
  void pushCorrelationId(uint64_t id) override { core::WorkTrace::push_operation(id); }
  void popCorrelationId() override { core::WorkTrace::pop_operation(); }
  void pushUserCorrelationId(uint64_t id) override { core::WorkTrace::push_operation(id); }
  void popUserCorrelationId() override { core::WorkTrace::pop_operation(); }

 private:
  GenericTraceActivity& add(ActivityType type, const core::WorkRecord& record, const std::string& name,
                            const libkineto::ITraceActivity* operation) {
    buffer_->emplace_activity(buffer_->span, type, name);
    GenericTraceActivity& activity = *buffer_->activities.back();
    activity.id = activity_id(record);
    activity.linked = operation;
    activity.flow.id = static_cast<uint32_t>(activity.id);
    activity.flow.type = libkineto::kLinkAsyncCpuGpu;
    if (operation != nullptr) activity.addMetadata("External id", operation->correlationId());
    activity.addMetadata("correlation", activity.id);
    return activity;
  }

  void add_submission(const core::WorkRecord& record, const libkineto::ITraceActivity* operation) {
    GenericTraceActivity& activity = add(submission_type(), record, "mtiaLaunch", operation);
    activity.startTime = record.submit_start_ns;
    activity.endTime = record.submit_end_ns != 0 ? record.submit_end_ns : record.submit_start_ns;
    activity.device = libkineto::processId();
    activity.resource = record.thread;
    activity.threadId = record.thread;
    activity.flow.start = 1;
  }

  void add_run(const core::WorkRecord& record, const libkineto::ITraceActivity* operation) {
    const c10::Stream stream = MTIAStream::of(*record.stream).unwrap();
    GenericTraceActivity& activity = add(run_type(), record, record.name, operation);
    activity.startTime = record.start_ns;
    activity.endTime = record.end_ns;
    activity.device = stream.device_index();
    activity.resource = static_cast<int32_t>(stream.id());
    activity.threadId = record.thread;
    activity.flow.start = 0;
    activity.addMetadata("device", static_cast<int>(stream.device_index()));
    activity.addMetadata("stream", stream.id());
    rows_.emplace(stream.device_index(), stream.id());
  }

  static libkineto::DeviceInfo describe(c10::DeviceIndex device) {
    return {device, libkineto::kExceedMaxPid + device, device_name(), device_name(device)};
  }

  std::vector<std::string> errors_;
  std::deque<core::WorkRecord> records_;
  std::unique_ptr<libkineto::CpuTraceBuffer> buffer_;
  std::set<std::pair<c10::DeviceIndex, c10::StreamId>> rows_;
};

class MTIAProfiler final : public libkineto::IActivityProfiler {
 public:
  const std::string& name() const override { return name_; }
  const std::set<ActivityType>& availableActivities() const override { return activities_; }

  // Null: nobody asked for the device's activities.
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(const std::set<ActivityType>& wanted,
                                                                 const libkineto::Config& /*config*/) override {
    if (wanted.count(run_type()) == 0) return nullptr;
    return std::make_unique<Session>();
  }
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(int64_t /*start_ms*/, int64_t /*duration_ms*/,
                                                                 const std::set<ActivityType>& wanted,
                                                                 const libkineto::Config& config) override {
    return configure(wanted, config);
  }

 private:
  const std::string name_ = "mtia";
  const std::set<ActivityType> activities_{ActivityType::MTIA_RUNTIME, ActivityType::MTIA_CCP_EVENTS,
                                           ActivityType::PRIVATEUSE1_RUNTIME, ActivityType::CONCURRENT_KERNEL};
};

void log_launch(const core::Stream& stream, const char* name) noexcept {
  const c10::Stream public_stream = MTIAStream::of(stream).unwrap();
  // One call, so that the lines of several threads do not mix.
  std::fprintf(stderr, "torch_mtia: launch %s stream %lld %s\n", device_name(public_stream.device_index()).c_str(),
               static_cast<long long>(public_stream.id()), name);
}

}  // namespace

void register_profiler() {
  libkineto::api().registerProfilerFactory([] { return std::make_unique<MTIAProfiler>(); });
}

void enable_launch_log() {
  core::WorkTrace::set_launch_listener(&log_launch);
}

}  // namespace torch_mtia
