"""Bits and integers."""

from __future__ import annotations

from torch_mtia.triton import vecmath
from torch_mtia.triton.libdevice import FUNCTIONS, PREFIX, Function, register
from torch_mtia.triton.llvm import Builder
from torch_mtia.triton.llvm_value import Value, bits_of, element_of, integer, is_float, suffix


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
