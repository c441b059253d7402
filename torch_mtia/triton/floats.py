"""Floating-point formats: conversions between them, of LLVM values.

f32 and f64 are LLVM's `float` and `double`. The narrow formats travel as integers of their width and are computed with
as f32, so that no conversion needs a library function, whatever the machine has. Each operation rounds its result.
"""

from __future__ import annotations

import math

from torch_mtia.triton.ir.elements import FORMATS, WIDE, Format, llvm_element
from torch_mtia.triton.llvm import Builder
from torch_mtia.triton.llvm_value import Value, element_of, floating_bits, integer, like, vector_type

_SUBNORMAL = 0x20  # the class, in VFPCLASSPS's immediate


def widen(b: Builder, value: Value, element: str) -> Value:
    """To f32; f32 and f64 stay."""
    if element in WIDE:
        return value
    if element == "bf16":
        shifted = b.binary("shl", b.cast("zext", value, "i32"), b.integer_like(16, _stand_in(value, "i32")))
        return b.bitcast(shifted, "float")
    if element == "f16" and "half" in b.features:
        return b.cast("fpext", b.bitcast(value, "half"), "float")
    format_ = FORMATS[element]
    raw = b.cast("zext", value, "i32")
    magnitude_mask = (1 << (format_.bits - 1)) - 1
    magnitude = b.binary("and", raw, b.integer_like(magnitude_mask, raw))
    # As an f32 with the exponent in place, the number is too small by a power of two; subnormals come out right.
    placed = b.bitcast(b.binary("shl", magnitude, b.integer_like(23 - format_.mantissa, raw)), "float")
    scaled = b.bitcast(b.binary("fmul", placed, floating_bits((254 - format_.bias) << 23, placed.type)), "i32")
    if format_.infinity is not None:
        special = b.icmp("uge", magnitude, b.integer_like(format_.infinity, raw))
        scaled = b.select(special, b.binary("or", scaled, b.integer_like(0x7F800000, raw)), scaled)
    else:
        quiet = b.integer_like(0x7FC00000, raw)
        code = raw if format_.nan == 0x80 else magnitude
        scaled = b.select(b.icmp("eq", code, b.integer_like(format_.nan, raw)), quiet, scaled)
    sign = b.binary("shl", b.binary("xor", raw, magnitude), b.integer_like(32 - format_.bits, raw))
    return b.bitcast(b.binary("or", scaled, sign), "float")


def _stand_in(value: Value, element: str) -> Value:
    """A stand-in that has only a type."""
    return Value("poison", like(value, element))


def narrow(b: Builder, value: Value, element: str, toward_zero: bool = False) -> Value:
    """From f32, or f64, to `element`, to the nearest with ties to even unless `toward_zero`."""
    wide = element_of(value)
    if element == "f64":
        return b.cast("fpext", value, "double") if wide == "float" else value
    if element == "f32":
        if wide != "double":
            return value
        return _truncated(b, value) if toward_zero else b.cast("fptrunc", value, "float")
    if wide == "double":
        value = _rounded_to_odd(b, value)
    if element == "bf16":
        return _narrow_bf16(b, value, toward_zero)
    if element == "f16" and "half" in b.features and not toward_zero:
        return b.bitcast(b.cast("fptrunc", value, "half"), "i16")
    return _narrow_small(b, value, FORMATS[element], toward_zero)


def tf32(b: Builder, value: Value, to_nearest: bool) -> Value:
    """The f32 with 10 bits of mantissa: the nearest, ties away from zero, or the next toward zero."""
    bits = b.bitcast(value, "i32")
    rounded = b.add(bits, b.integer_like(0x1000, bits)) if to_nearest else bits
    kept = b.bitcast(b.binary("and", rounded, b.integer_like(-0x2000, bits)), "float")
    return b.select(b.fcmp("uno", value, value), value, kept)


def _rounded_to_odd(b: Builder, value: Value) -> Value:
    """f64 to f32 so that rounding once more gives what rounding once would: an inexact result has an odd last bit."""
    nearest = b.cast("fptrunc", value, "float")
    bits = b.bitcast(_toward_zero(b, nearest, value), "i32")
    back = b.cast("fpext", nearest, "double")
    inexact = b.cast("zext", b.fcmp("one", back, value), "i32")
    return b.bitcast(b.binary("or", bits, inexact), "float")


def _truncated(b: Builder, value: Value) -> Value:
    return _toward_zero(b, b.cast("fptrunc", value, "float"), value)


def _toward_zero(b: Builder, nearest: Value, exact: Value) -> Value:
    back = b.cast("fpext", nearest, "double")
    beyond = b.fcmp("ogt", b.unary_intrinsic("fabs", back), b.unary_intrinsic("fabs", exact))
    bits = b.bitcast(nearest, "i32")
    return b.bitcast(b.binary("sub", bits, b.cast("zext", beyond, "i32")), "float")


def _narrow_bf16(b: Builder, value: Value, toward_zero: bool) -> Value:
    if "bf16" not in b.features or value.type != "<16 x float>" or toward_zero:
        return _narrow_bf16_by_bits(b, value, toward_zero)
    # The instruction takes subnormal numbers for zeros. They are rare: one look at each strip.
    converted = b.intrinsic("llvm.x86.avx512bf16.cvtneps2bf16.512", "<16 x bfloat>", value)
    quick, before = b.bitcast(converted, "i16"), b.block
    subnormal = b.intrinsic("llvm.x86.avx512.fpclass.ps.512", "<16 x i1>", value, integer(_SUBNORMAL, "i32"))
    # LLVM would test the mask where it is (kortest), for which Zen waits longer than for a test of an integer.
    mask = b.define("i32", f'call i32 asm "kmovw $1, $0", "=r,^Yk"({subnormal})')
    done, exact = b.label("narrowed"), b.label("subnormal")
    b.branch(b.icmp("eq", mask, integer(0, "i32")), done, exact)
    b.start(exact)
    by_bits = _narrow_bf16_by_bits(b, value, toward_zero)
    b.jump(done)
    b.start(done)
    return b.phi(quick.type, [(quick, before), (by_bits, exact)])


def _narrow_bf16_by_bits(b: Builder, value: Value, toward_zero: bool) -> Value:
    bits = b.bitcast(value, "i32")
    high = b.binary("lshr", bits, b.integer_like(16, bits))
    rounded = bits
    if not toward_zero:
        # Adds 0x7FFF, or 0x8000 if the result would be odd: subtracts numbers that differ in the last bit alone.
        odd = b.binary("and", high, b.integer_like(1, bits))
        rounded = b.binary("sub", bits, b.binary("xor", odd, b.integer_like(-0x7FFF, bits)))
    result = b.binary("lshr", rounded, b.integer_like(16, bits))
    quiet = b.binary("or", high, b.integer_like(0x40, bits))
    result = b.select(b.fcmp("uno", value, value), quiet, result)
    return b.cast("trunc", result, "i16")


def upper_half(b: Builder, value: Value) -> Value:
    """An f32 that is a bf16, as such."""
    bits = b.bitcast(value, "i32")
    return b.cast("trunc", b.binary("lshr", bits, b.integer_like(16, bits)), "i16")


def _narrow_small(b: Builder, value: Value, format_: Format, toward_zero: bool) -> Value:
    bits = b.bitcast(value, "i32")
    magnitude = b.binary("and", bits, b.integer_like(0x7FFFFFFF, bits))
    shift = 23 - format_.mantissa
    # Normal numbers: move the exponent, add just under half of the last place, cut.
    adjusted = b.binary("sub", magnitude, b.integer_like((127 - format_.bias) << 23, bits))
    if not toward_zero:
        odd = b.binary("and", b.binary("lshr", magnitude, b.integer_like(shift, bits)), b.integer_like(1, bits))
        adjusted = b.binary("add", adjusted, b.binary("add", odd, b.integer_like((1 << (shift - 1)) - 1, bits)))
    normal = b.binary("lshr", adjusted, b.integer_like(shift, bits))
    # Subnormal numbers: adding a number with the right last place makes the machine round.
    absolute = b.bitcast(magnitude, "float")
    magic_exponent = (127 - format_.bias) + shift + 1
    if toward_zero:
        scale = floating_bits((127 + format_.bias - 1 + format_.mantissa) << 23, absolute.type)
        limited = b.select(
            b.icmp("ult", magnitude, b.integer_like((128 - format_.bias) << 23, bits)),
            absolute,
            b.float_like(0, absolute),
        )
        subnormal = b.cast("fptosi", b.binary("fmul", limited, scale), "i32")
    else:
        magic = floating_bits(magic_exponent << 23, absolute.type)
        subnormal = b.binary(
            "sub", b.bitcast(b.binary("fadd", absolute, magic), "i32"), b.integer_like(magic_exponent << 23, bits)
        )
    is_small = b.icmp("ult", magnitude, b.integer_like((128 - format_.bias) << 23, bits))
    code = b.select(is_small, subnormal, normal)
    beyond = format_.largest if b.saturates_fp8 and format_.bits == 8 else format_.overflow
    too_large = b.icmp("ugt", code, b.integer_like(format_.largest, bits))
    code = b.select(too_large, b.integer_like(beyond, bits), code)
    if toward_zero and beyond == format_.infinity:
        overflow = b.icmp("ult", magnitude, b.integer_like(0x7F800000, bits))
        capped = b.binary_intrinsic("umin", code, b.integer_like(format_.largest, bits))
        code = b.select(overflow, capped, code)
    sign = b.binary("lshr", b.binary("xor", bits, magnitude), b.integer_like(32 - format_.bits, bits))
    if format_.nan == 0x80:  # these formats have no negative zero
        sign = b.select(b.icmp("eq", code, b.integer_like(0, bits)), b.integer_like(0, bits), sign)
    result = b.binary("or", code, sign)
    is_nan = b.icmp("ugt", magnitude, b.integer_like(0x7F800000, bits))
    nan = b.integer_like(format_.nan, bits)
    if format_.nan != 0x80:
        nan = b.binary("or", nan, sign)
    result = b.select(is_nan, nan, result)
    return b.cast("trunc", result, f"i{format_.bits}")


def convert(b: Builder, value: Value, source: str, target: str, toward_zero: bool = False) -> Value:
    """Between any two floating-point element types."""
    if source == target:
        return value
    if target == "bf16" and source not in WIDE and FORMATS[source].bits == 8:
        return upper_half(b, widen(b, value, source))
    return narrow(b, widen(b, value, source), target, toward_zero)


def code_of(number: float, element: str) -> int:
    """The code, in one of FORMATS, of a finite number that it has, or that MLIR wrote with six digits."""
    format_ = FORMATS[element]
    _, exponent = math.frexp(number)
    exponent = max(exponent - 1, 1 - format_.bias) if number else 1 - format_.bias
    units = round(math.ldexp(abs(number), format_.mantissa - exponent))  # with the leading bit, if it has one
    code = units + ((exponent + format_.bias - 1) << format_.mantissa)
    return code | int(math.copysign(1, number) < 0) << (format_.bits - 1)


def constant(bits: int, element: str, lanes: int) -> Value:
    """A constant of a floating-point element type by its bits."""
    type = vector_type(lanes, llvm_element(element))
    return floating_bits(bits, type) if element in WIDE else integer(bits, type)
