#include "../sanitizer/Sanitizer.h"

#include "../aten/HostAccesses.h"
#include "../core/Stream.h"
#include "../device/MTIAStream.h"
#include "bindings.h"
#include "frames.h"

namespace torch_mtia {
namespace {

namespace py = pybind11;

const char* name_of(sanitizer::FindingKind kind) {
  switch (kind) {
    case sanitizer::FindingKind::kRace:
      return "race";
    case sanitizer::FindingKind::kFreedTooEarly:
      return "freed too early";
    case sanitizer::FindingKind::kUseAfterFree:
      return "use after free";
    case sanitizer::FindingKind::kUninitialized:
      return "uninitialized";
  }
  return "unknown";
}

py::dict describe(const sanitizer::Item& item, size_t operand, Frames& frames) {
  const sanitizer::Operand& what = item.operands[operand];
  py::dict result;
  result["operator"] = item.name;
  result["device"] = py::none();
  result["stream"] = py::none();
  if (item.stream != nullptr) {
    const auto stream = MTIAStream::of(*static_cast<const core::Stream*>(item.stream));
    result["device"] = static_cast<int>(stream.unwrap().device_index());
    result["stream"] = stream.unwrap().id();
  }
  result["tensor"] = what.type;
  result["address"] = what.region.begin();
  result["size"] = what.region.end() - what.region.begin();
  result["writes"] = what.writes;
  frames.set(result, item.context);
  return result;
}

py::list take() {
  Frames frames;
  py::list list;
  for (const sanitizer::Finding& finding : sanitizer::Sanitizer::take()) {
    py::dict entry;
    entry["kind"] = name_of(finding.kind);
    entry["access"] = describe(*finding.item, finding.operand, frames);
    if (finding.earlier != nullptr) entry["earlier"] = describe(*finding.earlier, finding.earlier_operand, frames);
    py::dict memory;
    frames.set(memory, finding.memory);
    entry["memory"] = memory;
    list.append(entry);
  }
  frames.resolve();
  return list;
}

// Where it was allocated, and what has become of it, counted in items of work.
py::list live_blocks() {
  Frames frames;
  py::list list;
  for (const sanitizer::LiveBlock& block : sanitizer::Sanitizer::live_blocks()) {
    py::dict entry;
    entry["address"] = block.address;
    entry["size"] = block.size;
    entry["allocated"] = block.allocated;
    entry["used"] = block.used;
    frames.set(entry, block.context);
    list.append(entry);
  }
  frames.resolve();
  return list;
}

}  // namespace

void bind_sanitizer(py::module_& m) {
  m.def("_sanitizer_start", [](bool order, bool freed, bool initialized) {
    torch::installCapturedTracebackPython();
    sanitizer::Sanitizer::start({order, freed, initialized}, []() -> sanitizer::Context {
      return torch::CapturedTraceback::gather(/*python=*/true, /*script=*/false, /*cpp=*/false);
    });
    watch_host_accesses(order);
  });
  m.def("_sanitizer_stop", [] {
    watch_host_accesses(false);
    sanitizer::Sanitizer::stop();
  });
  m.def("_sanitizer_reads", [](const char* name, const at::Tensor& tensor) { tell_host_read(name, tensor); });
  m.def("_sanitizer_take", &take);
  m.def("_sanitizer_unlisted", &sanitizer::Sanitizer::unlisted);
  m.def("_sanitizer_live_blocks", &live_blocks);
}

}  // namespace torch_mtia
