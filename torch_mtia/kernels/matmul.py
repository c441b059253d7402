"""Matrix products: mm, bmm, and with a term that is added, addmm and baddbmm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from torch_mtia.kernels.dispatch import Layout, Plan, Request
from torch_mtia.kernels.tiles import FLOATS, broadcast, limits

# Largest tile of the result, and how much of the inner dimension is multiplied at a time.
LARGEST = (128, 64, 128)
SMALLEST = 16


def plan(request: Request) -> Plan | None:
    adds = request.name in ("addmm", "baddbmm")
    layouts: list[Layout] = [argument for argument in request.arguments if isinstance(argument, Layout)]
    a, b = layouts[-2:]
    output = request.output
    if any(layout.dtype != output.dtype for layout in layouts) or output.dtype not in FLOATS:
        return None
    if len(layouts) != 2 + adds or a.shape[-1] == 0:
        return None
    rows, columns, inner = a.shape[-2], b.shape[-1], a.shape[-1]
    row_tile, column_tile, inner_tile = (
        max(min(triton.next_power_of_2(size), most), SMALLEST)
        for size, most in zip((rows, columns, inner), LARGEST, strict=True)
    )
    row_blocks, column_blocks = triton.cdiv(rows, row_tile), triton.cdiv(columns, column_tile)
    batch = output.shape[0] if len(output.shape) == 3 else 1
    strides = [_with_batch(layout.stride) for layout in (a, b, output)]
    strides.append(_with_batch(broadcast(layouts[0].shape, layouts[0].stride, output.shape)) if adds else (0, 0, 0))

    def launch(result: Tensor, arguments: Sequence[Any]) -> None:
        added, left, right, beta, alpha = arguments if adds else (None, *arguments, 0, 1)
        matmul_kernel[(row_blocks * column_blocks * batch,)](
            left,
            right,
            result,
            added if beta != 0 else None,  # what is not added may be NaN
            rows,
            columns,
            inner,
            *strides,
            float(beta),
            float(alpha),
            row_blocks,
            column_blocks,
            ROWS=row_tile,
            COLUMNS=column_tile,
            INNER=inner_tile,
        )

    return Plan(launch, elementwise=frozenset([0] if adds else []), limits=limits(output.dtype))


def _with_batch(strides: Sequence[int]) -> tuple[int, ...]:
    return (*[0] * (3 - len(strides)), *strides)


@triton.jit
def matmul_kernel(
    a,
    b,
    out,
    added,
    rows,
    columns,
    inner,
    a_strides,
    b_strides,
    out_strides,
    added_strides,
    beta,
    alpha,
    row_blocks,
    column_blocks,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INNER: tl.constexpr,
):
    """One program computes a tile of one matrix."""
    block = tl.program_id(0)
    row = (block % row_blocks).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = (block // row_blocks % column_blocks).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    number = (block // (row_blocks * column_blocks)).to(tl.int64)
    a += number * a_strides[0] + row * a_strides[1]
    b += number * b_strides[0] + column * b_strides[2]
    product = tl.zeros((ROWS, COLUMNS), tl.float32)
    for first in range(0, inner, INNER):
        k = tl.cast(first, tl.int64) + tl.arange(0, INNER)
        left = tl.load(a + k[None, :] * a_strides[2], (row < rows) & (k < inner)[None, :], 0)
        right = tl.load(b + k[:, None] * b_strides[1], (k < inner)[:, None] & (column < columns), 0)
        product = tl.dot(left, right, product, input_precision="ieee")
    mask = (row < rows) & (column < columns)
    product *= alpha
    if added is not None:
        at = number * added_strides[0] + row * added_strides[1] + column * added_strides[2]
        product += beta * tl.load(added + at, mask).to(tl.float32)
    at = number * out_strides[0] + row * out_strides[1] + column * out_strides[2]
    tl.store(out + at, product.to(out.dtype.element_ty), mask)
