"""Arithmetic, comparison, bit and cast operations, lane by lane.

Each function takes scalars or vectors of one width. The operands' element types are those of the operation in TTIR:
narrow floating-point numbers arrive as integers, see floats.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch_mtia.triton import floats, vecmath
from torch_mtia.triton.analyses.strips import ZERO_AND_MINUS_ONE
from torch_mtia.triton.emit.environment import elementwise
from torch_mtia.triton.ir.attributes import Bits, Dense, float_bits
from torch_mtia.triton.ir.elements import NARROW, WIDE, is_float_element, llvm_element
from torch_mtia.triton.ir.emulation import TF32_TO_NEAREST, TF32_TOWARD_ZERO
from torch_mtia.triton.ir.module import Op, Unsupported
from torch_mtia.triton.ir.ops import FLOAT_PREDICATES, INTEGER_PREDICATES, pointee_size
from torch_mtia.triton.lanes import guarded_divisor
from torch_mtia.triton.llvm import Builder
from torch_mtia.triton.llvm_value import Value, bits_of, element_of, floating, integer, lanes_of, vector_type, zero


def source_element(op: Op) -> str:
    return op.operands[0].type.element


def result_element(op: Op) -> str:
    return op.results[0].type.element


def in_wide(b: Builder, op: Op, operands: list[Value]) -> list[Value]:
    return [floats.widen(b, value, operand.type.element) for value, operand in zip(operands, op.operands, strict=True)]


# Integers -------------------------------------------------------------------------------------------------------------


Method = tuple[Any, ...]  # a function of the builder, and what it takes before the operands

_AS_THEY_ARE: dict[str, Method] = {
    "arith.addi": (Builder.add,),
    "arith.subi": (Builder.sub,),
    "arith.muli": (Builder.mul,),
    "arith.andi": (Builder.binary, "and"),
    "arith.ori": (Builder.binary, "or"),
    "arith.xori": (Builder.binary, "xor"),
    "arith.maxsi": (Builder.binary_intrinsic, "smax"),
    "arith.maxui": (Builder.binary_intrinsic, "umax"),
    "arith.minsi": (Builder.binary_intrinsic, "smin"),
    "arith.minui": (Builder.binary_intrinsic, "umin"),
    "arith.select": (Builder.select,),
}


@elementwise(*_AS_THEY_ARE)
def _as_they_are(b: Builder, op: Op, operands: list[Value]) -> Value:
    method, *first = _AS_THEY_ARE[op.name]
    result: Value = method(b, *first, *operands)
    return result


_SHIFTS = {"arith.shli": "shl", "arith.shrsi": "ashr", "arith.shrui": "lshr"}


@elementwise(*_SHIFTS)
def _shift(b: Builder, op: Op, operands: list[Value]) -> Value:
    """Shifting by the width or more gives what shifting one by one would."""
    value, amount = operands
    name = _SHIFTS[op.name]
    bits = bits_of(element_of(value))
    if amount.constant is not None and 0 <= amount.constant < bits:
        return b.binary(name, value, amount)
    if name == "ashr":
        return b.binary(name, value, b.binary_intrinsic("umin", amount, b.integer_like(bits - 1, amount)))
    in_range = b.icmp("ult", amount, b.integer_like(bits, amount))
    safe = b.select(in_range, amount, b.integer_like(0, amount))
    return b.select(in_range, b.binary(name, value, safe), b.integer_like(0, value))


_DIVISIONS = {"arith.divsi": "sdiv", "arith.divui": "udiv", "arith.remsi": "srem", "arith.remui": "urem"}


@elementwise(*_DIVISIONS)
def _division(b: Builder, op: Op, operands: list[Value]) -> Value:
    """Dividing by zero, and the least number by -1, has no defined result, but must not stop the process."""
    return _guarded_division(b, op, _DIVISIONS[op.name], *operands)


def _guarded_division(b: Builder, op: Op, name: str, left: Value, right: Value) -> Value:
    guard = b.guards.get(op)
    if guard is None:  # by a constant, which LLVM multiplies or shifts for
        return b.binary(name, left, right)
    divisor = guarded_divisor(b, op, right)
    if guard != ZERO_AND_MINUS_ONE:
        return _divide(b, name, left, divisor)
    minus_one = b.icmp("eq", right, b.integer_like(-1, right))
    divisor = b.select(minus_one, b.integer_like(1, right), divisor)
    by_minus_one = b.sub(b.integer_like(0, left), left) if name == "sdiv" else b.integer_like(0, left)
    return b.select(minus_one, by_minus_one, _divide(b, name, left, divisor))


def _divide(b: Builder, name: str, left: Value, right: Value) -> Value:
    """x86 has no vector division of integers; f64 divides those of 32 bits exactly."""
    if not lanes_of(left) or bits_of(element_of(left)) > 32:
        return b.binary(name, left, right)
    signed = name in ("sdiv", "srem")
    to_float, to_int = ("sitofp", "fptosi") if signed else ("uitofp", "fptoui")
    quotient = b.cast(
        to_int, b.binary("fdiv", b.cast(to_float, left, "double"), b.cast(to_float, right, "double")), element_of(left)
    )
    if name.endswith("div"):
        return quotient
    return b.sub(left, b.mul(quotient, right))


@elementwise("arith.ceildivsi", "arith.ceildivui", "arith.floordivsi")
def _rounded_division(b: Builder, op: Op, operands: list[Value]) -> Value:
    left, right = operands
    signed = op.name.endswith("si")
    quotient = _guarded_division(b, op, "sdiv" if signed else "udiv", left, right)
    right = guarded_divisor(b, op, right)
    remainder = b.sub(left, b.mul(quotient, right))
    inexact = b.icmp("ne", remainder, b.integer_like(0, left))
    if signed:
        same_sign = b.icmp("sge", b.binary("xor", left, right), b.integer_like(0, left))
        if op.name == "arith.floordivsi":
            same_sign = b.binary("xor", same_sign, b.integer_like(1, same_sign))
        inexact = b.binary("and", inexact, same_sign)
    step = b.cast("zext", inexact, element_of(left))
    return b.sub(quotient, step) if op.name == "arith.floordivsi" else b.add(quotient, step)


@elementwise("math.absi")
def _absi(b: Builder, op: Op, operands: list[Value]) -> Value:
    (value,) = operands
    return b.binary_intrinsic("smax", value, b.sub(b.integer_like(0, value), value))


@elementwise("tt.mulhiui")
def _mulhiui(b: Builder, op: Op, operands: list[Value]) -> Value:
    left, right = operands
    element = element_of(left)
    bits = bits_of(element)
    if bits == 64:
        return vecmath.high_of_64(b, left, right)
    wide = f"i{2 * bits}"
    product = b.mul(b.zext(left, wide), b.zext(right, wide))
    return b.cast("trunc", b.binary("lshr", product, b.integer_like(bits, product)), element)


@elementwise("arith.mulsi_extended", "arith.mului_extended")
def _mul_extended(b: Builder, op: Op, operands: list[Value]) -> list[Value]:
    left, right = operands
    element = element_of(left)
    bits = bits_of(element)
    low = b.binary("mul", left, right)
    if bits < 64:
        extend = "sext" if op.name == "arith.mulsi_extended" else "zext"
        product = b.binary("mul", b.cast(extend, left, f"i{2 * bits}"), b.cast(extend, right, f"i{2 * bits}"))
        return [low, b.cast("trunc", b.binary("lshr", product, b.integer_like(bits, product)), element)]
    high = vecmath.high_of_64(b, left, right)
    if op.name == "arith.mulsi_extended":
        for one, other in ((left, right), (right, left)):
            sign = b.binary("ashr", one, b.integer_like(63, one))
            high = b.sub(high, b.binary("and", sign, other))
    return [low, high]


@elementwise("arith.addui_extended")
def _addui_extended(b: Builder, op: Op, operands: list[Value]) -> list[Value]:
    left, right = operands
    total = b.binary("add", left, right)
    return [total, b.icmp("ult", total, left)]


@elementwise("arith.cmpi")
def _cmpi(b: Builder, op: Op, operands: list[Value]) -> Value:
    return b.icmp(INTEGER_PREDICATES[op.attributes["predicate"]], *operands)


# Floating-point numbers -----------------------------------------------------------------------------------------------


@elementwise("arith.negf")
def _negf(b: Builder, op: Op, operands: list[Value]) -> Value:
    (value,) = operands
    element = source_element(op)
    if element in WIDE:
        return b.fneg(value)
    return b.binary("xor", value, b.integer_like(1 << (bits_of(element_of(value)) - 1), value))


@elementwise("math.absf")
def _absf(b: Builder, op: Op, operands: list[Value]) -> Value:
    (value,) = operands
    element = source_element(op)
    if element in WIDE:
        return b.unary_intrinsic("fabs", value)
    return b.binary("and", value, b.integer_like((1 << (bits_of(element_of(value)) - 1)) - 1, value))


_FLOAT_EXTREMES = {
    "arith.maxnumf": ("ogt", False),
    "arith.minnumf": ("olt", False),
    "arith.maximumf": ("ogt", True),
    "arith.minimumf": ("olt", True),
}


def extreme(b: Builder, name: str, left: Value, right: Value) -> Value:
    """The larger or smaller of wide numbers; a NaN loses (`num`) or wins, and -0 is less than +0 when it wins."""
    predicate, propagates = _FLOAT_EXTREMES[name]
    larger = predicate == "ogt"
    if not propagates:
        # x86's maximum gives its second operand if one is NaN, so only that operand needs a look. Without the fence,
        # LLVM would make one selection of the two, and would not see a maximum any more.
        chosen = b.unary_intrinsic("arithmetic.fence", b.select(b.fcmp(predicate, left, right), left, right))
        return b.select(b.fcmp("uno", right, right), left, chosen)
    bits = b.bitcast(left, f"i{bits_of(element_of(left))}"), b.bitcast(right, f"i{bits_of(element_of(left))}")
    chosen = b.select(b.fcmp(predicate, left, right), left, right)
    zeros = b.bitcast(b.binary("and" if larger else "or", *bits), element_of(left))
    chosen = b.select(b.fcmp("oeq", left, right), zeros, chosen)
    return b.select(b.fcmp("uno", left, right), b.binary("fadd", left, right), chosen)


_IN_WIDE: dict[str, Method] = {
    "arith.addf": (Builder.binary, "fadd"),
    "arith.subf": (Builder.binary, "fsub"),
    "arith.mulf": (Builder.binary, "fmul"),
    **dict.fromkeys(("arith.divf", "tt.precise_divf", "tt.approx_divf"), (Builder.binary, "fdiv")),
    "arith.remf": (vecmath.call, "fmod"),
    **{name: (extreme, name) for name in _FLOAT_EXTREMES},
    **{
        f"math.{name}": (vecmath.call, name)
        for name in ("ceil", "floor", "cos", "sin", "exp", "exp2", "log", "log2", "sqrt", "rsqrt", "erf", "tanh")
    },
    "tt.precise_sqrt": (vecmath.call, "sqrt"),
}


@elementwise(*_IN_WIDE)
def _in_wide(b: Builder, op: Op, operands: list[Value]) -> Value:
    method, *first = _IN_WIDE[op.name]
    return floats.narrow(b, method(b, *first, *in_wide(b, op, operands)), result_element(op))


@elementwise("tt.clampf")
def _clampf(b: Builder, op: Op, operands: list[Value]) -> Value:
    value, low, high = in_wide(b, op, operands)
    kind = "imum" if op.attributes.get("propagateNan") in (0xFFFF, 65535) else "num"
    clamped = extreme(b, f"arith.min{kind}f", extreme(b, f"arith.max{kind}f", value, low), high)
    return floats.narrow(b, clamped, result_element(op))


@elementwise("arith.cmpf")
def _cmpf(b: Builder, op: Op, operands: list[Value]) -> Value:
    return b.fcmp(FLOAT_PREDICATES[op.attributes["predicate"]], *in_wide(b, op, operands))


@elementwise("math.fma")
def _fma(b: Builder, op: Op, operands: list[Value]) -> Value:
    element = result_element(op)
    if element in NARROW:  # f32 would round the sum a first time
        wide = [floats.convert(b, value, element, "f64") for value in operands]
        return floats.convert(b, vecmath.call(b, "fma", *wide), "f64", element)
    return vecmath.call(b, "fma", *operands)


@elementwise("tt.extern_elementwise")
def _extern(b: Builder, op: Op, operands: list[Value]) -> Value:
    from torch_mtia.triton import libdevice

    symbol = op.attributes["symbol"]
    function = libdevice.FUNCTIONS.get(symbol)
    if function is None:
        raise Unsupported(f"the library function {symbol!r} is not known", op.location)
    return function(b, *operands)


@elementwise("tt.elementwise_inline_asm")
def _inline_asm(b: Builder, op: Op, operands: list[Value]) -> Value:
    asm = op.attributes.get("asm_string")
    if asm in (TF32_TO_NEAREST, TF32_TOWARD_ZERO):
        return floats.tf32(b, operands[0], asm == TF32_TO_NEAREST)
    raise Unsupported(
        "inline assembly is written for one GPU and cannot run on mtia: "
        f"{op.attributes.get('asm_string', '')!r}. Write the operation in Triton's language",
        op.location,
    )


# Casts ----------------------------------------------------------------------------------------------------------------


_CASTS: dict[str, Callable[[Builder, Value, str], Value]] = {
    "arith.extsi": Builder.sext,
    "arith.extui": Builder.zext,
    "arith.trunci": Builder.trunc,
    **dict.fromkeys(("arith.bitcast", "tt.bitcast"), Builder.bitcast),
}


@elementwise(*_CASTS)
def _cast(b: Builder, op: Op, operands: list[Value]) -> Value:
    return _CASTS[op.name](b, operands[0], llvm_element(result_element(op)))


@elementwise("arith.index_cast", "arith.index_castui")
def _index_cast(b: Builder, op: Op, operands: list[Value]) -> Value:
    (value,) = operands
    target = llvm_element(result_element(op))
    if bits_of(element_of(value)) > bits_of(target):
        return b.trunc(value, target)
    return b.zext(value, target) if op.name.endswith("ui") else b.sext(value, target)


@elementwise("arith.sitofp", "arith.uitofp")
def _int_to_float(b: Builder, op: Op, operands: list[Value]) -> Value:
    (value,) = operands
    target = result_element(op)
    name = op.name.removeprefix("arith.")
    if target in WIDE:
        return b.cast(name, value, WIDE[target])
    if target == "bf16" and bits_of(element_of(value)) <= 8:
        return floats.upper_half(b, b.cast(name, value, "float"))
    # Through f64, so that the one rounding is the last.
    bits = bits_of(element_of(value))
    if bits > 53:
        value = _in_53_bits(b, value, signed=name == "sitofp")
    return floats.narrow(b, b.cast(name, value, "double" if bits > 24 else "float"), target)


def _in_53_bits(b: Builder, value: Value, signed: bool) -> Value:
    """An integer of 64 bits, rounded to odd where f64 has no room for it: rounding once more, to fewer than 52 bits,
    gives what rounding once would."""
    lost = b.integer_like((1 << 11) - 1, value)
    inexact = b.icmp("ne", b.binary("and", value, lost), b.integer_like(0, value))
    rounded = b.binary("and", value, b.integer_like(-(1 << 11), value))
    rounded = b.binary("or", rounded, b.select(inexact, b.integer_like(1 << 11, value), b.integer_like(0, value)))
    shift = b.integer_like(11 if not signed else 10, value)
    extended = b.binary("ashr" if signed else "lshr", b.binary("shl", value, shift), shift)
    return b.select(b.icmp("eq", extended, value), value, rounded)


@elementwise("arith.fptosi", "arith.fptoui")
def _float_to_int(b: Builder, op: Op, operands: list[Value]) -> Value:
    (value,) = in_wide(b, op, operands)
    target = llvm_element(result_element(op))
    if target == "i1":
        return b.fcmp("une", value, zero(value.type))
    name = op.name.removeprefix("arith.")
    # What does not fit has no defined result in Triton; here it is never poison.
    frozen = b.cast(name, value, target)
    return b.define(frozen.type, f"freeze {frozen}")


@elementwise("arith.extf", "arith.truncf")
def _float_cast(b: Builder, op: Op, operands: list[Value]) -> Value:
    return floats.convert(b, operands[0], source_element(op), result_element(op))


@elementwise("tt.fp_to_fp")
def _fp_to_fp(b: Builder, op: Op, operands: list[Value]) -> Value:
    toward_zero = op.attributes.get("rounding") == 0
    return floats.convert(b, operands[0], source_element(op), result_element(op), toward_zero)


@elementwise("tt.ptr_to_int", "tt.int_to_ptr")
def _address_cast(b: Builder, op: Op, operands: list[Value]) -> Value:
    (value,) = operands
    target = llvm_element(result_element(op))
    return b.zext(value, target) if bits_of(element_of(value)) < bits_of(target) else b.trunc(value, target)


@elementwise("tt.addptr")
def _addptr(b: Builder, op: Op, operands: list[Value]) -> Value:
    address, offset = operands
    size = pointee_size(op)
    wide = b.sext(offset, "i64")
    scaled = b.mul(wide, integer(size, wide.type)) if size != 1 else wide
    return b.add(address, scaled)


def constant_value(op: Op, lanes: int, index: int | None = None) -> Value:
    """The constant of an `arith.constant`, of a dense one the element `index`."""
    value = op.attributes["value"]
    if isinstance(value, Dense):
        value = value.values[0 if value.splat else index or 0]
    return literal(value, result_element(op), lanes)


def literal(value: object, element: str, lanes: int) -> Value:
    if is_float_element(element):
        if element in WIDE and isinstance(value, float):
            return floating(value, vector_type(lanes, WIDE[element]))
        if not isinstance(value, (int, float, Bits)):
            raise Unsupported(f"constant {value!r} of type {element}")
        if llvm_element(element) == "i8" and not isinstance(value, Bits):
            return floats.constant(floats.code_of(value, element), element, lanes)
        return floats.constant(float_bits(value, element), element, lanes)
    if not isinstance(value, int):
        raise Unsupported(f"constant {value!r} of type {element}")
    return integer(int(value), vector_type(lanes, llvm_element(element)))


@elementwise("arith.constant")
def _constant(b: Builder, op: Op, operands: list[Value]) -> Value:
    return constant_value(op, 0)


@elementwise("ub.poison")
def _poison(b: Builder, op: Op, operands: list[Value]) -> Value:
    return zero(llvm_element(result_element(op)))
