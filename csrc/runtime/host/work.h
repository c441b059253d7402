// Work items: how their argument blocks move, and how the driver writes its own (markers, waits, copies and fills).
#pragma once

#include <cstdint>
#include <cstring>
#include <new>
#include <type_traits>
#include <utility>

#include "../mtia_runtime.h"

namespace torch_mtia::runtime::host {

// Moves the argument block of an item to `to`, which has room for it.
inline void move_arguments(void* to, const mtia_work& work) noexcept {
  if (work.relocate != nullptr) {
    work.relocate(to, work.args);
  } else if (work.args_size != 0) {
    std::memcpy(to, work.args, work.args_size);
  }
}

// The argument block of a callable void(const mtia_work_context&) noexcept. Never fails.
template <typename Callable>
struct OwnWork {
  static_assert(std::is_nothrow_move_constructible_v<Callable>);
  static_assert(std::is_nothrow_invocable_v<Callable&, const mtia_work_context&>);
  static_assert(alignof(Callable) <= 16);

  Callable callable;

  // The item, valid while this object lives.
  mtia_work describe(const char* name, uint32_t flags, uint64_t cost, int32_t num_threads) {
    mtia_work work{};
    work.struct_size = sizeof(work);
    work.flags = flags;
    work.run = [](void* args, const mtia_work_context* context) noexcept {
      static_cast<OwnWork*>(args)->callable(*context);
      return MTIA_SUCCESS;
    };
    if constexpr (!std::is_trivially_copyable_v<Callable>) {
      work.relocate = [](void* to, void* from) noexcept {
        ::new (to) OwnWork(std::move(*static_cast<OwnWork*>(from)));
      };
      work.destroy = [](void* args) noexcept { static_cast<OwnWork*>(args)->~OwnWork(); };
    }
    work.args = this;
    work.args_size = sizeof(*this);
    work.name = name;
    work.cost = cost;
    work.num_threads = num_threads;
    return work;
  }
};

template <typename Callable>
OwnWork(Callable) -> OwnWork<Callable>;

}  // namespace torch_mtia::runtime::host
