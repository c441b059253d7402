"""Trigonometric functions and their inverses."""

from __future__ import annotations

import math
from collections.abc import Callable

from torch_mtia.triton.llvm_value import Value, element_of, lanes_of
from torch_mtia.triton.vecmath.exponential import (
    nearest_integer,
)
from torch_mtia.triton.vecmath.number import FUNCTIONS, Number, function, rare, through_double

TWO_OVER_PI = 2 / math.pi
PI_REST = 1.2246467991473532e-16  # of math.pi
# pi/2 in pieces, whose products with a small integer are exact
PIO2 = tuple(
    float.fromhex(text)
    for text in ("0x1.921fb54400000p+0", "0x1.0b4611a600000p-34", "0x1.3198a2e000000p-69", "0x1.b839a25200000p-104")
)
# (sin(x) / x - 1) / x**2 and (cos(x) - 1 + x**2 / 2) / x**4 in x**2, for |x| <= pi / 4
SIN_SINGLE = (-0.16666666663624022, 0.00833333178567173, -0.00019840039113012213, 2.7243811975258105e-06)
COS_SINGLE = (0.04166666666412821, -0.0013888887597706746, 2.4800560630606344e-05, -2.7295856339546005e-07)
SIN_DOUBLE = (
    -0.16666666666666666, 0.008333333333333331, -0.0001984126984126457, 2.755731921895673e-06, -2.5052106100926675e-08,
    1.605851097953535e-10, -7.58549250782124e-13,
)  # fmt: skip
COS_DOUBLE = (
    0.041666666666666664, -0.0013888888888888887, 2.480158730158437e-05, -2.75573192211902e-07, 2.0876755717957296e-09,
    -1.147044941240971e-11, 4.745202155702359e-14,
)  # fmt: skip
LARGE_ANGLE = 2.0**19  # beyond, reducing the angle takes more digits of pi than there are above


def _reduced_angle(x: Number) -> tuple[Number, Number, Value]:
    """(r, tail, quadrant): x = quadrant * pi/2 + r + tail, for x in f64."""
    n, quadrant = nearest_integer(x * TWO_OVER_PI)
    first = n.fma(-PIO2[0], x)
    second = n * PIO2[1]
    r = first - second
    tail = ((first - r) - second) - n * PIO2[2] - n * PIO2[3]
    head = r + tail
    return head, tail - (head - r), quadrant


def _sine_of_quadrant(x: Number, single: bool, shift: int) -> Number:
    """sin(x + shift * pi/2) of an angle that is not large."""
    return _sine_of_reduced(*_reduced_angle(x), single, shift)


def _sine_of_reduced(r: Number, tail: Number, quadrant: Value, single: bool, shift: int) -> Number:
    """sin(r + tail + (quadrant + shift) * pi/2)"""
    b = r.b
    z = r * r
    sine = (z * r).fma(z.polynomial(SIN_SINGLE if single else SIN_DOUBLE), r + tail if single else r)
    if not single:
        sine = sine + tail * (1.0 - z * 0.5)
    cosine = (z * z).fma(z.polynomial(COS_SINGLE if single else COS_DOUBLE), (1.0 - z * 0.5))
    if not single:
        w = 1.0 - z * 0.5
        cosine = w + (((1.0 - w) - z * 0.5) + (z * z * z.polynomial(COS_DOUBLE) - r * tail))
    if shift:
        quadrant = b.add(quadrant, b.integer_like(shift, quadrant))
    odd = b.icmp("ne", b.binary("and", quadrant, b.integer_like(1, quadrant)), b.integer_like(0, quadrant))
    negative = b.icmp("ne", b.binary("and", quadrant, b.integer_like(2, quadrant)), b.integer_like(0, quadrant))
    chosen = cosine.where(odd, sine)
    return (-chosen).where(negative, chosen)


def _with_large_angles(name: str, x: Number, small: Callable[[Number, bool], Number]) -> Number:
    """`small` for angles that are not large; if a lane is, the driver's function for all."""
    b = x.b
    single = x.single
    wide = x.cast("double")
    limit = 2.0**30 if single else LARGE_ANGLE
    large = abs(wide).compare("oge", limit)  # false for a NaN
    lanes = lanes_of(x.value)
    any_large = b.intrinsic(f"llvm.vector.reduce.or.v{lanes}i1", "i1", large) if lanes else large
    quick, slow, done = b.label("quick"), b.label("slow"), b.label("sine")
    b.branch(any_large, slow, quick)
    b.start(slow)
    called = rare(b, name, [wide.value])
    slow_end = b.block
    b.jump(done)
    b.start(quick)
    computed = small(wide, single).value
    b.jump(done)
    b.start(done)
    result = b.phi(wide.value.type, [(called, slow_end), (computed, quick)])
    return Number(b, result).cast(element_of(x.value))


@function("sin")
def _sin(x: Number) -> Number:
    result = _with_large_angles("sin", x, lambda y, single: _sine_of_quadrant(y, single, 0))
    return x.where(x.compare("oeq", 0.0), result)


@function("cos")
def _cos(x: Number) -> Number:
    return _with_large_angles("cos", x, lambda y, single: _sine_of_quadrant(y, single, 1))


@function("tan")
def _tan(x: Number) -> Number:
    if not x.single:
        return Number(x.b, rare(x.b, "tan", [x.value]))
    result = _with_large_angles(
        "tan", x, lambda y, _single: _sine_of_quadrant(y, False, 0) / _sine_of_quadrant(y, False, 1)
    )
    return x.where(x.compare("oeq", 0.0), result)


def _sine_of_turns(x: Number, shift: int) -> Number:
    """sin(pi (x + shift / 2)), in f64; zero exactly where it is."""
    turns = x - FUNCTIONS["rint"](x * 0.5) * 2.0
    n, quadrant = nearest_integer(turns * 2.0)
    rest = n.fma(-0.5, turns)
    r = rest * math.pi
    tail = rest.fma(math.pi, -r) + rest * PI_REST
    return _sine_of_reduced(r, tail, quadrant, False, shift)


@through_double("sinpi")
def _sinpi(x: Number) -> Number:
    whole = FUNCTIONS["rint"](x).compare("oeq", x)
    zero = (x - x).sign_of(x)  # of an infinity, a NaN
    return zero.where(whole, _sine_of_turns(x, 0))


@through_double("cospi")
def _cospi(x: Number) -> Number:
    result = _sine_of_turns(x, 1)
    return x.constant(0.0).where(result.compare("oeq", 0.0), result)


# (atan(x) / x - 1) / x**2 and (asin(x) / x - 1) / x**2 in x**2
ATAN = (
    -0.3333333333333333, 0.1999999999999509, -0.14285714284577217, 0.11111111008107874, -0.09090904289128517,
    0.07692176510795928, -0.06664417824186955, 0.058573396761385246, -0.05081236164642543, 0.03911053674347613,
    -0.019029290809743134,
)  # fmt: skip
ASIN = (
    0.16666666666666666, 0.07500000000000119, 0.04464285714255019, 0.030381944475693704, 0.022372157435623815,
    0.017352816768546473, 0.013963775787848137, 0.011566511821890942, 0.00962140274734483, 0.009322101501082774,
    0.0030350071727267623, 0.019579201619744684, -0.019277545928584557, 0.02963502626354855,
)  # fmt: skip


@through_double("atan")
def _atan(x: Number) -> Number:
    size = abs(x)
    inverse = size.compare("ogt", 1.0)
    t = (1.0 / size).where(inverse, size)
    upper = t.compare("ogt", math.sqrt(2) - 1)
    y = ((t - 1.0) / (t + 1.0)).where(upper, t)
    z = y * y
    result = (y * z).fma(z.polynomial(ATAN), y)
    result = (result + math.pi / 4).where(upper, result)
    result = (math.pi / 2 - result).where(inverse, result)
    return result.sign_of(x)


@through_double("atan2")
def _atan2(y: Number, x: Number) -> Number:
    ay, ax = abs(y), abs(x)
    swap = ay.compare("ogt", ax)
    small, large = ax.where(swap, ay), ay.where(swap, ax)
    both_infinite = small.compare("oeq", math.inf)
    ratio = small / large
    ratio = ratio.constant(1.0).where(both_infinite, ratio)
    ratio = ratio.constant(0.0).where(large.compare("oeq", 0.0), ratio)
    angle = FUNCTIONS["atan"](ratio)
    angle = (math.pi / 2 - angle).where(swap, angle)
    b = x.b
    negative = b.icmp("slt", x.bits(), b.integer_like(0, x.bits()))
    angle = (math.pi - angle).where(negative, angle)
    angle = angle.sign_of(y)
    unordered = b.fcmp("uno", x.value, y.value)
    return (x + y).where(unordered, angle)


def _asin_reduced(size: Number) -> tuple[Value, Number]:
    """(whether size > 1/2, asin(size) or asin(sqrt((1 - size) / 2)))"""
    upper = size.compare("ogt", 0.5)
    z = ((1.0 - size) * 0.5).where(upper, size * size)
    y = z.sqrt().where(upper, size)
    return upper, (y * z).fma(z.polynomial(ASIN), y)


@through_double("asin")
def _asin(x: Number) -> Number:
    upper, r = _asin_reduced(abs(x))
    return (math.pi / 2 - 2.0 * r).where(upper, r).sign_of(x)


@through_double("acos")
def _acos(x: Number) -> Number:
    upper, r = _asin_reduced(abs(x))
    positive = x.compare("ogt", 0.0)
    outer = (2.0 * r).where(positive, math.pi - 2.0 * r)
    inner = math.pi / 2 - r.sign_of(x)
    return outer.where(upper, inner)
