"""Directed rounding: arithmetic and conversions."""

from __future__ import annotations

import math

from torch_mtia.triton import vecmath
from torch_mtia.triton.libdevice.table import FUNCTIONS, PREFIX, Function
from torch_mtia.triton.llvm import Builder
from torch_mtia.triton.llvm_value import Value, bits_of, element_of, like, suffix
from torch_mtia.triton.vecmath import Number


def _directed(nearest: Number, error: Number, mode: str) -> Number:
    """`nearest` moved to its neighbour if `error`, what the exact result is more, says so."""
    if mode == "rn":
        return nearest
    b = nearest.b
    bits = nearest.bits()
    one = b.integer_like(1, bits)
    above, below = error.compare("ogt", 0.0), error.compare("olt", 0.0)
    negative = b.icmp("slt", bits, b.integer_like(0, bits))
    up = b.select(negative, b.sub(bits, one), b.add(bits, one))
    down = b.select(negative, b.add(bits, one), b.sub(bits, one))
    if mode == "ru":
        moved = b.select(above, up, bits)
    elif mode == "rd":
        moved = b.select(below, down, bits)
    else:
        inward = b.select(negative, above, below)
        moved = b.select(inward, b.sub(bits, one), bits)
    finite = abs(nearest).compare("olt", math.inf)
    usable = b.binary("and", finite, nearest.compare("une", 0.0))
    return vecmath.from_bits(b, b.select(usable, moved, bits), element_of(nearest.value))


def _sum_error(x: Number, y: Number, total: Number) -> Number:
    back = total - x
    return (x - (total - back)) + (y - back)


def _add(mode: str, sign: float) -> Function:
    def add(b: Builder, left: Value, right: Value) -> Value:
        x, y = Number(b, left), Number(b, right)
        y = -y if sign < 0 else y
        total = x + y
        return _directed(total, _sum_error(x, y, total), mode).value

    return add


def _multiply(mode: str) -> Function:
    def multiply(b: Builder, left: Value, right: Value) -> Value:
        x, y = Number(b, left), Number(b, right)
        product = x * y
        return _directed(product, _fma(x, y, -product), mode).value

    return multiply


def _fma(x: Number, y: Number, z: Number) -> Number:
    return vecmath.FUNCTIONS["fma"](x, y, z)


def _fused(mode: str) -> Function:
    def fused(b: Builder, one: Value, two: Value, three: Value) -> Value:
        x, y, z = Number(b, one), Number(b, two), Number(b, three)
        nearest = _fma(x, y, z)
        product = x * y
        rest = _fma(x, y, -product)
        total = product + z
        error = (total - nearest) + (_sum_error(product, z, total) + rest)
        return _directed(nearest, error, mode).value

    return fused


def _divide(mode: str) -> Function:
    def divide(b: Builder, left: Value, right: Value) -> Value:
        x, y = Number(b, left), Number(b, right)
        quotient = x / y
        rest = _fma(-quotient, y, x)
        return _directed(quotient, rest.where(y.compare("ogt", 0.0), -rest), mode).value

    return divide


def _reciprocal(mode: str) -> Function:
    divide = _divide(mode)
    return lambda b, x: divide(b, b.float_like(1.0, x), x)


def _root(mode: str) -> Function:
    def root(b: Builder, value: Value) -> Value:
        x = Number(b, value)
        result = x.sqrt()
        return _directed(result, _fma(-result, result, x), mode).value

    return root


def _to_single(mode: str) -> Function:
    def convert(b: Builder, value: Value) -> Value:
        x = Number(b, value)
        nearest = x.cast("float")
        error = x - nearest.cast("double")
        return _directed(nearest, _error_sign(error), mode).value

    return convert


def _error_sign(error: Number) -> Number:
    """A float of the error's sign: the error itself may be too small for one."""
    single = error.cast("float")
    tiny = single.constant(1e-30).sign_of(single)
    return single.constant(0.0).where(error.compare("oeq", 0.0), tiny)


_ROUNDING = {"rn": "rint", "rz": "trunc", "rd": "floor", "ru": "ceil"}


def _to_integer(mode: str, target: str, signed: bool) -> Function:
    def convert(b: Builder, value: Value) -> Value:
        """Saturates, and makes 0 of a NaN, as CUDA's conversions do."""
        rounded = vecmath.call(b, _ROUNDING[mode], value)
        name = "fptosi" if signed else "fptoui"
        type = like(value, target)
        return b.intrinsic(f"llvm.{name}.sat.{suffix(type)}.{suffix(value.type)}", type, rounded)

    return convert


def _from_integer(mode: str, target: str, signed: bool) -> Function:
    def convert(b: Builder, value: Value) -> Value:
        name = "sitofp" if signed else "uitofp"
        nearest = Number(b, b.cast(name, value, target))
        if mode == "rn":
            return nearest.value
        bits = bits_of(element_of(value))
        if bits == 32:
            exact = Number(b, b.cast(name, value, "double"))
            return _directed(nearest, _error_sign(exact - nearest.cast("double")), mode).value
        high = b.binary("ashr" if signed else "lshr", value, b.integer_like(32, value))
        low = b.binary("and", value, b.integer_like(0xFFFFFFFF, value))
        upper = Number(b, b.cast(name, high, "double")) * 2.0**32
        lower = Number(b, b.cast("uitofp", low, "double"))
        error = (upper - nearest.cast("double")) + lower
        return _directed(nearest, error.cast(target) if target == "double" else _error_sign(error), mode).value

    return convert


for _mode in ("rn", "rz", "rd", "ru"):
    for _letter in "fd":
        FUNCTIONS[f"{PREFIX}{_letter}add_{_mode}"] = _add(_mode, 1.0)
        FUNCTIONS[f"{PREFIX}{_letter}sub_{_mode}"] = _add(_mode, -1.0)
        FUNCTIONS[f"{PREFIX}{_letter}mul_{_mode}"] = _multiply(_mode)
        FUNCTIONS[f"{PREFIX}{_letter}div_{_mode}"] = _divide(_mode)
        FUNCTIONS[f"{PREFIX}{_letter}rcp_{_mode}"] = _reciprocal(_mode)
        FUNCTIONS[f"{PREFIX}{_letter}sqrt_{_mode}"] = _root(_mode)
    FUNCTIONS[f"{PREFIX}fma_{_mode}"] = FUNCTIONS[f"{PREFIX}fmaf_{_mode}"] = _fused(_mode)
    FUNCTIONS[f"{PREFIX}double2float_{_mode}"] = _to_single(_mode)
    for _source in ("float", "double"):
        for _short, _target, _signed in (("int", "i32", 1), ("uint", "i32", 0), ("ll", "i64", 1), ("ull", "i64", 0)):
            FUNCTIONS[f"{PREFIX}{_source}2{_short}_{_mode}"] = _to_integer(_mode, _target, bool(_signed))
            FUNCTIONS[f"{PREFIX}{_short}2{_source}_{_mode}"] = _from_integer(_mode, _source, bool(_signed))
FUNCTIONS[f"{PREFIX}fast_fdividef"] = _divide("rn")
FUNCTIONS[f"{PREFIX}frsqrt_rn"] = lambda b, x: vecmath.call(b, "rsqrt", x)
for _name in ("rint", "round"):
    for _suffix in ("", "f"):
        FUNCTIONS[f"{PREFIX}ll{_name}{_suffix}"] = lambda b, x, name=_name: _to_integer("rz", "i64", True)(
            b, vecmath.call(b, name, x)
        )
