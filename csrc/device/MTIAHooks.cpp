#include "MTIAHooks.h"

#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/util/Exception.h>

#include <map>
#include <mutex>
#include <utility>

#include "../core/Driver.h"
#include "../runtime/forks.h"

namespace torch_mtia {
namespace {

// The graphs of torch.mtia.MTIAGraph objects, by handle.
struct Graphs {
  Graphs() { runtime::hold_at_forks(runtime::ForkOrder::kTable, mutex); }

  using ByHandle = std::map<int64_t, std::shared_ptr<MTIAGraph>>;

  std::mutex mutex;
  ByHandle by_handle;
  int64_t last = 0;
};

Graphs& graphs() {
  static auto* const instance = new Graphs();  // leaked: graphs die after static destructors have run
  return *instance;
}

struct PrivateUse1Hooks final : public AcceleratorHooks<at::PrivateUse1HooksInterface, c10::DeviceType::PrivateUse1> {
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t size) const override {
    resize_storage(storage.unsafeGetStorageImpl(), size);
  }
};

}  // namespace

std::string MTIAHooks::showConfig() const {
  const core::DriverInfo driver = core::driver_info();
  return c10::str("MTIA driver: ", driver.name, " ", driver.version, " (ABI ", driver.abi_version, ")");
}

int64_t MTIAHooks::mtiagraphCreate(bool keep_graph) const {
  at::GraphImplArgs args;
  args.keep_graph = keep_graph;
  auto graph = std::make_shared<MTIAGraph>(args);
  const std::lock_guard<std::mutex> lock(graphs().mutex);
  graphs().by_handle.emplace(++graphs().last, std::move(graph));
  return graphs().last;
}

std::shared_ptr<MTIAGraph> MTIAHooks::graph(int64_t handle) {
  const std::lock_guard<std::mutex> lock(graphs().mutex);
  const auto found = graphs().by_handle.find(handle);
  TORCH_CHECK(found != graphs().by_handle.end(), "the MTIAGraph was destroyed");
  return found->second;
}

void MTIAHooks::mtiagraphDestroy(int64_t handle) const {
  Graphs::ByHandle::node_type graph;  // dies without the lock
  const std::lock_guard<std::mutex> lock(graphs().mutex);
  graph = graphs().by_handle.extract(handle);
}

bool hooks_registered_in_time() {
  return dynamic_cast<const MTIAHooks*>(&at::detail::getMTIAHooks()) != nullptr;
}

void register_privateuse1_hooks() {
  static const PrivateUse1Hooks* registered = nullptr;
  if (registered != nullptr) return;
  TORCH_CHECK(!at::isPrivateUse1HooksRegistered(),
              "another backend has registered its hooks for PrivateUse1 in this process");
  auto* const hooks = new PrivateUse1Hooks();  // leaked: PyTorch keeps the pointer until the process ends
  at::RegisterPrivateUse1HooksInterface(hooks);
  registered = hooks;
}

}  // namespace torch_mtia
