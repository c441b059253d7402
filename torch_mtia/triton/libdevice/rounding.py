"""Directed rounding: arithmetic and conversions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from torch_mtia.triton import vecmath
from torch_mtia.triton.libdevice import FUNCTIONS, PREFIX, Function
from torch_mtia.triton.llvm import Builder
from torch_mtia.triton.llvm_value import Value, bits_of, element_of, like, suffix
from torch_mtia.triton.vecmath import Number

# Note [Directed rounding]
# Computed is the nearest number and the sign of `error`, what the exact result is more. Where the sign says so, the
# result is the neighbour: across the least subnormal number into zero and out of it, and back from an infinity, which
# overflow gives. The error of f32 is found in f64. That of f64 is a sum of numbers each exact: operands are multiplied
# by powers of two first, so that nothing underflows or overflows.


def _directed(nearest: Number, error: Number, operands: Sequence[Number], mode: str) -> Number:
    """`nearest` moved to its neighbour as `error` says, or back from an infinity that no operand has. What is not
    finite for another reason stays."""
    if mode == "rn":
        return nearest
    b = nearest.b
    infinite = abs(nearest).compare("oeq", math.inf)
    for operand in operands:
        infinite = b.binary("and", infinite, abs(operand).compare("olt", math.inf))
    finite = abs(nearest).compare("olt", math.inf)
    above, below = (
        b.binary(
            "or",
            b.binary("and", finite, error.compare(predicate, 0.0)),
            b.binary("and", infinite, nearest.compare("olt" if predicate == "ogt" else "ogt", 0.0)),
        )
        for predicate in ("ogt", "olt")
    )
    bits = nearest.bits()
    one = b.integer_like(1, bits)
    negative = b.icmp("slt", bits, b.integer_like(0, bits))
    inward, outward = b.sub(bits, one), b.add(bits, one)
    if mode == "ru":
        moved = b.select(above, b.select(negative, inward, outward), bits)
    elif mode == "rd":
        moved = b.select(below, b.select(negative, outward, inward), bits)
    else:
        moved = b.select(b.select(negative, above, below), inward, bits)
    return vecmath.from_bits(b, moved, element_of(nearest.value))


def _sum_error(x: Number, y: Number, total: Number) -> Number:
    """What x + y is more than their rounded sum: exact, and free of overflow, as the larger one is subtracted first."""
    swapped = abs(x).compare("olt", abs(y))
    larger, smaller = y.where(swapped, x), x.where(swapped, y)
    return smaller - (total - larger)


def _exact_sum(x: Number, y: Number) -> tuple[Number, Number]:
    total = x + y
    return total, _sum_error(x, y, total)


def _exact_product(x: Number, y: Number) -> tuple[Number, Number]:
    """(rounded, rest) of numbers in f64 whose product is neither very large nor very small."""
    product = x * y
    if "fma" in x.b.features:
        return product, x.fma(y, -product)
    (x_high, x_low), (y_high, y_low) = _halves(x), _halves(y)
    rest = x_high * y_high - product
    rest = rest + x_high * y_low
    rest = rest + x_low * y_high
    return product, rest + x_low * y_low


def _halves(x: Number) -> tuple[Number, Number]:
    """The upper 26 digits of an f64, and the others."""
    spread = x * (2.0**27 + 1)
    high = spread - (spread - x)
    return high, x - high


def _to_middle(x: Number, y: Number) -> tuple[Number, Number, Callable[[Number], Number]]:
    """x and y, each multiplied by 2**700, 1 or 2**-700 to lie within 2**-400 and 2**400, and the function that
    multiplies by both factors."""
    factors = []
    for each in (x, y):
        size = abs(each)
        factor = each.constant(2.0**-700).where(size.compare("ogt", 2.0**300), 1.0)
        factors.append(each.constant(2.0**700).where(size.compare("olt", 2.0**-300), factor))
    left, right = factors
    equal = left.compare("oeq", right)  # then the product of the factors may be beyond f64
    first, second = left.where(equal, left * right), right.where(equal, 1.0)
    return x * left, y * right, lambda number: number * first * second


def _product_error(x: Number, y: Number, result: Number) -> Number:
    """A number of the sign of x * y - result, where `result` is that in f64 to the nearest."""
    x, y, scaled = _to_middle(x, y)
    product, rest = _exact_product(x, y)
    return (product - scaled(result)) + rest


def _remainder(x: Number, y: Number, quotient: Number) -> Number:
    """A number of the sign of x - quotient * y, in f64."""
    quotient, y, scaled = _to_middle(quotient, y)
    product, rest = _exact_product(quotient, y)
    return (scaled(x) - product) - rest


def _add(mode: str, sign: float) -> Function:
    def add(b: Builder, left: Value, right: Value) -> Value:
        x, y = Number(b, left), Number(b, right)
        y = -y if sign < 0 else y
        # The zero that is the sum of a number and its negative is negative if rounded down.
        total = -(-x + -y) if mode == "rd" else x + y
        return _directed(total, _sum_error(x, y, total), (x, y), mode).value

    return add


def _multiply(mode: str) -> Function:
    def multiply(b: Builder, left: Value, right: Value) -> Value:
        x, y = Number(b, left), Number(b, right)
        if x.single:
            exact = x.cast("double") * y.cast("double")
            nearest = exact.cast("float")
            return _directed(nearest, exact - nearest.cast("double"), (x, y), mode).value
        product = x * y
        return _directed(product, _product_error(x, y, product), (x, y), mode).value

    return multiply


def _fma(x: Number, y: Number, z: Number) -> Number:
    return vecmath.FUNCTIONS["fma"](x, y, z)


def _fused(mode: str) -> Function:
    def fused(b: Builder, one: Value, two: Value, three: Value) -> Value:
        """To the nearest by `tl.fma`, which rounds f64 twice on processors without the instruction."""
        x, y, z = Number(b, one), Number(b, two), Number(b, three)
        nearest = -_fma(-x, y, -z) if mode == "rd" else _fma(x, y, z)
        if x.single:
            total, rest = _exact_sum(x.cast("double") * y.cast("double"), z.cast("double"))
            error = (total - nearest.cast("double")) + rest
        else:
            error = _fused_error(x, y, z, nearest)
        return _directed(nearest, error, (x, y, z), mode).value

    return fused


_FAR = 220  # exponents: what lies so far below has no other part in a sum than its sign


def _fused_error(x: Number, y: Number, z: Number, result: Number) -> Number:
    """A number of the sign of x * y + z - result, where `result` is that in f64 to the nearest."""
    (x, x_exponent), (y, y_exponent), (addend, z_exponent) = map(_mantissa, (x, y, z))
    exponent = x_exponent + y_exponent
    distance = (z_exponent - exponent).clamp(-_FAR, _FAR + 1).where(z.compare("une", 0.0), 0.0)
    product, rest = _exact_product(x, y)
    total, first = _exact_sum(product, _times_power(addend, distance))
    second, third = _exact_sum(first, rest)
    difference = total - _times_power(result, (-exponent).clamp(-1100.0, 1400.0))
    fourth, fifth = _exact_sum(difference, second)
    error = product.where(distance.compare("ogt", _FAR), fourth + (fifth + third))
    return error.where(product.compare("une", 0.0), 0.0)


def _mantissa(x: Number) -> tuple[Number, Number]:
    """(m, e) with x = m * 2**e and m around 1; (0, 0) of zero."""
    m, e = vecmath.split(abs(x))
    is_zero = x.compare("oeq", 0.0)
    return x.where(is_zero, m.sign_of(x)), e.constant(0.0).where(is_zero, e)


def _times_power(x: Number, exponent: Number) -> Number:
    """x * 2**exponent, for exponents of at most 2000."""
    b = x.b
    power = b.sext(b.cast("fptosi", exponent.value, "i32"), "i64")
    half = b.binary("ashr", power, b.integer_like(1, power))
    return x * vecmath.power_of_two(x, half) * vecmath.power_of_two(x, b.sub(power, half))


def _divide(mode: str) -> Function:
    def divide(b: Builder, left: Value, right: Value) -> Value:
        x, y = Number(b, left), Number(b, right)
        quotient = x / y
        rest = x.cast("double") - quotient.cast("double") * y.cast("double") if x.single else _remainder(x, y, quotient)
        error = rest.where(y.compare("ogt", 0.0), -rest)
        # By zero, the quotient is infinite without overflow.
        divisor = y.constant(math.inf).where(y.compare("oeq", 0.0), y)
        return _directed(quotient, error, (x, divisor), mode).value

    return divide


def _reciprocal(mode: str) -> Function:
    divide = _divide(mode)
    return lambda b, x: divide(b, b.float_like(1.0, x), x)


def _root(mode: str) -> Function:
    def root(b: Builder, value: Value) -> Value:
        x = Number(b, value)
        result = x.sqrt()
        if x.single:
            wide = result.cast("double")
            error = x.cast("double") - wide * wide
        else:
            error = _remainder(x, result, result)
        return _directed(result, error, (x,), mode).value

    return root


def _to_single(mode: str) -> Function:
    def convert(b: Builder, value: Value) -> Value:
        x = Number(b, value)
        nearest = x.cast("float")
        return _directed(nearest, x - nearest.cast("double"), (x,), mode).value

    return convert


_ROUNDING = {"rn": "rint", "rz": "trunc", "rd": "floor", "ru": "ceil"}


def _to_integer(mode: str, target: str, signed: bool) -> Function:
    def convert(b: Builder, value: Value) -> Value:
        """Saturates. Of a NaN it makes 0 if neither type has 64 bits, else the number that has the highest bit alone,
        as PTX's `cvt` does."""
        rounded = vecmath.call(b, _ROUNDING[mode], value)
        name = "fptosi" if signed else "fptoui"
        type = like(value, target)
        result = b.intrinsic(f"llvm.{name}.sat.{suffix(type)}.{suffix(value.type)}", type, rounded)
        if element_of(value) == "float" and target == "i32":
            return result
        highest = b.integer_like(1 << (bits_of(target) - 1), result)
        return b.select(b.fcmp("uno", value, value), highest, result)

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
            return _directed(nearest, exact - nearest.cast("double"), (), mode).value
        high = b.binary("ashr" if signed else "lshr", value, b.integer_like(32, value))
        low = b.binary("and", value, b.integer_like(0xFFFFFFFF, value))
        upper = Number(b, b.cast(name, high, "double")) * 2.0**32
        lower = Number(b, b.cast("uitofp", low, "double"))
        return _directed(nearest, (upper - nearest.cast("double")) + lower, (), mode).value

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
