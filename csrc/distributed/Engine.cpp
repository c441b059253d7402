#include "Engine.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <memory>
#include <utility>

#include "../collectives/Team.h"
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
    std::string name = machine;
    if (const size_t place = name.find("%r"); place != std::string::npos) name.replace(place, 2, std::to_string(rank));
    auto team = std::make_shared<collectives::Team>(store_of(store), rank, size, SharedMemoryEngine::room(size), name);
    if (team->size() == size) return c10::make_intrusive<SharedMemoryEngine>(std::move(team), timeout);
    return make_gloo(store, rank, size, timeout);
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
