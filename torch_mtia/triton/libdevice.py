"""The functions of `triton.language.extra.libdevice`, by the symbols that Triton's front end writes (`__nv_...`).

    FUNCTIONS["__nv_expf"](b, x)      scalars or vectors

Most are functions of vecmath.py under another name. `_rz`, `_rd` and `_ru` round toward zero, down and up: the nearest
result and the sign of its error tell what the neighbour would be.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from torch_mtia.triton import vecmath
from torch_mtia.triton.llvm import Builder, Value, bits_of, element_of, integer, is_float, like, suffix, zero
from torch_mtia.triton.vecmath import Number, through_double

Function = Callable[..., "Value"]
FUNCTIONS: dict[str, Function] = {}
PREFIX = "__nv_"


def register(*names: str) -> Callable[[Function], Function]:
    def add(function: Function) -> Function:
        for name in names:
            FUNCTIONS[PREFIX + name] = function
        return function

    return add


# Functions of floating-point numbers that vecmath has ---------------------------------------------------------------


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


for _name in [
    "rsqrt",
    "ceil",
    "floor",
    "trunc",
    "rint",
    "round",
    "exp",
    "exp2",
    "exp10",
    "expm1",
    "log",
    "log2",
    "log10",
    "log1p",
    "sqrt",
    "sin",
    "cos",
    "tan",
    "sinpi",
    "cospi",
    "asin",
    "acos",
    "atan",
    "atan2",
    "sinh",
    "cosh",
    "tanh",
    "asinh",
    "acosh",
    "atanh",
    "erf",
    "erfc",
    "erfcx",
    "erfinv",
    "erfcinv",
    "normcdf",
    "normcdfinv",
    "cbrt",
    "rcbrt",
    "hypot",
    "rhypot",
    "norm3d",
    "rnorm3d",
    "norm4d",
    "rnorm4d",
    "pow",
    "fma",
    "fdim",
    "fmod",
    "logb",
    "nextafter",
]:
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
    """In three steps, each by a normal power of two; in f64 for f32, where one rounding is left."""
    single = element_of(x) == "float"
    number = Number(b, x).cast("double")
    limit = 2200
    power = b.binary_intrinsic("smax", b.binary_intrinsic("smin", power, b.integer_like(limit, power)),
                               b.integer_like(-limit, power))  # fmt: skip
    for _ in range(3):
        step = b.binary_intrinsic(
            "smax",
            b.binary_intrinsic("smin", power, b.integer_like(1000, power)),
            b.integer_like(-1000 if single else -960, power),
        )
        power = b.sub(power, step)
        number = number * vecmath.power_of_two(number, b.sext(step, "i64"))
    return number.cast(element_of(x)).value


@register("powi", "powif")
def _powi(b: Builder, x: Value, n: Value) -> Value:
    return vecmath.call(b, "pow", x, b.cast("sitofp", n, element_of(x)))


# Directed rounding ----------------------------------------------------------------------------------------------------


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


# Bits and integers ----------------------------------------------------------------------------------------------------


@register("int_as_float", "float_as_int", "uint_as_float", "float_as_uint", "longlong_as_double", "double_as_longlong")
def _reinterpret(b: Builder, x: Value) -> Value:
    element = element_of(x)
    if is_float(element):
        return b.bitcast(x, f"i{bits_of(element)}")
    return b.bitcast(x, "float" if element == "i32" else "double")


@register("hiloint2double")
def _hiloint2double(b: Builder, high: Value, low: Value) -> Value:
    wide = b.cast("zext", high, "i64")
    return b.bitcast(
        b.binary("or", b.binary("shl", wide, b.integer_like(32, wide)), b.cast("zext", low, "i64")), "double"
    )


@register("double2loint")
def _double2loint(b: Builder, x: Value) -> Value:
    return b.cast("trunc", b.bitcast(x, "i64"), "i32")


@register("double2hiint")
def _double2hiint(b: Builder, x: Value) -> Value:
    bits = b.bitcast(x, "i64")
    return b.cast("trunc", b.binary("lshr", bits, b.integer_like(32, bits)), "i32")


@register("rcp64h")
def _rcp64h(b: Builder, x: Value) -> Value:
    """The reciprocal to the digits of its high word."""
    inverse = b.bitcast(b.fdiv(b.float_like(1.0, x), x), "i64")
    return b.bitcast(b.binary("and", inverse, b.integer_like(-(1 << 32), inverse)), "double")


def _count(b: Builder, name: str, x: Value, *more: Value) -> Value:
    result = b.intrinsic(f"llvm.{name}.{suffix(x.type)}", x.type, x, *more)
    return b.cast("trunc", result, "i32")


@register("clz", "clzll")
def _clz(b: Builder, x: Value) -> Value:
    return _count(b, "ctlz", x, integer(0, "i1"))


@register("popc", "popcll")
def _popc(b: Builder, x: Value) -> Value:
    return _count(b, "ctpop", x)


@register("ffs", "ffsll")
def _ffs(b: Builder, x: Value) -> Value:
    """One more than the place of the lowest bit that is set; 0 if there is none."""
    place = _count(b, "cttz", x, integer(0, "i1"))
    found = b.add(place, b.integer_like(1, place))
    return b.select(b.icmp("eq", x, b.integer_like(0, x)), b.integer_like(0, place), found)


@register("brev", "brevll")
def _brev(b: Builder, x: Value) -> Value:
    return b.unary_intrinsic("bitreverse", x)


@register("abs", "llabs")
def _abs(b: Builder, x: Value) -> Value:
    return b.binary_intrinsic("smax", x, b.sub(b.integer_like(0, x), x))


def _high_product(signed: bool) -> Function:
    def high(b: Builder, x: Value, y: Value) -> Value:
        if element_of(x) == "i64":
            result = vecmath.high_of_64(b, x, y)
            if signed:
                for one, other in ((x, y), (y, x)):
                    sign = b.binary("ashr", one, b.integer_like(63, one))
                    result = b.sub(result, b.binary("and", sign, other))
            return result
        extend = "sext" if signed else "zext"
        product = b.binary("mul", b.cast(extend, x, "i64"), b.cast(extend, y, "i64"))
        return b.cast("trunc", b.binary("lshr", product, b.integer_like(32, product)), "i32")

    return high


FUNCTIONS[f"{PREFIX}mulhi"] = FUNCTIONS[f"{PREFIX}mul64hi"] = _high_product(True)
FUNCTIONS[f"{PREFIX}umulhi"] = FUNCTIONS[f"{PREFIX}umul64hi"] = _high_product(False)


@register("mul24")
def _mul24(b: Builder, x: Value, y: Value) -> Value:
    eight = b.integer_like(8, x)
    left, right = (b.binary("ashr", b.binary("shl", value, eight), eight) for value in (x, y))
    return b.binary("mul", left, right)


@register("umul24")
def _umul24(b: Builder, x: Value, y: Value) -> Value:
    mask = b.integer_like(0xFFFFFF, x)
    return b.binary("mul", b.binary("and", x, mask), b.binary("and", y, mask))


@register("sad")
def _sad(b: Builder, x: Value, y: Value, z: Value) -> Value:
    return b.add(z, b.sub(b.binary_intrinsic("smax", x, y), b.binary_intrinsic("smin", x, y)))


@register("usad")
def _usad(b: Builder, x: Value, y: Value, z: Value) -> Value:
    return b.add(z, b.sub(b.binary_intrinsic("umax", x, y), b.binary_intrinsic("umin", x, y)))


def _average(signed: bool, rounds_up: bool) -> Function:
    def average(b: Builder, x: Value, y: Value) -> Value:
        """Without overflow: the common bits, and half of those that differ."""
        half = b.binary("ashr" if signed else "lshr", b.binary("xor", x, y), b.integer_like(1, x))
        if rounds_up:
            return b.sub(b.binary("or", x, y), half)
        return b.add(b.binary("and", x, y), half)

    return average


FUNCTIONS[f"{PREFIX}hadd"], FUNCTIONS[f"{PREFIX}uhadd"] = _average(True, False), _average(False, False)
FUNCTIONS[f"{PREFIX}rhadd"], FUNCTIONS[f"{PREFIX}urhadd"] = _average(True, True), _average(False, True)


@register("byte_perm")
def _byte_perm(b: Builder, x: Value, y: Value, selector: Value) -> Value:
    """Each of the selector's four lowest hexadecimal digits picks one of the eight bytes of x and y."""
    wide_x, wide_y = b.cast("zext", x, "i64"), b.cast("zext", y, "i64")
    both = b.binary("or", wide_x, b.binary("shl", wide_y, b.integer_like(32, wide_y)))
    select = b.cast("zext", selector, "i64")
    result = b.integer_like(0, both)
    for place in range(4):
        digit = b.binary("and", b.binary("lshr", select, b.integer_like(4 * place, both)), b.integer_like(7, both))
        shifted = b.binary("lshr", both, b.binary("shl", digit, b.integer_like(3, both)))
        byte = b.binary("and", shifted, b.integer_like(0xFF, both))
        result = b.binary("or", result, b.binary("shl", byte, b.integer_like(8 * place, both)))
    return b.cast("trunc", result, "i32")
