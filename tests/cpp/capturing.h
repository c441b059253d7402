// What tests of graphs capture with.
#pragma once

#include <vector>

#include "core/Graph.h"
#include "device_under_test.h"

namespace torch_mtia::test {

// Captures what `body` submits.
template <typename Body>
void capture(core::Graph& graph, core::Stream& stream, Body&& body) {
  graph.begin_capture(stream);
  body();
  graph.end_capture();
  graph.instantiate();
}

inline void append(core::Stream& stream, std::vector<int>& log, int value, const core::WorkInfo& info = kSmall) {
  stream.launch(info, [&log, value](const mtia_work_context&) { log.push_back(value); });
}

}  // namespace torch_mtia::test
