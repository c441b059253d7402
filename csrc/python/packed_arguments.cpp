// To add a type: a row in `types`, and a pack function if none fits.
#include "packed_arguments.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <torch/csrc/autograd/python_variable.h>

#include <bit>
#include <cmath>
#include <concepts>
#include <cstring>
#include <limits>
#include <memory>
#include <type_traits>

#include "../core/Driver.h"
#include "../device/MTIAFunctions.h"

namespace torch_mtia {
namespace {

struct DropReference {
  void operator()(PyObject* object) const { Py_XDECREF(object); }
};
using Owned = std::unique_ptr<PyObject, DropReference>;

template <typename T>
bool write(std::byte* to, T value) {
  std::memcpy(to, &value, sizeof(value));
  return true;
}

// Adds the argument's name to the exception that Python's own conversion raised.
bool fail_conversion(const Slot& slot, PyObject* value) {
  PyObject* type = PyErr_Occurred();
  if (type != PyExc_TypeError && type != PyExc_OverflowError) return false;
  Py_INCREF(type);
  PyErr_Clear();
  PyErr_Format(type, "argument '%s': %R of type %s is not a number that the kernel can take", slot.name.c_str(), value,
               Py_TYPE(value)->tp_name);
  Py_DECREF(type);
  return false;
}

// Integers ------------------------------------------------------------------------------------------------------------

bool fail_range(const Slot& slot, PyObject* value, const char* kind, size_t bits) {
  PyErr_Clear();
  PyErr_Format(PyExc_OverflowError, "argument '%s': %S does not fit %s integer of %zu bits", slot.name.c_str(), value,
               kind, bits);
  return false;
}

template <std::signed_integral T>
bool read_integer(const Slot& slot, PyObject* number, T& result) {
  int overflow = 0;
  const long long value = PyLong_AsLongLongAndOverflow(number, &overflow);
  if (overflow != 0 || value < std::numeric_limits<T>::min() || value > std::numeric_limits<T>::max()) [[unlikely]]
    return fail_range(slot, number, "a signed", sizeof(T) * 8);
  result = static_cast<T>(value);
  return true;
}

template <std::unsigned_integral T>
bool read_integer(const Slot& slot, PyObject* number, T& result) {
  const unsigned long long value = PyLong_AsUnsignedLongLong(number);
  const bool failed = value == std::numeric_limits<unsigned long long>::max() && PyErr_Occurred() != nullptr;
  if (failed || value > std::numeric_limits<T>::max()) [[unlikely]]
    return fail_range(slot, number, "an unsigned", sizeof(T) * 8);
  result = static_cast<T>(value);
  return true;
}

template <typename T>
bool pack_integer(const Slot& slot, PyObject* value, c10::Device /*device*/, std::byte* to) {
  T result{};
  if (PyLong_Check(value)) [[likely]]
    return read_integer(slot, value, result) && write(to, result);
  const Owned number(PyNumber_Index(value));
  if (number == nullptr) return fail_conversion(slot, value);
  return read_integer(slot, number.get(), result) && write(to, result);
}

bool pack_bool(const Slot& /*slot*/, PyObject* value, c10::Device /*device*/, std::byte* to) {
  const int truth = PyObject_IsTrue(value);
  return truth >= 0 && write(to, static_cast<uint8_t>(truth));
}

// Floating-point numbers ----------------------------------------------------------------------------------------------

// A float that rounds to any narrower type as the double itself would: the last bit tells that it was not exact.
float round_to_odd(double value) {
  const auto nearest = static_cast<float>(value);
  if (static_cast<double>(nearest) == value || !std::isfinite(nearest)) return nearest;
  auto bits = std::bit_cast<uint32_t>(nearest);
  if (std::fabs(static_cast<double>(nearest)) > std::fabs(value)) --bits;
  return std::bit_cast<float>(bits | 1);
}

template <typename T>
bool pack_float(const Slot& slot, PyObject* value, c10::Device /*device*/, std::byte* to) {
  const double number = PyFloat_Check(value) ? PyFloat_AS_DOUBLE(value) : PyFloat_AsDouble(value);
  if (number == -1.0 && PyErr_Occurred() != nullptr) [[unlikely]]
    return fail_conversion(slot, value);
  if constexpr (std::is_floating_point_v<T>) return write(to, static_cast<T>(number));
  return write(to, static_cast<T>(round_to_odd(number)));
}

// Pointers ------------------------------------------------------------------------------------------------------------

bool fail_pointer(const Slot& slot, const std::string& what, c10::Device device) {
  PyErr_Format(PyExc_ValueError,
               "argument '%s': Pointer argument cannot be accessed from Triton (cpu tensor?): it is %s, and the kernel "
               "runs on %s",
               slot.name.c_str(), what.c_str(), device.str().c_str());
  return false;
}

bool pack_tensor(const Slot& slot, const at::Tensor& tensor, c10::Device device, std::byte* to) {
  if (tensor.device() != device) [[unlikely]]
    return fail_pointer(slot, "a tensor on " + tensor.device().str(), device);
  return write(to, reinterpret_cast<mtia_device_ptr>(tensor.data_ptr()));
}

bool pack_address(const Slot& slot, PyObject* value, std::byte* to) {
  uint64_t address = 0;
  return read_integer(slot, value, address) && write(to, address);
}

// What is not a tensor says where it lies by itself, and is believed only if that is on the device.
bool pack_object(const Slot& slot, PyObject* value, c10::Device device, std::byte* to) {
  const Owned address(PyObject_CallMethod(value, "data_ptr", nullptr));
  if (address == nullptr || !PyLong_Check(address.get())) {
    if (address == nullptr && !PyErr_ExceptionMatches(PyExc_AttributeError)) return false;
    PyErr_Clear();
    PyErr_Format(PyExc_TypeError,
                 "argument '%s': a pointer is a tensor, an object whose data_ptr() returns an integer, an integer or "
                 "None, not %s",
                 slot.name.c_str(), Py_TYPE(value)->tp_name);
    return false;
  }
  mtia_device_ptr pointer = 0;
  if (!read_integer(slot, address.get(), pointer)) return false;
  if (pointer == 0) return write(to, pointer);
  const auto owner = core::device_of_address(reinterpret_cast<const void*>(pointer));
  if (owner == device.index()) return write(to, pointer);
  const auto other = static_cast<c10::DeviceIndex>(owner.value_or(0));
  return fail_pointer(slot, owner ? "on " + device_name(other) : "in host memory", device);
}

// Tensors, objects with data_ptr(), addresses, and None, which is a null pointer.
bool pack_pointer(const Slot& slot, PyObject* value, c10::Device device, std::byte* to) {
  if (THPVariable_Check(value)) [[likely]]
    return pack_tensor(slot, THPVariable_Unpack(value), device, to);
  if (value == Py_None) return write(to, mtia_device_ptr{0});
  if (PyLong_Check(value)) return pack_address(slot, value, to);
  return pack_object(slot, value, device, to);
}

// The table -----------------------------------------------------------------------------------------------------------

struct Type {
  const char* name;  // Triton's
  uint32_t size;
  PackFunction pack;
};

constexpr std::array types{
    Type{"i1", 1, pack_bool},
    Type{"u1", 1, pack_bool},
    Type{"i8", 1, pack_integer<int8_t>},
    Type{"i16", 2, pack_integer<int16_t>},
    Type{"i32", 4, pack_integer<int32_t>},
    Type{"i64", 8, pack_integer<int64_t>},
    Type{"u8", 1, pack_integer<uint8_t>},
    Type{"u16", 2, pack_integer<uint16_t>},
    Type{"u32", 4, pack_integer<uint32_t>},
    Type{"u64", 8, pack_integer<uint64_t>},
    Type{"fp16", 2, pack_float<c10::Half>},
    Type{"bf16", 2, pack_float<c10::BFloat16>},
    Type{"fp32", 4, pack_float<float>},
    Type{"f32", 4, pack_float<float>},
    Type{"fp64", 8, pack_float<double>},
};
constexpr Type kPointer{"*", 8, pack_pointer};

const Type* find_type(const std::string& name) {
  if (name.starts_with(kPointer.name)) return &kPointer;
  for (const Type& type : types) {
    if (name == type.name) return &type;
  }
  return nullptr;
}

bool read_text(PyObject* object, std::string& text) {
  const char* characters = PyUnicode_AsUTF8(object);
  if (characters == nullptr) return false;
  text = characters;
  return true;
}

bool pack_argument(const Argument& argument, ArgumentValue value, c10::Device device, std::byte* to);

template <typename Value>
bool pack_arguments(const std::vector<Argument>& arguments, const Value* values, size_t count, c10::Device device,
                    std::byte* to) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    const Argument& argument = arguments[i];
    if (argument.kind == Argument::Kind::kDropped) continue;
    if (i >= count) [[unlikely]] {
      PyErr_Format(PyExc_TypeError,
                   "argument '%s' is missing: it is number %zu by position, and %zu were given; only constexpr ones at "
                   "the end may be left out",
                   argument.name.c_str(), i + 1, count);
      return false;
    }
    if (!pack_argument(argument, ArgumentValue{values[i]}, device, to)) return false;
  }
  return true;
}

bool pack_elements(const Argument& argument, PyObject* value, c10::Device device, std::byte* to) {
  const Owned elements(PySequence_Fast(value, "not a sequence"));
  if (elements == nullptr) {
    PyErr_Clear();
    PyErr_Format(PyExc_TypeError, "argument '%s': expected a tuple of %zu values, got %R", argument.name.c_str(),
                 argument.elements.size(), value);
    return false;
  }
  return pack_arguments(argument.elements, PySequence_Fast_ITEMS(elements.get()),
                        static_cast<size_t>(PySequence_Fast_GET_SIZE(elements.get())), device, to);
}

bool pack_argument(const Argument& argument, ArgumentValue value, c10::Device device, std::byte* to) {
  if (argument.kind == Argument::Kind::kSlot && value.object != nullptr) [[likely]]
    return argument.slot.pack(argument.slot, value.object, device, to + argument.slot.offset);
  if (argument.kind == Argument::Kind::kSlot && argument.slot.pack == pack_pointer)
    return pack_tensor(argument.slot, *value.tensor, device, to + argument.slot.offset);
  const Owned object(value.object == nullptr ? THPVariable_Wrap(*value.tensor) : Py_NewRef(value.object));
  if (argument.kind == Argument::Kind::kSlot)
    return argument.slot.pack(argument.slot, object.get(), device, to + argument.slot.offset);
  if (argument.decompose == nullptr) return pack_elements(argument, object.get(), device, to);
  const Owned parts(PyObject_CallOneArg(argument.decompose, object.get()));
  return parts != nullptr && pack_elements(argument, parts.get(), device, to);
}

bool parse_failed() {
  if (PyErr_Occurred() == nullptr) {
    PyErr_SetString(PyExc_TypeError,
                    "an argument is None, (name, type), (name, [arguments]) or (name, [arguments], decompose)");
  }
  return false;
}

}  // namespace

bool ArgumentLayout::parse(PyObject* specification) {
  const Owned entries(PySequence_Fast(specification, "the arguments are not a sequence"));
  if (entries == nullptr) return false;
  arguments_.resize(static_cast<size_t>(PySequence_Fast_GET_SIZE(entries.get())));
  for (size_t i = 0; i < arguments_.size(); ++i) {
    if (!parse_entry(PySequence_Fast_GET_ITEM(entries.get(), static_cast<Py_ssize_t>(i)), arguments_[i])) return false;
  }
  return true;
}

bool ArgumentLayout::parse_entry(PyObject* entry, Argument& argument) {
  if (entry == Py_None) return true;
  const Py_ssize_t parts = PyTuple_Check(entry) ? PyTuple_GET_SIZE(entry) : 0;
  if (parts != 2 && parts != 3) return parse_failed();
  if (!read_text(PyTuple_GET_ITEM(entry, 0), argument.name)) return false;
  PyObject* type = PyTuple_GET_ITEM(entry, 1);
  if (PyUnicode_Check(type) && parts == 2) return parse_slot(PyTuple_GET_ITEM(entry, 0), type, argument);
  return PyList_Check(type) ? parse_tuple(entry, argument) : parse_failed();
}

bool ArgumentLayout::parse_slot(PyObject* name, PyObject* type_name, Argument& argument) {
  std::string text;
  if (!read_text(type_name, text)) return false;
  const Type* type = find_type(text);
  if (type == nullptr) {
    PyErr_Format(PyExc_TypeError, "argument '%U' has type %R, which kernels on mtia cannot be given", name, type_name);
    return false;
  }
  size_ = (size_ + type->size - 1) / type->size * type->size;
  argument.kind = Argument::Kind::kSlot;
  argument.slot = {argument.name, type->pack, size_};
  size_ += type->size;
  if (size_ <= kMaxPackedArguments) return true;
  PyErr_Format(PyExc_ValueError, "the kernel's arguments take more than %u bytes", kMaxPackedArguments);
  return false;
}

bool ArgumentLayout::parse_tuple(PyObject* entry, Argument& argument) {
  PyObject* elements = PyTuple_GET_ITEM(entry, 1);
  argument.kind = Argument::Kind::kTuple;
  if (PyTuple_GET_SIZE(entry) == 3) argument.decompose = PyTuple_GET_ITEM(entry, 2);
  argument.elements.resize(static_cast<size_t>(PyList_GET_SIZE(elements)));
  for (size_t i = 0; i < argument.elements.size(); ++i) {
    if (!parse_entry(PyList_GET_ITEM(elements, static_cast<Py_ssize_t>(i)), argument.elements[i])) return false;
  }
  return true;
}

std::optional<uint32_t> ArgumentLayout::place_of_pointer(size_t argument) const {
  const Argument& it = arguments_[argument];
  if (it.kind != Argument::Kind::kSlot || it.slot.pack != pack_pointer) return std::nullopt;
  return it.slot.offset;
}

bool ArgumentLayout::pack(const ArgumentValue* values, size_t count, c10::Device device, PackedArguments& to) const {
  return pack_arguments(arguments_, values, count, device, to.bytes.data());
}

}  // namespace torch_mtia
