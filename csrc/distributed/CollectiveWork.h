// The functions of collectives as work items that list what they touch.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "../core/Operands.h"
#include "../core/Waits.h"
#include "../runtime/mtia_runtime.h"

namespace torch_mtia {

// Whether it is one of them.
bool is_among(const at::Tensor& tensor, const std::vector<at::Tensor>& list);

// What a collective reads and writes of the device's memory. Keeps no tensor.
class CollectiveOperands {
 public:
  // Nothing.
  CollectiveOperands() = default;
  // `written` are some of `used`, or all of them. Others are read, as are all of those that are `reduced`.
  CollectiveOperands(const std::vector<at::Tensor>& used, const std::vector<at::Tensor>& written,
                     const std::vector<at::Tensor>& reduced = {});

  void list(core::OperandSink& sink) const;

 private:
  struct Each {
    uint64_t address;
    int64_t element_size;
    std::vector<int64_t> sizes, strides;
    const char* dtype;
    bool is_written, is_reduced;
  };
  std::vector<Each> operands_;
};

struct CollectiveWork {
  std::function<void()> function;
  CollectiveOperands operands;

  // An observer is told of the operands alone: what the function does to memory of the host, its stream has ordered.
  void operator()(const mtia_work_context& context) const {
    const core::RunningWork running(*static_cast<const core::Stream*>(context.stream_tag));
    function();
  }
  void list_operands(core::OperandSink& sink) const { operands.list(sink); }
};

}  // namespace torch_mtia
