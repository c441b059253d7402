"""Attention in which each query sees a window of keys, forward and backward, as a function of autograd.

python examples/triton_window_attention.py
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl


@triton.jit
def visible_keys(queries, keys, diagonal, left, right, query_length, key_length):
    """The mask of scores. Query `i` is aligned with key `i + diagonal`; a bound below 0 leaves that side open."""
    distance = keys - queries - diagonal
    visible = (queries < query_length) & (keys < key_length)
    visible &= (left < 0) | (distance >= -left)
    return visible & ((right < 0) | (distance <= right))


@triton.jit
def first_and_end(first, last, before, after, length, BLOCK: tl.constexpr):
    """The blocks of `length` that rows `first` to `last` of the other side reach; a bound below 0 is open."""
    start = 0
    if before >= 0:
        start = max(first - before, 0) // BLOCK * BLOCK
    end = length
    if after >= 0:
        end = max(min(last + after + 1, length), 0)
    return start, end


@triton.jit
def forward_kernel(
    q_pointer,
    k_pointer,
    v_pointer,
    out_pointer,
    normalizer_pointer,
    query_length,
    key_length,
    diagonal,
    left,
    right,
    scale,  # of the scores, times log2(e): powers of two are cheaper than those of e
    DIMENSION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    head = tl.program_id(1).to(tl.int64)
    q_pointer += head * query_length * DIMENSION
    k_pointer += head * key_length * DIMENSION
    v_pointer += head * key_length * DIMENSION
    first = tl.program_id(0) * BLOCK_M
    m = first + tl.arange(0, BLOCK_M)
    d = tl.arange(0, DIMENSION)
    q = tl.load(q_pointer + m[:, None] * DIMENSION + d[None, :], m[:, None] < query_length, other=0.0)
    maximum = tl.full((BLOCK_M,), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    accumulator = tl.zeros((BLOCK_M, DIMENSION), tl.float32)
    start, end = first_and_end(first + diagonal, first + BLOCK_M - 1 + diagonal, left, right, key_length, BLOCK_N)
    for key in range(start, end, BLOCK_N):
        n = key + tl.arange(0, BLOCK_N)
        k = tl.load(k_pointer + n[None, :] * DIMENSION + d[:, None], n[None, :] < key_length, other=0.0)
        v = tl.load(v_pointer + n[:, None] * DIMENSION + d[None, :], n[:, None] < key_length, other=0.0)
        visible = visible_keys(m[:, None], n[None, :], diagonal, left, right, query_length, key_length)
        scores = tl.where(visible, tl.dot(q, k) * scale, -float("inf"))
        new_maximum = tl.maximum(maximum, tl.max(scores, axis=1))
        # A row that has seen no key yet has a maximum of -inf, and -inf - -inf is NaN.
        shift = tl.where(new_maximum == -float("inf"), 0.0, new_maximum)
        weights = tl.exp2(scores - shift[:, None])
        correction = tl.exp2(maximum - shift)
        total = total * correction + tl.sum(weights, axis=1)
        accumulator = tl.dot(weights.to(v.dtype), v, accumulator * correction[:, None])
        maximum = new_maximum
    # The output of a query that sees no key is zero, and its gradients are.
    empty = total == 0.0
    out = accumulator / tl.where(empty, 1.0, total)[:, None]
    normalizer = tl.where(empty, float("inf"), maximum + tl.log2(total))
    rows = m < query_length
    out_pointer += head * query_length * DIMENSION
    tl.store(out_pointer + m[:, None] * DIMENSION + d[None, :], out, rows[:, None])
    tl.store(normalizer_pointer + head * query_length + m, normalizer, rows)


@triton.jit
def backward_queries_kernel(
    q_pointer,
    k_pointer,
    v_pointer,
    out_pointer,
    grad_out_pointer,
    normalizer_pointer,
    inner_pointer,
    grad_q_pointer,
    query_length,
    key_length,
    diagonal,
    left,
    right,
    scale,
    DIMENSION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """The gradient of a block of queries, and what the gradient of the keys needs: the sums of out * grad_out."""
    head = tl.program_id(1).to(tl.int64)
    k_pointer += head * key_length * DIMENSION
    v_pointer += head * key_length * DIMENSION
    first = tl.program_id(0) * BLOCK_M
    m = first + tl.arange(0, BLOCK_M)
    d = tl.arange(0, DIMENSION)
    rows = m < query_length
    tile = head * query_length * DIMENSION + m[:, None] * DIMENSION + d[None, :]
    q = tl.load(q_pointer + tile, rows[:, None], other=0.0)
    out = tl.load(out_pointer + tile, rows[:, None], other=0.0)
    grad_out = tl.load(grad_out_pointer + tile, rows[:, None], other=0.0)
    normalizer = tl.load(normalizer_pointer + head * query_length + m, rows, other=float("inf"))
    inner = tl.sum(out.to(tl.float32) * grad_out.to(tl.float32), axis=1)
    tl.store(inner_pointer + head * query_length + m, inner, rows)
    grad_q = tl.zeros((BLOCK_M, DIMENSION), tl.float32)
    start, end = first_and_end(first + diagonal, first + BLOCK_M - 1 + diagonal, left, right, key_length, BLOCK_N)
    for key in range(start, end, BLOCK_N):
        n = key + tl.arange(0, BLOCK_N)
        offsets = n[:, None] * DIMENSION + d[None, :]
        k = tl.load(k_pointer + offsets, n[:, None] < key_length, other=0.0)
        v = tl.load(v_pointer + offsets, n[:, None] < key_length, other=0.0)
        visible = visible_keys(m[:, None], n[None, :], diagonal, left, right, query_length, key_length)
        scores = tl.dot(q, tl.trans(k)) * (scale * 1.4426950408889634)
        weights = tl.where(visible, tl.exp2(scores - normalizer[:, None]), 0.0)
        grad_scores = weights * (tl.dot(grad_out, tl.trans(v)) - inner[:, None])
        grad_q = tl.dot(grad_scores.to(k.dtype), k, grad_q)
    tl.store(grad_q_pointer + tile, grad_q * scale, rows[:, None])


@triton.jit
def backward_keys_kernel(
    q_pointer,
    k_pointer,
    v_pointer,
    grad_out_pointer,
    normalizer_pointer,
    inner_pointer,
    grad_k_pointer,
    grad_v_pointer,
    query_length,
    key_length,
    diagonal,
    left,
    right,
    scale,
    DIMENSION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """The gradients of a block of keys and values."""
    head = tl.program_id(1).to(tl.int64)
    q_pointer += head * query_length * DIMENSION
    grad_out_pointer += head * query_length * DIMENSION
    first = tl.program_id(0) * BLOCK_N
    n = first + tl.arange(0, BLOCK_N)
    d = tl.arange(0, DIMENSION)
    columns = n < key_length
    tile = head * key_length * DIMENSION + n[:, None] * DIMENSION + d[None, :]
    k = tl.load(k_pointer + tile, columns[:, None], other=0.0)
    v = tl.load(v_pointer + tile, columns[:, None], other=0.0)
    grad_k = tl.zeros((BLOCK_N, DIMENSION), tl.float32)
    grad_v = tl.zeros((BLOCK_N, DIMENSION), tl.float32)
    # A key is seen by the queries from `right` before to `left` after the one that it is aligned with.
    start, end = first_and_end(first - diagonal, first + BLOCK_N - 1 - diagonal, right, left, query_length, BLOCK_M)
    for query in range(start, end, BLOCK_M):
        m = query + tl.arange(0, BLOCK_M)
        rows = m < query_length
        offsets = m[:, None] * DIMENSION + d[None, :]
        q = tl.load(q_pointer + offsets, rows[:, None], other=0.0)
        grad_out = tl.load(grad_out_pointer + offsets, rows[:, None], other=0.0)
        normalizer = tl.load(normalizer_pointer + head * query_length + m, rows, other=float("inf"))
        inner = tl.load(inner_pointer + head * query_length + m, rows, other=0.0)
        visible = visible_keys(m[:, None], n[None, :], diagonal, left, right, query_length, key_length)
        scores = tl.dot(q, tl.trans(k)) * (scale * 1.4426950408889634)
        weights = tl.where(visible, tl.exp2(scores - normalizer[:, None]), 0.0)
        grad_v = tl.dot(tl.trans(weights.to(grad_out.dtype)), grad_out, grad_v)
        grad_scores = weights * (tl.dot(grad_out, tl.trans(v)) - inner[:, None])
        grad_k = tl.dot(tl.trans(grad_scores.to(q.dtype)), q, grad_k)
    tl.store(grad_k_pointer + tile, grad_k * scale, columns[:, None])
    tl.store(grad_v_pointer + tile, grad_v, columns[:, None])


BLOCKS = {"BLOCK_M": 64, "BLOCK_N": 64}


class WindowAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *bounds: int) -> torch.Tensor:
        batch, heads, length, dimension = q.shape
        sizes = (length, k.shape[2], *bounds)
        out = torch.empty_like(q)
        normalizer = torch.empty((batch, heads, length), dtype=torch.float32, device=q.device)
        scale = math.log2(math.e) / math.sqrt(dimension)
        forward_kernel[(triton.cdiv(length, BLOCKS["BLOCK_M"]), batch * heads)](
            q, k, v, out, normalizer, *sizes, scale, DIMENSION=dimension, **BLOCKS
        )
        ctx.save_for_backward(q, k, v, out, normalizer)
        ctx.sizes = sizes
        return out

    @staticmethod
    def backward(ctx: Any, grad_out: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        q, k, v, out, normalizer = ctx.saved_tensors
        batch, heads, length, dimension = q.shape
        grad_out = grad_out.contiguous()
        grad_q, grad_k, grad_v = (torch.empty_like(x) for x in (q, k, v))
        inner = torch.empty_like(normalizer)
        common = (*ctx.sizes, 1 / math.sqrt(dimension))
        constants = {"DIMENSION": dimension, **BLOCKS}
        backward_queries_kernel[(triton.cdiv(length, BLOCKS["BLOCK_M"]), batch * heads)](
            q, k, v, out, grad_out, normalizer, inner, grad_q, *common, **constants
        )
        backward_keys_kernel[(triton.cdiv(k.shape[2], BLOCKS["BLOCK_N"]), batch * heads)](
            q, k, v, grad_out, normalizer, inner, grad_k, grad_v, *common, **constants
        )
        return grad_q, grad_k, grad_v, None, None, None


def window_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: tuple[int, int] = (-1, -1), bottom_right: bool = True
) -> torch.Tensor:
    """Returns the attention of q, (batch, heads, queries, dimension), to k and v, (batch, heads, keys, dimension).

    Query i sees the keys from `window[0]` before to `window[1]` after the key it is aligned with; -1 leaves that side
    open, so that (-1, 0) is causal. With `bottom_right`, the last query is aligned with the last key, otherwise the
    first with the first. A query that sees no key has an output of zero. The dimension is a power of two from 16 on.
    """
    diagonal = k.shape[2] - q.shape[2] if bottom_right else 0
    result: torch.Tensor = WindowAttention.apply(  # type: ignore[no-untyped-call]
        q.contiguous(), k.contiguous(), v.contiguous(), diagonal, *window
    )
    return result


def reference(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: tuple[int, int], bottom_right: bool
) -> torch.Tensor:
    """Returns the same by PyTorch's operators, with a mask and the whole matrix of scores."""
    queries, keys = q.shape[2], k.shape[2]
    distance = torch.arange(keys)[None, :] - torch.arange(queries)[:, None] - (keys - queries if bottom_right else 0)
    left, right = window
    hidden = ((left >= 0) & (distance < -left)) | ((right >= 0) & (distance > right))
    scores = (q @ k.mT / math.sqrt(q.shape[3])).masked_fill(hidden.to(q.device), -float("inf"))
    return torch.softmax(scores, -1).nan_to_num(0.0) @ v


def main() -> None:
    device = triton.runtime.driver.active.get_active_torch_device()
    windows = [(-1, -1), (-1, 0), (0, -1), (30, 5), (0, 0), (100, 0)]
    for window in windows:
        for bottom_right in (False, True):
            inputs = [torch.randn(1, 2, length, 32, device=device, requires_grad=True) for length in (150, 200, 200)]
            q, k, v = inputs
            out = window_attention(q, k, v, window, bottom_right)
            expected = reference(q, k, v, window, bottom_right)
            torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-4)
            grad_out = torch.randn_like(out)
            torch.testing.assert_close(
                torch.autograd.grad(out, inputs, grad_out),
                torch.autograd.grad(expected, inputs, grad_out),
                rtol=1e-4,
                atol=1e-4,
            )
    print(f"attention in {len(windows)} windows on {device}, and its gradients, are right")


if __name__ == "__main__":
    main()
