"""Exponential functions, logarithms and powers."""

from __future__ import annotations

import math

from torch_mtia.triton.llvm_value import Value, element_of, integer, zero
from torch_mtia.triton.vecmath.number import FUNCTIONS, Number, from_bits, function, rare, through_double

# Exponential function -------------------------------------------------------------------------------------------------
#
# Note [Vanishing powers]
# A product that is subnormal, or underflows, takes most processors several times longer than another one (Intel's a
# microcode assist of some 150 cycles). What a mask leaves out is mostly -inf, and would underflow in every lane. So
# arguments are raised to the first one whose power of two has the factor 0.0, by which nothing underflows; AVX-512
# masks such lanes. Lanes whose result is a subnormal number do take that time: for exp of f32, from -104.7 to -87.34.

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


def nearest_integer(x: Number, factor: float = 1.0) -> tuple[Number, Value]:
    """x * factor rounded, as a number and as an integer, for products below 2**21. Adding a large number leaves the
    integer in the last bits, without a conversion that a NaN would upset."""
    magic = 1.5 * 2.0**23 if x.single else 1.5 * 2.0**52
    shifted = x + magic if factor == 1.0 else x.fma(factor, magic)
    bits = shifted.bits()
    return shifted - magic, x.b.sub(bits, x.constant(magic).bits())


SPARE_SINGLE, SPARE_DOUBLE = 24, 53  # what the second factor has of an exponent


def scale(x: Number, n: Number, power: Value, vanishes: Value | None = None) -> Number:
    """x * 2**power, `n` being the power as a number: in two steps, so that what overflows or is subnormal comes out
    right, or with the one instruction that AVX-512 has for it. 0 for a power of -151, or -1076 in f64, which is the
    lowest one, and with AVX-512 where the condition `vanishes` holds."""
    b = x.b
    if _scales_at_once(x):
        lanes, rounding = x.value.type, Value("4", "i32")
        others, active = x.value, Value("-1", "i16")
        if vanishes is not None:
            ordinary = b.binary("xor", vanishes, b.integer_like(-1, vanishes))
            others, active = zero(lanes), b.define("i16", f"bitcast {ordinary} to i16")
        name = "llvm.x86.avx512.mask.scalef.ps.512"
        return Number(b, b.intrinsic(name, lanes, x.value, n.value, others, active, rounding))
    bias, shift, spare = (127, 23, SPARE_SINGLE) if x.single else (1023, 52, SPARE_DOUBLE)
    negative = b.icmp("slt", power, b.integer_like(0, power))
    down, up = (b.integer_like((bias + change) << shift, power) for change in (-spare, spare))
    second = b.select(negative, down, up)
    rest = b.sub(b.integer_like(2 * bias << shift, power), second)
    first = b.add(b.binary("shl", power, b.integer_like(shift, power)), rest)
    element = element_of(x.value)
    return x * from_bits(b, first, element) * from_bits(b, second, element)


def _scales_at_once(x: Number) -> bool:
    return "avx512" in x.b.features and x.value.type == "<16 x float>"


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


def _in_range(x: Number, low: float, high: float) -> tuple[Number, Value | None]:
    """(x between `low` and `high`, for scale(); None), or with AVX-512 (x below `high`, whether it is below `low`). A
    NaN stays."""
    if not _scales_at_once(x):
        return x.clamp(low, high), None
    return x.constant(high).where(x.compare("ogt", high), x), x.compare("olt", low)


@function("exp")
def _exp(x: Number) -> Number:
    x, vanishes = _in_range(x, -104.7, 89.5) if x.single else _in_range(x, -746.0, 710.5)
    high, low = LN2_SINGLE if x.single else LN2_DOUBLE
    n, power = nearest_integer(x, LOG2E)
    r = n.fma(-low, n.fma(-high, x))
    return scale(_exp_reduced(r), n, power, vanishes)


@function("exp2")
def _exp2(x: Number) -> Number:
    x, vanishes = _in_range(x, -151.0, 128.5) if x.single else _in_range(x, -1076.0, 1024.5)
    n, power = nearest_integer(x)
    f = x - n
    power_of_rest = f.polynomial((1.0, *EXP2_SINGLE)) if x.single else _exp_reduced(f * math.log(2))
    return scale(power_of_rest, n, power, vanishes)


@through_double("exp10")
def _exp10(x: Number) -> Number:
    x, vanishes = _in_range(x, -324.0, 310.0)
    n, power = nearest_integer(x * (LOG2E * math.log(10)))
    r = n.fma(-LOG10_2[1], n.fma(-LOG10_2[0], x)) * math.log(10)
    return scale(_exp_reduced(r), n, power, vanishes)


@through_double("expm1")
def _expm1(x: Number) -> Number:
    y = x.clamp(-50.0, 710.5)
    n, power = nearest_integer(y * LOG2E)
    r = n.fma(-LN2_DOUBLE[1], n.fma(-LN2_DOUBLE[0], y))
    less_one = (r * r).fma(r.polynomial(EXP_DOUBLE), r)
    b = x.b
    half = b.binary("ashr", power, b.integer_like(1, power))
    first, second = power_of_two(y, half), power_of_two(y, b.sub(power, half))
    result = less_one.fma(first, first - 1.0 / second) * second  # last: both factors at once may be too large
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


# Powers ---------------------------------------------------------------------------------------------------------------


@function("pow")
def _pow(x: Number, y: Number) -> Number:
    if not x.single:
        return Number(x.b, rare(x.b, "pow", [x.value, y.value]))
    return power_of_single(x, y.cast("double"))


def power_of_single(x: Number, y: Number) -> Number:
    """The f32 x**y, for a y in f64, which has room for every integer of 32 bits."""
    b = x.b
    result_element = element_of(x.value)
    x = x.cast("double")
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
    scaled = size * size.constant(2.0**180).where(tiny, 2.0**-3)  # so that three times the largest is finite
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
    y = (y * y.constant(2.0**-60).where(tiny, 2.0)).sign_of(x)
    special = b.binary("or", size.compare("oeq", 0.0), size.compare("ueq", math.inf))
    return x.where(special, y)


@through_double("fmod")
def _fmod(x: Number, y: Number) -> Number:
    return Number(x.b, rare(x.b, "fmod", [x.value, y.value]))
