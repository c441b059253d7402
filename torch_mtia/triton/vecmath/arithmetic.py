"""Rounding, roots, and arithmetic that LLVM does not have in vectors."""

from __future__ import annotations

import math

from torch_mtia.triton.llvm import Builder
from torch_mtia.triton.llvm_value import Value, floating, lanes_of
from torch_mtia.triton.vecmath.number import FUNCTIONS, Number, from_bits, function

# Rounding -------------------------------------------------------------------------------------------------------------


def _rounding(name: str, intrinsic: str) -> None:
    def rounded(x: Number) -> Number:
        if "rounding" in x.b.features:
            return Number(x.b, x.b.unary_intrinsic(intrinsic, x.value))
        return _round_by_adding(x, name)

    FUNCTIONS[name] = rounded


def _round_by_adding(x: Number, name: str) -> Number:
    """Adding and subtracting 2**23 (2**52) rounds to the nearest even; then a step the other way where needed."""
    magic = 2.0**23 if x.single else 2.0**52
    size = abs(x)
    nearest = ((size + magic) - magic).sign_of(x)
    if name == "floor":
        nearest = (nearest - 1.0).where(nearest.compare("ogt", x), nearest)
    elif name == "ceil":
        nearest = (nearest + 1.0).where(nearest.compare("olt", x), nearest)
    elif name == "trunc":
        nearest = (nearest - x.constant(1.0).sign_of(x)).where(abs(nearest).compare("ogt", size), nearest)
    return nearest.sign_of(x).where(size.compare("olt", magic), x)


for _name, _intrinsic in (("floor", "floor"), ("ceil", "ceil"), ("trunc", "trunc"), ("rint", "rint")):
    _rounding(_name, _intrinsic)


@function("round")
def _round(x: Number) -> Number:
    """Halves away from zero."""
    below = FUNCTIONS["trunc"](x)
    half = abs(x - below).compare("oge", 0.5)
    return (below + x.constant(1.0).sign_of(x)).where(half, below).sign_of(x)


@function("fma")
def _fma(x: Number, y: Number, z: Number) -> Number:
    if "fma" in x.b.features:
        return x.fma(y, z)
    if x.single:  # the product is exact in f64; rounding the sum to odd makes the second rounding right
        product = x.cast("double") * y.cast("double")
        wide = z.cast("double")
        total = product + wide
        back = total - product
        error = (product - (total - back)) + (wide - back)
        bits = total.bits()
        even = x.b.icmp("eq", x.b.binary("and", bits, x.b.integer_like(1, bits)), x.b.integer_like(0, bits))
        inexact = x.b.binary("and", error.compare("one", 0.0), even)
        away = x.b.fcmp("ogt", (error * total).value, floating(0.0, total.value.type))
        step = x.b.select(away, x.b.integer_like(1, bits), x.b.integer_like(-1, bits))
        odd = from_bits(x.b, x.b.binary("add", bits, step), "double")
        return odd.where(inexact, total).cast("float")
    return x * y + z


@function("sqrt")
def _sqrt(x: Number) -> Number:
    return x.sqrt()


@function("rsqrt")
def _rsqrt(x: Number) -> Number:
    return 1.0 / x.sqrt()


# Integers -------------------------------------------------------------------------------------------------------------


def high_of_64(b: Builder, left: Value, right: Value) -> Value:
    """By halves: a product of 128 bits would not stay a vector."""
    half = b.integer_like(32, left)
    mask = b.integer_like(0xFFFFFFFF, left)
    low_left, high_left = b.binary("and", left, mask), b.binary("lshr", left, half)
    low_right, high_right = b.binary("and", right, mask), b.binary("lshr", right, half)
    low = b.binary("mul", low_left, low_right)
    cross = b.binary("add", b.binary("mul", high_left, low_right), b.binary("lshr", low, half))
    other = b.binary("add", b.binary("mul", low_left, high_right), b.binary("and", cross, mask))
    high = b.binary("add", b.binary("mul", high_left, high_right), b.binary("lshr", cross, half))
    return b.binary("add", high, b.binary("lshr", other, half))


# Division -------------------------------------------------------------------------------------------------------------

ORDINARY = (2.0**-64, 2.0**64)  # divisors whose reciprocal has all its digits, with room for the correction


def divided_by_scalar(b: Builder, dividend: Value, divisor: Value) -> Value:
    """A vector divided by one number: multiplied by its reciprocal and corrected by the remainder, which gives the same
    result as a division and takes a fraction of the time."""
    lanes = lanes_of(dividend)
    size = b.unary_intrinsic("fabs", divisor)
    ordinary = b.binary(
        "and",
        b.fcmp("ogt", size, floating(ORDINARY[0], "float")),
        b.fcmp("olt", size, floating(ORDINARY[1], "float")),
    )
    if "fma" not in b.features or not lanes:
        return b.fdiv(dividend, b.splat(divisor, lanes))
    quick, slow, done = b.label("multiply"), b.label("divide"), b.label("divided")
    b.branch(ordinary, quick, slow)
    b.start(slow)
    exact = b.fdiv(dividend, b.splat(divisor, lanes))
    b.jump(done)
    b.start(quick)
    x, y = Number(b, dividend), Number(b, b.splat(divisor, lanes))
    inverse = Number(b, b.splat(b.fdiv(floating(1.0, "float"), divisor), lanes))
    quotient = x * inverse
    remainder = (-quotient).fma(y, x)
    corrected = remainder.fma(inverse, quotient).where(abs(remainder).compare("olt", math.inf), quotient)
    b.jump(done)
    b.start(done)
    return b.phi(dividend.type, [(exact, slow), (corrected.value, quick)])
