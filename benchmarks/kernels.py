"""Operators as Triton kernels (torch_mtia.kernels) against ATen's kernels, both on mtia.

python benchmarks/kernels.py --threads 1
python benchmarks/kernels.py --cases 'softmax'
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable

import torch
from timing import DEVICE, MEBIBYTE, SEED, Case, Group, Side, Tolerance, calling, main
from torch.nn import functional as F

from torch_mtia.kernels import dispatch

SUMS = Tolerance(relative=1e-3, absolute=1e-2)
HALF = Tolerance(relative=1e-2, absolute=1e-2)
GROUP = Group("operators as Triton kernels", "ATen's kernels on `mtia`")

Operator = Callable[..., torch.Tensor]


def side(operator: Operator, operands: Callable[[], list[torch.Tensor]], *, triton: bool) -> Side:
    if triton:
        register_once()
    torch.manual_seed(SEED)
    on_device = [operand.to(DEVICE) for operand in operands()]
    return calling(DEVICE, lambda: operator(*on_device))


@functools.cache
def register_once() -> None:
    """In the process of this side, which has no other."""
    dispatch.register()


def case(name: str, operator: Operator, *shapes: tuple[int, ...], half: bool = False) -> Case:
    def operands() -> list[torch.Tensor]:
        return [torch.randn(shape).to(torch.bfloat16 if half else torch.float32) for shape in shapes]

    return Case(
        name,
        GROUP,
        mtia=lambda: side(operator, operands, triton=True),
        baseline=lambda: side(operator, operands, triton=False),
        tolerance=HALF if half else SUMS,
    )


CASES = (
    case("add 16", torch.add, (16,), (16,)),
    case("add 64K", torch.add, (2**16,), (2**16,)),
    case("add 4M", torch.add, (4 * MEBIBYTE,), (4 * MEBIBYTE,)),
    case("add 4M bf16", torch.add, (4 * MEBIBYTE,), (4 * MEBIBYTE,), half=True),
    case("mul 2048 x 2048, row", torch.mul, (2048, 2048), (2048,)),
    case("mul 2048 x 2048, column", torch.mul, (2048, 2048), (2048, 1)),
    case("gelu 4M", F.gelu, (4 * MEBIBYTE,)),
    case("tanh 4M", torch.tanh, (4 * MEBIBYTE,)),
    case("transposed copy 2048 x 2048", lambda x: x.t().contiguous(), (2048, 2048)),
    case("sum 4M", torch.sum, (4 * MEBIBYTE,)),
    case("sum of rows 2048 x 2048", lambda x: x.sum(1), (2048, 2048)),
    case("sum of columns 2048 x 2048", lambda x: x.sum(0), (2048, 2048)),
    case("amax of rows 2048 x 2048", lambda x: x.amax(1), (2048, 2048)),
    case("softmax 2048 x 1024", lambda x: torch.softmax(x, -1), (2048, 1024)),
    case("log_softmax 64 x 10", lambda x: torch.log_softmax(x, -1), (64, 10)),
    case("softmax of columns 1024 x 1024", lambda x: torch.softmax(x, 0), (1024, 1024)),
    case("mm 64", torch.mm, (64, 64), (64, 64)),
    case("mm 512", torch.mm, (512, 512), (512, 512)),
    case("mm 512 bf16", torch.mm, (512, 512), (512, 512), half=True),
    case("addmm 128 x 512 x 256", torch.addmm, (512,), (128, 256), (256, 512)),
    case("bmm 16 x 128", torch.bmm, (16, 128, 128), (16, 128, 128)),
)

if __name__ == "__main__":
    sys.exit(main(CASES, __doc__))
