"""The programs that compile.py compiles on both sides."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from timing import Tolerance, normal
from torch.nn import functional as F

SIZE = 2048
SUMS = Tolerance(relative=1e-4, absolute=1e-3)
BF16 = Tolerance(relative=2e-2, absolute=2e-2)

Operands = Callable[[], Sequence[torch.Tensor]]


@dataclasses.dataclass(frozen=True)
class Program:
    name: str
    function: Callable[..., Any]
    operands: Operands
    tolerance: Tolerance | None = SUMS
    compared: Callable[[Any], object] = lambda result: result


def matrix() -> Sequence[torch.Tensor]:
    return [normal(SIZE, SIZE)]


def matrices() -> Sequence[torch.Tensor]:
    return [normal(SIZE, SIZE), normal(SIZE, SIZE)]


def matrix_bf16() -> Sequence[torch.Tensor]:
    return [normal(SIZE, SIZE, dtype=torch.bfloat16)]


def chain(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Ten pointwise operators."""
    return torch.where(x > y, (x * 2 + y).tanh(), (x - y).abs().sqrt()).clamp(-1, 1) * torch.sigmoid(y) + x


def rms_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    hidden = x + residual
    scale = torch.rsqrt(hidden.float().pow(2).mean(-1, keepdim=True) + 1e-6)
    return (hidden.float() * scale).to(x.dtype) * weight, hidden


def fraction_of_zeros(result: torch.Tensor) -> torch.Tensor:
    """All that the results of two random generators have in common."""
    return (result == 0).float().mean()


def adamw(
    parameters: list[torch.Tensor],
    gradients: list[torch.Tensor],
    averages: list[torch.Tensor],
    squares: list[torch.Tensor],
) -> None:
    """A step of AdamW, from the same `_foreach` functions as torch.optim's."""
    torch._foreach_mul_(parameters, 1 - 1e-3 * 1e-2)
    torch._foreach_lerp_(averages, gradients, 0.1)
    torch._foreach_mul_(squares, 0.999)
    torch._foreach_addcmul_(squares, gradients, gradients, 0.001)
    denominators = torch._foreach_sqrt(squares)
    torch._foreach_add_(denominators, 1e-8)
    torch._foreach_addcdiv_(parameters, averages, denominators, -1e-3)


def adamw_on(*tensors: torch.Tensor) -> Sequence[torch.Tensor]:
    count = len(tensors) // 4
    adamw(*(list(tensors[i * count : (i + 1) * count]) for i in range(4)))
    return [*tensors[:count], *tensors[2 * count :]]


def adamw_operands() -> Sequence[torch.Tensor]:
    shapes = [(1024, 1024), (1024,)] * 4
    return [normal(*shape).abs() for _ in range(4) for shape in shapes]


PROGRAMS: tuple[Program, ...] = (
    Program("gelu", F.gelu, matrix),
    Program("silu(x) * y", lambda x, y: F.silu(x) * y, matrices),
    Program("ten pointwise operators", chain, matrices),
    Program("dropout", lambda x: F.dropout(x, 0.5), matrix, Tolerance(0, 1e-2), fraction_of_zeros),
    Program("softmax 4096 x 1024", lambda x: torch.softmax(x, -1), lambda: [normal(4096, 1024)]),
    Program("softmax 2048 x 8192", lambda x: torch.softmax(x, -1), lambda: [normal(2048, 8192)]),
    Program("log_softmax", lambda x: torch.log_softmax(x, -1), matrix),
    Program(
        "layer norm",
        lambda x, w, b: F.layer_norm(x, (SIZE,), w, b),
        lambda: [normal(SIZE, SIZE), normal(SIZE), normal(SIZE)],
    ),
    Program("RMS norm + residual", rms_norm, lambda: [normal(SIZE, SIZE), normal(SIZE, SIZE), normal(SIZE)]),
    Program(
        "batch norm, training",
        lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
        lambda: [normal(SIZE, SIZE), normal(SIZE), normal(SIZE)],
    ),
    Program("cross entropy", F.cross_entropy, lambda: [normal(SIZE, SIZE), torch.randint(SIZE, (SIZE,))]),
    Program("sum over the first axis", lambda x: x.sum(0), matrix),
    Program("sum over the last axis", lambda x: x.sum(1), matrix),
    Program("sum", torch.sum, matrix, Tolerance(relative=1e-3, absolute=0.2)),
    Program("var over the last axis", lambda x: x.var(1), matrix),
    Program("x.t() + y", lambda x, y: x.t() + y, matrices),
    Program("cat", lambda x, y: torch.cat([x, y], 1), matrices),
    Program("embedding", F.embedding, lambda: [torch.randint(SIZE, (SIZE,)), normal(SIZE, SIZE)]),
    Program(
        "index_add",
        lambda x, i, y: torch.index_add(x, 0, i, y),
        lambda: [normal(SIZE, SIZE), torch.randint(SIZE, (SIZE,)), normal(SIZE, SIZE)],
    ),
    Program("cumsum", lambda x: x.cumsum(1), matrix),
    Program("argmax", lambda x: x.argmax(1), matrix),
    Program("gelu bf16", F.gelu, matrix_bf16, BF16),
    Program("softmax bf16", lambda x: torch.softmax(x, -1), matrix_bf16, BF16),
    Program(
        "RMS norm + residual bf16",
        rms_norm,
        lambda: [normal(SIZE, SIZE, dtype=torch.bfloat16) for _ in range(2)] + [normal(SIZE, dtype=torch.bfloat16)],
        BF16,
    ),
    Program("AdamW step, foreach", adamw_on, adamw_operands, Tolerance(relative=1e-2, absolute=1e-1)),
)
