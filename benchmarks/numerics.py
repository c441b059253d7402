"""The price of `torch_mtia.numerics("batch_invariant")`: the same operators with and without the mode.

python benchmarks/numerics.py --threads 2
python benchmarks/numerics.py --cases 'linear'
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from timing import DEVICE, MEBIBYTE, SEED, Case, Group, Side, Tolerance, calling, main
from torch.nn import functional as F

import torch_mtia

SUMS = Tolerance(relative=1e-3, absolute=1e-2)
HALF = Tolerance(relative=2e-2, absolute=2e-2)
GROUP = Group("`numerics(batch_invariant)`", "the same without the mode")

Operator = Callable[..., torch.Tensor]


def side(operator: Operator, operands: Callable[[], list[torch.Tensor]], mode: str, *, compiled: bool) -> Side:
    torch_mtia.numerics(mode)  # of a process that has one side
    torch.manual_seed(SEED)
    on_device = [operand.to(DEVICE) for operand in operands()]
    function: Any = torch.compile(operator, dynamic=False) if compiled else operator
    return calling(DEVICE, lambda: function(*on_device))


def case(
    name: str, operator: Operator, *shapes: tuple[int, ...], dtype: torch.dtype = torch.float32, compiled: bool = False
) -> Case:
    def operands() -> list[torch.Tensor]:
        return [torch.randn(shape).to(dtype) for shape in shapes]

    return Case(
        name,
        GROUP,
        mtia=lambda: side(operator, operands, "batch_invariant", compiled=compiled),
        baseline=lambda: side(operator, operands, "default", compiled=compiled),
        tolerance=SUMS if dtype in (torch.float32, torch.float64) else HALF,
    )


def attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(query, key, value)


def normalized(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(F.layer_norm(x * 2 + 1, x.shape[-1:]), -1)


HEADS = (1, 8, 512, 64)
CASES = (
    case("mm 1024", torch.mm, (1024, 1024), (1024, 1024)),
    case("mm 1024, float64", torch.mm, (1024, 1024), (1024, 1024), dtype=torch.float64),
    case("mm 1024, bfloat16", torch.mm, (1024, 1024), (1024, 1024), dtype=torch.bfloat16),
    case("mm 1024, float16", torch.mm, (1024, 1024), (1024, 1024), dtype=torch.float16),
    case("mm 512, complex64", torch.mm, (512, 512), (512, 512), dtype=torch.complex64),
    case("linear 1 x 4096 to 4096", F.linear, (1, 4096), (4096, 4096)),
    case("linear 16 x 4096 to 4096", F.linear, (16, 4096), (4096, 4096)),
    case("linear 1 x 4096 to 4096, bfloat16", F.linear, (1, 4096), (4096, 4096), dtype=torch.bfloat16),
    case("bmm 16 x 128", torch.bmm, (16, 128, 128), (16, 128, 128)),
    case("mm 16", torch.mm, (16, 16), (16, 16)),
    case("conv2d 8 x 64 x 56 x 56, 3 x 3", F.conv2d, (8, 64, 56, 56), (64, 64, 3, 3)),
    case("attention 8 x 512 x 64", attention, HEADS, HEADS, HEADS),
    case("sum 4M", torch.sum, (4 * MEBIBYTE,)),
    case("softmax 2048 x 1024", lambda x: torch.softmax(x, -1), (2048, 1024)),
    case("layer_norm 2048 x 1024", lambda x: F.layer_norm(x, (1024,)), (2048, 1024)),
    case("add 4M", torch.add, (4 * MEBIBYTE,), (4 * MEBIBYTE,)),
    case("add 64K", torch.add, (2**16,), (2**16,)),
    case("silu 4M", F.silu, (4 * MEBIBYTE,)),
    case("softmax of layer_norm 2048 x 1024, compiled", normalized, (2048, 1024), compiled=True),
)

if __name__ == "__main__":
    sys.exit(main(CASES, __doc__))
