// A work item that an observer runs. No PyTorch.
#pragma once

#include <cstddef>
#include <cstring>
#include <memory>
#include <new>
#include <utility>

#include "Observer.h"

namespace torch_mtia::core {

// The argument block of an item around another one, which stays where it is until the driver moves it: then its block
// comes to lie behind this one. See Note [Work item] in mtia_runtime.h.
class ObservedWork {
 public:
  ObservedWork(std::shared_ptr<RunObserver> observer, const mtia_work& work, OperandList list)
      : observer_(std::move(observer)), list_(list), work_(work) {}

  // Describes this as a work item; valid while it lives.
  mtia_work work() {
    mtia_work outer = work_;
    outer.run = &run;
    outer.relocate = &relocate;
    outer.destroy = &destroy;
    outer.args = this;
    outer.args_size = kInner + work_.args_size;
    if (work_.accesses != nullptr) outer.accesses = &accesses;
    return outer;
  }

 private:
  static mtia_status run(void* args, const mtia_work_context* context) noexcept {
    auto* self = static_cast<ObservedWork*>(args);
    return self->observer_->run(self->work_, self->list_, context);
  }
  static void relocate(void* to, void* from) noexcept {
    auto* moved = ::new (to) ObservedWork(std::move(*static_cast<ObservedWork*>(from)));
    void* inner = static_cast<std::byte*>(to) + kInner;
    if (moved->work_.relocate != nullptr) {
      moved->work_.relocate(inner, moved->work_.args);
    } else {
      std::memcpy(inner, moved->work_.args, moved->work_.args_size);
    }
    moved->work_.args = inner;
  }
  static void destroy(void* args) noexcept {
    auto* self = static_cast<ObservedWork*>(args);
    if (self->work_.destroy != nullptr) self->work_.destroy(self->work_.args);
    self->~ObservedWork();
  }
  static uint32_t accesses(const void* args, mtia_access* list, uint32_t capacity) noexcept {
    const mtia_work& work = static_cast<const ObservedWork*>(args)->work_;
    return work.accesses(work.args, list, capacity);
  }

  static constexpr size_t align(size_t size) { return (size + 15) / 16 * 16; }
  static const size_t kInner;

  std::shared_ptr<RunObserver> observer_;
  OperandList list_;
  mtia_work work_;
};

inline constexpr size_t ObservedWork::kInner = align(sizeof(ObservedWork));

}  // namespace torch_mtia::core
