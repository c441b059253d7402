"""Where masks let loops end early: kernels pad a row to a power of two, and mask what lies beyond its end.

A mask `start + index < bound` is false from some index on. A store does nothing there. A reduction combines the same
element again and again there (the `other` of a load or of a selection); if that changes nothing after the first time,
it combines it once. So their loops need not go that far.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence

from torch_mtia.triton.analyses.affine import Affine
from torch_mtia.triton.analyses.walk import operands_first, own_dims, walk
from torch_mtia.triton.ir.module import Op, Value
from torch_mtia.triton.ir.ops import (
    OPS,
    Dims,
    Kind,
    is_elementwise,
    load_operands,
    splat_constant,
)

LESS, LESS_OR_EQUAL = 2, 3  # predicates of arith.cmpi
_MOST_COST = 8  # of an operation on what lies after an end, which is done once, as a scalar
_MOST_COST_IN_LONG_ROWS, LONG_ROW = 32, 256  # where it takes the time of one strip of sixteen, at most
_PURE = ("scf.if", "scf.yield", "tt.reduce.return")
_CONJUNCTIONS = ("arith.andi", "tt.broadcast", "tt.expand_dims")
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


def conjuncts(mask: Value, materialized: Collection[Value] = ()) -> dict[tuple[Value, Dims], None]:
    """The values that all have to be true where a mask is, comparisons mostly, each with the dimensions of the mask
    that its own are: rows and columns may be compared by one operation. What is `materialized` in a buffer stays
    whole."""
    found: dict[tuple[Value, Dims], None] = {}

    def enter(value: Value, dims: Dims) -> Sequence[Value] | None:
        if value.op is not None and value.op.name in _CONJUNCTIONS and value not in materialized:
            return value.op.operands
        found[value, dims] = None
        return None

    walk([(mask, own_dims(mask))], enter)
    return found


def is_all_of(mask: Value, comparisons: Collection[Op]) -> bool:
    """Whether a mask is true where all of some comparisons are."""
    return all(value.op in comparisons for value, _ in conjuncts(mask))


def ends(
    mask: Value,
    shape: tuple[int, ...],
    affine: Affine,
    materialized: Collection[Value],
    saves: Sequence[Value],
    own: Op | None = None,
) -> dict[int, End]:
    """By dimension, where a nest over `shape` that keeps `saves` for later ones may end, because the mask is false
    after. What is `materialized` in a buffer is no comparison any more. `own`: the nest's operation, if it knows what
    lies after."""
    found: dict[int, End] = {}
    for value, dims in conjuncts(mask, materialized):
        op = value.op
        if op is None or op.name != "arith.cmpi" or value in materialized:
            continue
        d = _dimension(op, dims, affine)
        if d is not None and d not in found and all(_is_used_only_under(save, value, dims, own) for save in saves):
            found[d] = End(op, dims.index(d), shape[d])
    return found


def _dimension(op: Op, dims: Dims, affine: Affine) -> int | None:
    """The one along which a comparison `start + index < bound` changes."""
    left, right = map(affine.form, op.operands)
    if op.attributes["predicate"] not in (LESS, LESS_OR_EQUAL) or not (left.is_linear() and right.is_linear()):
        return None
    # Of several numbers that change, each may wrap at 32 bits at a place of its own before it is widened.
    if any(stride != 0 for stride in right.strides) or left.ranges != 1 or right.ranges != 0:
        return None
    moving = [(stride, d) for stride, d in zip(left.strides, dims, strict=True) if stride != 0]
    return moving[0][1] if len(moving) == 1 and moving[0][0] == 1 else None


def _is_used_only_under(value: Value, comparison: Value, dims: Dims, own: Op | None) -> bool:
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
                if (comparison, dims) not in conjuncts(mask):
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
    op: Op, shape: tuple[int, ...], affine: Affine, materialized: Collection[Value], saves: Sequence[Value]
) -> ReductionEnd | None:
    """Where, along its axis, a reduction may end."""
    for inner in op.regions[0].walk():
        if not is_elementwise(inner) and inner.name not in _PURE:
            return None  # an assertion must not see what is not combined
    masks: list[Value] = []
    found: list[Beyond] = []
    known: dict[Value, Beyond | None] = {}
    most_cost = _MOST_COST_IN_LONG_ROWS if shape[op.attributes["axis"]] >= LONG_ROW else _MOST_COST
    for operand in op.operands:
        beyond = _beyond(operand, masks, known, most_cost)
        if beyond is None:
            return None
        found.append(beyond)
    if not masks or any(mask.type.shape != shape or _comparisons(mask) != _comparisons(masks[0]) for mask in masks):
        return None
    end = ends(masks[0], shape, affine, materialized, saves, op).get(op.attributes["axis"])
    return None if end is None else ReductionEnd(end, tuple(found))


def _comparisons(mask: Value) -> set[tuple[Value, Dims]]:
    found = conjuncts(mask)
    return {each for each in found if each[0].op is not None and each[0].op.name in ("arith.cmpi", "tt.splat")}


def _beyond(value: Value, masks: list[Value], known: dict[Value, Beyond | None], most_cost: int) -> Beyond | None:
    """What a tensor is wherever all of `masks`, to which those met are added, are false."""
    for each in operands_first(value, known, _beyond_parts):
        known[each] = _compute_beyond(each, masks, known, most_cost)
    return known[value]


def _beyond_parts(value: Value) -> Sequence[Value]:
    """What the element of a tensor is made of where its masks are false."""
    op = value.op
    if op is None or value.type.shape is None:
        return []
    if op.name in ("arith.select", "tt.load"):
        _, other = _choice(op)
        return [] if other is None else [other]
    return op.operands if op.name in _PASSED_ON or is_elementwise(op) else []


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
        return known[op.operands[0]]
    if op.name in ("arith.select", "tt.load"):
        mask, other = _choice(op)
        if mask is None or mask.type.shape != value.type.shape:
            return None
        masks.append(mask)
        return Beyond(element=value.type.element) if other is None else known[other]
    if not is_elementwise(op) or OPS[op.name].kind is not Kind.ELEMENTWISE or OPS[op.name].cost > most_cost:
        return None
    operands = [found for operand in op.operands if (found := known[operand]) is not None]
    return Beyond(op=op, number=value.number, operands=tuple(operands)) if len(operands) == len(op.operands) else None


def _choice(op: Op) -> tuple[Value | None, Value | None]:
    """(mask, what is there where it is false) of a selection or a load."""
    if op.name == "arith.select":
        return op.operands[0], op.operands[2]
    _, mask, other = load_operands(op)
    return mask, other
