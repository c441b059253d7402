"""Reductions along one axis, with any combine function and any number of operands."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch_mtia.triton.emit import watching
from torch_mtia.triton.emit.access import write_buffer
from torch_mtia.triton.emit.ends import reduction_limit
from torch_mtia.triton.emit.environment import Environment
from torch_mtia.triton.emit.inline import inline
from torch_mtia.triton.emit.loops import hoist, loops_around
from torch_mtia.triton.emit.strip import Strip
from torch_mtia.triton.ir.module import Op
from torch_mtia.triton.lanes import Index, Lane, materialize
from torch_mtia.triton.llvm_value import Value, integer
from torch_mtia.triton.plan.plan import Reduce
from torch_mtia.triton.plan.reductions import ACCUMULATORS


def reduce(env: Environment, step: Reduce) -> None:
    b, op, nest, axis = env.b, step.op, step.nest, step.axis
    width, side, across = nest.lanes, step.side, step.across
    size = nest.shape[axis]
    limit: Value | None = None
    beyond: list[Value] = []
    if step.end is not None:
        combined = lambda left, right: combine(env, op, left, right, 0)  # noqa: E731
        limit, beyond = reduction_limit(env, nest.sources, step.end, combined)
    with env.counted(nest.strips / ACCUMULATORS), loops_around(env, nest, axis, width * side) as outer:
        places: list[list[Lane]] = []
        for number in range(side):
            place = list(outer)
            if across:
                d = nest.dim if nest.dim < axis else nest.dim - 1
                first = b.add(outer[d].value, integer(number * max(width, 1), "i32"))
                place[d] = Lane(first, 1 if width else 0)
            places.append(place)
        hoisted = [hoist(env, nest, [*place[:axis], None, *place[axis:]]) for place in places]

        def element(position: Value) -> list[Value]:
            lane = Lane(position, 1 if step.step > 1 else 0)
            values: list[Value] = []
            for place, known in zip(places, hoisted, strict=True):
                index: Index = (*place[:axis], lane, *place[axis:])
                strip = Strip(env, nest.sources, index, width, nest.saves, known, 0, nest.accesses)
                values += [materialize(b, strip.value(operand), width) for operand in op.operands]
            return values

        if across or step.any_order:
            results = _along(env, step, limit, element)
            if not across:
                results = _fold_lanes(env, op, results, width)
        else:
            results = _in_order(env, step, limit, element)
        if limit is not None:
            results = _with_what_is_beyond(env, op, results, limit, beyond, size, width if across else 0)
        for begin in range(0, len(results), len(op.results)):
            watching.passed(env, op, results[begin : begin + len(op.results)])
        for number, place in enumerate(places):
            for operand, target in enumerate(step.targets):
                value = results[number * len(step.targets) + operand]
                if target is None:
                    env.set_scalar(op.results[operand], value)
                else:
                    lane = Lane(value, None if across and width else 0)
                    write_buffer(env, target, tuple(place), lane, width if across else 0)


def _along(
    env: Environment, reduction: Reduce, limit: Value | None, element: Callable[[Value], list[Value]]
) -> list[Value]:
    """Combines the elements at 0, step, 2 * step, ... of `side` strips each by itself; from `limit` on they may be left
    out."""
    b, op, width, side, step = env.b, reduction.op, reduction.nest.lanes, reduction.side, reduction.step
    size, chains = reduction.nest.shape[reduction.axis], reduction.chains
    operands = len(op.operands)

    def combined(left: Sequence[Value], right: Sequence[Value]) -> list[Value]:
        results: list[Value] = []
        for first in range(0, side * operands, operands):
            results += combine(env, op, left[first : first + operands], right[first : first + operands], width)
        return results

    held = [element(integer(number * step, "i32")) for number in range(chains)]
    if size > chains * step:
        group = side * operands
        initial = [value for values in held for value in values]
        loop = b.open_loop(chains * step, size, chains * step, initial, limit)
        following: list[Value] = []
        for number in range(chains):
            fresh = element(b.add(loop.counter, integer(number * step, "i32")))
            following += combined(loop.carried[number * group : (number + 1) * group], fresh)
        flat = b.close_loop(loop, following)
        held = [flat[number * group : (number + 1) * group] for number in range(chains)]
    while len(held) > 1:
        half = len(held) // 2
        held = [combined(held[number], held[number + half]) for number in range(half)]
    return held[0]


def _with_what_is_beyond(
    env: Environment, op: Op, results: list[Value], limit: Value, elements: Sequence[Value], size: int, width: int
) -> list[Value]:
    """`results`, of strips side by side, and behind them the element that all are beyond the end, if there is one."""
    b = env.b
    is_cut = b.icmp("slt", limit, integer(size, "i32"))
    beyond = [materialize(b, Lane(value), width) for value in elements]
    whole: list[Value] = []
    for first in range(0, len(results), len(beyond)):
        part = results[first : first + len(beyond)]
        combined = combine(env, op, part, beyond, width)
        whole += [b.select(is_cut, new, old) for new, old in zip(combined, part, strict=True)]
    return whole


def _in_order(
    env: Environment, reduction: Reduce, limit: Value | None, element: Callable[[Value], list[Value]]
) -> list[Value]:
    """Combines strips that lie along the axis, groups of them by themselves first."""
    b, op, step, group, width = env.b, reduction.op, reduction.step, reduction.group, reduction.nest.lanes
    size = reduction.nest.shape[reduction.axis]

    def folded(position: Value) -> list[Value]:
        strips = [element(b.add(position, integer(number * step, "i32"))) for number in range(group)]
        while len(strips) > 1:
            strips = [
                _combine_neighbours(env, op, left, right, width)
                for left, right in zip(strips[::2], strips[1::2], strict=True)
            ]
        return _fold_lanes(env, op, strips[0], width, in_order=True)

    first = folded(integer(0, "i32"))
    if size == group * step:
        return first
    loop = b.open_loop(group * step, size, group * step, first, limit)
    return b.close_loop(loop, combine(env, op, loop.carried, folded(loop.counter), 0))


def _combine_neighbours(
    env: Environment, op: Op, left: Sequence[Value], right: Sequence[Value], width: int
) -> list[Value]:
    """One strip of two: in its lanes, from left to right, what two neighbours give."""
    b = env.b
    even, odd = (
        [b.shuffle(one, other, range(first, 2 * width, 2)) for one, other in zip(left, right, strict=True)]
        for first in range(2)
    )
    return combine(env, op, even, odd, width)


def combine(env: Environment, op: Op, left: Sequence[Value], right: Sequence[Value], width: int) -> list[Value]:
    kind: int | None = None if width else 0
    arguments = [Lane(value, kind) for value in (*left, *right)]
    return [materialize(env.b, lane, width) for lane in inline(env, op.regions[0], arguments, width, op)]


def _fold_lanes(env: Environment, op: Op, values: list[Value], width: int, in_order: bool = False) -> list[Value]:
    """One element of the lanes: the halves of a strip are combined, or in order, neighbours."""
    b = env.b
    while width:
        half = width // 2
        if half == 1:
            pairs = [(b.extract(value, 0), b.extract(value, 1)) for value in values]
        else:
            left, right = (range(0, width, 2), range(1, width, 2)) if in_order else (range(half), range(half, width))
            pairs = [(b.shuffle(value, None, left), b.shuffle(value, None, right)) for value in values]
        width = half if half > 1 else 0
        values = combine(env, op, [low for low, _ in pairs], [high for _, high in pairs], width)
    return values
