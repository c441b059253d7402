#include "Engine.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "../collectives/Team.h"
#include "NetworkEngine.h"
#include "SharedMemoryEngine.h"

namespace torch_mtia {
namespace {

collectives::Store store_of(const c10::intrusive_ptr<c10d::Store>& store) {
  const auto prefixed = c10::make_intrusive<c10d::PrefixStore>("engine", store);
  return {[prefixed](const std::string& key, const std::string& value) {
            prefixed->set(key, std::vector<uint8_t>(value.begin(), value.end()));
          },
          [prefixed](const std::string& key) {
            const std::vector<uint8_t> value = prefixed->get(key);
            return std::string(value.begin(), value.end());
          }};
}

}  // namespace

EngineMaker engine_maker(EngineMaker make_gloo, const std::string& machine) {
  return [make_gloo = std::move(make_gloo), machine](
             const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
             std::chrono::milliseconds timeout) -> c10::intrusive_ptr<c10d::Backend> {
    auto team =
        std::make_shared<collectives::Team>(store_of(store), rank, size, SharedMemoryEngine::room(size), machine);
    const std::vector<int> machines = team->machines();
    auto within = c10::make_intrusive<SharedMemoryEngine>(std::move(team), timeout);
    if (within->getSize() == size) return within;
    std::vector<int> firsts;  // of the machines
    for (int each = 0; each < size; ++each) {
      if (machines[each] == each) firsts.push_back(each);
    }
    auto all = make_gloo(c10::make_intrusive<c10d::PrefixStore>("all", store), rank, size, timeout);
    c10::intrusive_ptr<c10d::Backend> between;
    if (static_cast<int>(firsts.size()) == size) {
      between = all;
    } else if (machines[rank] == rank) {
      const auto number = static_cast<int>(std::find(firsts.begin(), firsts.end(), rank) - firsts.begin());
      between = make_gloo(c10::make_intrusive<c10d::PrefixStore>("between", store), number,
                          static_cast<int>(firsts.size()), timeout);
    }
    return c10::make_intrusive<NetworkEngine>(rank, machines, std::move(within), std::move(between), std::move(all));
  };
}

EngineDtypes::EngineDtypes(const c10d::Backend& engine)
    : shares_memory_(dynamic_cast<const SharedMemoryEngine*>(&engine) != nullptr) {}

bool EngineDtypes::moves(c10::ScalarType dtype) const {
  if (shares_memory_) return true;
  switch (dtype) {
    case c10::kHalf:
    case c10::kBFloat16:
    case c10::kFloat:
    case c10::kDouble:
    case c10::kChar:
    case c10::kByte:
    case c10::kBool:
    case c10::kInt:
    case c10::kLong:
      return true;
    default:
      return false;
  }
}

bool EngineDtypes::reduces(c10d::ReduceOp::RedOpType operation, c10::ScalarType dtype) const {
  if (shares_memory_) return SharedMemoryEngine::reduces(operation, dtype);
  switch (dtype) {
    case c10::kFloat:
    case c10::kDouble:
    case c10::kChar:
    case c10::kByte:
    case c10::kInt:
    case c10::kLong:
      return operation != c10d::ReduceOp::PREMUL_SUM;
    default:
      return false;
  }
}

}  // namespace torch_mtia
