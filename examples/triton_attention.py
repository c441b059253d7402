"""Attention, forward, that never stores the matrix of scores: a running softmax over blocks of keys.

python examples/triton_attention.py
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl


@triton.jit
def attention_kernel(
    q_pointer,
    k_pointer,
    v_pointer,
    out_pointer,
    length,
    scale,  # of the scores, times log2(e): powers of two are cheaper than those of e
    CAUSAL: tl.constexpr,
    DIMENSION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    head = tl.program_id(1).to(tl.int64) * length * DIMENSION
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.arange(0, BLOCK_N)
    d = tl.arange(0, DIMENSION)
    q = tl.load(q_pointer + head + m[:, None] * DIMENSION + d[None, :], m[:, None] < length, other=0.0)
    maximum = tl.full((BLOCK_M,), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    accumulator = tl.zeros((BLOCK_M, DIMENSION), tl.float32)
    end = min(length, (tl.program_id(0) + 1) * BLOCK_M) if CAUSAL else length
    for first in range(0, end, BLOCK_N):
        rows = first + n
        k = tl.load(k_pointer + head + rows[None, :] * DIMENSION + d[:, None], rows[None, :] < length, other=0.0)
        scores = tl.dot(q, k) * scale
        visible = rows[None, :] < length
        if CAUSAL:
            visible = visible & (m[:, None] >= rows[None, :])
        scores = tl.where(visible, scores, -float("inf"))
        new_maximum = tl.maximum(maximum, tl.max(scores, axis=1))
        weights = tl.exp2(scores - new_maximum[:, None])
        correction = tl.exp2(maximum - new_maximum)
        total = total * correction + tl.sum(weights, axis=1)
        v = tl.load(v_pointer + head + rows[:, None] * DIMENSION + d[None, :], rows[:, None] < length, other=0.0)
        accumulator = tl.dot(weights.to(v.dtype), v, accumulator * correction[:, None])
        maximum = new_maximum
    out = accumulator / total[:, None]
    tl.store(out_pointer + head + m[:, None] * DIMENSION + d[None, :], out, m[:, None] < length)


def attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, block_m: int = 64, block_n: int = 64
) -> torch.Tensor:
    """Of contiguous (batch, heads, length, dimension), where the dimension is a power of two."""
    batch, heads, length, dimension = q.shape
    out = torch.empty_like(q)
    attention_kernel[(triton.cdiv(length, block_m), batch * heads)](
        q,
        k,
        v,
        out,
        length,
        math.log2(math.e) / math.sqrt(dimension),
        CAUSAL=causal,
        DIMENSION=dimension,
        BLOCK_M=block_m,
        BLOCK_N=block_n,
    )
    return out


def main() -> None:
    device = triton.runtime.driver.active.get_active_torch_device()
    for causal in (False, True):
        q, k, v = (torch.randn(2, 3, 200, 64, device=device) for _ in range(3))
        expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
        torch.testing.assert_close(attention(q, k, v, causal), expected, rtol=1e-4, atol=1e-4)
    print(f"attention on {device} is right, with and without a causal mask")


if __name__ == "__main__":
    main()
