#include "HostViewAllocation.h"

#include <c10/core/CPUAllocator.h>

#include "MTIACachingAllocator.h"

namespace torch_mtia {
namespace {

thread_local bool tls_active = false;

class PassThroughAllocator final : public c10::Allocator {
 public:
  explicit PassThroughAllocator(c10::Allocator* base) : base_(base) {}

  c10::DataPtr allocate(size_t size) override {
    return tls_active && size > 0 ? MTIACachingAllocator::get().allocate_host_view(size) : base_->allocate(size);
  }
  bool is_simple_data_ptr(const c10::DataPtr& data) const override { return base_->is_simple_data_ptr(data); }
  c10::DeleterFnPtr raw_deleter() const override { return base_->raw_deleter(); }
  void copy_data(void* to, const void* from, size_t size) const override { base_->copy_data(to, from, size); }

 private:
  c10::Allocator* const base_;
};

void install() {
  // Leaked, as every registered allocator.
  static auto* const allocator = new PassThroughAllocator(c10::GetCPUAllocator());
  c10::SetCPUAllocator(allocator, /*priority=*/100);
}

}  // namespace

HostViewAllocation::HostViewAllocation() : previous_(tls_active) {
  static const bool installed = (install(), true);
  tls_active = installed;
}

HostViewAllocation::~HostViewAllocation() { tls_active = previous_; }

}  // namespace torch_mtia
