// Python arguments of a Triton kernel as the packed block of Note [Kernel image].
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/csrc/utils/pybind.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace torch_mtia {

// The value of an argument: a Python object, or a tensor that no Python object stands for yet. Borrowed.
struct ArgumentValue {
  PyObject* object = nullptr;
  const at::Tensor* tensor = nullptr;
};

struct Argument;
using PackFunction = void (*)(const Argument& argument, PyObject* value, c10::Device device, std::byte* to);

// A Python argument: nothing in the block (constexpr), one value, or a tuple of arguments.
struct Argument {
  enum class Kind { kDropped, kValue, kTuple };
  Kind kind = Kind::kDropped;
  std::string name;  // for messages
  PackFunction pack = nullptr;
  uint32_t offset = 0;
  pybind11::object decompose;  // callable that turns the value into a tuple first; null: it is one
  std::vector<Argument> elements;
};

// How the arguments of one kernel are packed.
class ArgumentLayout {
 public:
  // `specification` has an entry for each Python argument: None, (name, Triton type), (name, [entries]) or
  // (name, [entries], decompose). Raises TypeError for anything else, and ValueError for more than kMaxPackedArguments.
  explicit ArgumentLayout(const pybind11::iterable& specification);

  size_t num_arguments() const { return arguments_.size(); }
  uint32_t size() const { return size_; }  // of the block

  // Writes the block from `count` values, one for each Python argument, as Triton's launcher for CUDA takes them: those
  // of constexpr are not looked at, so they may be left out at the end; and more than there are arguments are ignored.
  // Raises, naming the argument, for a value that is missing or does not fit: see PackFunction in the source for what
  // each type takes. Tensors must lie on `device`.
  void pack(const ArgumentValue* values, size_t count, c10::Device device, std::byte* to) const;

  // The arguments that are pointers, but those in tuples.
  struct Pointer {
    size_t argument;
    uint32_t offset;
  };
  const std::vector<Pointer>& pointers() const { return pointers_; }
  // Writes those alone; the value of argument i is number places[i].
  void pack_pointers(const ArgumentValue* values, const std::vector<Py_ssize_t>& places, c10::Device device,
                     std::byte* to) const;
  // The same without the GIL. False: a value is no tensor of the device.
  bool pack_tensors(const ArgumentValue* values, const std::vector<Py_ssize_t>& places, c10::Device device,
                    std::byte* to) const;

 private:
  void parse(pybind11::handle entry, Argument& argument);

  std::vector<Argument> arguments_;
  std::vector<Pointer> pointers_;
  uint32_t size_ = 0;
};

}  // namespace torch_mtia
