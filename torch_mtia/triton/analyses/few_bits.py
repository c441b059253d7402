"""Numbers that depend on few bits of another: packed weights, decoded. Code for them may look them up in a table."""

from __future__ import annotations

import dataclasses

from torch_mtia.triton.analyses.availability import Available
from torch_mtia.triton.ir.module import Op, Value
from torch_mtia.triton.ir.ops import is_elementwise, splat_constant


@dataclasses.dataclass(frozen=True)
class FewBits:
    """Bits `first` to `first + count - 1` of the elements of `source`, which are integers."""

    source: Value
    first: int
    count: int


def few_bits(value: Value, available: Available, most: int) -> FewBits | None:
    """What a tensor is a function of, element by element, if that is not more than `most` bits of one tensor."""
    known: dict[Value, FewBits | None] = {}

    def visit(value: Value) -> FewBits | None:
        if value not in known:
            known[value] = through(value.op) if value.op is not None and available.is_fused(value) else None
        return known[value]

    def through(op: Op) -> FewBits | None:
        if not is_elementwise(op) or available.is_moved(op.results[0]):
            return None
        found = {visit(operand) for operand in op.operands if _constant(operand) is None}
        if len(found) == 1 and (only := found.pop()) is not None:
            return only
        taken = _taken(op)
        return taken if taken is not None and taken.count <= most else None

    return visit(value)


def _constant(value: Value) -> object | None:
    return splat_constant(value.op) if value.op is not None and value.op.name == "arith.constant" else None


def _taken(op: Op) -> FewBits | None:
    """The bits that a mask or a shift leaves of its operand."""
    if op.name not in ("arith.andi", "arith.shrui", "arith.shrsi"):
        return None
    value, constant = op.operands
    if op.name == "arith.andi" and _constant(constant) is None:
        value, constant = constant, value
    number, bits = _constant(constant), int(value.type.element.removeprefix("i"))
    if not isinstance(number, int):
        return None
    if op.name != "arith.andi":
        return FewBits(value, number, bits - number) if 0 <= number < bits else None
    mask = number & ((1 << bits) - 1)
    first = (mask & -mask).bit_length() - 1
    return FewBits(value, first, mask.bit_length() - first) if mask else None
