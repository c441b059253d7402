"""Tensors that lie along another dimension in memory than a nest takes its strips: read in squares of strips, which are
transposed in registers."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch_mtia.triton.emit.nest import Buffer, Index, Strip, complete, write_buffer
from torch_mtia.triton.floats import element_size
from torch_mtia.triton.lanes import Lane
from torch_mtia.triton.llvm import integer
from torch_mtia.triton.ttir import Value as Tensor

if TYPE_CHECKING:
    from torch_mtia.triton.emit.kernel import KernelEmitter


def transpose_loads(em: KernelEmitter, roots: Sequence[Tensor], shape: tuple[int, ...], dim: int) -> None:
    """Reads, before the nest and in squares, what lies side by side along another dimension than its strips."""
    order, at_index = em.reach(roots, shape)
    for value in order:
        if value.op is None or value.op.name != "tt.load" or not at_index[value]:
            continue
        strides = em.strides.strides(value.op.operands[0])
        size = element_size(value.type.element)
        along = next((d for d, stride in enumerate(strides) if stride == size and shape[d] > 1), dim)
        if strides[dim] not in (0, size) and is_square(em, value, along, dim):
            buffer = em.save_buffer(value, dim)
            transpose_into(em, value, buffer, along, dim)
            em.buffers[value] = buffer


def is_square(em: KernelEmitter, value: Tensor, along: int, across: int) -> bool:
    """Whether a tensor can be transposed in registers."""
    shape = value.type.shape
    assert shape is not None
    return along != across and min(shape[along], shape[across]) >= em.width and value.type.element != "i1"


def transpose_into(em: KernelEmitter, value: Tensor, buffer: Buffer, along: int, across: int) -> None:
    """Evaluates a tensor in strips along one dimension, and writes it to a buffer in strips along another."""
    shape = buffer.shape
    index: list[Lane | None] = [None] * len(shape)
    start = len(em.b.lines)
    with contextlib.ExitStack() as stack, em.repeated(value.type.numel // em.width**2):
        for d in range(len(shape)):
            step = em.width if d in (along, across) else 1
            index[d] = Lane(stack.enter_context(em.b.loop(0, shape[d], step)))
        corner = complete(index)

        def place(varying: int, other: int, number: int) -> Index:
            moved = list(corner)
            moved[varying] = Lane(corner[varying].value, 1)
            moved[other] = Lane(em.b.add(corner[other].value, integer(number, "i32")))
            return tuple(moved)

        lanes = range(em.width)
        rows = [Strip(em, place(along, across, row), em.width).vector(value) for row in lanes]
        for column, vector in enumerate(em.b.transpose(rows)):
            write_buffer(em.b, buffer, place(across, along, column), Lane(vector, None), em.width)
        em.cost += (len(em.b.lines) - start) * em.trips
