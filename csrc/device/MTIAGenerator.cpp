#include "MTIAGenerator.h"

#include <ATen/EmptyTensor.h>
#include <c10/util/Exception.h>

#include <cstring>
#include <mutex>
#include <vector>

#include "../core/Graph.h"
#include "../runtime/forks.h"
#include "MTIAFunctions.h"
#include "MTIAGraph.h"
#include "MTIAStream.h"

namespace torch_mtia {
namespace {

constexpr size_t kSeedSize = sizeof(uint64_t);
constexpr size_t kStateSize = 2 * sizeof(uint64_t);

void refuse_in_capture(c10::Device device) {
  if (!core::Graph::any_capture()) return;
  MTIAGraph::refuse(MTIAStream::current(device.index()), "The state of a device's generator",
                    "it can be neither read nor set while a graph is captured. Seed it before the capture or between "
                    "replays; torch.utils.checkpoint saves the state unless it is called with "
                    "preserve_rng_state=False");
}

void check_offset(uint64_t offset) {
  TORCH_CHECK_VALUE(offset % 4 == 0, "the offset of a device's generator must be a multiple of 4, got ", offset);
}

}  // namespace

MTIAGeneratorImpl::MTIAGeneratorImpl(c10::DeviceIndex device, uint64_t seed)
    : c10::GeneratorImpl(c10::Device(device_type(), device), c10::DispatchKeySet(dispatch_key())), seed_(seed) {}

void MTIAGeneratorImpl::set_current_seed(uint64_t seed) {
  refuse_in_capture(device());
  seed_ = seed;
  offset_ = 0;
}

void MTIAGeneratorImpl::set_offset(uint64_t offset) {
  refuse_in_capture(device());
  check_offset(offset);
  offset_ = offset;
}

uint64_t MTIAGeneratorImpl::seed() {
  set_current_seed(c10::detail::getNonDeterministicRandom(/*is_cuda=*/true));
  return seed_;
}

void MTIAGeneratorImpl::set_state(const c10::TensorImpl& new_state) {
  TORCH_CHECK_TYPE(new_state.device().is_cpu() && new_state.dtype() == caffe2::TypeMeta::Make<uint8_t>() &&
                       new_state.is_contiguous(),
                   "the state of a device's generator must be a contiguous torch.ByteTensor on the CPU");
  const auto size = static_cast<size_t>(new_state.numel());
  TORCH_CHECK(size == kSeedSize || size == kStateSize, "the state of a device's generator has ", kStateSize,
              " bytes (or the seed's ", kSeedSize, "), got ", size);
  const auto* bytes = static_cast<const uint8_t*>(new_state.data());
  uint64_t seed = 0;
  uint64_t offset = 0;
  std::memcpy(&seed, bytes, kSeedSize);
  if (size == kStateSize) std::memcpy(&offset, bytes + kSeedSize, sizeof(offset));
  check_offset(offset);  // before anything changes
  set_current_seed(seed);
  set_offset(offset);
}

c10::intrusive_ptr<c10::TensorImpl> MTIAGeneratorImpl::get_state() const {
  refuse_in_capture(device());
  auto state = at::detail::empty_cpu({static_cast<int64_t>(kStateSize)}, at::kByte);
  auto* bytes = static_cast<uint8_t*>(state.mutable_data_ptr());
  std::memcpy(bytes, &seed_, kSeedSize);
  std::memcpy(bytes + kSeedSize, &offset_, sizeof(offset_));
  return state.getIntrusivePtr();
}

PhiloxState MTIAGeneratorImpl::reserve(uint64_t words) {
  const PhiloxState first{seed_, offset_};
  offset_ += round_up(words);
  return first;
}

PhiloxState reserve(const at::Generator& generator, uint64_t words) {
  auto* impl = generator.get<MTIAGeneratorImpl>();
  const std::lock_guard<std::mutex> lock(impl->mutex_);
  return impl->reserve(words);
}

c10::intrusive_ptr<MTIAGeneratorImpl> MTIAGeneratorImpl::clone() const {
  return c10::intrusive_ptr<MTIAGeneratorImpl>::reclaim(clone_impl());
}

MTIAGeneratorImpl* MTIAGeneratorImpl::clone_impl() const {
  auto copy = c10::make_intrusive<MTIAGeneratorImpl>(device().index(), seed_);
  copy->offset_ = offset_;
  return copy.release();
}

at::Generator new_generator(c10::DeviceIndex device) {
  if (device < 0) device = current_device();
  check_device_index(device);
  return at::make_generator<MTIAGeneratorImpl>(device);
}

const at::Generator& default_generator(c10::DeviceIndex device) {
  if (device < 0) device = current_device();
  check_device_index(device);
  // Leaked: upstream keeps references to the generators.
  static auto* const generators = [] {
    auto* all = new std::vector<at::Generator>();
    for (c10::DeviceIndex i = 0; i < device_count(); ++i) {
      all->push_back(
          at::make_generator<MTIAGeneratorImpl>(i, c10::detail::getNonDeterministicRandom(/*is_cuda=*/true)));
    }
    for (at::Generator& generator : *all) {
      runtime::hold_at_forks(runtime::ForkOrder::kTable, generator.mutex());
    }
    return all;
  }();
  return (*generators)[device];
}

}  // namespace torch_mtia
