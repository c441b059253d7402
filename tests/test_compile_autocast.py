"""Autocast in compiled code: what takes functions, and Triton kernels of the program, pass it on to what is inside."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import triton
import triton.language as tl
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.utils.checkpoint import checkpoint

from tests.compiled import generated

Tensor = torch.Tensor
Function = Callable[[Tensor], Tensor]


@triton.jit
def doubled(x, out, size, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + offsets, 2 * tl.load(x + offsets, offsets < size), offsets < size)


def kernel_of_the_program(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    doubled[(triton.cdiv(x.numel(), 64),)](x, out, x.numel(), BLOCK=64)
    return out @ out


def twice(x: Tensor) -> Tensor:
    def body(i: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return i + 1, (y @ x).float()

    start = torch.zeros((), dtype=torch.int64, device=x.device), x.clone()
    return while_loop(lambda i, _: i < 2, body, start)[1]  # type: ignore[no-any-return]


def running_product(x: Tensor) -> Tensor:
    def step(total: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
        return total + row, (row @ x).clone()

    return scan(step, torch.zeros_like(x[:1]), x[:, None])[1][:, 0]  # type: ignore[no-any-return]


# What compiled code does, and the same without an operator that takes functions.
PROGRAMS: dict[str, tuple[Function, Function]] = {
    "cond": (lambda x: torch.cond(x.sum() > 100, lambda x: x.t() @ x, lambda x: x @ x, (x,)), lambda x: x @ x),
    "while_loop": (twice, lambda x: (x @ x) @ x),
    "scan": (running_product, lambda x: x @ x),
    "associative_scan": (
        lambda x: associative_scan(torch.add, x @ x, 0, combine_mode="pointwise"),
        lambda x: (x @ x).cumsum(0),
    ),
    "checkpoint": (lambda x: checkpoint(lambda x: (x @ x).sin(), x, use_reentrant=False), lambda x: (x @ x).sin()),
    "a Triton kernel": (kernel_of_the_program, lambda x: 4 * (x @ x)),
}
WITH_GRADIENTS = ("cond", "scan", "checkpoint")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", PROGRAMS)
def test_what_takes_functions_passes_autocast_on(device: torch.device, name: str) -> None:
    function, expected = PROGRAMS[name]
    x = torch.randn(20, 20, device=device) / 4
    x.requires_grad_(name in WITH_GRADIENTS)
    with torch.autocast(device.type, torch.bfloat16):
        result, _ = generated(function, x, fullgraph=True)
        assert result.dtype == (torch.float32 if name == "while_loop" else torch.bfloat16)  # its body says float()
        torch.testing.assert_close(result, expected(x), rtol=5e-2, atol=5e-2, check_dtype=False)
        gradients = [torch.autograd.grad(each.sum(), x)[0] for each in (result, expected(x)) if x.requires_grad]
    for gradient in gradients[:1]:
        torch.testing.assert_close(gradient, gradients[1], rtol=5e-2, atol=5e-2)
