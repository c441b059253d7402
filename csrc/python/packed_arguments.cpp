// To add a type: a row in `types`, and a pack function if none fits.
#include "packed_arguments.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Exception.h>
#include <c10/util/Half.h>
#include <torch/csrc/autograd/python_variable.h>

#include <array>
#include <bit>
#include <cmath>
#include <concepts>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "../core/Driver.h"
#include "../device/MTIAFunctions.h"
#include "../device/MTIAKernel.h"

namespace py = pybind11;

namespace torch_mtia {
namespace {

template <typename T>
void write(std::byte* to, T value) {
  std::memcpy(to, &value, sizeof(value));
}

py::object steal(PyObject* object) {
  return py::reinterpret_steal<py::object>(object);
}

// Adds the argument's name to the exception that Python's own conversion raised.
[[noreturn]] void fail_conversion(const Argument& argument, PyObject* value) {
  py::error_already_set error;
  for (PyObject* type : {PyExc_TypeError, PyExc_OverflowError}) {
    if (!error.matches(type)) continue;
    PyErr_Format(type, "argument '%s': %R of type %s is not a number that the kernel can take", argument.name.c_str(),
                 value, Py_TYPE(value)->tp_name);
    throw py::error_already_set();
  }
  throw error;
}

// Integers ------------------------------------------------------------------------------------------------------------

// Of an int.
template <std::integral T>
T read_integer(const Argument& argument, PyObject* number) {
  constexpr bool kIsSigned = std::is_signed_v<T>;
  std::conditional_t<kIsSigned, long long, unsigned long long> value = 0;
  int overflow = 0;
  if constexpr (kIsSigned) {
    value = PyLong_AsLongLongAndOverflow(number, &overflow);
  } else {
    value = PyLong_AsUnsignedLongLong(number);
    overflow = value == std::numeric_limits<unsigned long long>::max() && PyErr_Occurred() != nullptr ? 1 : 0;
  }
  if (overflow != 0 || !std::in_range<T>(value)) [[unlikely]] {
    PyErr_Clear();
    PyErr_Format(PyExc_OverflowError, "argument '%s': %S does not fit %s integer of %zu bits", argument.name.c_str(),
                 number, kIsSigned ? "a signed" : "an unsigned", sizeof(T) * 8);
    throw py::error_already_set();
  }
  return static_cast<T>(value);
}

template <typename T>
void pack_integer(const Argument& argument, PyObject* value, c10::Device /*device*/, std::byte* to) {
  if (PyLong_Check(value)) [[likely]]
    return write(to, read_integer<T>(argument, value));
  const py::object number = steal(PyNumber_Index(value));
  if (!number) fail_conversion(argument, value);
  write(to, read_integer<T>(argument, number.ptr()));
}

void pack_bool(const Argument& /*argument*/, PyObject* value, c10::Device /*device*/, std::byte* to) {
  const int truth = PyObject_IsTrue(value);
  if (truth < 0) throw py::error_already_set();
  write(to, static_cast<uint8_t>(truth));
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
void pack_float(const Argument& argument, PyObject* value, c10::Device /*device*/, std::byte* to) {
  const double number = PyFloat_Check(value) ? PyFloat_AS_DOUBLE(value) : PyFloat_AsDouble(value);
  if (number == -1.0 && PyErr_Occurred() != nullptr) [[unlikely]]
    fail_conversion(argument, value);
  if constexpr (std::is_floating_point_v<T>) {
    write(to, static_cast<T>(number));
  } else {
    write(to, static_cast<T>(round_to_odd(number)));
  }
}

// Pointers ------------------------------------------------------------------------------------------------------------

[[noreturn]] void fail_pointer(const Argument& argument, const std::string& what, c10::Device device) {
  TORCH_CHECK_VALUE(false, "argument '", argument.name,
                    "': Pointer argument cannot be accessed from Triton (cpu tensor?): it is ", what,
                    ", and the kernel runs on ", device);
}

// Needs no GIL.
void pack_tensor(const Argument& argument, const at::Tensor& tensor, c10::Device device, std::byte* to) {
  if (tensor.device() != device) [[unlikely]]
    fail_pointer(argument, "a tensor on " + tensor.device().str(), device);
  const auto address = reinterpret_cast<mtia_device_ptr>(tensor.data_ptr());
  if (address == 0 && tensor.numel() != 0) [[unlikely]]
    fail_pointer(argument, "a tensor without memory, as fake ones are", device);
  write(to, address);
}

// What is not a tensor says where it lies by itself, and is believed only if that is on the device.
void pack_object(const Argument& argument, PyObject* value, c10::Device device, std::byte* to) {
  const py::object address = steal(PyObject_CallMethod(value, "data_ptr", nullptr));
  if (!address && !PyErr_ExceptionMatches(PyExc_AttributeError)) throw py::error_already_set();
  PyErr_Clear();
  TORCH_CHECK_TYPE(address && PyLong_Check(address.ptr()), "argument '", argument.name,
                   "': a pointer is a tensor, an object whose data_ptr() returns an integer, an integer or None, not ",
                   Py_TYPE(value)->tp_name);
  const auto pointer = read_integer<mtia_device_ptr>(argument, address.ptr());
  const auto owner = core::device_of_address(reinterpret_cast<const void*>(pointer));
  if (pointer != 0 && owner != device.index()) {
    const auto other = static_cast<c10::DeviceIndex>(owner.value_or(0));
    fail_pointer(argument, owner ? "on " + device_name(other) : "in host memory", device);
  }
  write(to, pointer);
}

// Tensors, objects with data_ptr(), addresses, and None, which is a null pointer.
void pack_pointer(const Argument& argument, PyObject* value, c10::Device device, std::byte* to) {
  if (THPVariable_Check(value)) [[likely]]
    return pack_tensor(argument, THPVariable_Unpack(value), device, to);
  if (value == Py_None) return write(to, mtia_device_ptr{0});
  if (PyLong_Check(value)) return write(to, read_integer<mtia_device_ptr>(argument, value));
  pack_object(argument, value, device, to);
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

void pack_argument(const Argument& argument, ArgumentValue value, c10::Device device, std::byte* block);

template <typename Value>
void pack_arguments(const std::vector<Argument>& arguments, const Value* values, size_t count, c10::Device device,
                    std::byte* block) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    const Argument& argument = arguments[i];
    if (argument.kind == Argument::Kind::kDropped) continue;
    TORCH_CHECK_TYPE(i < count, "argument '", argument.name, "' is missing: it is number ", i + 1, " by position, and ",
                     count, " were given; only constexpr ones at the end may be left out");
    pack_argument(argument, ArgumentValue{values[i]}, device, block);
  }
}

void pack_elements(const Argument& argument, const py::object& value, c10::Device device, std::byte* block) {
  const py::object elements = steal(PySequence_Fast(value.ptr(), "not a sequence"));
  PyErr_Clear();
  TORCH_CHECK_TYPE(elements, "argument '", argument.name, "': expected a tuple of ", argument.elements.size(),
                   " values, got ", std::string(py::repr(value)));
  pack_arguments(argument.elements, PySequence_Fast_ITEMS(elements.ptr()),
                 static_cast<size_t>(PySequence_Fast_GET_SIZE(elements.ptr())), device, block);
}

void pack_argument(const Argument& argument, ArgumentValue value, c10::Device device, std::byte* block) {
  std::byte* const to = block + argument.offset;
  const bool is_value = argument.kind == Argument::Kind::kValue;
  if (is_value && value.object != nullptr) [[likely]]
    return argument.pack(argument, value.object, device, to);
  if (is_value && argument.pack == pack_pointer) return pack_tensor(argument, *value.tensor, device, to);
  const py::object object = steal(value.object == nullptr ? THPVariable_Wrap(*value.tensor) : Py_NewRef(value.object));
  if (!object) throw py::error_already_set();
  if (is_value) return argument.pack(argument, object.ptr(), device, to);
  pack_elements(argument, argument.decompose ? argument.decompose(object) : object, device, block);
}

}  // namespace

ArgumentLayout::ArgumentLayout(const py::iterable& specification) {
  for (const py::handle entry : specification) {
    Argument& argument = arguments_.emplace_back();
    parse(entry, argument);
    if (argument.pack == pack_pointer) pointers_.push_back({arguments_.size() - 1, argument.offset});
  }
}

void ArgumentLayout::parse(py::handle entry, Argument& argument) {
  if (entry.is_none()) return;
  const auto parts = py::isinstance<py::tuple>(entry) ? py::reinterpret_borrow<py::tuple>(entry) : py::tuple();
  const size_t count = parts.size();
  const bool is_tuple = (count == 2 || count == 3) && py::isinstance<py::list>(parts[1]);
  TORCH_CHECK_TYPE((is_tuple || (count == 2 && py::isinstance<py::str>(parts[1]))) && py::isinstance<py::str>(parts[0]),
                   "an argument is None, (name, type), (name, [arguments]) or (name, [arguments], decompose)");
  argument.name = parts[0].cast<std::string>();
  if (is_tuple) {
    argument.kind = Argument::Kind::kTuple;
    if (count == 3) argument.decompose = parts[2];
    for (const py::handle element : parts[1].cast<py::list>()) parse(element, argument.elements.emplace_back());
    return;
  }
  const auto name = parts[1].cast<std::string>();
  const Type* type = find_type(name);
  TORCH_CHECK_TYPE(type != nullptr, "argument '", argument.name, "' has type '", name,
                   "', which kernels on mtia cannot be given");
  argument.kind = Argument::Kind::kValue;
  argument.pack = type->pack;
  argument.offset = (size_ + type->size - 1) / type->size * type->size;
  size_ = argument.offset + type->size;
  TORCH_CHECK_VALUE(size_ <= kMaxPackedArguments, "the kernel's arguments take more than ", kMaxPackedArguments,
                    " bytes");
}

void ArgumentLayout::pack(const ArgumentValue* values, size_t count, c10::Device device, std::byte* to) const {
  pack_arguments(arguments_, values, count, device, to);
}

void ArgumentLayout::pack_pointers(const ArgumentValue* values, const std::vector<Py_ssize_t>& places,
                                   c10::Device device, std::byte* to) const {
  for (const auto& [argument, offset] : pointers_) {
    pack_argument(arguments_[argument], values[places[argument]], device, to);
  }
}

bool ArgumentLayout::pack_tensors(const ArgumentValue* values, const std::vector<Py_ssize_t>& places,
                                  c10::Device device, std::byte* to) const {
  for (const auto& [argument, offset] : pointers_) {
    const at::Tensor* tensor = values[places[argument]].tensor;
    if (tensor == nullptr || tensor->device() != device) return false;
    write(to + offset, reinterpret_cast<mtia_device_ptr>(tensor->data_ptr()));
  }
  return true;
}

}  // namespace torch_mtia
