#include "HostAccesses.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "../core/Hooks.h"
#include "../device/DeviceType.h"
#include "../device/MTIAHostAllocator.h"
#include "../device/ScalarTypes.h"

namespace torch_mtia {
namespace {

struct Access {
  at::Tensor tensor;
  bool writes;
};

// Of the keys alone: a subclass written in Python would be asked in Python where it is.
bool is_elsewhere(const at::Tensor& tensor) {
  return tensor.defined() && !tensor.key_set().has_backend(c10::BackendComponent::CPUBit);
}

bool is_pinned_host(const at::Tensor& tensor) {
  return tensor.defined() && tensor.key_set().has(c10::DispatchKey::CPU) &&
         !tensor.key_set().has(c10::DispatchKey::Python) && tensor.has_storage() && tensor.numel() > 0 &&
         is_pinned(tensor.const_data_ptr());
}

void list_accesses(const void* work, core::OperandSink& sink) {
  for (const auto& [tensor, writes] : *static_cast<const std::vector<Access>*>(work)) {
    const auto size = static_cast<int64_t>(tensor.itemsize());
    core::Operand operand{reinterpret_cast<uint64_t>(tensor.const_data_ptr()),
                          static_cast<uint64_t>(size),
                          tensor.sizes(),
                          tensor.strides(),
                          size,
                          writes,
                          writes ? core::OldBytes::kPassedThrough : core::OldBytes::kRead,
                          dtype_name(tensor.scalar_type())};
    if (is_ours(tensor.device())) {
      sink.add(operand);
    } else {
      operand.is_shared = true;
      sink.add_host(operand);
    }
  }
}

// Operators that look at no element, and those that have another one do it, which is seen itself.
bool reads_elements(const c10::OperatorHandle& op) {
  if (op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) || op.hasTag(at::Tag::inplace_view)) {
    return false;
  }
  const auto& returns = op.schema().returns();
  const bool is_view = std::any_of(returns.begin(), returns.end(), [](const c10::Argument& result) {
    return result.alias_info() != nullptr && !result.alias_info()->isWrite();
  });
  const std::string& name = op.schema().name();
  constexpr std::string_view kOthers[] = {"aten::_to_copy",      "aten::_pin_memory", "aten::_unsafe_view",
                                          "aten::is_same_size",  "aten::is_pinned",   "aten::set_",
                                          "aten::resize_",       "aten::resize_as_",  "aten::_reshape_alias",
                                          "aten::record_stream", "aten::is_set_to"};
  return !is_view && !name.ends_with("_like") && !name.starts_with("aten::new_") &&
         std::find(std::begin(kOthers), std::end(kOthers), name) == std::end(kOthers);
}

// Exists while an observed operator runs: operators that it calls are part of it.
class Observed final : public at::ObserverContext {
 public:
  Observed() { ++count_; }
  ~Observed() override { --count_; }
  static bool on_this_thread() { return count_ > 0; }

 private:
  static thread_local int count_;
};
thread_local int Observed::count_ = 0;

std::unique_ptr<at::ObserverContext> on_operator(const at::RecordFunction& function) {
  core::Observer* observer = core::current_observer();
  if (observer == nullptr || Observed::on_this_thread()) return nullptr;
  bool is_pinned_anywhere = false;
  for (const c10::IValue& input : function.inputs()) {
    if (input.isTensor()) {
      const at::Tensor& tensor = input.toTensor();
      if (is_elsewhere(tensor)) return nullptr;  // copies and work of a device list what they touch
      is_pinned_anywhere |= is_pinned_host(tensor);
    } else if (input.isTensorList()) {
      for (const at::Tensor& tensor : input.toTensorVector()) {
        if (is_elsewhere(tensor)) return nullptr;
        is_pinned_anywhere |= is_pinned_host(tensor);
      }
    }
  }
  if (!is_pinned_anywhere) return nullptr;
  const auto name = function.operator_name();
  const auto op = name ? c10::Dispatcher::singleton().findSchema(*name) : std::nullopt;
  if (!op || !reads_elements(*op)) return nullptr;
  std::vector<Access> accesses;
  const auto& arguments = op->schema().arguments();
  for (size_t i = 0; i < std::min(arguments.size(), function.inputs().size()); ++i) {
    const auto* alias = arguments[i].alias_info();
    const auto note = [&](const at::Tensor& tensor) {
      if (is_pinned_host(tensor)) accesses.push_back({tensor, alias != nullptr && alias->isWrite()});
    };
    const c10::IValue& input = function.inputs()[i];
    if (input.isTensor()) {
      note(input.toTensor());
    } else if (input.isTensorList()) {
      for (const at::Tensor& tensor : input.toTensorVector()) note(tensor);
    }
  }
  observer->touches(op->schema().name().c_str(), &list_accesses, &accesses);
  return std::make_unique<Observed>();
}

}  // namespace

void watch_host_accesses(bool watch) {
  static std::mutex mutex;
  static at::CallbackHandle handle = at::INVALID_CALLBACK_HANDLE;
  const std::lock_guard lock(mutex);
  if (watch == (handle != at::INVALID_CALLBACK_HANDLE)) return;
  if (watch) {
    handle = at::addGlobalCallback(
        at::RecordFunctionCallback(&on_operator).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
  } else {
    at::removeCallback(handle);
    handle = at::INVALID_CALLBACK_HANDLE;
  }
}

void notify_host_read(const char* name, const at::Tensor& tensor) {
  core::Observer* observer = core::current_observer();
  if (observer == nullptr || !(is_ours(tensor.device()) || is_pinned_host(tensor))) return;
  const std::vector<Access> accesses{{tensor, /*writes=*/false}};
  observer->touches(name, &list_accesses, &accesses);
}

}  // namespace torch_mtia
