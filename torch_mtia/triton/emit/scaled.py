"""Microscaled operands of tl.dot_scaled, decoded to f32."""

from __future__ import annotations

import struct

from torch_mtia.triton import floats
from torch_mtia.triton.emit.access import read_buffer
from torch_mtia.triton.emit.environment import Environment
from torch_mtia.triton.emit.loops import loop_over
from torch_mtia.triton.emit.products import write_packed
from torch_mtia.triton.emit.strip import Strip
from torch_mtia.triton.ir.elements import NARROW
from torch_mtia.triton.lanes import Lane
from torch_mtia.triton.llvm_value import Value, floating, integer
from torch_mtia.triton.plan.plan import Buffer, Decode

# The numbers of four bits, as f32
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def decode(env: Environment, step: Decode) -> None:
    table = _table(env) if step.format == "e2m1" else None

    def body(strip: Strip) -> None:
        number = _element(env, step, strip, table)
        if step.scales is not None:
            number = env.b.binary("fmul", number, _factor(env, step, step.scales, strip))
        write_packed(env, step.target, strip.index, Lane(number), 0)

    loop_over(env, step.nest, body)


def _element(env: Environment, step: Decode, strip: Strip, table: Value | None) -> Value:
    b, index = env.b, list(strip.index)
    if table is None:
        code = read_buffer(env, step.source, tuple(index), 0).value
        return floats.widen(b, code, step.source.element if step.source.element in NARROW else step.format)
    position = index[step.packed].value
    index[step.packed] = Lane(b.binary("lshr", position, integer(1, "i32")))
    byte = b.zext(read_buffer(env, step.source, tuple(index), 0).value, "i32")
    shift = b.binary("shl", b.binary("and", position, integer(1, "i32")), integer(2, "i32"))
    code = b.binary("and", b.binary("lshr", byte, shift), integer(15, "i32"))
    return b.load("float", b.element_address(table, "float", b.zext(code, "i64")), 4)


def _factor(env: Environment, step: Decode, scales: Buffer, strip: Strip) -> Value:
    b, shape = env.b, step.nest.shape
    group = shape[step.inner] // scales.shape[-1]
    *outer, row, column = strip.index
    along, other = (column, row) if step.inner == len(shape) - 1 else (row, column)
    place = Lane(b.binary("udiv", along.value, integer(group, "i32")))
    code = read_buffer(env, scales, (*outer, other, place), 0).value
    return floats.widen(b, code, scales.element) if scales.element in NARROW else _power_of_two(env, code)


def _power_of_two(env: Environment, code: Value) -> Value:
    """E8M0: 2 ** (code - 127), of which the least is subnormal in f32; 255 is a NaN."""
    b = env.b
    wide = b.zext(code, "i32")
    bits = b.binary("shl", wide, integer(23, "i32"))
    bits = b.select(b.icmp("eq", wide, integer(0, "i32")), integer(0x400000, "i32"), bits)
    value = b.bitcast(bits, "float")
    return b.select(b.icmp("eq", wide, integer(255, "i32")), floating(float("nan"), "float"), value)


def _table(env: Environment) -> Value:
    values = [*_E2M1, *(-value for value in _E2M1)]
    bits = [struct.unpack("<I", struct.pack("<f", value))[0] for value in values]
    return env.b.constant_array(bits, "i32")
