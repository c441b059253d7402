"""Where masks let loops end early: kernels pad a row to a power of two, and mask what lies beyond its end.

A mask `start + index < bound` is false from some index on. A store does nothing there. A reduction combines the same
element again and again there (the `other` of a load or of a selection); if that changes nothing after the first time,
it combines it once. So their loops need not go that far.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence

from torch_mtia.triton.analyses.strides import StrideAnalysis, is_linear
from torch_mtia.triton.ir.module import Op, Value
from torch_mtia.triton.ir.ops import (
    OPS,
    Dims,
    Kind,
    is_elementwise,
    load_operands,
    operand_dims,
    splat_constant,
)

LESS, LESS_OR_EQUAL = 2, 3  # predicates of arith.cmpi
_MOST_COST = 8  # of an operation on what lies behind an end, which is done once, as a scalar
_MOST_COST_IN_LONG_ROWS, LONG_ROW = 32, 256  # where it takes the time of one strip of sixteen, at most
_PURE = ("scf.if", "scf.yield", "tt.reduce.return")
_PASSED_ON = ("tt.broadcast", "tt.expand_dims", "tt.splat")


@dataclasses.dataclass(frozen=True)
class End:
    """A loop over `size` indices may end where `comparison`, which changes along dimension `axis` of its operands, is
    false for the first time."""

    comparison: Op
    axis: int
    size: int

    @property
    def includes_bound(self) -> bool:
        return bool(self.comparison.attributes["predicate"] == LESS_OR_EQUAL)


def comparisons(mask: Value) -> set[tuple[Op, Dims]]:
    """The comparisons that all have to be true where a mask is, each with the dimensions of the mask that its own are:
    rows and columns may be compared by one operation."""
    seen: set[tuple[Value, Dims]] = set()
    found: set[tuple[Op, Dims]] = set()

    def visit(value: Value, dims: Dims) -> None:
        op = value.op
        if op is None or (value, dims) in seen:
            return
        seen.add((value, dims))
        if op.name == "arith.cmpi":
            found.add((op, dims))
        elif op.name == "arith.andi" or op.name in _PASSED_ON:
            for operand in op.operands:
                visit(operand, operand_dims(op, operand, dims))

    visit(mask, tuple(range(len(mask.type.shape or ()))))
    return found


def is_all_of(mask: Value, comparisons: Collection[Op]) -> bool:
    """Whether a mask is true where all of some comparisons are."""
    op = mask.op
    if op is None or op in comparisons:
        return op is not None
    return (op.name == "arith.andi" or op.name in _PASSED_ON) and all(
        is_all_of(operand, comparisons) for operand in op.operands
    )


def ends(
    mask: Value,
    shape: tuple[int, ...],
    strides: StrideAnalysis,
    held: Collection[Value],
    saves: Sequence[Value],
    own: Op | None = None,
) -> dict[int, End]:
    """By dimension, where a nest over `shape` that keeps `saves` for later ones may end, because the mask is false
    behind. What is `held` in a buffer is no comparison any more. `own`: the nest's operation, if it knows what lies
    behind."""
    found: dict[int, End] = {}
    seen: set[tuple[Value, Dims]] = set()

    def visit(value: Value, dims: Dims) -> None:
        op = value.op
        if op is None or value in held or (value, dims) in seen:
            return
        seen.add((value, dims))
        if op.name == "arith.cmpi":
            d = _dimension(op, dims, strides)
            if d is not None and d not in found and all(_is_used_only_under(save, op, dims, own) for save in saves):
                found[d] = End(op, dims.index(d), shape[d])
        elif op.name in ("arith.andi", "tt.broadcast", "tt.expand_dims"):
            for operand in op.operands:
                visit(operand, operand_dims(op, operand, dims))

    visit(mask, tuple(range(len(shape))))
    return found


def _dimension(op: Op, dims: Dims, strides: StrideAnalysis) -> int | None:
    """The one along which a comparison `start + index < bound` changes."""
    left, right = op.operands
    if op.attributes["predicate"] not in (LESS, LESS_OR_EQUAL) or not (is_linear(left) and is_linear(right)):
        return None
    if any(stride != 0 for stride in strides.strides(right)):
        return None
    # Of several numbers that change, each may wrap at 32 bits at a place of its own before it is widened.
    if _ranges(left, {}) != 1 or _ranges(right, {}) != 0:
        return None
    moving = [(stride, d) for stride, d in zip(strides.strides(left), dims, strict=True) if stride != 0]
    return moving[0][1] if len(moving) == 1 and moving[0][0] == 1 else None


def _ranges(value: Value, known: dict[Value, int]) -> int:
    """How many times a linear value is made of a range."""
    op = value.op
    if op is None or value.type.shape is None:
        return 0
    if value not in known:
        known[value] = int(op.name == "tt.make_range") + sum(_ranges(operand, known) for operand in op.operands)
    return known[value]


def _is_used_only_under(value: Value, comparison: Op, dims: Dims, own: Op | None) -> bool:
    """Whether it makes no difference to operations other than `own` what a value is where the comparison, along `dims`
    of it, is false."""
    pending, seen = [value], {value}
    while pending:
        value = pending.pop()
        for user in value.users:
            if user is own:
                continue
            mask = _mask_over(value, user)
            if mask is not None:
                if (comparison, dims) not in comparisons(mask):
                    return False
            elif not user.results or not is_elementwise(user):  # tt.trans, for one, uses it at other places
                return False
            else:
                pending += [result for result in user.results if result not in seen]
                seen.update(user.results)
    return True


def _mask_over(value: Value, user: Op) -> Value | None:
    """Where it is false, `user` does not look at `value`."""
    if user.name == "arith.select" and value is not user.operands[0] and value is not user.operands[2]:
        return user.operands[0]
    if user.name == "tt.store" and len(user.operands) == 3 and value not in (user.operands[0], user.operands[2]):
        return user.operands[2]
    if user.name == "tt.load":
        pointer, mask, _ = load_operands(user)
        return mask if value is pointer else None
    return None


# Reductions -----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, eq=False)
class Beyond:
    """The one element that a tensor has wherever masks are false: `value`, a scalar or a constant; zero if None; or
    what `op` makes of `operands`, each of which may be an operand of several."""

    value: Value | None = None
    op: Op | None = None
    number: int = 0
    operands: tuple[Beyond, ...] = ()
    element: str = ""  # of a zero


@dataclasses.dataclass(frozen=True)
class ReductionEnd:
    """From `end` on, each operand of a reduction is one element, `beyond`: it is enough to combine it once. Combining
    may be left out only of an element e with e + e = e, by its bits: the program itself finds out."""

    end: End
    beyond: tuple[Beyond, ...]


def reduction_end(
    op: Op, shape: tuple[int, ...], strides: StrideAnalysis, held: Collection[Value], saves: Sequence[Value]
) -> ReductionEnd | None:
    """Where, along its axis, a reduction may end."""
    for inner in op.regions[0].walk():
        if not is_elementwise(inner) and inner.name not in _PURE:
            return None  # an assertion must not see what is not combined
    masks: list[Value] = []
    found: list[Beyond] = []
    most_cost = _MOST_COST_IN_LONG_ROWS if shape[op.attributes["axis"]] >= LONG_ROW else _MOST_COST
    for operand in op.operands:
        beyond = _beyond(operand, masks, {}, most_cost)
        if beyond is None:
            return None
        found.append(beyond)
    if not masks or any(mask.type.shape != shape or comparisons(mask) != comparisons(masks[0]) for mask in masks):
        return None
    end = ends(masks[0], shape, strides, held, saves, op).get(op.attributes["axis"])
    return None if end is None else ReductionEnd(end, tuple(found))


def _beyond(value: Value, masks: list[Value], known: dict[Value, Beyond | None], most_cost: int) -> Beyond | None:
    """What a tensor is wherever all of `masks`, to which those met are added, are false."""
    if value not in known:
        known[value] = _compute_beyond(value, masks, known, most_cost)
    return known[value]


def _compute_beyond(
    value: Value, masks: list[Value], known: dict[Value, Beyond | None], most_cost: int
) -> Beyond | None:
    op = value.op
    if value.type.shape is None:
        return Beyond(value)
    if op is None:
        return None
    if op.name == "arith.constant":
        return None if splat_constant(op) is None else Beyond(value)
    if op.name in _PASSED_ON:
        return _beyond(op.operands[0], masks, known, most_cost)
    if op.name in ("arith.select", "tt.load"):
        mask, other = _choice(op)
        if mask is None or mask.type.shape != value.type.shape:
            return None
        masks.append(mask)
        return Beyond(element=value.type.element) if other is None else _beyond(other, masks, known, most_cost)
    if not is_elementwise(op) or OPS[op.name].kind is not Kind.ELEMENTWISE or OPS[op.name].cost > most_cost:
        return None
    operands: list[Beyond] = []
    for operand in op.operands:
        found = _beyond(operand, masks, known, most_cost)
        if found is None:
            return None
        operands.append(found)
    return Beyond(op=op, number=value.number, operands=tuple(operands))


def _choice(op: Op) -> tuple[Value | None, Value | None]:
    """(mask, what is there where it is false) of a selection or a load."""
    if op.name == "arith.select":
        return op.operands[0], op.operands[2]
    _, mask, other = load_operands(op)
    return mask, other
