// Functions of the host as work of a stream: the counterpart of cudaLaunchHostFunc.
#pragma once

#include <functional>

#include "MTIAStream.h"

namespace torch_mtia {

// Has `function` called in the stream, never within this call but with launch blocking, which waits for it. It may
// allocate and free memory of the device, be called any number of times by a graph, and die on any thread. What it
// throws is raised at the stream's next synchronizing call.
void launch_callback(const MTIAStream& stream, std::function<void()> function);

}  // namespace torch_mtia
