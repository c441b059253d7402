"""The error function, its relatives and their inverses."""

from __future__ import annotations

import math

from torch_mtia.triton.vecmath.exponential import EXP2_SINGLE, nearest_integer, power_of_two
from torch_mtia.triton.vecmath.number import FUNCTIONS, Number, function, through_double

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


# The series for sixteen f32 are around the multiples of STEP
STEP = 0.125
ENTRIES = 32


def _series(center: float) -> list[float]:
    """The coefficients of erf's series around `center` up to the fifth: derivatives are Hermite's polynomials."""
    slope = 2 / math.sqrt(math.pi) * math.exp(-center * center)
    hermite = [1.0, 2 * center]
    for n in range(1, 4):
        hermite.append(2 * center * hermite[n] - 2 * n * hermite[n - 1])
    return [math.erf(center), *(slope * (-1) ** n * hermite[n] / math.factorial(n + 1) for n in range(5))]


def _with_fifth(series: list[float], fifth: float) -> list[float]:
    """The series with another coefficient of r**5. By Chebyshev's polynomial, for |r| <= h = STEP / 2, r**5 is
    5/4 h**2 r**3 - 5/16 h**4 r, but for at most h**5 / 16."""
    first, second, third, fourth = series[1:5]
    rest, h = series[5] - fifth, STEP / 2
    return [series[0], first - 5 / 16 * h**4 * rest, second, third + 5 / 4 * h**2 * rest, fourth]


FIFTH = _series(0.0)[5]  # one for all, which needs no table
_CENTERED = [_with_fifth(_series(n * STEP), FIFTH) for n in range(ENTRIES - 1)]
_CENTERED.append(_with_fifth([1.0, 0.0, 0.0, 0.0, 0.0, 0.0], FIFTH))  # from here on erf is 1
_CENTERED[0][1] -= 1.0  # erf(x) - x: small numbers come out with more digits
ERF_SERIES = list(zip(*_CENTERED, strict=True))  # coefficient by coefficient


def _erf_of_sixteen(x: Number) -> Number:
    """By the series around the nearest multiple of 1/8; AVX-512 looks up one of 32 numbers for each lane at once."""
    size = abs(x)
    last = (ENTRIES - 0.75) * STEP
    size = size.constant(last).where(size.compare("ogt", last), size)
    magic = 1.5 * 2.0**23 * STEP  # leaves a multiple of 1/8, and its number in the last bits
    shifted = size + magic
    rest = size - (shifted - magic)
    value, *coefficients = (shifted.looked_up(table) for table in ERF_SERIES)
    series = x.constant(FIFTH)
    for coefficient in reversed(coefficients):
        series = series.fma(rest, coefficient)
    value = rest.where(rest.compare("ogt", value), value)  # around 0 alone
    return series.fma(rest, value).sign_of(x)


@function("erf")
def _erf(x: Number) -> Number:
    if "avx512" in x.b.features and x.value.type == "<16 x float>":
        return _erf_of_sixteen(x)
    size = abs(x)
    square = x * x
    if x.single:
        near = x.fma(square.polynomial(ERF_SMALL_SINGLE), x)
        t = size.constant(4.0).where(size.compare("ogt", 4.0), size)
        logarithm = t.polynomial(ERF_LARGE_SINGLE)
        n, power = nearest_integer(logarithm)  # not below -26: one step is enough
        far = 1.0 - (logarithm - n).polynomial((1.0, *EXP2_SINGLE)) * power_of_two(n, power)
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


# Inverses -------------------------------------------------------------------------------------------------------------


def _initial_inverse(log_of_product: Number) -> Number:
    """Winitzki's closed formula for the inverse error function, good to three digits."""
    a = 0.147
    half = log_of_product * 0.5 + 2 / (math.pi * a)
    return ((half * half - log_of_product / a).sqrt() - half).sqrt()


def _halley(x: Number, error: Number) -> Number:
    """A step toward the root, given erf(x) less what it should be."""
    slope = FUNCTIONS["exp"](-(x * x)) * (2 / math.sqrt(math.pi))
    u = error / slope
    return x - u / (x * u + 1.0)


@through_double("erfinv")
def _erfinv(y: Number) -> Number:
    size = abs(y)
    x = _initial_inverse(FUNCTIONS["log1p"](-(size * size)))
    for _ in range(3):
        near = FUNCTIONS["erf"](x) - size
        far = (1.0 - size) - FUNCTIONS["erfc"](x)
        x = _halley(x, near.where(size.compare("olt", 0.5), far))
    x = x.constant(math.inf).where(size.compare("oeq", 1.0), x)
    x = (size * (math.sqrt(math.pi) / 2)).where(size.compare("olt", 1e-8), x)
    return x.sign_of(y)


@through_double("erfcinv")
def _erfcinv(y: Number) -> Number:
    upper = y.compare("ogt", 1.0)
    tail = (2.0 - y).where(upper, y)
    x = _initial_inverse(FUNCTIONS["log"](tail) + FUNCTIONS["log1p"](1.0 - tail))
    for _ in range(3):
        x = _halley(x, tail - FUNCTIONS["erfc"](x))
    x = x.constant(math.inf).where(tail.compare("oeq", 0.0), x)
    middle = 1.0 - y  # exact, where erfc(x) loses the digits of x
    return FUNCTIONS["erfinv"](middle).where(abs(middle).compare("olt", 0.5), (-x).where(upper, x))


SQRT_HALF_REST = 4.833646656726457e-17  # of -sqrt(1/2), rounded


@through_double("normcdf")
def _normcdf(x: Number) -> Number:
    """erfc(t) / 2 for t = -x sqrt(1/2), less what rounding t changes."""
    t = x * -math.sqrt(0.5)
    lost = x.fma(-math.sqrt(0.5), -t) + x * SQRT_HALF_REST
    slope = FUNCTIONS["exp"](-(t * t)) * (1 / math.sqrt(math.pi))
    value = FUNCTIONS["erfc"](t) * 0.5
    return (value - lost * slope).where(abs(t).compare("olt", 30.0), value)


@through_double("normcdfinv")
def _normcdfinv(p: Number) -> Number:
    return FUNCTIONS["erfcinv"](p * 2.0) * -math.sqrt(2)
