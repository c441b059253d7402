"""Sums, means and extrema over some dimensions.

A long reduction to few results is done in two steps: programs reduce pieces, a second launch the pieces' results.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from torch_mtia import _C
from torch_mtia.kernels.dispatch import Layout, Plan, Request
from torch_mtia.kernels.functions import maximum, minimum, plus
from torch_mtia.kernels.tiles import COMPUTE, FLOATS, coalesce, offsets

ELEMENTS = 4096  # of a tile
PIECE = 1 << 16  # elements that a program reduces before another one helps


@dataclasses.dataclass(frozen=True)
class Reduction:
    combine: str  # "sum", "max" or "min"
    neutral: float  # of floating-point numbers; of integers, the type's bound on the same side
    is_mean: bool = False


SUM = Reduction("sum", 0)
OPERATORS: dict[str, Reduction] = {
    "sum.dim_IntList": SUM,
    "mean.dim": dataclasses.replace(SUM, is_mean=True),
    "amax": Reduction("max", -math.inf),
    "amin": Reduction("min", math.inf),
    "max": Reduction("max", -math.inf),
    "min": Reduction("min", math.inf),
}


@dataclasses.dataclass(frozen=True)
class Step:
    """One launch. The dimensions that stay and those that are reduced, the one with the smallest stride first."""

    kept: tuple[int, ...]
    kept_strides: tuple[int, ...]
    out_strides: tuple[int, ...]
    reduced: tuple[int, ...]
    reduced_strides: tuple[int, ...]
    piece: int  # of the first reduced dimension, for one program

    @property
    def num_pieces(self) -> int:
        return -(-self.reduced[0] // self.piece)


def plan(request: Request) -> Plan | None:
    source, dims = request.arguments[0], request.arguments[1:2]
    operator = OPERATORS[request.name]
    types = (source.dtype, request.output.dtype, request.result.dtype)
    if any(dtype not in COMPUTE for dtype in types):
        return None
    if operator.combine != "sum" and source.dtype != request.output.dtype:
        return None  # which ATen's kernels refuse, and its meta functions do not
    if operator.combine != "sum" and 0 in source.shape and not dims:
        return None  # likewise
    # A sum is computed in the type of the result, an extremum in that of its elements: they are the same.
    compute = COMPUTE[request.result.dtype]
    step = _step(source, request.output, dims[0] if dims else ())
    neutral = _neutral(operator, request.result.dtype)
    count = math.prod(step.reduced) if operator.is_mean else 1

    def launch(result: Tensor, arguments: Sequence[Any]) -> None:
        first, taken = step, arguments[0]
        if step.num_pieces > 1:
            first, taken = _reduce_pieces(step, taken, operator, neutral, compute)
        _launch(first, taken, result, operator, neutral, compute, count)

    return Plan(launch)


def _neutral(operator: Reduction, dtype: torch.dtype) -> float:
    if dtype in FLOATS or operator.neutral == 0:
        return operator.neutral
    bounds = torch.iinfo(torch.int64 if COMPUTE[dtype] == tl.int64 else torch.int32)
    return bounds.min if operator.neutral < 0 else bounds.max


def _step(source: Layout, output: Layout, dims: Sequence[int] | int | None) -> Step:
    """Returns one launch that reduces all."""
    rank = len(source.shape)
    chosen = [dims] if isinstance(dims, int) else list(dims or ())
    reduced = {dim % rank for dim in chosen if rank} or set(range(rank))
    kept = [dim for dim in range(rank) if dim not in reduced]
    # With keepdim the output has the reduced dimensions too, of size 1.
    out_strides = [output.stride[dim] for dim in kept] if len(output.shape) == rank else output.stride
    kept_sizes, (kept_strides, merged_out) = coalesce(
        [source.shape[dim] for dim in kept], [source.stride[dim] for dim in kept], out_strides
    )
    reduced_sizes, (reduced_strides,) = coalesce(
        [source.shape[dim] for dim in sorted(reduced)], [source.stride[dim] for dim in sorted(reduced)]
    )
    others = math.prod(reduced_sizes[1:]) * math.prod(kept_sizes)
    piece = reduced_sizes[0] if others * 4 > PIECE else max(PIECE // max(others, 1), 1)
    return Step(kept_sizes, kept_strides, merged_out, reduced_sizes, reduced_strides, max(piece, 1))


def _reduce_pieces(
    step: Step, source: Tensor, operator: Reduction, neutral: float, compute: tl.dtype
) -> tuple[Step, Tensor]:
    """Launches what reduces each piece; returns what is left to do, and with what."""
    pieces, kept = step.num_pieces, math.prod(step.kept)
    dtype = next(dtype for dtype in (torch.float32, torch.int32, torch.int64) if COMPUTE[dtype] == compute)
    partial = _C._empty_strided((pieces, kept), (kept, 1), dtype)
    dense = tuple(math.prod(step.kept[:dim]) for dim in range(len(step.kept)))
    _launch(dataclasses.replace(step, out_strides=dense), source, partial, operator, neutral, compute, 1)
    return Step(step.kept, dense, step.out_strides, (pieces,), (kept,), pieces), partial


def _launch(
    step: Step, source: Tensor, out: Tensor, operator: Reduction, neutral: float, compute: tl.dtype, count: int
) -> None:
    num_kept = math.prod(step.kept)
    kept_is_dense = step.kept_strides[0] < step.reduced_strides[0] and num_kept > 1
    short, long = (step.piece, num_kept) if kept_is_dense else (num_kept, step.piece)
    long_tile = min(triton.next_power_of_2(max(long, 1)), 1024)
    short_tile = min(triton.next_power_of_2(max(short, 1)), max(ELEMENTS // long_tile // 4, 1))
    kept_tile, reduced_tile = (long_tile, short_tile) if kept_is_dense else (short_tile, long_tile)
    kept_blocks = triton.cdiv(num_kept, kept_tile)
    reduce_kernel[(kept_blocks * max(step.num_pieces, 1),)](
        source,
        out,
        step.kept,
        step.kept_strides,
        step.out_strides,
        num_kept,
        kept_blocks,
        step.reduced,
        step.reduced_strides,
        math.prod(step.reduced[1:]),
        step.piece,
        float(count),
        COMBINE=operator.combine,
        NEUTRAL=neutral,
        IS_MEAN=operator.is_mean and out.dtype in FLOATS,
        COMPUTE=compute,
        KEPT=kept_tile,
        REDUCED=reduced_tile,
        KEPT_IS_DENSE=kept_is_dense,
    )


@triton.jit
def combine(x, y, COMBINE: tl.constexpr):
    if COMBINE == "sum":
        return x + y
    elif COMBINE == "max":
        return maximum(x, y)
    else:
        return minimum(x, y)


@triton.jit
def reduce_tile(tile, AXIS: tl.constexpr, COMBINE: tl.constexpr):
    if COMBINE == "sum":
        return tl.reduce(tile, AXIS, plus)
    elif COMBINE == "max":
        return tl.reduce(tile, AXIS, maximum)
    else:
        return tl.reduce(tile, AXIS, minimum)


@triton.jit
def reduce_kernel(
    source,
    out,
    kept_sizes,
    kept_strides,
    out_strides,
    num_kept,
    kept_blocks,
    reduced_sizes,
    reduced_strides,
    num_outer,
    piece,
    count,
    COMBINE: tl.constexpr,
    NEUTRAL: tl.constexpr,
    IS_MEAN: tl.constexpr,
    COMPUTE: tl.constexpr,
    KEPT: tl.constexpr,
    REDUCED: tl.constexpr,
    KEPT_IS_DENSE: tl.constexpr,
):
    """One program reduces a piece of the first reduced dimension, and all of the others, for KEPT results.

    The last dimension of its tile is the one that is dense in memory.
    """
    AXIS: tl.constexpr = 0 if KEPT_IS_DENSE else 1
    block = tl.program_id(0)
    kept = (block % kept_blocks).to(tl.int64) * KEPT + tl.arange(0, KEPT)
    number = (block // kept_blocks).to(tl.int64)
    begin = number * piece
    end = tl.minimum(begin + piece, reduced_sizes[0])
    kept_at = tl.expand_dims(offsets(kept, kept_sizes, kept_strides), AXIS)
    kept_mask = tl.expand_dims(kept < num_kept, AXIS)
    total = tl.full((REDUCED, KEPT) if KEPT_IS_DENSE else (KEPT, REDUCED), NEUTRAL, COMPUTE)
    for outer in range(num_outer):
        outer_at = tl.cast(0, tl.int64)
        if len(reduced_sizes) > 1:
            outer_at = offsets(tl.cast(outer, tl.int64), reduced_sizes[1:], reduced_strides[1:])
        for first in range(begin, end, REDUCED):
            index = first + tl.arange(0, REDUCED)
            mask = tl.expand_dims(index < end, 1 - AXIS) & kept_mask
            at = tl.expand_dims(index * reduced_strides[0], 1 - AXIS) + kept_at + outer_at
            value = tl.load(source + at, mask, 0).to(COMPUTE)
            total = combine(total, tl.where(mask, value, NEUTRAL), COMBINE)
    result = reduce_tile(total, AXIS, COMBINE)
    if IS_MEAN:
        result = result / count
    # With several pieces, `out` has the results of each, one piece after the other.
    tl.store(
        out + number * num_kept + offsets(kept, kept_sizes, out_strides),
        result.to(out.dtype.element_ty),
        kept < num_kept,
    )
