#include "HostView.h"

#include "../core/Driver.h"

namespace torch_mtia {

constinit bool HostView::available_ = false;
constinit int64_t HostView::offset_ = 0;

bool HostView::is_offered() {
  return core::driver_info().can(MTIA_CAPABILITY_HOST_VIEW);
}

void HostView::initialize() {
  if (!is_offered()) return;
  offset_ = core::host_view_offset();
  available_ = true;
}

}  // namespace torch_mtia
