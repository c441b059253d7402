"""Multiplies two matrices, with an activation fused in and the block sizes found by measuring.

python examples/triton_matmul.py
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

CONFIGS = [
    triton.Config({"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32}),
    triton.Config({"BLOCK_M": 128, "BLOCK_N": 64, "BLOCK_K": 64}),
    triton.Config({"BLOCK_M": 32, "BLOCK_N": 128, "BLOCK_K": 64}),
]


@triton.autotune(configs=CONFIGS, key=["M", "N", "K"])
@triton.jit
def matmul_kernel(
    a_pointer,
    b_pointer,
    out_pointer,
    M,
    N,
    K,
    stride_am,
    stride_ak,
    stride_bk,
    stride_bn,
    stride_om,
    stride_on,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    LEAKY: tl.constexpr,
    GROUP: tl.constexpr = 8,
):
    # Programs that follow each other work on a few rows of blocks, so that what they read stays in the caches.
    program = tl.program_id(0)
    blocks_m = tl.cdiv(M, BLOCK_M)
    blocks_n = tl.cdiv(N, BLOCK_N)
    group = program // (GROUP * blocks_n)
    group_rows = min(blocks_m - group * GROUP, GROUP)
    block_m = group * GROUP + (program % (GROUP * blocks_n)) % group_rows
    block_n = (program % (GROUP * blocks_n)) // group_rows

    m = block_m * BLOCK_M + tl.arange(0, BLOCK_M)
    n = block_n * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    # Rows and columns outside of the matrices wrap around: they are computed and not stored.
    a = a_pointer + (m % M)[:, None] * stride_am + k[None, :] * stride_ak
    b = b_pointer + k[:, None] * stride_bk + (n % N)[None, :] * stride_bn
    accumulator = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for first in range(0, K, BLOCK_K):
        a_block = tl.load(a, mask=k[None, :] < K - first, other=0.0)
        b_block = tl.load(b, mask=k[:, None] < K - first, other=0.0)
        accumulator = tl.dot(a_block, b_block, accumulator)
        a += BLOCK_K * stride_ak
        b += BLOCK_K * stride_bk
    if LEAKY:
        accumulator = tl.where(accumulator >= 0, accumulator, 0.01 * accumulator)
    out = out_pointer + m[:, None] * stride_om + n[None, :] * stride_on
    tl.store(out, accumulator.to(out_pointer.dtype.element_ty), (m[:, None] < M) & (n[None, :] < N))


def matmul(a: torch.Tensor, b: torch.Tensor, leaky: bool = False) -> torch.Tensor:
    """a @ b, with or without leaky_relu(0.01) behind it. Any strides."""
    (m, k), n = a.shape, b.shape[1]
    out = torch.empty((m, n), device=a.device, dtype=a.dtype)

    def grid(config: dict[str, int]) -> tuple[int]:
        return (triton.cdiv(m, config["BLOCK_M"]) * triton.cdiv(n, config["BLOCK_N"]),)

    matmul_kernel[grid](a, b, out, m, n, k, *a.stride(), *b.stride(), *out.stride(), LEAKY=leaky)
    return out


def main() -> None:
    device = triton.runtime.driver.active.get_active_torch_device()
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        a = torch.randn(300, 200, device=device, dtype=dtype)
        b = torch.randn(250, 200, device=device, dtype=dtype).t()
        expected = torch.nn.functional.leaky_relu(a @ b, 0.01)
        torch.testing.assert_close(matmul(a, b, leaky=True), expected, rtol=2e-2, atol=1e-2)
    print(f"leaky_relu(a @ b) on {device} is right; the best blocks were {matmul_kernel.best_config}")


if __name__ == "__main__":
    main()
