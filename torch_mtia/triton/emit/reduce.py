"""Reductions along one axis, with any combine function and any number of operands.

The combine function is taken to be associative. If it is commutative too (combine_function.py), several strips
accumulate side by side; else elements are combined in their own order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch_mtia.triton.emit.combine_function import is_commutative
from torch_mtia.triton.emit.inline import inline
from torch_mtia.triton.emit.kernel import KernelEmitter
from torch_mtia.triton.emit.masks import End, reduction_end
from torch_mtia.triton.emit.nest import Buffer, Index, Strip, innermost_first, write_buffer
from torch_mtia.triton.emit.registry import statement
from torch_mtia.triton.lanes import Lane, materialize
from torch_mtia.triton.llvm import Value, integer
from torch_mtia.triton.ttir import Op

ACCUMULATORS = 4  # at least, side by side, so that one does not wait for the other
MAX_SIDE = 8  # strips


@statement("tt.reduce")
def _reduce(em: KernelEmitter, op: Op) -> None:
    axis = op.attributes["axis"]
    shape = op.operands[0].type.shape
    assert shape is not None
    saves = em.prepare(op, op.operands, shape)
    dim = em.choose_dim(op.operands, shape)
    kept = {value: em.save_buffer(value, dim) for value in saves}
    rest = tuple(size for d, size in enumerate(shape) if d != axis)
    targets: list[Buffer | None] = [None] * len(op.results)
    if op.results[0].type.shape is not None:
        inner = dim if dim < axis else dim - 1
        strides = innermost_first(rest, inner) if dim != axis else None
        targets = [em.destination(result, strides) for result in op.results]
    across = dim != axis
    width = min(em.width, shape[dim])
    width = width if width > 1 else 0
    step = 1 if across or not width else width
    end = reduction_end(em, op, shape, saves, lambda left, right: combine(em, op, left, right, 0))
    limit = None if end is None else end.limit
    any_order = is_commutative(em.module, op.regions[0])
    # Across the axis, several strips side by side: each row is read once, over its whole length.
    side = min(MAX_SIDE, shape[dim] // max(width, 1)) if across else 1
    start = len(em.b.lines)
    with em.loops_around(shape, axis, dim if across else None, width * side) as outer:
        places: list[list[Lane]] = []
        for number in range(side):
            place = list(outer)
            if across:
                d = dim if dim < axis else dim - 1
                first = em.b.add(outer[d].value, integer(number * max(width, 1), "i32"))
                place[d] = Lane(first, 1 if width else 0)
            places.append(place)
        indices = [[*place[:axis], None, *place[axis:]] for place in places]
        hoisted = [em.hoist(op.operands, shape, axis, index, width) for index in indices]

        def element(position: Value) -> list[Lane]:
            lane = Lane(position, 1 if step > 1 else 0)
            lanes = []
            for place, known in zip(places, hoisted, strict=True):
                index: Index = (*place[:axis], lane, *place[axis:])
                strip = Strip(em, index, width, kept, known)
                lanes += [strip.value(operand) for operand in op.operands]
            return lanes

        if across or any_order:
            results = _along(em, op, shape[axis], limit, step, element, width, side, ACCUMULATORS if any_order else 1)
            if not across:
                results = _fold_lanes(em, op, results, width)
        else:
            results = _in_order(em, op, shape[axis], limit, step, element, width)
        if end is not None:
            results = _with_what_is_beyond(em, op, results, end, shape[axis], width if across else 0)
        for number, place in enumerate(places):
            for operand, target in enumerate(targets):
                value = results[number * len(targets) + operand]
                if target is None:
                    em.set_scalar(op.results[operand], value)
                else:
                    lane = Lane(value, None if across and width else 0)
                    write_buffer(em.b, target, tuple(place), lane, width if across else 0)
    trips = 1
    for size in shape:
        trips *= size
    em.cost += (len(em.b.lines) - start) / ACCUMULATORS * em.trips * max(1, trips // max(width, 1))
    em.buffers.update(kept)


def _along(
    em: KernelEmitter,
    op: Op,
    size: int,
    limit: Value | None,
    step: int,
    element: Callable[[Value], list[Lane]],
    width: int,
    side: int,
    accumulators: int,
) -> list[Value]:
    """Combines the elements at 0, step, 2 * step, ... below size, of `side` strips each by itself; those from `limit`
    on may be left out."""
    b = em.b
    count = size // step
    wanted = max(1, accumulators // side)
    chains = wanted if count >= 2 * wanted else 2 if count >= 4 and wanted > 1 else 1
    operands = len(op.operands)

    def at(position: Value) -> list[Value]:
        return [materialize(b, lane, width) for lane in element(position)]

    def combined(left: Sequence[Value], right: Sequence[Value]) -> list[Value]:
        results: list[Value] = []
        for first in range(0, side * operands, operands):
            results += combine(em, op, left[first : first + operands], right[first : first + operands], width)
        return results

    held = [at(integer(number * step, "i32")) for number in range(chains)]
    if count > chains:
        group = side * operands
        initial = [value for values in held for value in values]
        loop = b.open_loop(chains * step, size, chains * step, initial, limit)
        following: list[Value] = []
        for number in range(chains):
            fresh = at(b.add(loop.counter, integer(number * step, "i32")))
            following += combined(loop.carried[number * group : (number + 1) * group], fresh)
        flat = b.close_loop(loop, following)
        held = [flat[number * group : (number + 1) * group] for number in range(chains)]
    while len(held) > 1:
        half = len(held) // 2
        held = [combined(held[number], held[number + half]) for number in range(half)]
    return held[0]


def _with_what_is_beyond(
    em: KernelEmitter, op: Op, results: list[Value], end: End, size: int, width: int
) -> list[Value]:
    """`results`, of strips side by side, and behind them the element that all are beyond the end, if there is one."""
    b = em.b
    is_cut = b.icmp("slt", end.limit, integer(size, "i32"))
    beyond = [materialize(b, Lane(value), width) for value in end.beyond]
    whole: list[Value] = []
    for first in range(0, len(results), len(beyond)):
        part = results[first : first + len(beyond)]
        combined = combine(em, op, part, beyond, width)
        whole += [b.select(is_cut, new, old) for new, old in zip(combined, part, strict=True)]
    return whole


def _in_order(
    em: KernelEmitter,
    op: Op,
    size: int,
    limit: Value | None,
    step: int,
    element: Callable[[Value], list[Lane]],
    width: int,
) -> list[Value]:
    """Combines strips that lie along the axis, groups of them by themselves first."""
    b = em.b
    group = min(size // step, MAX_SIDE)

    def at(position: Value) -> list[Value]:
        return [materialize(b, lane, width) for lane in element(position)]

    def folded(position: Value) -> list[Value]:
        strips = [at(b.add(position, integer(number * step, "i32"))) for number in range(group)]
        while len(strips) > 1:
            strips = [
                _combine_neighbours(em, op, left, right, width)
                for left, right in zip(strips[::2], strips[1::2], strict=True)
            ]
        return _fold_lanes(em, op, strips[0], width, in_order=True)

    first = folded(integer(0, "i32"))
    if size == group * step:
        return first
    loop = b.open_loop(group * step, size, group * step, first, limit)
    return b.close_loop(loop, combine(em, op, loop.carried, folded(loop.counter), 0))


def _combine_neighbours(
    em: KernelEmitter, op: Op, left: Sequence[Value], right: Sequence[Value], width: int
) -> list[Value]:
    """One strip of two: in its lanes, from left to right, what two neighbours give."""
    b = em.b
    even, odd = (
        [b.shuffle(one, other, range(first, 2 * width, 2)) for one, other in zip(left, right, strict=True)]
        for first in range(2)
    )
    return combine(em, op, even, odd, width)


def combine(em: KernelEmitter, op: Op, left: Sequence[Value], right: Sequence[Value], width: int) -> list[Value]:
    kind: int | None = None if width else 0
    arguments = [Lane(value, kind) for value in (*left, *right)]
    return [materialize(em.b, lane, width) for lane in inline(em, op.regions[0], arguments, width)]


def _fold_lanes(em: KernelEmitter, op: Op, values: list[Value], width: int, in_order: bool = False) -> list[Value]:
    """One element of the lanes: the halves of a strip are combined, or in order, neighbours."""
    b = em.b
    while width:
        half = width // 2
        if half == 1:
            pairs = [(b.extract(value, 0), b.extract(value, 1)) for value in values]
        else:
            left, right = (range(0, width, 2), range(1, width, 2)) if in_order else (range(half), range(half, width))
            pairs = [(b.shuffle(value, None, left), b.shuffle(value, None, right)) for value in values]
        width = half if half > 1 else 0
        values = combine(em, op, [low for low, _ in pairs], [high for _, high in pairs], width)
    return values
