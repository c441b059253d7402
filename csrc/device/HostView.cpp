#include "HostView.h"

#include "../runtime/loader.h"

namespace torch_mtia {

void HostView::initialize() {
  const auto& api = runtime::driver();
  if ((api.capabilities & MTIA_CAPABILITY_HOST_VIEW) == 0) return;
  runtime::check(api.memory_host_offset(&offset_));
  available_ = true;
}

}  // namespace torch_mtia
