// A backend of PrivateUse1 as an engineer has it in the first week: two devices in the machine's memory, no streams, no
// counted memory, and the CPU's operators behind a fallback. It knows nothing of torch_mtia: the conformance suite is
// tested on it. FOREIGN_SHORTCOMING plants one of the faults that test_conformance_foreign.py lists.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <vector>

namespace {

using at::Generator;
using at::Tensor;
using c10::Device;
using c10::DeviceIndex;
using c10::Stream;
using torch::jit::Stack;

constexpr DeviceIndex kDevices = 2;
constexpr auto kForeign = c10::DeviceType::PrivateUse1;
const c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

bool has(std::string_view shortcoming) {
  static const char* const planted = std::getenv("FOREIGN_SHORTCOMING");
  return planted != nullptr && shortcoming == planted;
}

// Devices
// --------------------------------------------------------------------------------------------------------------

thread_local DeviceIndex current = 0;

void set_current(DeviceIndex index) {
  TORCH_CHECK(0 <= index && index < kDevices, "foreign:", static_cast<int>(index), ": there are ", kDevices,
              " devices");
  current = index;
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kForeign; }
  Device exchangeDevice(Device device) const override {
    const Device before = getDevice();
    setDevice(device);
    return before;
  }
  Device getDevice() const override { return {kForeign, current}; }
  void setDevice(Device device) const override { set_current(device.index()); }
  void uncheckedSetDevice(Device device) const noexcept override {
    if (!has("a guard that does not restore")) {
      current = device.index();
    }
  }
  DeviceIndex deviceCount() const noexcept override { return kDevices; }

  // One stream for each device, whose work is done when a call returns.
  Stream getStream(Device device) const override { return Stream(Stream::DEFAULT, device); }
  Stream getDefaultStream(Device device) const override { return getStream(device); }
  Stream exchangeStream(Stream stream) const override { return getStream(stream.device()); }
  bool queryStream(const Stream& /*stream*/) const override { return true; }
  void synchronizeStream(const Stream& /*stream*/) const override {}
  void synchronizeDevice(DeviceIndex /*index*/) const override {}
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

// Memory
// ---------------------------------------------------------------------------------------------------------------

struct Allocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    constexpr size_t alignment = 64;
    void* const memory =
        bytes == 0 ? nullptr : std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
    TORCH_CHECK_WITH(OutOfMemoryError, bytes == 0 || memory != nullptr, "foreign: there are no ", bytes, " bytes");
    return {memory, memory, &std::free, Device(kForeign, current)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &std::free; }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
};

Allocator allocator;
REGISTER_ALLOCATOR(kForeign, &allocator)

// Random numbers
// -------------------------------------------------------------------------------------------------------

struct ForeignGenerator final : at::CPUGeneratorImpl {
  explicit ForeignGenerator(DeviceIndex index) {
    device_ = Device(kForeign, index);
    key_set_ = kKeys;
  }
  void set_current_seed(uint64_t seed) override {
    at::CPUGeneratorImpl::set_current_seed(has("a seed that is ignored") ? random64() : seed);
  }
};

const Generator& default_generator(DeviceIndex index) {
  static const std::vector<Generator> generators = [] {
    std::vector<Generator> made;
    for (DeviceIndex i = 0; i < kDevices; ++i) {
      made.push_back(at::make_generator<ForeignGenerator>(i));
    }
    return made;
  }();
  return generators.at(index < 0 ? current : index);
}

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex /*index*/) const override { return true; }
  DeviceIndex deviceCount() const override { return kDevices; }
  DeviceIndex getCurrentDevice() const override { return current; }
  void setCurrentDevice(DeviceIndex index) const override { set_current(index); }
  const Generator& getDefaultGenerator(DeviceIndex index) const override { return default_generator(index); }
  Generator getNewGenerator(DeviceIndex index) const override {
    return at::make_generator<ForeignGenerator>(index < 0 ? current : index);
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    at::native::resize_bytes_cpu(storage.unsafeGetStorageImpl(), bytes);
  }
};

const bool hooks_are_registered = [] {
  static Hooks hooks;
  at::RegisterPrivateUse1HooksInterface(&hooks);
  return true;
}();

// Operators
// ------------------------------------------------------------------------------------------------------------

void check_dtype(at::ScalarType dtype) {
  TORCH_CHECK_NOT_IMPLEMENTED(!has("no complex numbers") || !c10::isComplexType(dtype),
                              "\"empty\" not implemented for '", dtype, "'");
}

Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout> /*layout*/,
             std::optional<Device> device, std::optional<bool> /*pin_memory*/, std::optional<at::MemoryFormat> format) {
  const c10::OptionalDeviceGuard guard(device);
  check_dtype(c10::dtype_or_default(dtype));
  return at::detail::empty_generic(size, &allocator, kKeys, c10::dtype_or_default(dtype),
                                   has("strides that are always dense") ? std::nullopt : format);
}

Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                     std::optional<at::Layout> layout, std::optional<Device> device, std::optional<bool> pin_memory) {
  if (has("strides that are always dense")) {
    return empty(size, dtype, layout, device, pin_memory, std::nullopt);
  }
  const c10::OptionalDeviceGuard guard(device);
  check_dtype(c10::dtype_or_default(dtype));
  return at::detail::empty_strided_generic(size, stride, &allocator, kKeys, c10::dtype_or_default(dtype));
}

// The same memory as a tensor of the CPU.
Tensor on_host(const Tensor& tensor) {
  if (tensor.is_cpu()) {
    return tensor;
  }
  auto host = at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(), tensor.options().device(at::kCPU));
  host._set_conj(tensor.is_conj());
  host._set_neg(tensor.is_neg());
  return host;
}

Tensor as_if_dense(const Tensor& tensor) {
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.options().device(at::kCPU));
}

Tensor copy_from(const Tensor& self, const Tensor& to, bool /*non_blocking*/) {
  const bool is_wrong =
      self.is_cpu() ? has("copies to the device that ignore strides") : has("copies that ignore strides");
  on_host(to).copy_(is_wrong ? as_if_dense(self) : on_host(self));
  return to;
}

Tensor copy_from_and_resize(const Tensor& self, const Tensor& to) {
  if (to.sizes() != self.sizes()) {
    to.resize_(self.sizes());
    if (self.is_non_overlapping_and_dense()) {
      to.unsafeGetTensorImpl()->set_sizes_and_strides(self.sizes(), self.strides());
    }
  }
  return copy_from(self, to, false);
}

Tensor& fill(Tensor& self, const at::Scalar& value) {
  auto host = on_host(self);
  if (has("a fill that loses the last element") && host.is_contiguous() && host.numel() > 2) {
    host = host.view(-1).narrow(0, 0, host.numel() - 1);
  }
  host.fill_(value);
  return self;
}

at::Scalar local_scalar(const Tensor& self) {
  return at::_local_scalar_dense(on_host(self));
}

const Tensor& resize(const Tensor& self, at::IntArrayRef size, std::optional<at::MemoryFormat> format) {
  if (has("a resize that loses data")) {
    const c10::DeviceGuard guard(self.device());
    self.unsafeGetTensorImpl()->set_storage_keep_dtype(
        c10::Storage(c10::Storage::use_byte_size_t(), 0, &allocator, true));
  }
  return at::native::resize_(self, size, format);
}

Tensor& set_none(Tensor& self) {
  return at::native::set_tensor_(self, empty({0}, self.scalar_type(), {}, self.device(), {}, {}));
}

// The CPU's operator, on copies. Random numbers come from the device's generators.
void on_cpu(const c10::OperatorHandle& op, Stack* stack) {
  TORCH_CHECK_NOT_IMPLEMENTED(!has("an operator that is missing") || op.schema().name() != "aten::atan",
                              "Could not run 'aten::atan' with arguments from the 'PrivateUse1' backend.");
  const auto& arguments = op.schema().arguments();
  Generator ours, theirs;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].type()->str() == "Generator?") {
      auto& argument = torch::jit::peek(*stack, i, arguments.size());
      ours = argument.isNone() ? default_generator(-1) : argument.toGenerator();
      theirs = at::make_generator<at::CPUGeneratorImpl>();
      theirs.set_state(ours.get_state());
      argument = theirs;
    }
  }
  try {
    at::native::cpu_fallback(op, stack);
  } catch (const c10::Error&) {
    if (has("an error that ends the process")) {
      std::abort();
    }
    throw;
  }
  if (ours.defined()) {
    ours.set_state(theirs.get_state());
  }
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&on_cpu>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("fill_.Scalar", fill);
  m.impl("_local_scalar_dense", local_scalar);
  m.impl("resize_", resize);
  m.impl("view", at::native::view);
  m.impl("as_strided", at::native::as_strided_tensorimpl);
  m.impl("_reshape_alias", at::native::_reshape_alias);
  m.impl("unfold", at::native::unfold);
  m.impl("view_as_real", at::native::view_as_real);
  m.impl("view_as_complex", at::native::view_as_complex);
  m.impl("set_", set_none);
  m.impl("set_.source_Tensor", at::native::set_tensor_);
  m.impl("set_.source_Storage", static_cast<Tensor& (*)(Tensor&, at::Storage)>(at::native::set_));
  m.impl("set_.source_Storage_storage_offset", at::native::set_storage_cpu_);
}

// Copies see these bits themselves; resolving them would be a copy.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(aten, Negative, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}

// For the module of Python.
TORCH_LIBRARY(foreign, m) {
  m.def("current_device", []() -> int64_t { return current; });
  m.def("set_device", [](int64_t index) { set_current(static_cast<DeviceIndex>(index)); });
  m.def("seed", [](int64_t index, int64_t seed) {
    auto generator = default_generator(static_cast<DeviceIndex>(index));
    generator.set_current_seed(static_cast<uint64_t>(seed));
  });
  m.def("get_rng_state", [](int64_t index) { return default_generator(static_cast<DeviceIndex>(index)).get_state(); });
  m.def("set_rng_state", [](int64_t index, const Tensor& state) {
    auto generator = default_generator(static_cast<DeviceIndex>(index));
    generator.set_state(state);
  });
}

}  // namespace
