"""Operations that rearrange a buffer, or read and write it at places that are computed."""

from __future__ import annotations

import dataclasses

from torch_mtia.triton.ir.module import Op
from torch_mtia.triton.plan.nests import Buffer, Shape, row_major
from torch_mtia.triton.plan.plan import Do
from torch_mtia.triton.plan.planner import Planner, plans, shape_of


@plans("tt.reshape")
def _reshape(planner: Planner, op: Op) -> None:
    """The buffer under another shape: the order of elements stays, also where `allow_reorder` would let it change."""
    (source,), (result,) = op.operands, op.results
    shape = shape_of(result)
    planner.materialized[result] = planner.row_major_buffer(source, op).with_view(shape, row_major(shape))


def _part(whole: Buffer, shape: Shape, strides: Shape, elements: int) -> Buffer:
    """What begins so many elements after the beginning."""
    return dataclasses.replace(whole, shape=shape, strides=strides, offset=whole.offset + elements * whole.size)


@plans("tt.join")
def _join(planner: Planner, op: Op) -> None:
    shape = shape_of(op.operands[0])
    whole = planner.destination(op.results[0])
    for number, operand in enumerate(op.operands):
        planner.materialize([operand], op, [_part(whole, shape, whole.strides[:-1], number)])


@plans("tt.split")
def _split(planner: Planner, op: Op) -> None:
    (whole,) = planner.materialize([op.operands[0]], op)
    for number, result in enumerate(op.results):
        elements = number * whole.strides[-1]
        planner.materialized[result] = _part(whole, shape_of(result), whole.strides[:-1], elements)


@plans("tt.cat")
def _cat(planner: Planner, op: Op) -> None:
    whole = planner.destination(op.results[0])
    first = 0
    for operand in op.operands:
        shape = shape_of(operand)
        planner.materialize([operand], op, [_part(whole, shape, whole.strides, first * whole.strides[0])])
        first += shape[0]


@plans("tt.gather")
def _gather(planner: Planner, op: Op) -> None:
    source, indices = op.operands
    (table,) = planner.materialize([source], op)
    target = planner.destination(op.results[0])
    planner.add(Do(op, (planner.nest(op, [indices], shape_of(indices)),), (table,), (target,)))


@plans("tt.histogram")
def _histogram(planner: Planner, op: Op) -> None:
    (result,) = op.results
    buffers = planner.materialize(op.operands, op)
    counts = planner.destination(result)
    clearing = planner.plain_nest(shape_of(result), 0)
    counting = planner.plain_nest(shape_of(op.operands[0]), 0, one_by_one=True)
    planner.add(Do(op, (clearing, counting), tuple(buffers), (counts,)))


@plans("tt.unsplat")
def _unsplat(planner: Planner, op: Op) -> None:
    """The one element of a tensor."""
    shape = shape_of(op.operands[0])
    planner.add(Do(op, (planner.plain_nest(shape, len(shape) - 1, one_by_one=True, roots=op.operands),)))
