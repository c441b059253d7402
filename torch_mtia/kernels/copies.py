"""Copies within a device that change order or type, and fills of memory that is not dense.

What is dense and of one type is the driver's: the kernel that the operator had before calls memory_copy and
memory_fill.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torch_mtia.kernels import functions as f
from torch_mtia.kernels.dispatch import Layout, Number, Plan, Request
from torch_mtia.kernels.pointwise import elementwise
from torch_mtia.kernels.tiles import FLOATS, coalesce

# The same bits, for copies that do not change the type.
BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def plan(request: Request) -> Plan | None:
    if request.name == "copy_":
        return _copy(request.output, request.arguments[1])
    if _is_dense(request.output):
        return None
    value = request.arguments[1] if request.name == "fill_.Scalar" else Number(int)
    filled = elementwise(f.identity, request.output, {1: value}, request.output.dtype)
    return filled if filled is None or request.name != "zero_" else _with_arguments(filled, lambda _: (None, 0))


def _is_dense(layout: Layout) -> bool:
    sizes, strides = coalesce(layout.shape, layout.stride)
    return len(sizes) == 1 and strides[0][0] == 1


def _copy(output: Layout, source: Any) -> Plan | None:
    if not isinstance(source, Layout):
        return None  # from the host
    if output.dtype != source.dtype:
        made = elementwise(_conversion(source.dtype, output.dtype), output, {1: source}, source.dtype)
    else:
        bits = BITS.get(output.dtype.itemsize)
        if bits is None or (output[1:] == source[1:] and _is_dense(output)):
            return None
        made = elementwise(f.identity, output._replace(dtype=bits), {1: source._replace(dtype=bits)}, bits)
        made = made and _with_arguments(made, lambda arguments: (None, arguments[1].view(bits)), bits)
    return made and dataclasses.replace(made, resolved=True)


def _conversion(source: torch.dtype, result: torch.dtype) -> Any:
    if source not in FLOATS or result in FLOATS or result == torch.bool:
        return f.identity
    return f.to_int64 if result.itemsize == 8 or result == torch.uint32 else f.to_int32


def _with_arguments(
    plan: Plan, change: Callable[[Sequence[Any]], Sequence[Any]], dtype: torch.dtype | None = None
) -> Plan:
    """Returns the plan, for other arguments than those of the call, and for a result of another type of the same
    size."""

    def launch(result: Tensor, arguments: Sequence[Any]) -> None:
        plan.launch(result if dtype is None else result.view(dtype), change(arguments))

    return dataclasses.replace(plan, launch=launch)
