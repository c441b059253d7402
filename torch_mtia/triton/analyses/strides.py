"""How integers and addresses change from one element of a tensor to the next, along each dimension: by a number, or
None where it is not known (a stride that is an argument of the kernel, an index that was loaded).

Of a division that holds within a strip only, see Note [Lanes] in lanes.py; from end to end, of `is_linear` values.
"""

from __future__ import annotations

from torch_mtia.triton.analyses.loops import origin
from torch_mtia.triton.ir.elements import element_size
from torch_mtia.triton.ir.module import Op, Value
from torch_mtia.triton.ir.ops import Dims, Elements, Linear, facts, operand_dims, pointee_size, splat_constant

Strides = tuple["int | None", ...]

_FROM_END_TO_END = {
    Linear.SAME, Linear.WIDENED, Linear.CONSTANT, Linear.RANGE, Linear.SUM, Linear.DIFFERENCE, Linear.PRODUCT,
    Linear.OFFSET,
}  # fmt: skip
_WRAPS = {Linear.REMAINDER, Linear.REMAINDER_UNSIGNED}
_UNCHANGED = {
    Linear.REINTERPRETED, Linear.WIDENED, Linear.WIDENED_UNSIGNED, Linear.REMAINDER, Linear.REMAINDER_UNSIGNED,
}  # fmt: skip


def is_linear(value: Value, along: int | None = None) -> bool:
    """Whether strides hold from end to end. Of a matrix, it may be asked about one dimension alone: along the others,
    indices may then wrap around after a constant (`rows % m`)."""
    seen: set[tuple[Value, Dims]] = set()

    def visit(value: Value, dims: Dims) -> bool:
        if value.type.shape is None or (value, dims) in seen:
            return True
        seen.add((value, dims))
        op = value.op
        known = None if op is None else facts(op)
        if op is None or known is None:
            return False
        wraps = known.linear in _WRAPS and along is not None and along not in dims
        if wraps and number_everywhere(op.operands[1]) is None:
            return False
        if not wraps and known.linear not in _FROM_END_TO_END:
            return False
        return all(visit(operand, operand_dims(op, operand, dims)) for operand in op.operands)

    return visit(value, tuple(range(len(value.type.shape or ()))))


class StrideAnalysis:
    """Remembers what it was asked; the answers depend on nothing but the value."""

    def __init__(self) -> None:
        self.known: dict[Value, Strides] = {}
        self.indices: dict[Value, bool] = {}

    def strides(self, value: Value) -> Strides:
        found = self.known.get(value)
        if found is None:
            found = self.known[value] = self._compute(value)
        return found

    def is_index(self, value: Value) -> bool:
        """Whether a value is index arithmetic along some dimension: it costs little, and in memory it would no longer
        be known to be contiguous."""
        found = self.indices.get(value)
        if found is None:
            found = self.indices[value] = value.type.element in ("ptr", "i32", "i64") and any(
                stride is not None
                for stride, size in zip(self.strides(value), value.type.shape or (), strict=True)
                if size > 1
            )
        return found

    def is_plain_load(self, value: Value) -> bool:
        """Whether a value is a load of neighbours, or of one element."""
        if value.op is None or value.op.name != "tt.load":
            return False
        strides = self.strides(value.op.operands[0])
        return element_size(value.type.element) in strides or not any(stride != 0 for stride in strides)

    def _compute(self, value: Value) -> Strides:
        rank = len(value.type.shape or ())
        before = origin(value)
        if before is not None:
            return self.strides(before)
        known = None if value.op is None else facts(value.op)
        if value.op is None or known is None or known.linear is None:
            return (None,) * rank
        return self._through(value.op, value, known.linear, known.elements)

    def _through(self, op: Op, value: Value, linear: Linear, elements: Elements) -> Strides:
        shape = value.type.shape or ()
        if linear is Linear.CONSTANT:
            return (None if splat_constant(op) is None else 0,) * len(shape)
        if linear is Linear.RANGE:
            return (1,)
        if elements is Elements.SPLAT:
            return (0,) * len(shape)
        first = self.strides(op.operands[0])
        if linear is Linear.SAME:
            dims = operand_dims(op, op.operands[0], tuple(range(len(shape))))
            along = dict(zip(dims, first, strict=True))
            return tuple(along.get(d, 0) for d in range(len(shape)))
        if linear in _UNCHANGED:
            return first
        if linear in (Linear.QUOTIENT, Linear.QUOTIENT_UNSIGNED):
            return tuple(0 if stride in (0, 1) else None for stride in first)
        if linear is Linear.PRODUCT:
            return tuple(self._product(op, d) for d in range(len(shape)))
        scale = {Linear.SUM: 1, Linear.DIFFERENCE: -1}.get(linear) or pointee_size(op)
        second = self.strides(op.operands[1])
        return tuple(
            None if one is None or other is None else one + scale * other
            for one, other in zip(first, second, strict=True)
        )

    def _product(self, op: Op, d: int) -> int | None:
        (left, right), (one, other) = op.operands, (self.strides(operand)[d] for operand in op.operands)
        if one == 0 and other == 0:
            return 0
        if other == 0 and one is not None and (factor := number_everywhere(right)) is not None:
            return one * factor
        if one == 0 and other is not None and (factor := number_everywhere(left)) is not None:
            return other * factor
        return None


def number_everywhere(value: Value) -> int | None:
    """The integer constant that a value is everywhere."""
    op = value.op
    while op is not None and (known := facts(op)) and known.linear in (Linear.SAME, Linear.WIDENED):
        op = op.operands[0].op
    if op is None or op.name != "arith.constant":
        return None
    constant = splat_constant(op)
    return constant if isinstance(constant, int) else None
