"""Operations that read and write buffers at places that are computed: gather, histogram; and what copies buffers."""

from __future__ import annotations

import contextlib

from torch_mtia.triton.emit.access import read_buffer, write_buffer
from torch_mtia.triton.emit.environment import Environment, statement
from torch_mtia.triton.emit.loops import complete, first_beyond, loop_over
from torch_mtia.triton.emit.strip import Strip
from torch_mtia.triton.ir.elements import llvm_element
from torch_mtia.triton.lanes import Index, Lane
from torch_mtia.triton.llvm_value import bits_of, element_of, integer
from torch_mtia.triton.plan.plan import Copy, Do, Evaluate, Transpose


def evaluate(env: Environment, step: Evaluate) -> None:
    def body(strip: Strip) -> None:
        lanes = [strip.value(value) for value, _ in step.writes]
        for lane, (_, buffer) in zip(lanes, step.writes, strict=True):
            strip.write(buffer, lane)

    loop_over(env, step.nest, body)


def copy(env: Environment, step: Copy) -> None:
    def body(strip: Strip) -> None:
        strip.write(step.target, strip.read(step.source))

    loop_over(env, step.nest, body)


def transpose(env: Environment, step: Transpose) -> None:
    b, width, shape = env.b, step.lanes, step.target.shape
    index: list[Lane | None] = [None] * len(shape)
    ends = {d: first_beyond(env, step.sources, end) for d, end in step.ends.items()}
    with contextlib.ExitStack() as stack:
        for d in sorted(range(len(shape)), key=lambda d: d == step.along):  # whole cache lines, one after the other
            stride = width if d in (step.along, step.across) else 1
            index[d] = Lane(stack.enter_context(b.loop(0, shape[d], stride, ends.get(d))))
        corner = complete(index)

        def place(varying: int, other: int, number: int) -> Index:
            moved = list(corner)
            moved[varying] = Lane(corner[varying].value, 1)
            moved[other] = Lane(b.add(corner[other].value, integer(number, "i32")))
            return tuple(moved)

        places = [place(step.along, step.across, row) for row in range(width)]
        rows = [Strip(env, step.sources, each, width, accesses=step.accesses).vector(step.value) for each in places]
        for column, vector in enumerate(b.transpose(rows)):
            write_buffer(env, step.target, place(step.across, step.along, column), Lane(vector, None), width)


@statement("tt.gather")
def _gather(env: Environment, do: Do) -> None:
    """result[..., i, ...] = source[..., indices[..., i, ...], ...] along one axis."""
    b, axis = env.b, do.op.attributes["axis"]
    (table,), (target,) = do.reads, do.writes
    assert target is not None

    def body(strip: Strip) -> None:
        # An index outside has no defined result, but must not read other memory.
        position = strip.vector(do.op.operands[1])
        if bits_of(element_of(position)) < 32:
            position = b.zext(position, "i32")  # uint8 has places that int8 does not reach
        limit = b.integer_like(table.shape[axis] - 1, position)
        inside = Lane(b.binary("and", position, limit), None if strip.width else 0)
        index = (*strip.index[:axis], inside, *strip.index[axis + 1 :])
        strip.write(target, read_buffer(env, table, index, strip.width, strip.kind(table)))

    loop_over(env, do.nests[0], body)


@statement("tt.histogram")
def _histogram(env: Environment, do: Do) -> None:
    """How often each number below the result's size occurs, where the mask is true."""
    b, (clearing, counting), (counts,) = env.b, do.nests, do.writes
    assert counts is not None
    source, *masks = do.reads

    def clear(strip: Strip) -> None:
        strip.write(counts, Lane(integer(0, llvm_element(counts.element))))

    def count(strip: Strip) -> None:
        number = read_buffer(env, source, strip.index, 0).value
        flags = [read_buffer(env, mask, strip.index, 0).value for mask in masks]
        inside = b.icmp("ult", b.zext(number, "i64"), integer(counts.shape[0], "i64"))
        for flag in flags:
            inside = b.binary("and", inside, flag)
        with b.when(inside):
            place = (Lane(b.zext(number, "i64")),)
            old = read_buffer(env, counts, place, 0).value
            write_buffer(env, counts, place, Lane(b.add(old, b.integer_like(1, old))), 0)

    loop_over(env, clearing, clear)
    loop_over(env, counting, count)
