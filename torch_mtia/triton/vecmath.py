"""Mathematical functions as LLVM IR: inlined where they are used, on scalars and vectors, so that they fuse.

    call(b, "exp", x)     x and the result are float or double

Functions of f32 that kernels lean on have code of their own (error at most about 2 units in the last place); the others
compute in f64 and round. The polynomials were fitted for this file, by interpolation at Chebyshev nodes with 40 digits.
What is long and rare is called through the driver's table (MTIA_RARE_*), lane by lane.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeVar, Union

from torch_mtia.triton.llvm import (
    Builder,
    Value,
    bits_of,
    element_of,
    floating,
    integer,
    lanes_of,
    undefined,
    vector_type,
)

Operand = Union["Number", float]


class Number:
    """A value with Python's operators, to write formulas with. Nothing is contracted: `fma` is explicit."""

    __slots__ = ("b", "value")

    def __init__(self, b: Builder, value: Value) -> None:
        self.b = b
        self.value = value

    def lift(self, other: Operand) -> Value:
        return other.value if isinstance(other, Number) else floating(float(other), self.value.type)

    def constant(self, value: float) -> Number:
        return Number(self.b, floating(value, self.value.type))

    def __add__(self, other: Operand) -> Number:
        return Number(self.b, self.b.binary("fadd", self.value, self.lift(other)))

    def __radd__(self, other: float) -> Number:
        return self + other

    def __sub__(self, other: Operand) -> Number:
        return Number(self.b, self.b.binary("fsub", self.value, self.lift(other)))

    def __rsub__(self, other: float) -> Number:
        return Number(self.b, self.b.binary("fsub", self.lift(other), self.value))

    def __mul__(self, other: Operand) -> Number:
        return Number(self.b, self.b.binary("fmul", self.value, self.lift(other)))

    def __rmul__(self, other: float) -> Number:
        return self * other

    def __truediv__(self, other: Operand) -> Number:
        return Number(self.b, self.b.binary("fdiv", self.value, self.lift(other)))

    def __rtruediv__(self, other: float) -> Number:
        return Number(self.b, self.b.binary("fdiv", self.lift(other), self.value))

    def __neg__(self) -> Number:
        return Number(self.b, self.b.fneg(self.value))

    def __abs__(self) -> Number:
        return Number(self.b, self.b.unary_intrinsic("fabs", self.value))

    def fma(self, factor: Operand, addend: Operand) -> Number:
        return Number(self.b, self.b.fma(self.value, self.lift(factor), self.lift(addend)))

    def sqrt(self) -> Number:
        return Number(self.b, self.b.unary_intrinsic("sqrt", self.value))

    def sign_of(self, other: Number) -> Number:
        """The magnitude of this with the sign of `other`."""
        return Number(self.b, self.b.binary_intrinsic("copysign", self.value, other.value))

    def compare(self, predicate: str, other: Operand) -> Value:
        return self.b.fcmp(predicate, self.value, self.lift(other))

    def where(self, condition: Value, other: Operand) -> Number:
        """This where `condition` holds, else `other`."""
        return Number(self.b, self.b.select(condition, self.value, self.lift(other)))

    def clamp(self, low: float, high: float) -> Number:
        """A NaN stays."""
        raised = self.constant(low).where(self.compare("olt", low), self)
        return raised.constant(high).where(raised.compare("ogt", high), raised)

    def bits(self) -> Value:
        return self.b.bitcast(self.value, f"i{bits_of(element_of(self.value))}")

    def polynomial(self, coefficients: Sequence[float]) -> Number:
        """sum of coefficients[i] * self**i"""
        result = self.constant(coefficients[-1])
        for coefficient in reversed(coefficients[:-1]):
            result = result.fma(self, coefficient)
        return result

    def cast(self, element: str) -> Number:
        if element_of(self.value) == element:
            return self
        return Number(self.b, self.b.cast("fpext" if element == "double" else "fptrunc", self.value, element))

    @property
    def single(self) -> bool:
        return element_of(self.value) == "float"


def from_bits(b: Builder, bits: Value, element: str) -> Number:
    return Number(b, b.bitcast(bits, element))


Function = Callable[..., Number]
FUNCTIONS: dict[str, Function] = {}
F = TypeVar("F", bound="Callable[..., Number]")


def function(name: str) -> Callable[[F], F]:
    """Registers a function of Numbers that works for f32 and f64."""

    def register(implementation: F) -> F:
        FUNCTIONS[name] = implementation
        return implementation

    return register


def through_double(name: str) -> Callable[[F], F]:
    """Registers a function that computes in f64, for both."""

    def register(implementation: F) -> F:
        def widened(*operands: Number) -> Number:
            element = element_of(operands[0].value)
            return implementation(*(operand.cast("double") for operand in operands)).cast(element)

        FUNCTIONS[name] = widened
        return implementation

    return register


def call(b: Builder, name: str, *operands: Value) -> Value:
    return FUNCTIONS[name](*(Number(b, operand) for operand in operands)).value


# Rounding -------------------------------------------------------------------------------------------------------------


def _rounding(name: str, intrinsic: str) -> None:
    def rounded(x: Number) -> Number:
        if "sse4.1" in x.b.features:
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


# Exponential function -------------------------------------------------------------------------------------------------

LOG2E = 1.4426950408889634
LN2_SINGLE = (float.fromhex("0x1.62e0000000000p-1"), float.fromhex("0x1.0bfbe8e7bcd5ep-15"))
LN2_DOUBLE = (float.fromhex("0x1.62e42fee00000p-1"), float.fromhex("0x1.a39ef35793c76p-33"))
LOG10_2 = (float.fromhex("0x1.3441350800000p-2"), float.fromhex("0x1.f79fef311f12bp-34"))
# (exp(r) - 1 - r) / r**2 for |r| <= ln(2) / 2
EXP_SINGLE = (0.5, 0.166665778, 0.0416665561, 0.00836317334, 0.00139261759)
# (2**f - 1) / f for |f| <= 1/2
EXP2_SINGLE = (0.693147206, 0.240226513, 0.055503279, 0.00961800441, 0.00134002392, 0.000154761655)
EXP_DOUBLE = (
    0.5, 0.1666666666666667, 0.04166666666666667, 0.008333333333326141, 0.0013888888888883752, 0.00019841269874800493,
    2.4801587325533363e-05, 2.7557255425746435e-06, 2.7557273661348637e-07, 2.510520637395701e-08,
    2.0914679376583935e-09,
)  # fmt: skip


def _nearest_integer(x: Number, factor: float = 1.0) -> tuple[Number, Value]:
    """x * factor rounded, as a number and as an integer, for products below 2**21. Adding a large number leaves the
    integer in the last bits, without a conversion that a NaN would upset."""
    magic = 1.5 * 2.0**23 if x.single else 1.5 * 2.0**52
    shifted = x + magic if factor == 1.0 else x.fma(factor, magic)
    bits = shifted.bits()
    return shifted - magic, x.b.sub(bits, x.constant(magic).bits())


def _scale(x: Number, n: Number, power: Value) -> Number:
    """x * 2**power, `n` being the power as a number: in two steps, so that what overflows or is subnormal comes out
    right, or with the one instruction that AVX-512 has for it."""
    b = x.b
    if "avx512" in b.features and x.value.type == "<16 x float>":
        lanes, everywhere, rounding = x.value.type, Value("-1", "i16"), Value("4", "i32")
        name = "llvm.x86.avx512.mask.scalef.ps.512"
        return Number(b, b.intrinsic(name, lanes, x.value, n.value, x.value, everywhere, rounding))
    half = b.binary("ashr", power, b.integer_like(1, power))
    for part in (half, b.sub(power, half)):
        x = x * power_of_two(x, part)
    return x


def power_of_two(x: Number, power: Value) -> Number:
    """2**power for a power in the range of normal exponents, in the type of x."""
    b = x.b
    bias, shift = (127, 23) if x.single else (1023, 52)
    biased = b.add(power, b.integer_like(bias, power))
    return from_bits(b, b.binary("shl", biased, b.integer_like(shift, power)), element_of(x.value))


def _exp_reduced(r: Number, tail: Number | None = None) -> Number:
    series = r.polynomial(EXP_SINGLE if r.single else EXP_DOUBLE)
    reduced = (r * r).fma(series, r if tail is None else r + tail)
    return reduced + 1.0


@function("exp")
def _exp(x: Number) -> Number:
    x = x.clamp(-105.0, 89.5) if x.single else x.clamp(-746.0, 710.5)
    high, low = LN2_SINGLE if x.single else LN2_DOUBLE
    n, power = _nearest_integer(x, LOG2E)
    r = n.fma(-low, n.fma(-high, x))
    return _scale(_exp_reduced(r), n, power)


@function("exp2")
def _exp2(x: Number) -> Number:
    if x.single:
        return _exp2_single(x.clamp(-151.0, 128.5))
    x = x.clamp(-1076.0, 1024.5)
    n, power = _nearest_integer(x)
    return _scale(_exp_reduced((x - n) * math.log(2)), n, power)


def _exp2_single(x: Number) -> Number:
    """2**x for |x| below 2**21."""
    n, power = _nearest_integer(x)
    f = x - n
    return _scale(f.polynomial((1.0, *EXP2_SINGLE)), n, power)


@through_double("exp10")
def _exp10(x: Number) -> Number:
    x = x.clamp(-330.0, 310.0)
    n, power = _nearest_integer(x * (LOG2E * math.log(10)))
    r = n.fma(-LOG10_2[1], n.fma(-LOG10_2[0], x)) * math.log(10)
    return _scale(_exp_reduced(r), n, power)


@through_double("expm1")
def _expm1(x: Number) -> Number:
    y = x.clamp(-50.0, 710.5)
    n, power = _nearest_integer(y * LOG2E)
    r = n.fma(-LN2_DOUBLE[1], n.fma(-LN2_DOUBLE[0], y))
    less_one = (r * r).fma(r.polynomial(EXP_DOUBLE), r)
    b = x.b
    half = b.binary("ashr", power, b.integer_like(1, power))
    first, second = power_of_two(y, half), power_of_two(y, b.sub(power, half))
    result = (less_one * first).fma(second, (first - 1.0 / second) * second)
    return x.where(abs(x).compare("olt", 1e-300), result)


# Logarithms -----------------------------------------------------------------------------------------------------------

# (log(1 + f) - f + f**2 / 2) / f**3 for 1 + f in [sqrt(1/2), sqrt(2)]
LOG_SINGLE = (
    0.333333313, -0.24999997, 0.200007156, -0.166678026, 0.142490581, -0.124256872, 0.116854198, -0.114797339,
    0.0697161183,
)  # fmt: skip
# (log(1 + f) - 2 s) / s**3 in s**2, where s = f / (2 + f)
LOG_DOUBLE = (
    0.666666666666667, 0.39999999999886543, 0.28571428631794477, 0.22222210194440617, 0.1818295695260341,
    0.15329489526681614, 0.14643764652931354,
)  # fmt: skip


def split(x: Number) -> tuple[Number, Number]:
    """(m, e) with x = m * 2**e and m in [sqrt(1/2), sqrt(2)), for positive x."""
    b = x.b
    element = element_of(x.value)
    tiny, lift = (2.0**-126, 23) if x.single else (2.0**-1022, 52)
    subnormal = x.compare("olt", tiny)
    x = (x * 2.0**lift).where(subnormal, x)
    bits = x.bits()
    shift, root = (23, 0x3F3504F3) if x.single else (52, 0x3FE6A09E667F3BCD)
    offset = b.sub(bits, b.integer_like(root, bits))
    exponent = b.binary("ashr", offset, b.integer_like(shift, bits))
    mantissa = b.sub(bits, b.binary("shl", exponent, b.integer_like(shift, bits)))
    # Through 32 bits: there is no vector conversion of 64-bit integers before AVX-512.
    narrow = b.cast("trunc", exponent, "i32") if not x.single else exponent
    e = Number(b, b.cast("sitofp", narrow, element))
    return from_bits(b, mantissa, element), (e - float(lift)).where(subnormal, e)


def _log_specials(x: Number, result: Number) -> Number:
    infinite = x.compare("oeq", math.inf)
    result = x.where(infinite, result)
    result = result.constant(-math.inf).where(x.compare("oeq", 0.0), result)
    return result.constant(math.nan).where(x.compare("ult", 0.0), result)


def _log_parts(x: Number) -> tuple[Number, Number, Number]:
    """(e, f, rest): log(x) = e ln2 + f + rest."""
    m, e = split(x)
    f = m - 1.0
    if x.single:
        square = f * f
        return e, f, (square * f).fma(f.polynomial(LOG_SINGLE), square * -0.5)
    s = f / (f + 2.0)
    z = s * s
    half = f * f * 0.5
    return e, f, s.fma(half + z * z.polynomial(LOG_DOUBLE), -half)


@function("log")
def _log(x: Number) -> Number:
    e, f, rest = _log_parts(x)
    high, low = LN2_SINGLE if x.single else LN2_DOUBLE
    return _log_specials(x, e.fma(high, f + e.fma(low, rest)))


@function("log2")
def _log2(x: Number) -> Number:
    if x.single:
        e, f, rest = _log_parts(x)
        # log2(e) = 1 + 0.44...: the large part of the product is exact.
        result = rest.fma(LOG2E - 1, f * (LOG2E - 1)) + rest + f + e
        return _log_specials(x, result)
    e, f, rest = _log_parts(x)
    high = from_bits(x.b, x.b.binary("and", (f + rest).bits(), integer(-(1 << 32), f.bits().type)), "double")
    low = (f - high) + rest
    constant_high = float.fromhex("0x1.7154765200000p+0")
    constant_low = LOG2E - constant_high + 2.0355273740931033e-17
    product = high * constant_high
    tail = low.fma(LOG2E, high * constant_low)
    total = e + product
    return _log_specials(x, total + ((e - total) + product + tail))


@through_double("log10")
def _log10(x: Number) -> Number:
    return FUNCTIONS["log2"](x) * 0.30102999566398120


@through_double("log1p")
def _log1p(x: Number) -> Number:
    u = x + 1.0
    correction = (x - (u - 1.0)) / u
    result = FUNCTIONS["log"](u) + correction
    result = x.where(x.compare("oeq", math.inf), result)
    result = result.constant(-math.inf).where(x.compare("oeq", -1.0), result)
    return x.where(abs(x).compare("olt", 1e-20), result)


# Trigonometric functions ----------------------------------------------------------------------------------------------

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

RARE = {
    "lgamma": 0, "tgamma": 1, "j0": 2, "j1": 3, "y0": 4, "y1": 5, "cyl_bessel_i0": 6, "cyl_bessel_i1": 7, "sin": 8,
    "cos": 9, "tan": 10, "jn": 11, "yn": 12, "pow": 13, "fmod": 14, "remainder": 15,
}  # fmt: skip
CONTEXT_RARE_FUNCTIONS = 64  # in mtia_kernel_context


def rare(b: Builder, name: str, operands: Sequence[Value]) -> Value:
    """A function of the driver's table, of doubles (and an i32), lane by lane."""
    # The table reaches kernels through their context parameter.
    table = b.load("ptr", b.offset(Value("%context", "ptr"), CONTEXT_RARE_FUNCTIONS), 8)
    target = b.load("ptr", b.offset(table, 8 * RARE[name]), 8)

    def one(values: Sequence[Value]) -> Value:
        return b.define("double", f"call double {target.ref}({', '.join(map(str, values))})")

    lanes = lanes_of(operands[-1])
    if not lanes:
        return one(operands)
    result = undefined(vector_type(lanes, "double"))
    for lane in range(lanes):
        result = b.insert(result, one([b.extract(operand, lane) for operand in operands]), lane)
    return result


def _reduced_angle(x: Number) -> tuple[Number, Number, Value]:
    """(r, tail, quadrant): x = quadrant * pi/2 + r + tail, for x in f64."""
    n, quadrant = _nearest_integer(x * TWO_OVER_PI)
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
    n, quadrant = _nearest_integer(turns * 2.0)
    rest = n.fma(-0.5, turns)
    r = rest * math.pi
    tail = rest.fma(math.pi, -r) + rest * PI_REST
    return _sine_of_reduced(r, tail, quadrant, False, shift)


@through_double("sinpi")
def _sinpi(x: Number) -> Number:
    whole = FUNCTIONS["rint"](x).compare("oeq", x)
    return (x.constant(0.0).sign_of(x)).where(whole, _sine_of_turns(x, 0))


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


# Hyperbolic functions -------------------------------------------------------------------------------------------------

# (tanh(x) / x - 1) / x**2 in x**2
TANH_SINGLE = (-0.333333343, 0.133332998, -0.0539584607, 0.0217625033, -0.00832318701, 0.0022695018)


@function("tanh")
def _tanh(x: Number) -> Number:
    size = abs(x)
    if x.single:
        z = x * x
        near = (x * z).fma(z.polynomial(TANH_SINGLE), x)
        far = (1.0 - 2.0 / (FUNCTIONS["exp"](size + size) + 1.0)).sign_of(x)
        return near.where(size.compare("olt", 0.625), far)
    t = FUNCTIONS["expm1"](size.clamp(0.0, 22.0) * 2.0)
    return (t / (t + 2.0)).sign_of(x)


@through_double("sinh")
def _sinh(x: Number) -> Number:
    size = abs(x)
    t = FUNCTIONS["expm1"](size)
    near = (t + t / (t + 1.0)) * 0.5
    half = FUNCTIONS["exp"](size * 0.5)
    far = half * 0.5 * half
    return near.where(size.compare("olt", 22.0), far).sign_of(x)


@through_double("cosh")
def _cosh(x: Number) -> Number:
    size = abs(x)
    half = FUNCTIONS["exp"](size * 0.5)
    e = half * half
    near = (e + 1.0 / e) * 0.5
    return near.where(size.compare("olt", 22.0), half * 0.5 * half)


@through_double("asinh")
def _asinh(x: Number) -> Number:
    size = abs(x)
    huge = size.compare("ogt", 1e150)
    safe = size.constant(1.0).where(huge, size)
    square = safe * safe
    near = FUNCTIONS["log1p"](safe + square / ((square + 1.0).sqrt() + 1.0))
    far = FUNCTIONS["log"](size) + math.log(2)
    return far.where(huge, near).sign_of(x)


@through_double("acosh")
def _acosh(x: Number) -> Number:
    huge = x.compare("ogt", 1e150)
    safe = x.constant(1.0).where(huge, x)
    t = safe - 1.0
    near = FUNCTIONS["log1p"](t + (t * t + 2.0 * t).sqrt())
    return (FUNCTIONS["log"](x) + math.log(2)).where(huge, near)


@through_double("atanh")
def _atanh(x: Number) -> Number:
    size = abs(x)
    return (FUNCTIONS["log1p"](2.0 * size / (1.0 - size)) * 0.5).sign_of(x)


# Error function -------------------------------------------------------------------------------------------------------

# erf(x) / x - 1 in x**2, for |x| < 0.7 and |x| < 1
ERF_SMALL_SINGLE = (0.128379124, -0.376122053, 0.112768033, -0.0264671455, 0.00427336081)
ERF_SMALL_DOUBLE = (
    0.1283791670955126, -0.37612638903183754, 0.1128379167095512, -0.02686617064512984, 0.0052239776254232985,
    -0.000854832702193483, 0.00012055332902888736, -1.4925647567519332e-05, 1.6462045441468418e-06,
    -1.6364642158167616e-07, 1.4792401209404813e-08, -1.216456005728345e-09, 8.709045129053106e-11,
    -4.230945824295338e-12,
)  # fmt: skip
# log2(erfc(t)), for t from 0.7 to 4
ERF_LARGE_SINGLE = (
    -4.20412995e-06, -1.62810939, -0.917092853, -0.151946401, 0.0330825446, -0.00465752515, 0.00031112687,
)  # fmt: skip
# exp(t**2) erfc(t) (1 + 2 t) in (t - 4) / (t + 4), for t >= 0
ERFCX = (
    1.2329951186255526, -0.13962111684055495, 0.01537965210262121, 0.06809705425403, -0.10103906603642253,
    0.0937328350154207, -0.06633036580944347, 0.037167515335442054, -0.016197734086377473, 0.005031971302583975,
    -0.0007577731351374339, -0.0001992619968610131, 0.00015062120932705643, -2.438555501888794e-05,
    -1.1221197962357984e-05, 5.686553803489311e-06, 2.929322249869977e-07, -7.996028872380009e-07,
    7.519373565603298e-08,
    9.186615166296127e-08, -1.8164024773219903e-08, -6.7843536109536985e-09, 1.9136631086164653e-09,
)  # fmt: skip


@function("erf")
def _erf(x: Number) -> Number:
    size = abs(x)
    square = x * x
    if x.single:
        near = x.fma(square.polynomial(ERF_SMALL_SINGLE), x)
        t = size.constant(4.0).where(size.compare("ogt", 4.0), size)
        far = 1.0 - _exp2_single(t.polynomial(ERF_LARGE_SINGLE))
        return near.where(size.compare("olt", 0.7), far.sign_of(x))
    near = x.fma(square.polynomial(ERF_SMALL_DOUBLE), x)
    far = (1.0 - _erfc_positive(size)).sign_of(x)
    return near.where(size.compare("olt", 1.0), far)


def _erfcx_positive(t: Number) -> Number:
    q = (t - 4.0) / (t + 4.0)
    q = q.constant(1.0).where(t.compare("oeq", math.inf), q)
    return q.polynomial(ERFCX) / t.fma(2.0, 1.0)


def _exp_of_minus_square(t: Number) -> Number:
    """exp(-t**2) without losing the digits of the square."""
    square = t * t
    error = t.fma(t, -square)
    e = FUNCTIONS["exp"](-square)
    return e.fma(-error, e)


def _erfc_positive(t: Number) -> Number:
    limited = t.constant(28.0).where(t.compare("ogt", 28.0), t)
    return _exp_of_minus_square(limited) * _erfcx_positive(limited)


@through_double("erfc")
def _erfc(x: Number) -> Number:
    size = abs(x)
    tail = _erfc_positive(size)
    b = x.b
    negative = b.icmp("slt", x.bits(), b.integer_like(0, x.bits()))
    far = (2.0 - tail).where(negative, tail)
    near = 1.0 - x.fma((x * x).polynomial(ERF_SMALL_DOUBLE), x)
    return near.where(size.compare("olt", 0.5), far)


@through_double("erfcx")
def _erfcx(x: Number) -> Number:
    size = abs(x)
    positive = _erfcx_positive(size)
    square = x * x
    e = FUNCTIONS["exp"](square)
    e = e.fma(x.fma(x, -square), e).where(square.compare("olt", 709.0), e)
    return (2.0 * e - positive).where(x.compare("olt", 0.0), positive)


# Powers ---------------------------------------------------------------------------------------------------------------


@function("pow")
def _pow(x: Number, y: Number) -> Number:
    b = x.b
    if not x.single:
        return Number(b, rare(b, "pow", [x.value, y.value]))
    result_element = element_of(x.value)
    x, y = x.cast("double"), y.cast("double")
    size = abs(x)
    result = FUNCTIONS["exp2"](y * FUNCTIONS["log2"](size))
    whole = FUNCTIONS["rint"](y).compare("oeq", y)
    halved = y * 0.5
    odd = b.binary("and", whole, FUNCTIONS["rint"](halved).compare("one", halved))
    negative = b.icmp("slt", x.bits(), b.integer_like(0, x.bits()))
    result = (-result).where(b.binary("and", negative, odd), result)
    finite_negative = b.binary("and", x.compare("olt", 0.0), size.compare("one", math.inf))
    not_whole = b.binary("xor", whole, b.integer_like(-1, whole))
    bad = b.binary("and", finite_negative, not_whole)
    result = result.constant(math.nan).where(bad, result)
    infinite_y = abs(y).compare("oeq", math.inf)
    result = result.constant(1.0).where(b.binary("and", x.compare("oeq", -1.0), infinite_y), result)
    result = result.constant(1.0).where(x.compare("oeq", 1.0), result)
    return result.constant(1.0).where(y.compare("oeq", 0.0), result).cast(result_element)


@through_double("cbrt")
def _cbrt(x: Number) -> Number:
    b = x.b
    size = abs(x)
    tiny = size.compare("olt", 2.0**-1000)
    scaled = (size * 2.0**180).where(tiny, size)
    bits = scaled.bits()
    # Dividing the exponent by three, in the high word, gives a first guess of five bits.
    high = b.binary("lshr", bits, b.integer_like(32, bits))
    third = b.binary("lshr", b.binary("mul", high, b.integer_like(0x55555556, bits)), b.integer_like(32, bits))
    guess = b.binary("shl", b.add(third, b.integer_like(715094163, bits)), b.integer_like(32, bits))
    y = from_bits(b, guess, "double")
    for _ in range(3):  # Halley's iteration triples the digits
        cube = y * y * y
        y = y * ((cube + 2.0 * scaled) / (2.0 * cube + scaled))
    y = y - (y * y * y - scaled) / (3.0 * y * y)
    y = (y * 2.0**-60).where(tiny, y).sign_of(x)
    special = b.binary("or", size.compare("oeq", 0.0), size.compare("ueq", math.inf))
    return x.where(special, y)


@through_double("fmod")
def _fmod(x: Number, y: Number) -> Number:
    return Number(x.b, rare(x.b, "fmod", [x.value, y.value]))


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
