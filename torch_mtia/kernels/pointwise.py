"""Pointwise operators: one kernel, and a function of one element for each operator.

To add an operator: a row of OPERATORS and, in dispatch.py, its name.
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

from torch_mtia.kernels import functions as f
from torch_mtia.kernels.dispatch import Layout, Number, Plan, Request
from torch_mtia.kernels.tiles import COMPUTE, FLOATS, broadcast, coalesce, limits, offsets, tile, triton_type

ELEMENTS = 4096  # of a tile


@dataclasses.dataclass(frozen=True)
class Pointwise:
    function: Any  # takes the elements and numbers of the operator's arguments, in order
    types: tuple[torch.dtype, ...] = tuple(COMPUTE)  # that it computes in
    compares: bool = False
    """Its result is a boolean: it computes in the common type of its arguments, and numbers are rounded to it first."""


def _comparison(function: Any) -> Pointwise:
    return Pointwise(function, compares=True)


def _floating(function: Any) -> Pointwise:
    return Pointwise(function, FLOATS)


INTEGERS = tuple(dtype for dtype in COMPUTE if dtype not in FLOATS)
NOT_BOOL = tuple(dtype for dtype in COMPUTE if dtype != torch.bool)

OPERATORS: dict[str, Pointwise] = {
    "add.Tensor": Pointwise(f.add),
    "sub.Tensor": Pointwise(f.sub),
    "mul.Tensor": Pointwise(f.mul),
    "div.Tensor": _floating(f.div),
    "maximum": Pointwise(f.maximum),
    "minimum": Pointwise(f.minimum),
    "where.self": Pointwise(f.where),
    **{f"eq.{other}": _comparison(f.eq) for other in ("Tensor", "Scalar")},
    **{f"ne.{other}": _comparison(f.ne) for other in ("Tensor", "Scalar")},
    **{f"lt.{other}": _comparison(f.lt) for other in ("Tensor", "Scalar")},
    **{f"le.{other}": _comparison(f.le) for other in ("Tensor", "Scalar")},
    **{f"gt.{other}": _comparison(f.gt) for other in ("Tensor", "Scalar")},
    **{f"ge.{other}": _comparison(f.ge) for other in ("Tensor", "Scalar")},
    "logical_not": _comparison(f.logical_not),
    "bitwise_and.Tensor": Pointwise(f.bitwise_and, INTEGERS),
    "bitwise_or.Tensor": Pointwise(f.bitwise_or, INTEGERS),
    "bitwise_xor.Tensor": Pointwise(f.bitwise_xor, INTEGERS),
    "neg": Pointwise(f.neg),
    "abs": Pointwise(f.abs),
    "sign": Pointwise(f.sign, NOT_BOOL),
    "relu": Pointwise(f.relu, NOT_BOOL),
    "floor": _floating(f.floor),
    "ceil": _floating(f.ceil),
    "trunc": _floating(f.trunc),
    "sqrt": _floating(f.sqrt),
    "rsqrt": _floating(f.rsqrt),
    "reciprocal": _floating(f.reciprocal),
    "exp": _floating(f.exp),
    "exp2": _floating(f.exp2),
    "log": _floating(f.log),
    "log2": _floating(f.log2),
    "log10": _floating(f.log10),
    "sin": _floating(f.sin),
    "cos": _floating(f.cos),
    "tanh": _floating(f.tanh),
    "erf": _floating(f.erf),
    "sigmoid": _floating(f.sigmoid),
    "silu": _floating(f.silu),
    "gelu": _floating({"none": f.gelu, "tanh": f.gelu_tanh}),
    "leaky_relu": _floating(f.leaky_relu),
    "threshold_backward": Pointwise(f.threshold_backward),
    "sigmoid_backward": _floating(f.sigmoid_backward),
    "tanh_backward": _floating(f.tanh_backward),
    "silu_backward": _floating(f.silu_backward),
    "gelu_backward": _floating({"none": f.gelu_backward, "tanh": f.gelu_tanh_backward}),
    "addcmul": Pointwise(f.addcmul),
    "addcdiv": _floating(f.addcdiv),
    "lerp.Scalar": _floating(f.lerp),
}


def plan(request: Request) -> Plan | None:
    operator = OPERATORS[request.name]
    operands = {i: a for i, a in enumerate(request.arguments) if isinstance(a, (Layout, Number))}
    option = next((argument for argument in request.arguments if isinstance(argument, str)), None)
    function = operator.function[option] if option is not None else operator.function
    common = _common_type(list(operands.values())) if operator.compares else request.result.dtype
    if common not in operator.types:
        return None
    return elementwise(function, request.output, operands, common, exact=operator.compares)


def _common_type(operands: Sequence[Layout | Number]) -> torch.dtype:
    """Returns the type in which a comparison compares."""
    examples = [
        torch.empty((1,) * min(len(operand.shape), 1), dtype=operand.dtype, device="meta")
        if isinstance(operand, Layout)
        else torch.ones((), dtype=operand.kind)
        if isinstance(operand.kind, torch.dtype)
        else operand.kind(1)
        for operand in operands
    ]
    return torch.result_type(examples[0], examples[-1])


def elementwise(
    function: Any, output: Layout, operands: dict[int, Layout | Number], common: torch.dtype, *, exact: bool = False
) -> Plan | None:
    """Returns a plan that applies a function to the arguments at some positions, element by element.

    It computes in the type that the common one computes in, or, `exact`, in the common type itself. None if an element
    type is not one of COMPUTE.
    """
    layouts = [operand for operand in operands.values() if isinstance(operand, Layout)]
    if any(dtype not in COMPUTE for dtype in (common, output.dtype, *(layout.dtype for layout in layouts))):
        return None
    strides = [broadcast(layout.shape, layout.stride, output.shape) for layout in layouts]
    sizes, (out_strides, *merged) = coalesce(output.shape, output.stride, *strides)
    step = iter(merged)
    geometry = (sizes, out_strides, tuple(next(step) if isinstance(o, Layout) else None for o in operands.values()))
    rows, columns = tile(sizes, ELEMENTS)
    column_blocks = triton.cdiv(sizes[0], columns)
    num_rows = math.prod(sizes[1:])
    constants = {
        "FUNCTION": function,
        "COMPUTE": triton_type(common) if exact and common in FLOATS else COMPUTE[common],
        "ROWS": rows,
        "COLUMNS": columns,
    }
    grid = (column_blocks * triton.cdiv(num_rows, rows),)

    def launch(result: Tensor, arguments: Sequence[Any]) -> None:
        values = tuple(_operand(arguments[position], common) for position in operands)
        elementwise_kernel[grid](result, values, *geometry, num_rows, column_blocks, **constants)

    return Plan(launch, elementwise=frozenset(operands), limits=limits(common, exact=exact))


def _operand(value: Tensor | float, common: torch.dtype) -> Tensor | float:
    """Returns a tensor of the device as it is, a number in the class of the common type."""
    if isinstance(value, Tensor):
        if value.device.type != "cpu":
            return value
        value = value.item()
    return float(value) if common in FLOATS else int(value)


@triton.jit
def elementwise_kernel(
    out,
    operands,
    sizes,
    out_strides,
    strides,
    num_rows,
    column_blocks,
    FUNCTION: tl.constexpr,
    COMPUTE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """One program computes a tile; its columns are the first of the dimensions."""
    block = tl.program_id(0)
    column = (block % column_blocks).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    row = (block // column_blocks).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    mask = (row < num_rows)[:, None] & (column < sizes[0])[None, :]
    values = ()
    for i in tl.static_range(len(operands)):
        value = load_operand(operands[i], strides[i], row, column, sizes, mask, COMPUTE)
        values = values + (value,)  # type: ignore[assignment]
    tl.store(out + tile_offsets(row, column, sizes, out_strides), FUNCTION(*values).to(out.dtype.element_ty), mask)


@triton.jit
def load_operand(operand, strides, row, column, sizes, mask, COMPUTE: tl.constexpr):
    if strides is None:
        return tl.full((1, 1), operand, COMPUTE)
    else:
        return tl.load(operand + tile_offsets(row, column, sizes, strides), mask).to(COMPUTE)


@triton.jit
def tile_offsets(row, column, sizes, strides):
    """Where the elements of a tile are."""
    if len(sizes) == 1:
        return (column * strides[0])[None, :] + row[:, None] * 0
    else:
        return (column * strides[0])[None, :] + offsets(row, sizes[1:], strides[1:])[:, None]
