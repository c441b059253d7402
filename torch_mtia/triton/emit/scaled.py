"""Microscaled operands of tl.dot_scaled, decoded to f32."""

from __future__ import annotations

from torch_mtia.triton import floats
from torch_mtia.triton.emit.access import read_buffer
from torch_mtia.triton.emit.environment import Environment
from torch_mtia.triton.emit.loops import loop_over
from torch_mtia.triton.emit.products import write_packed
from torch_mtia.triton.emit.strip import Strip
from torch_mtia.triton.ir.elements import NARROW
from torch_mtia.triton.lanes import Lane
from torch_mtia.triton.llvm import Builder
from torch_mtia.triton.llvm_value import Value, integer, vector_type
from torch_mtia.triton.plan.nests import Buffer
from torch_mtia.triton.plan.plan import Decode

_E2M1_BIAS, _E2M1_MANTISSA = 1, 1


def decode(env: Environment, step: Decode) -> None:
    def body(strip: Strip) -> None:
        number = _element(env, step, strip)
        if step.scales is not None:
            number = env.b.binary("fmul", number, _factor(env, step, step.scales, strip))
        write_packed(strip, step.target, Lane(number, None if strip.width else 0))

    loop_over(env, step.nest, body)


def _element(env: Environment, step: Decode, strip: Strip) -> Value:
    b, index, width = env.b, list(strip.index), strip.width
    if step.format != "e2m1":
        code = strip.read(step.source).value
        return floats.widen(b, code, step.source.element if step.source.element in NARROW else step.format)
    position = index[step.packed]
    half = b.binary("lshr", position.value, integer(1, "i32"))
    if width and position.stride == 1:  # two lanes share a byte
        index[step.packed] = Lane(half, 1)
        bytes_ = read_buffer(env, step.source, tuple(index), width // 2).value
        if width > 2:
            both = b.shuffle(bytes_, None, [lane // 2 for lane in range(width)])
        else:
            both = b.splat(b.extract(bytes_, 0), width)
        shift = Value("<" + ", ".join(f"i32 {lane % 2 * 4}" for lane in range(width)) + ">", vector_type(width, "i32"))
    else:
        index[step.packed] = Lane(half)
        both = read_buffer(env, step.source, tuple(index), width).value
        shift = b.splat(b.binary("shl", b.binary("and", position.value, integer(1, "i32")), integer(2, "i32")), width)
    return _widened_e2m1(b, b.binary("lshr", b.cast("zext", both, "i32"), shift))


def _widened_e2m1(b: Builder, code: Value) -> Value:
    """The lower four bits, as f32. No number on the way is subnormal: torch.set_flush_denormal would make it zero."""
    magnitude = b.binary("and", code, b.integer_like(7, code))
    least = (127 - _E2M1_BIAS) << 23
    normal = b.add(b.binary("shl", magnitude, b.integer_like(23 - _E2M1_MANTISSA, code)), b.integer_like(least, code))
    small = b.mul(magnitude, b.integer_like(least, code))  # 0 and 0.5
    bits = b.select(b.icmp("ult", magnitude, b.integer_like(1 << _E2M1_MANTISSA, code)), small, normal)
    sign = b.binary("shl", b.binary("and", code, b.integer_like(8, code)), b.integer_like(28, code))
    return b.bitcast(b.binary("or", bits, sign), "float")


def _factor(env: Environment, step: Decode, scales: Buffer, strip: Strip) -> Value:
    """The scale of a strip inside of a group, or of one of as many rows of scales."""
    b, shape = env.b, step.nest.shape
    group = shape[step.inner] // scales.shape[-1]
    *outer, row, column = strip.index
    along, other = (column, row) if step.inner == len(shape) - 1 else (row, column)
    place = Lane(b.binary("udiv", along.value, integer(group, "i32")))
    width = strip.width if other is column else 0
    code = read_buffer(env, scales, (*outer, other, place), width).value
    factor = floats.widen(b, code, scales.element) if scales.element in NARROW else _power_of_two(b, code)
    return factor if width else b.splat(factor, strip.width)


def _power_of_two(b: Builder, code: Value) -> Value:
    """E8M0: 2 ** (code - 127), of which the least is subnormal in f32; 255 is a NaN."""
    wide = b.cast("zext", code, "i32")
    bits = b.binary("shl", wide, b.integer_like(23, wide))
    bits = b.select(b.icmp("eq", wide, b.integer_like(0, wide)), b.integer_like(0x400000, wide), bits)
    value = b.bitcast(bits, "float")
    nan = b.float_like(float("nan"), value)
    return b.select(b.icmp("eq", wide, b.integer_like(255, wide)), nan, value)
