"""Reductions and scans along one axis, with any combine function and any number of operands."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch_mtia.triton.emit import watching
from torch_mtia.triton.emit.access import write_buffer
from torch_mtia.triton.emit.assertions import check_assertion
from torch_mtia.triton.emit.environment import ELEMENTWISE, Environment
from torch_mtia.triton.emit.loops import hoist, loops_around, reduction_limit
from torch_mtia.triton.emit.strip import Strip, apply
from torch_mtia.triton.ir.module import Block, Op, Region, Unsupported
from torch_mtia.triton.ir.module import Value as Tensor
from torch_mtia.triton.lanes import Index, Lane, materialize
from torch_mtia.triton.llvm_value import Value, constant_vector, integer
from torch_mtia.triton.plan.plan import Reduce, Scan


def reduce(env: Environment, step: Reduce) -> None:
    b, op, nest, axis = env.b, step.op, step.nest, step.axis
    width, side, across = nest.lanes, step.side, step.across
    size = nest.shape[axis]
    limit: Value | None = None
    beyond: list[Value] = []
    if step.end is not None:
        combined = lambda left, right: combine(env, op, left, right, 0)  # noqa: E731
        limit, beyond = reduction_limit(env, nest.sources, step.end, combined)
    with loops_around(env, nest, axis, width * side) as outer:
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

    partial = [element(integer(number * step, "i32")) for number in range(chains)]
    if size > chains * step:
        group = side * operands
        initial = [value for values in partial for value in values]
        loop = b.open_loop(chains * step, size, chains * step, initial, limit)
        following: list[Value] = []
        for number in range(chains):
            fresh = element(b.add(loop.counter, integer(number * step, "i32")))
            following += combined(loop.carried[number * group : (number + 1) * group], fresh)
        flat = b.close_loop(loop, following)
        partial = [flat[number * group : (number + 1) * group] for number in range(chains)]
    while len(partial) > 1:
        half = len(partial) // 2
        partial = [combined(partial[number], partial[number + half]) for number in range(half)]
    return partial[0]


def _with_what_is_beyond(
    env: Environment, op: Op, results: list[Value], limit: Value, elements: Sequence[Value], size: int, width: int
) -> list[Value]:
    """`results`, of strips side by side, and after them the element that all are beyond the end, if there is one."""
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


def scan(env: Environment, plan: Scan) -> None:
    b, op, nest, axis, step = env.b, plan.op, plan.nest, plan.axis, plan.step
    width, size = nest.lanes, nest.shape[axis]

    with loops_around(env, nest, axis, width) as outer:

        def index_at(position: Value) -> Index:
            if plan.reverse:
                position = b.sub(integer(size - step, "i32"), position)
            return (*outer[:axis], Lane(position, 0 if step == 1 else 1), *outer[axis:])

        def strip_at(position: Value) -> list[Value]:
            strip = Strip(env, nest.sources, index_at(position), width, nest.saves, accesses=nest.accesses)
            values = [materialize(b, strip.value(operand), width) for operand in op.operands]
            if step > 1:
                if plan.reverse:
                    values = [_reversed(env, value, width) for value in values]
                values = _scan_lanes(env, op, values, width)
            return values

        def keep(position: Value, values: list[Value]) -> list[Value]:
            index = index_at(position)
            watching.passed(env, op, values)
            for target, value in zip(plan.targets, values, strict=True):
                stored = _reversed(env, value, width) if step > 1 and plan.reverse else value
                write_buffer(env, target, index, Lane(stored, None if width else 0), width)
            return [b.splat(b.extract(value, width - 1), width) for value in values] if step > 1 else values

        first = integer(0, "i32")
        carried = keep(first, strip_at(first))
        if size > step:
            loop = b.open_loop(step, size, step, carried)
            fresh = strip_at(loop.counter)
            b.close_loop(loop, keep(loop.counter, combine(env, op, loop.carried, fresh, width)))


def _reversed(env: Environment, value: Value, width: int) -> Value:
    return env.b.shuffle(value, None, range(width - 1, -1, -1))


def _scan_lanes(env: Environment, op: Op, values: list[Value], width: int) -> list[Value]:
    """Within a strip: each step combines with what lies 1, 2, 4, ... lanes before."""
    b = env.b
    distance = 1
    while distance < width:
        shifted = [b.shuffle(value, None, [max(lane - distance, 0) for lane in range(width)]) for value in values]
        combined = combine(env, op, shifted, values, width)
        reached = constant_vector([int(lane >= distance) for lane in range(width)], "i1")
        values = [b.select(reached, new, old) for new, old in zip(combined, values, strict=True)]
        distance *= 2
    return values


# Combine functions ----------------------------------------------------------------------------------------------------


def inline(env: Environment, region: Region, arguments: Sequence[Lane], width: int, across: Op) -> list[Lane]:
    """Applies a region of scalar operations, that of a reduction or a scan `across` lanes, to strips."""
    if len(region.blocks) != 1:
        raise Unsupported("control flow in a combine function", region.blocks[0].terminator.location)
    block = region.blocks[0]
    environment = dict(zip(block.arguments, arguments, strict=True))
    return _inline_block(env, block, environment, width, across)


def _inline_block(
    env: Environment, block: Block, environment: dict[Tensor, Lane], width: int, across: Op
) -> list[Lane]:
    def look_up(value: Tensor) -> Lane:
        found = environment.get(value)
        return found if found is not None else env.scalar(value)

    for op in block.ops[:-1]:
        lanes = [look_up(operand) for operand in op.operands]
        if op.name == "scf.if" and all(_is_pure(region) for region in op.regions):
            branches = [_inline_block(env, region.blocks[0], environment, width, across) for region in op.regions]
            results = [_select(env, lanes[0], yes, no, width) for yes, no in zip(*branches, strict=True)]
        elif op.name == "tt.call":
            callee = env.module.functions[op.attributes["callee"].lstrip("@")]
            results = inline(env, callee.body, lanes, width, across)
        elif op.name in ELEMENTWISE:
            results = apply(env.b, op, lanes, width)
            if env.follows:
                watching.computed(env, op, lanes, results, width, across)
        elif op.name == "tt.assert":
            check_assertion(env.b, op, lanes[0], width)
            continue
        elif op.name == "llvm.intr.assume":
            continue
        else:
            raise Unsupported(f"operation {op.name} in a combine function", op.location)
        environment.update(zip(op.results, results, strict=True))
    return [look_up(operand) for operand in block.terminator.operands]


def _is_pure(region: Region) -> bool:
    return len(region.blocks) == 1 and all(
        op.name in ELEMENTWISE or op.name in ("scf.yield", "scf.if") for op in region.walk()
    )


def _select(env: Environment, condition: Lane, yes: Lane, no: Lane, width: int) -> Lane:
    if condition.uniform and yes.uniform and no.uniform:
        return Lane(env.b.select(condition.value, yes.value, no.value))
    flag = condition.value if condition.uniform else materialize(env.b, condition, width)
    return Lane(env.b.select(flag, materialize(env.b, yes, width), materialize(env.b, no, width)), None if width else 0)
