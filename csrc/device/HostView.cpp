#include "HostView.h"

#include "../runtime/loader.h"

namespace torch_mtia {

bool HostView::is_offered() {
  return (runtime::driver().capabilities & MTIA_CAPABILITY_HOST_VIEW) != 0;
}

void HostView::initialize() {
  if (!is_offered()) return;
  runtime::call(&mtia_runtime_api::memory_host_offset, &offset_);
  available_ = true;
}

}  // namespace torch_mtia
