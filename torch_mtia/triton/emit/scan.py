"""Scans (cumulative combinations) along one axis, with any associative combine function and several operands."""

from __future__ import annotations

from torch_mtia.triton.emit.kernel import KernelEmitter
from torch_mtia.triton.emit.nest import Index, Strip, innermost_first, write_buffer
from torch_mtia.triton.emit.reduce import combine
from torch_mtia.triton.emit.registry import statement
from torch_mtia.triton.lanes import Lane, materialize
from torch_mtia.triton.llvm import Value, constant_vector, integer
from torch_mtia.triton.ttir import Op


@statement("tt.scan")
def _scan(em: KernelEmitter, op: Op) -> None:
    axis, reverse = op.attributes["axis"], bool(op.attributes.get("reverse"))
    shape = op.operands[0].type.shape
    assert shape is not None
    saves = em.prepare(op, op.operands, shape)
    others = [d for d, size in enumerate(shape) if d != axis and size > 1]
    across = max(others, key=lambda d: (min(shape[d], em.width), d), default=None)
    dim = axis if across is None else across
    kept = {value: em.save_buffer(value, dim) for value in saves}
    targets = [em.new_buffer(shape, result.type.element, innermost_first(shape, dim)) for result in op.results]
    width = min(em.width, shape[dim])
    width = width if width > 1 else 0
    step = 1 if across is not None or not width else width
    size = shape[axis]
    b = em.b
    start = len(b.lines)

    with em.loops_around(shape, axis, across, width) as outer:

        def index_at(position: Value) -> Index:
            if reverse:
                position = b.sub(integer(size - step, "i32"), position)
            return (*outer[:axis], Lane(position, 0 if step == 1 else 1), *outer[axis:])

        def strip_at(position: Value) -> list[Value]:
            strip = Strip(em, index_at(position), width, kept)
            values = [materialize(b, strip.value(operand), width) for operand in op.operands]
            if step > 1:
                if reverse:
                    values = [_reversed(em, value, width) for value in values]
                values = _scan_lanes(em, op, values, width)
            return values

        def keep(position: Value, values: list[Value]) -> list[Value]:
            index = index_at(position)
            for target, value in zip(targets, values, strict=True):
                stored = _reversed(em, value, width) if step > 1 and reverse else value
                write_buffer(b, target, index, Lane(stored, None if width else 0), width)
            return [b.splat(b.extract(value, width - 1), width) for value in values] if step > 1 else values

        first = integer(0, "i32")
        carried = keep(first, strip_at(first))
        if size > step:
            loop = b.open_loop(step, size, step, carried)
            fresh = strip_at(loop.counter)
            b.close_loop(loop, keep(loop.counter, combine(em, op, loop.carried, fresh, width)))
    em.cost += (len(b.lines) - start) / 2 * em.trips * max(1, op.operands[0].type.numel // max(width, 1))
    em.buffers.update(kept)
    for result, target in zip(op.results, targets, strict=True):
        em.buffers[result] = target


def _reversed(em: KernelEmitter, value: Value, width: int) -> Value:
    return em.b.shuffle(value, None, range(width - 1, -1, -1))


def _scan_lanes(em: KernelEmitter, op: Op, values: list[Value], width: int) -> list[Value]:
    """Within a strip: each step combines with what lies 1, 2, 4, ... lanes before."""
    b = em.b
    distance = 1
    while distance < width:
        shifted = [b.shuffle(value, None, [max(lane - distance, 0) for lane in range(width)]) for value in values]
        combined = combine(em, op, shifted, values, width)
        reached = constant_vector([int(lane >= distance) for lane in range(width)], "i1")
        values = [b.select(reached, new, old) for new, old in zip(combined, values, strict=True)]
        distance *= 2
    return values
