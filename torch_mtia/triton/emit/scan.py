"""Scans (cumulative combinations) along one axis, with any associative combine function and several operands."""

from __future__ import annotations

from torch_mtia.triton.emit import watching
from torch_mtia.triton.emit.access import write_buffer
from torch_mtia.triton.emit.environment import Environment
from torch_mtia.triton.emit.loops import loops_around
from torch_mtia.triton.emit.reduce import combine
from torch_mtia.triton.emit.strip import Strip
from torch_mtia.triton.ir.module import Op
from torch_mtia.triton.lanes import Index, Lane, materialize
from torch_mtia.triton.llvm_value import Value, constant_vector, integer
from torch_mtia.triton.plan.plan import Scan


def scan(env: Environment, plan: Scan) -> None:
    b, op, nest, axis, step = env.b, plan.op, plan.nest, plan.axis, plan.step
    width, size = nest.lanes, nest.shape[axis]

    with env.counted(nest.strips / 2), loops_around(env, nest, axis, width) as outer:

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
