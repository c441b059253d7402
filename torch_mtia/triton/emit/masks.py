"""Where masks let loops end early: kernels pad a row to a power of two, and mask what lies beyond its end.

A mask `start + index < bound` is false from some index on. A store does nothing there. A reduction combines the same
element again and again there (the `other` of a load or of a selection); if that changes nothing after the first time,
it combines it once. So their loops need not go that far.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from torch_mtia.triton.emit.elementwise import constant_value
from torch_mtia.triton.emit.nest import ZERO, Strip, apply
from torch_mtia.triton.emit.overlap import is_linear
from torch_mtia.triton.emit.registry import COSTS, ELEMENTWISE, LAZY
from torch_mtia.triton.emit.strides import operand_dims
from torch_mtia.triton.floats import llvm_element
from torch_mtia.triton.lanes import Lane
from torch_mtia.triton.llvm import Value, bits_of, integer, zero
from torch_mtia.triton.ttir import Dense, Op
from torch_mtia.triton.ttir import Value as Tensor

if TYPE_CHECKING:
    from torch_mtia.triton.emit.kernel import KernelEmitter

_LESS, _LESS_OR_EQUAL = 2, 3  # predicates of arith.cmpi
_PURE = ("scf.if", "scf.yield", "tt.reduce.return")
MOST_COST = 8  # of an operation on what lies behind an end

Limits = dict[int, Value]  # by dimension, the i32 from which on nothing happens


def comparisons(mask: Tensor) -> set[Tensor]:
    """The comparisons that all have to be true where a mask is."""
    op = mask.op
    if op is None:
        return set()
    if op.name == "arith.andi":
        return comparisons(op.operands[0]) | comparisons(op.operands[1])
    if op.name in ("tt.broadcast", "tt.expand_dims", "tt.splat"):
        return comparisons(op.operands[0])
    return {mask} if op.name == "arith.cmpi" else set()


def limits(em: KernelEmitter, mask: Tensor, shape: tuple[int, ...], saves: Sequence[Tensor]) -> Limits:
    """From where on the mask is false, for a nest over `shape` that keeps `saves` for later ones."""
    found: Limits = {}

    def visit(value: Tensor, dims: tuple[int | None, ...]) -> None:
        op = value.op
        if op is None or value in em.buffers:
            return
        if op.name == "arith.cmpi":
            d = _dimension(em, op, dims)
            if d is not None and d not in found and all(_is_used_only_under(save, value) for save in saves):
                found[d] = _count(em, op, dims.index(d), shape[d])
        elif op.name in ("arith.andi", "tt.broadcast", "tt.expand_dims"):
            for operand in op.operands:
                visit(operand, operand_dims(op, operand, dims))

    visit(mask, tuple(range(len(shape))))
    return found


def _dimension(em: KernelEmitter, op: Op, dims: tuple[int | None, ...]) -> int | None:
    """The one along which a comparison `start + index < bound` changes."""
    left, right = op.operands
    if op.attributes["predicate"] not in (_LESS, _LESS_OR_EQUAL) or not (is_linear(left) and is_linear(right)):
        return None
    if any(stride != 0 for stride in em.strides.strides(right)):
        return None
    moving = [(stride, d) for stride, d in zip(em.strides.strides(left), dims, strict=True) if stride != 0]
    return moving[0][1] if len(moving) == 1 and moving[0][0] == 1 else None


def _count(em: KernelEmitter, op: Op, axis: int, size: int) -> Value:
    """How many indices along a dimension of the operands are below the bound."""
    b = em.b
    place = [ZERO] * len(op.operands[0].type.shape or ())
    strip = Strip(em, tuple(place), 0)
    start, bound = (b.sext(strip.value(operand).value, "i64") for operand in op.operands)
    place[axis] = Lane(integer(size - 1, "i32"))
    last = b.sext(Strip(em, tuple(place), 0).value(op.operands[0]).value, "i64")
    count = b.sub(b.binary_intrinsic("smin", bound, b.add(start, integer(size, "i64"))), start)
    if op.attributes["predicate"] == _LESS_OR_EQUAL:
        count = b.add(count, integer(1, "i64"))
    count = b.binary_intrinsic("smin", count, integer(size, "i64"))
    count = b.binary_intrinsic("smax", count, integer(0, "i64"))
    # An index that wraps, or one of 32 bits that it was made of, is below the bound again.
    goes_on = b.icmp("eq", b.sub(last, start), integer(size - 1, "i64"))
    rises = b.binary("and", goes_on, b.icmp("sle", start, last))
    return b.trunc(b.select(rises, count, integer(size, "i64")), "i32")


def _is_used_only_under(value: Tensor, comparison: Tensor) -> bool:
    """Whether it makes no difference what a value is where the comparison is false."""
    return all(_is_harmless(value, user, comparison) for user in value.users)


def _is_harmless(value: Tensor, user: Op, comparison: Tensor) -> bool:
    mask: Tensor | None = None
    if user.name == "arith.select" and value is not user.operands[0] and value is not user.operands[2]:
        mask = user.operands[0]
    elif user.name == "tt.store" and len(user.operands) == 3 and value not in (user.operands[0], user.operands[2]):
        mask = user.operands[2]
    elif user.name == "tt.load":
        pointer, masks, _ = user.segments()
        if value is not pointer[0] or not masks:
            return False
        mask = masks[0]
    if mask is not None:
        return comparison in comparisons(mask)
    elementwise = user.name in ELEMENTWISE or user.name in LAZY
    return bool(user.results) and elementwise and all(_is_used_only_under(each, comparison) for each in user.results)


@dataclasses.dataclass
class End:
    """All operands of a reduction are one element each, `beyond`, from `limit` on: it is enough to combine it once."""

    limit: Value
    beyond: list[Value]


def reduction_end(
    em: KernelEmitter,
    op: Op,
    shape: tuple[int, ...],
    saves: Sequence[Tensor],
    combine: Callable[[list[Value], list[Value]], list[Value]],
) -> End | None:
    """Where, along its axis, a reduction may end. Combining may be left out only of an element e with e + e = e, by its
    bits; whether it is one, the program itself finds out, or LLVM for a constant."""
    if any(inner.name not in ELEMENTWISE and inner.name not in _PURE for inner in op.regions[0].walk()):
        return None  # an assertion must not see what is not combined
    masks: list[Tensor] = []
    lanes = [_beyond(em, operand, masks, {}) for operand in op.operands]
    if not masks or any(mask.type.shape != shape or comparisons(mask) != comparisons(masks[0]) for mask in masks):
        return None
    beyond = [lane.value for lane in lanes if lane is not None]
    if len(beyond) < len(lanes):
        return None
    limit = limits(em, masks[0], shape, saves).get(op.attributes["axis"])
    if limit is None:
        return None
    b = em.b
    for one, twice in zip(beyond, combine(beyond, beyond), strict=True):
        bits = f"i{bits_of(one.type)}"
        same = b.icmp("eq", b.bitcast(one, bits), b.bitcast(twice, bits))
        limit = b.select(same, limit, integer(shape[op.attributes["axis"]], "i32"))
    return End(limit, beyond)


def _beyond(em: KernelEmitter, value: Tensor, masks: list[Tensor], known: dict[Tensor, Lane | None]) -> Lane | None:
    """The one element that a tensor has wherever all of `masks`, to which those met are added, are false."""
    if value not in known:
        known[value] = _compute_beyond(em, value, masks, known)
    return known[value]


def _compute_beyond(
    em: KernelEmitter, value: Tensor, masks: list[Tensor], known: dict[Tensor, Lane | None]
) -> Lane | None:
    op = value.op
    if value.type.shape is None:
        return em.scalar(value)
    if op is None:
        return None
    if op.name == "arith.constant":
        constant = op.attributes["value"]
        return Lane(constant_value(op, 0)) if not isinstance(constant, Dense) or constant.splat else None
    if op.name in ("tt.splat", "tt.broadcast", "tt.expand_dims"):
        return _beyond(em, op.operands[0], masks, known)
    if op.name in ("arith.select", "tt.load"):
        mask, other = _choice(op)
        if mask is None or mask.type.shape != value.type.shape:
            return None
        masks.append(mask)
        return Lane(zero(llvm_element(value.type.element))) if other is None else _beyond(em, other, masks, known)
    if op.name not in ELEMENTWISE or COSTS[op.name] > MOST_COST:
        return None
    lanes = [_beyond(em, operand, masks, known) for operand in op.operands]
    if any(lane is None for lane in lanes):
        return None
    return apply(em.b, op, [lane for lane in lanes if lane is not None], 0)[value.number]


def _choice(op: Op) -> tuple[Tensor | None, Tensor | None]:
    """(mask, what is there where it is false) of a selection or a load."""
    if op.name == "arith.select":
        return op.operands[0], op.operands[2]
    _, mask, other = op.segments()
    return mask[0] if mask else None, other[0] if other else None
