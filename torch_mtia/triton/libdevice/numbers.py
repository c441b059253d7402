"""Functions of floating-point numbers."""

from __future__ import annotations

import math

from torch_mtia.triton import vecmath
from torch_mtia.triton.libdevice import FUNCTIONS, PREFIX, register
from torch_mtia.triton.llvm import Builder
from torch_mtia.triton.llvm_value import Value, bits_of, element_of, zero
from torch_mtia.triton.vecmath import Number, through_double


def _math(name: str, *symbols: str) -> None:
    for symbol in symbols or (name, name + "f"):
        FUNCTIONS[PREFIX + symbol] = lambda b, *values: vecmath.call(b, name, *values)


@through_double("hypot")
def _hypot(x: Number, y: Number) -> Number:
    return _norm(x, y)


@through_double("rhypot")
def _rhypot(x: Number, y: Number) -> Number:
    return 1.0 / _norm(x, y)


def _norm(*parts: Number) -> Number:
    """sqrt of the sum of squares without overflow; infinite if a part is, even beside a NaN."""
    sizes = [abs(part) for part in parts]
    largest = sizes[0]
    for size in sizes[1:]:
        largest = size.where(size.compare("ogt", largest), largest)
    b = largest.b
    degenerate = b.binary("or", largest.compare("oeq", 0.0), largest.compare("oeq", math.inf))
    scale = largest.constant(1.0).where(degenerate, largest)
    total = (sizes[0] / scale) * (sizes[0] / scale)
    for size in sizes[1:]:
        ratio = size / scale
        total = ratio.fma(ratio, total)
    result = total.sqrt() * scale
    for size in sizes:
        result = size.where(size.compare("oeq", math.inf), result)
    return result


@through_double("norm3d")
def _norm3d(x: Number, y: Number, z: Number) -> Number:
    return _norm(x, y, z)


@through_double("rnorm3d")
def _rnorm3d(x: Number, y: Number, z: Number) -> Number:
    return 1.0 / _norm(x, y, z)


@through_double("norm4d")
def _norm4d(x: Number, y: Number, z: Number, t: Number) -> Number:
    return _norm(x, y, z, t)


@through_double("rnorm4d")
def _rnorm4d(x: Number, y: Number, z: Number, t: Number) -> Number:
    return 1.0 / _norm(x, y, z, t)


@through_double("rcbrt")
def _rcbrt(x: Number) -> Number:
    return 1.0 / vecmath.FUNCTIONS["cbrt"](x)


@vecmath.function("fdim")
def _fdim(x: Number, y: Number) -> Number:
    return (x - y).where(x.compare("ugt", y), 0.0)


@vecmath.function("saturate")
def _saturate(x: Number) -> Number:
    """Into [0, 1]; a NaN becomes 0."""
    positive = x.where(x.compare("ogt", 0.0), 0.0)
    return positive.where(positive.compare("olt", 1.0), 1.0)


@vecmath.function("logb")
def _logb(x: Number) -> Number:
    m, e = vecmath.split(abs(x))
    # _split centres the mantissa around 1; the exponent of the leading bit is one less below 1.
    e = (e - 1.0).where(m.compare("olt", 1.0), e)
    e = e.constant(-math.inf).where(x.compare("oeq", 0.0), e)
    return (x * x).where(abs(x).compare("ueq", math.inf), e)


@vecmath.function("nextafter")
def _nextafter(x: Number, y: Number) -> Number:
    b = x.b
    bits = x.bits()
    one = b.integer_like(1, bits)
    away = b.fcmp("ogt", abs(y).value, abs(x).value)
    same_sign = b.icmp("sge", b.binary("xor", bits, y.bits()), b.integer_like(0, bits))
    outward = b.binary("and", away, same_sign)
    stepped = vecmath.from_bits(b, b.select(outward, b.add(bits, one), b.sub(bits, one)), element_of(x.value))
    least = vecmath.from_bits(b, one, element_of(x.value)).sign_of(y)
    result = least.where(x.compare("oeq", 0.0), stepped)
    result = y.where(x.compare("oeq", y), result)
    return (x + y).where(b.fcmp("uno", x.value, y.value), result)


for _name in (
    "rsqrt", "ceil", "floor", "trunc", "rint", "round", "exp", "exp2", "exp10", "expm1", "log", "log2", "log10",
    "log1p", "sqrt", "sin", "cos", "tan", "sinpi", "cospi", "asin", "acos", "atan", "atan2", "sinh", "cosh", "tanh",
    "asinh", "acosh", "atanh", "erf", "erfc", "erfcx", "erfinv", "erfcinv", "normcdf", "normcdfinv", "cbrt", "rcbrt",
    "hypot", "rhypot", "norm3d", "rnorm3d", "norm4d", "rnorm4d", "pow", "fma", "fdim", "fmod", "logb", "nextafter",
):  # fmt: skip
    _math(_name)
_math("rint", "nearbyint", "nearbyintf")
_math("saturate", "saturatef")
for _fast, _exact in {
    "sinf": "sin",
    "cosf": "cos",
    "tanf": "tan",
    "expf": "exp",
    "logf": "log",
    "log2f": "log2",
}.items():
    _math(_exact, "fast_" + _fast)
for _fast, _exact in {"exp10f": "exp10", "log10f": "log10", "powf": "pow"}.items():
    _math(_exact, "fast_" + _fast)


def _rare(name: str) -> None:
    def call(b: Builder, *values: Value) -> Value:
        element = element_of(values[-1])
        wide = [b.cast("fpext", value, "double") if element_of(value) == "float" else value for value in values]
        result = vecmath.rare(b, name, wide)
        return b.cast("fptrunc", result, "float") if element == "float" else result

    for symbol in (name, name + "f"):
        FUNCTIONS[PREFIX + symbol] = call


for _name in ["lgamma", "tgamma", "j0", "j1", "y0", "y1", "cyl_bessel_i0", "cyl_bessel_i1", "jn", "yn", "remainder"]:
    _rare(_name)


def _of_an_order(name: str) -> None:
    """A Bessel function of an integer order: NaN for negative ones, as in CUDA, where C continues it."""
    of_any_order = FUNCTIONS[PREFIX + name]

    def call(b: Builder, order: Value, x: Value) -> Value:
        negative = b.icmp("slt", order, b.integer_like(0, order))
        return b.select(negative, b.float_like(math.nan, x), of_any_order(b, order, x))

    for symbol in (name, name + "f"):
        FUNCTIONS[PREFIX + symbol] = call


for _name in ["jn", "yn"]:
    _of_an_order(_name)


# Sign and kind --------------------------------------------------------------------------------------------------------


@register("fabs", "fabsf")
def _fabs(b: Builder, x: Value) -> Value:
    return b.unary_intrinsic("fabs", x)


@register("copysign", "copysignf")
def _copysign(b: Builder, x: Value, y: Value) -> Value:
    return b.binary_intrinsic("copysign", x, y)


def _flag(b: Builder, condition: Value) -> Value:
    return b.cast("zext", condition, "i32")


@register("isnanf", "isnand")
def _isnan(b: Builder, x: Value) -> Value:
    return _flag(b, b.fcmp("uno", x, x))


@register("isinff", "isinfd")
def _isinf(b: Builder, x: Value) -> Value:
    return _flag(b, b.fcmp("oeq", b.unary_intrinsic("fabs", x), b.float_like(math.inf, x)))


@register("finitef", "isfinited")
def _isfinite(b: Builder, x: Value) -> Value:
    return _flag(b, b.fcmp("olt", b.unary_intrinsic("fabs", x), b.float_like(math.inf, x)))


@register("signbitf", "signbitd")
def _signbit(b: Builder, x: Value) -> Value:
    bits = b.bitcast(x, f"i{bits_of(element_of(x))}")
    return _flag(b, b.icmp("slt", bits, b.integer_like(0, bits)))


# Exponents ------------------------------------------------------------------------------------------------------------


@register("ilogb", "ilogbf")
def _ilogb(b: Builder, x: Value) -> Value:
    exponent = vecmath.call(b, "logb", x)
    finite = b.fcmp("olt", b.unary_intrinsic("fabs", exponent), b.float_like(math.inf, x))
    whole = b.cast("fptosi", b.select(finite, exponent, zero(x.type)), "i32")
    is_zero = b.fcmp("oeq", x, zero(x.type))
    is_infinite = b.fcmp("oeq", b.unary_intrinsic("fabs", x), b.float_like(math.inf, x))
    special = b.select(is_infinite, b.integer_like(0x7FFFFFFF, whole), b.integer_like(-(1 << 31), whole))
    return b.select(b.binary("and", finite, b.binary("xor", is_zero, b.integer_like(-1, is_zero))), whole, special)


@register("ldexp", "ldexpf", "scalbn", "scalbnf")
def _ldexp(b: Builder, x: Value, power: Value) -> Value:
    """In three steps, each by a normal power of two; in f64 for f32, where one rounding is left. f64 is rounded once
    too: what an earlier step makes subnormal, the last one makes zero."""
    number = Number(b, x).cast("double")
    limit = 2200
    power = b.binary_intrinsic("smax", b.binary_intrinsic("smin", power, b.integer_like(limit, power)),
                               b.integer_like(-limit, power))  # fmt: skip
    for _ in range(3):
        most = b.binary_intrinsic("smin", power, b.integer_like(1000, power))
        step = b.select(b.icmp("slt", power, b.integer_like(-1022, power)), b.integer_like(-969, power), most)
        power = b.sub(power, step)
        number = number * vecmath.power_of_two(number, b.sext(step, "i64"))
    return number.cast(element_of(x)).value


@register("powi", "powif")
def _powi(b: Builder, x: Value, n: Value) -> Value:
    """f64 has room for every exponent, where f32 would lose the last bit of one, and so the sign."""
    exponent = b.cast("sitofp", n, "double")
    if element_of(x) == "float":
        return vecmath.power_of_single(Number(b, x), Number(b, exponent)).value
    return vecmath.call(b, "pow", x, exponent)
