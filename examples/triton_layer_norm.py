"""Layer normalization, forward and backward, as a function of autograd.

python examples/triton_layer_norm.py
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

ROWS_PER_PROGRAM = 64  # of the backward pass: each program keeps its own sums over that many rows


@triton.jit
def forward_kernel(
    x_pointer,
    weight_pointer,
    bias_pointer,
    out_pointer,
    mean_pointer,
    rstd_pointer,
    columns,
    epsilon,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    offsets = tl.arange(0, BLOCK)
    mask = offsets < columns
    x = tl.load(x_pointer + row * columns + offsets, mask, other=0.0).to(tl.float32)
    mean = tl.sum(x, axis=0) / columns
    centered = tl.where(mask, x - mean, 0.0)
    rstd = 1.0 / tl.sqrt(tl.sum(centered * centered, axis=0) / columns + epsilon)
    weight = tl.load(weight_pointer + offsets, mask, other=0.0)
    bias = tl.load(bias_pointer + offsets, mask, other=0.0)
    tl.store(out_pointer + row * columns + offsets, centered * rstd * weight + bias, mask)
    tl.store(mean_pointer + row, mean)
    tl.store(rstd_pointer + row, rstd)


@triton.jit
def backward_kernel(
    grad_out_pointer,
    x_pointer,
    weight_pointer,
    mean_pointer,
    rstd_pointer,
    grad_x_pointer,
    grad_weight_pointer,
    grad_bias_pointer,
    rows,
    columns,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    program = tl.program_id(0)
    offsets = tl.arange(0, BLOCK)
    mask = offsets < columns
    weight = tl.load(weight_pointer + offsets, mask, other=0.0)
    grad_weight = tl.zeros((BLOCK,), tl.float32)
    grad_bias = tl.zeros((BLOCK,), tl.float32)
    for row in range(program * ROWS, min(program * ROWS + ROWS, rows)):
        x = tl.load(x_pointer + row * columns + offsets, mask, other=0.0).to(tl.float32)
        grad_out = tl.load(grad_out_pointer + row * columns + offsets, mask, other=0.0).to(tl.float32)
        rstd = tl.load(rstd_pointer + row)
        normalized = tl.where(mask, (x - tl.load(mean_pointer + row)) * rstd, 0.0)
        weighted = grad_out * weight
        along_x = tl.sum(normalized * weighted, axis=0) / columns
        along_one = tl.sum(weighted, axis=0) / columns
        grad_x = (weighted - (normalized * along_x + along_one)) * rstd
        tl.store(grad_x_pointer + row * columns + offsets, grad_x, mask)
        grad_weight += grad_out * normalized
        grad_bias += grad_out
    tl.store(grad_weight_pointer + program * columns + offsets, grad_weight, mask)
    tl.store(grad_bias_pointer + program * columns + offsets, grad_bias, mask)


class LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, epsilon: float = 1e-5
    ) -> torch.Tensor:
        rows, columns = x.shape
        out = torch.empty_like(x)
        mean = torch.empty(rows, device=x.device)
        rstd = torch.empty_like(mean)
        block = triton.next_power_of_2(columns)
        forward_kernel[(rows,)](x, weight, bias, out, mean, rstd, columns, epsilon, BLOCK=block)
        ctx.save_for_backward(x, weight, mean, rstd)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, None]:
        x, weight, mean, rstd = ctx.saved_tensors
        rows, columns = x.shape
        programs = triton.cdiv(rows, ROWS_PER_PROGRAM)
        grad_x = torch.empty_like(x)
        grad_weight = torch.empty(programs, columns, device=x.device)
        grad_bias = torch.empty_like(grad_weight)
        backward_kernel[(programs,)](
            grads[0].contiguous(),
            x,
            weight,
            mean,
            rstd,
            grad_x,
            grad_weight,
            grad_bias,
            rows,
            columns,
            ROWS=ROWS_PER_PROGRAM,
            BLOCK=triton.next_power_of_2(columns),
        )
        return grad_x, grad_weight.sum(0).to(weight.dtype), grad_bias.sum(0).to(weight.dtype), None


def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Over the last dimension of a contiguous matrix."""
    return LayerNorm.apply(x, weight, bias)  # type: ignore[no-any-return, no-untyped-call]


def main() -> None:
    device = triton.runtime.driver.active.get_active_torch_device()
    x, weight, bias = (torch.randn(*shape, device=device) for shape in ((1151, 500), (500,), (500,)))
    grad = torch.randn_like(x)
    results = []
    for function in (layer_norm, lambda x, w, b: torch.nn.functional.layer_norm(x, (500,), w, b)):
        operands = [operand.clone().requires_grad_() for operand in (x, weight, bias)]
        out = function(*operands)
        out.backward(grad)
        results.append([out.detach(), *(operand.grad for operand in operands)])
    torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=1e-3)
    print(f"layer normalization and its gradients on {device} are right")


if __name__ == "__main__":
    main()
