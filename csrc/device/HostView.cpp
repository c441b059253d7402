#include "HostView.h"

#include "../core/DriverInfo.h"

namespace torch_mtia {

bool HostView::is_offered() {
  return core::driver_info().can(MTIA_CAPABILITY_HOST_VIEW);
}

void HostView::initialize() {
  if (!is_offered()) return;
  offset_ = core::host_view_offset();
  available_ = true;
}

}  // namespace torch_mtia
