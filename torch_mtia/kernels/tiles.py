"""Shapes, strides and element types, as kernels take them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import triton
import triton.language as tl

# The type that a kernel computes in, for tensors of each type: what ATen's own kernels do.
COMPUTE: dict[torch.dtype, tl.dtype] = {
    torch.float32: tl.float32,
    torch.float16: tl.float32,
    torch.bfloat16: tl.float32,
    torch.bool: tl.int32,  # a sum of two booleans is true if it is not 0
    torch.uint8: tl.int32,
    torch.int8: tl.int32,
    torch.int16: tl.int32,
    torch.int32: tl.int32,
    torch.int64: tl.int64,
}
FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def triton_type(dtype: torch.dtype) -> tl.dtype:
    """Returns the type of the elements of a tensor; it is one of COMPUTE."""
    return tl.str_to_ty(triton.runtime.jit.type_canonicalisation_dict[str(dtype).partition(".")[2]], None)


def limits(dtype: torch.dtype, *, exact: bool = False) -> tuple[float, float]:
    """Returns the numbers that ATen takes for this type, or, `exact`, that the type has. ATen computes 16 bits in
    32."""
    if dtype == torch.bool:
        return 0, 1
    if dtype in FLOATS:
        most = torch.finfo(dtype if exact else torch.float32).max
        return -most, most
    return torch.iinfo(dtype).min, torch.iinfo(dtype).max


def coalesce(shape: Sequence[int], *strides: Sequence[int]) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """Returns the same elements with as few dimensions as possible, the one with the smallest strides first.

    Returns the sizes and, for each tensor, the strides. There is at least one dimension.
    """
    order = sorted(
        (dim for dim in range(len(shape)) if shape[dim] != 1), key=lambda dim: (*(s[dim] for s in strides), -dim)
    )
    dims: list[tuple[int, ...]] = []  # size, stride of each tensor
    for dim in order:
        dims.append((shape[dim], *(s[dim] for s in strides)))
        if len(dims) > 1:
            (inner, *inner_strides), (outer, *outer_strides) = dims[-2:]
            if all(far == near * inner for near, far in zip(inner_strides, outer_strides, strict=True)):
                dims[-2:] = [(inner * outer, *inner_strides)]
    sizes, *merged = zip(*(dims or [(1,) * (1 + len(strides))]), strict=True)
    return sizes, tuple(merged)


def broadcast(shape: Sequence[int], stride: Sequence[int], to: Sequence[int]) -> tuple[int, ...]:
    """Returns the strides with which a tensor is read in a larger shape."""
    missing = len(to) - len(shape)
    own = [0 if size == 1 else step for size, step in zip(shape, stride, strict=True)]
    return (*[0] * missing, *own)


def tile(sizes: Sequence[int], elements: int) -> tuple[int, int]:
    """Rows and columns of a tile of at most so many elements, for a tensor whose first dimension is the columns."""
    columns = min(triton.next_power_of_2(sizes[0]), elements)
    rows = min(triton.next_power_of_2(math.prod(sizes[1:])), elements // columns)
    return rows, columns


@triton.jit
def offsets(index, sizes, strides):
    """Where elements with these numbers are; the first dimension varies fastest."""
    at = index % sizes[0] * strides[0] if len(sizes) > 1 else index * strides[0]
    for dim in tl.static_range(1, len(sizes)):
        index = index // sizes[dim - 1]
        at += (index % sizes[dim] if dim + 1 < len(sizes) else index) * strides[dim]
    return at
