// Python arguments of a Triton kernel as the packed block of Note [Kernel image].
#pragma once

#include <ATen/core/Tensor.h>
#include <Python.h>
#include <c10/core/Device.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace torch_mtia {

// Longer blocks are refused when the launcher is made.
inline constexpr uint32_t kMaxPackedArguments = 4096;

struct PackedArguments {
  alignas(16) std::array<std::byte, kMaxPackedArguments> bytes;  // written as far as the layout says
};

// The value of an argument: a Python object, or a tensor that no Python object stands for yet. Borrowed.
struct ArgumentValue {
  PyObject* object = nullptr;
  const at::Tensor* tensor = nullptr;
};

// One value in the block.
struct Slot;
using PackFunction = bool (*)(const Slot& slot, PyObject* value, c10::Device device, std::byte* to);

struct Slot {
  std::string name;  // of the Python argument, for messages
  PackFunction pack;
  uint32_t offset;
};

// A Python argument: nothing in the block (constexpr), one slot, or a tuple of arguments.
struct Argument {
  enum class Kind { kDropped, kSlot, kTuple };
  Kind kind = Kind::kDropped;
  Slot slot{};
  std::string name;
  PyObject* decompose = nullptr;  // callable that turns the value into a tuple first; borrowed from the specification
  std::vector<Argument> elements;
};

// How the arguments of one kernel are packed.
class ArgumentLayout {
 public:
  // `specification` has an entry for each Python argument: None, (name, Triton type), (name, [entries]) or
  // (name, [entries], decompose). Raises TypeError or ValueError, in Python, for anything else and returns false.
  bool parse(PyObject* specification);

  uint32_t size() const { return size_; }

  // Writes the block from `count` values, one for each Python argument, as Triton's launcher for CUDA takes them: those
  // of constexpr are not looked at, so they may be left out at the end; and more than there are arguments are ignored.
  // Raises, in Python, naming the argument, for a value that is missing or does not fit and returns false: see
  // PackFunction in the source for what each type takes. Tensors must lie on `device`.
  bool pack(const ArgumentValue* values, size_t count, c10::Device device, PackedArguments& to) const;

  // Where in the block the pointer of an argument lies; empty: it is none.
  std::optional<uint32_t> place_of_pointer(size_t argument) const;

 private:
  bool parse_entry(PyObject* entry, Argument& argument);
  bool parse_slot(PyObject* name, PyObject* type, Argument& argument);
  bool parse_tuple(PyObject* entry, Argument& argument);

  std::vector<Argument> arguments_;
  uint32_t size_ = 0;
};

}  // namespace torch_mtia
