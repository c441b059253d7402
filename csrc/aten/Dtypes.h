// Which dtypes a CPU kernel takes.
//
// Note [Dtypes]
// A CPU kernel refuses a dtype when it runs, and on an asynchronous stream that is too late. With which dtypes it works
// is measured: `make dtypes` writes yaml/dtypes.yaml, and the build makes a table of it. A call with dtypes in the
// table (Operator::takes) is launched. With any other dtypes the kernel is asked, at every call: it runs within the
// call on stand-ins (zeros, or an iterator over nothing), and raises what it raises. What is not in the table is slower
// for it, and not wrong.
#pragma once

#include <c10/core/ScalarType.h>
#include <c10/util/FunctionRef.h>

#include <cstdint>
#include <string>
#include <vector>

namespace torch_mtia {

// A tensor in the dtypes of a call, and not 0: its dtype (Undefined: there is no tensor), and whether it stands in a
// list after another one.
constexpr uint64_t dtype_symbol(at::ScalarType dtype, bool follows_in_list = false) {
  return 2 * (static_cast<uint64_t>(dtype) + 1) + (follows_in_list ? 1 : 0);
}

// The dtypes of a call's tensors, in order, as one number. Equal neighbours in a list count once: it has any length.
class DtypeSignature {
 public:
  constexpr void add(uint64_t symbol) {
    if ((symbol & 1) != 0 && symbol >> 1 == latest_ >> 1) return;
    latest_ = symbol;
    code_ = code_ * 0x100000001b3 + symbol;  // odd: nothing is shifted out
  }
  constexpr uint64_t code() const { return code_; }

 private:
  uint64_t code_ = 0;
  uint64_t latest_ = 0;
};

// The same as yaml/dtypes.yaml writes it.
class DtypeWords {
 public:
  void add(uint64_t symbol);
  const std::string& text() const { return text_; }

 private:
  std::string text_;
  uint64_t latest_ = 0;
};

struct Operator;

// Runs `trial`, which asks the CPU kernel. `words` gives the dtypes, or nothing where the kernel may not look at them.
void ask_kernel(const Operator& op, c10::function_ref<std::string()> words, c10::function_ref<void()> trial);

// What kernels answered, for `make dtypes` and for tests.
struct KernelAnswer {
  std::string kernel;
  std::string dtypes;
  bool refused;
};
void record_answers(bool enabled);
std::vector<KernelAnswer> take_answers();

}  // namespace torch_mtia
