"""Numbers that depend on few bits of another: packed weights, decoded. Code for them may look them up in a table."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from torch_mtia.triton.analyses.availability import Available
from torch_mtia.triton.analyses.walk import operands_first
from torch_mtia.triton.ir.module import Op, Value
from torch_mtia.triton.ir.ops import is_elementwise, splat_constant


@dataclasses.dataclass(frozen=True)
class FewBits:
    """Bits `first` to `first + count - 1` of the elements of `source`, which are integers."""

    source: Value
    first: int
    count: int


def few_bits(value: Value, available: Available, most: int) -> FewBits | None:
    """The at most `most` bits of one tensor that a tensor is a function of, element by element; None if it depends on
    more."""
    known: dict[Value, FewBits | None] = {}

    def parts(value: Value) -> Sequence[Value]:
        if value.op is None or not available.is_fused(value) or not is_elementwise(value.op):
            return []
        return [operand for operand in value.op.operands if _constant(operand) is None]

    for each in operands_first(value, known, parts):
        found = {known[part] for part in parts(each)}
        only = found.pop() if len(found) == 1 else None
        if only is None and each.op is not None and available.is_fused(each) and is_elementwise(each.op):
            only = _taken(each.op)
            only = only if only is not None and only.count <= most else None
        known[each] = only
    return known[value]


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
