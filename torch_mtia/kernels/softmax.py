"""Softmax, its logarithm, and the gradients of both, along any dimension."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from torch_mtia.kernels.dispatch import Layout, Plan, Request
from torch_mtia.kernels.tiles import FLOATS, coalesce, offsets

ELEMENTS = 4096  # of a tile


@dataclasses.dataclass(frozen=True)
class Rows:
    """A tensor as rows along one dimension."""

    length: int
    sizes: tuple[int, ...]  # of what is left, the dimension with the smallest strides first
    strides: tuple[tuple[int, ...], ...]  # of these dimensions, for each tensor
    steps: tuple[int, ...]  # from one element of a row to the next, for each tensor
    count: int


def plan(request: Request) -> Plan | None:
    is_gradient = request.name.endswith("_backward_data")
    inputs: list[Layout] = [argument for argument in request.arguments if isinstance(argument, Layout)]
    dim: int = request.arguments[len(inputs)]
    rank = len(request.output.shape)
    if any(layout.dtype not in FLOATS for layout in (*inputs, request.output)) or not -rank <= dim < rank:
        return None
    rows = _rows(dim % rank, *inputs, request.output)
    # The tile's last dimension is the one that is dense in memory: the row, or across rows.
    row_is_dense = rows.count == 1 or rows.steps[0] <= rows.strides[0][0]
    columns = min(triton.next_power_of_2(rows.length), 4096 if row_is_dense else 16)
    num_rows = min(triton.next_power_of_2(rows.count), max(ELEMENTS // columns // (4 if row_is_dense else 1), 1))
    kernel = gradient_kernel if is_gradient else softmax_kernel

    def launch(result: Tensor, arguments: Sequence[Any]) -> None:
        kernel[(triton.cdiv(rows.count, num_rows),)](
            *arguments[: len(inputs)],
            result,
            rows.length,
            rows.count,
            rows.sizes,
            rows.strides,
            rows.steps,
            LOGARITHM=request.name.startswith("_log"),
            ROWS=num_rows,
            COLUMNS=columns,
            ROW_IS_DENSE=row_is_dense,
        )

    return Plan(launch)


def _rows(dim: int, *layouts: Layout) -> Rows:
    def others(sizes: Sequence[int]) -> list[int]:
        return [size for number, size in enumerate(sizes) if number != dim]

    shape = layouts[0].shape
    sizes, strides = coalesce(others(shape), *(others(layout.stride) for layout in layouts))
    count = 1
    for size in sizes:
        count *= size
    return Rows(shape[dim], sizes, strides, tuple(layout.stride[dim] for layout in layouts), count)


@triton.jit
def softmax_kernel(
    source,
    out,
    length,
    count,
    sizes,
    strides,
    steps,
    LOGARITHM: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROW_IS_DENSE: tl.constexpr,
):
    """One program has ROWS rows, COLUMNS elements at a time: the largest, the sum, the result."""
    AXIS: tl.constexpr = 1 if ROW_IS_DENSE else 0
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    row_mask = tl.expand_dims(row < count, AXIS)
    source += tl.expand_dims(offsets(row, sizes, strides[0]), AXIS)
    out += tl.expand_dims(offsets(row, sizes, strides[1]), AXIS)
    SHAPE: tl.constexpr = (ROWS, COLUMNS) if ROW_IS_DENSE else (COLUMNS, ROWS)
    largest = tl.full(SHAPE, float("-inf"), tl.float32)
    for first in range(0, length, COLUMNS):
        column = tl.expand_dims(tl.cast(first, tl.int64) + tl.arange(0, COLUMNS), 1 - AXIS)
        value = tl.load(source + column * steps[0], (column < length) & row_mask, float("-inf")).to(tl.float32)
        largest = tl.maximum(largest, value, propagate_nan=tl.PropagateNan.ALL)
    top = tl.expand_dims(tl.reduce(largest, AXIS, larger), AXIS)
    total = tl.zeros(SHAPE, tl.float32)
    for first in range(0, length, COLUMNS):
        column = tl.expand_dims(tl.cast(first, tl.int64) + tl.arange(0, COLUMNS), 1 - AXIS)
        mask = (column < length) & row_mask
        total += tl.where(mask, tl.exp(tl.load(source + column * steps[0], mask, 0).to(tl.float32) - top), 0)
    normalizer = tl.expand_dims(tl.sum(total, AXIS), AXIS)
    if LOGARITHM:
        normalizer = tl.log(normalizer)
    for first in range(0, length, COLUMNS):
        column = tl.expand_dims(tl.cast(first, tl.int64) + tl.arange(0, COLUMNS), 1 - AXIS)
        mask = (column < length) & row_mask
        value = tl.load(source + column * steps[0], mask, 0).to(tl.float32) - top
        result = value - normalizer if LOGARITHM else tl.exp(value) / normalizer
        tl.store(out + column * steps[1], result.to(out.dtype.element_ty), mask)


@triton.jit
def larger(x, y):
    return tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def gradient_kernel(
    grad,
    output,
    out,
    length,
    count,
    sizes,
    strides,
    steps,
    LOGARITHM: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROW_IS_DENSE: tl.constexpr,
):
    """The gradient with respect to the input, from that of the output and the output: a sum, the result."""
    AXIS: tl.constexpr = 1 if ROW_IS_DENSE else 0
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    row_mask = tl.expand_dims(row < count, AXIS)
    grad += tl.expand_dims(offsets(row, sizes, strides[0]), AXIS)
    output += tl.expand_dims(offsets(row, sizes, strides[1]), AXIS)
    out += tl.expand_dims(offsets(row, sizes, strides[2]), AXIS)
    total = tl.zeros((ROWS, COLUMNS) if ROW_IS_DENSE else (COLUMNS, ROWS), tl.float32)
    for first in range(0, length, COLUMNS):
        column = tl.expand_dims(tl.cast(first, tl.int64) + tl.arange(0, COLUMNS), 1 - AXIS)
        mask = (column < length) & row_mask
        term = tl.load(grad + column * steps[0], mask, 0).to(tl.float32)
        if not LOGARITHM:
            term *= tl.load(output + column * steps[1], mask, 0).to(tl.float32)
        total += term
    sum = tl.expand_dims(tl.sum(total, AXIS), AXIS)
    for first in range(0, length, COLUMNS):
        column = tl.expand_dims(tl.cast(first, tl.int64) + tl.arange(0, COLUMNS), 1 - AXIS)
        mask = (column < length) & row_mask
        g = tl.load(grad + column * steps[0], mask, 0).to(tl.float32)
        y = tl.load(output + column * steps[1], mask, 0).to(tl.float32)
        result = g - tl.exp(y) * sum if LOGARITHM else (g - sum) * y
        tl.store(out + column * steps[2], result.to(out.dtype.element_ty), mask)
