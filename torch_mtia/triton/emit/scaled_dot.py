"""tl.dot_scaled: microscaled operands are decoded to f32, and multiplied as any others."""

from __future__ import annotations

import struct

from torch_mtia.triton import floats
from torch_mtia.triton.emit.dot import Operands, add_product
from torch_mtia.triton.emit.kernel import KernelEmitter
from torch_mtia.triton.emit.nest import Buffer, Strip, read_buffer, write_buffer
from torch_mtia.triton.emit.registry import Unsupported, statement
from torch_mtia.triton.lanes import Lane
from torch_mtia.triton.llvm import Value, floating, integer
from torch_mtia.triton.ttir import Op
from torch_mtia.triton.ttir import Value as Tensor

# triton::ScaleDotElemType
_FORMATS = {0: "f8E4M3FN", 1: "f8E5M2", 4: "e2m1", 5: "bf16", 6: "f16"}
# The numbers of four bits, as f32
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


@statement("tt.dot_scaled")
def _dot_scaled(em: KernelEmitter, op: Op) -> None:
    left, right, initial, left_scale, right_scale = (group[0] if group else None for group in op.segments())
    assert left is not None
    assert right is not None
    assert initial is not None
    (result,) = op.results
    assert result.type.shape is not None
    *batch, m, n = result.type.shape
    packed_left = op.attributes.get("lhs_k_pack", True)
    packed_right = op.attributes.get("rhs_k_pack", True)
    left_format, right_format = (_format(op, op.attributes[name]) for name in ("a_elem_type", "b_elem_type"))
    assert left.type.shape is not None
    inner = left.type.shape[-1] * (2 if left_format == "e2m1" and packed_left else 1)
    rank = len(result.type.shape)
    left_buffer = _decode(
        em, op, left, left_scale, (*batch, m, inner), left_format, rank - 1, rank - 1 if packed_left else rank - 2
    )
    right_buffer = _decode(
        em, op, right, right_scale, (*batch, inner, n), right_format, rank - 2, rank - 2 if packed_right else rank - 1
    )
    add_product(em, op, Operands(left_buffer, right_buffer, inner), initial, "f32")


def _format(op: Op, number: int) -> str:
    found = _FORMATS.get(number)
    if found is None:
        raise Unsupported(f"operands of dot_scaled in the format {number}", op.location)
    return found


def _decode(
    em: KernelEmitter,
    op: Op,
    value: Tensor,
    scale: Tensor | None,
    shape: tuple[int, ...],
    format_: str,
    inner: int,
    packed: int,
) -> Buffer:
    """The operand as f32; `inner` is the dimension that is summed over, `packed` the one along which numbers of four
    bits share a byte."""
    b = em.b
    source = em.row_major_buffer(value, op)
    scales = em.row_major_buffer(scale, op) if scale is not None else None
    target = em.new_buffer(shape, "f32")
    table = _table(em) if format_ == "e2m1" else None

    def element(strip: Strip) -> Value:
        index = list(strip.index)
        if table is None:
            lane = read_buffer(b, source, tuple(index), 0)
            if value.type.element in floats.NARROW:
                return floats.widen(b, lane.value, value.type.element)
            return floats.widen(b, lane.value, format_)
        position = index[packed].value
        index[packed] = Lane(b.binary("lshr", position, integer(1, "i32")))
        byte = b.zext(read_buffer(b, source, tuple(index), 0).value, "i32")
        shift = b.binary("shl", b.binary("and", position, integer(1, "i32")), integer(2, "i32"))
        code = b.binary("and", b.binary("lshr", byte, shift), integer(15, "i32"))
        return b.load("float", b.element_address(table, "float", b.zext(code, "i64")), 4)

    def factor(strip: Strip) -> Value:
        assert scales is not None
        assert scale is not None
        group = shape[inner] // scales.shape[-1]
        *outer, row, column = strip.index
        along, other = (column, row) if inner == len(shape) - 1 else (row, column)
        place = Lane(b.binary("udiv", along.value, integer(group, "i32")))
        code = read_buffer(b, scales, (*outer, other, place), 0).value
        if scale.type.element in floats.NARROW:
            return floats.widen(b, code, scale.type.element)
        return _power_of_two(em, code)

    def body(strip: Strip) -> None:
        number = element(strip)
        if scales is not None:
            number = b.binary("fmul", number, factor(strip))
        write_buffer(b, target, strip.index, Lane(number), 0)

    em.loop_over(shape, len(shape) - 1, body, width=1)
    return target


def _power_of_two(em: KernelEmitter, code: Value) -> Value:
    """E8M0: 2 ** (code - 127), of which the least is subnormal in f32; 255 is a NaN."""
    b = em.b
    wide = b.zext(code, "i32")
    bits = b.binary("shl", wide, integer(23, "i32"))
    bits = b.select(b.icmp("eq", wide, integer(0, "i32")), integer(0x400000, "i32"), bits)
    value = b.bitcast(bits, "float")
    return b.select(b.icmp("eq", wide, integer(255, "i32")), floating(float("nan"), "float"), value)


def _table(em: KernelEmitter) -> Value:
    values = [*_E2M1, *(-value for value in _E2M1)]
    bits = [struct.unpack("<I", struct.pack("<f", value))[0] for value in values]
    return em.b.constant_array(bits, "i32")
