"""Twenty kernels of many kinds, launched on the device that Triton has: mtia, or a GPU."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.runtime import driver


@triton.jit
def add(x, y, z, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(z + i, tl.load(x + i, i < n) + tl.load(y + i, i < n), i < n)


@triton.jit
def gelu(x, z, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    numbers = tl.load(x + i, i < n).to(tl.float32)
    tl.store(z + i, numbers * 0.5 * (1 + tl.erf(numbers * 0.7071067811865476)), i < n)


@triton.jit
def softmax(x, z, N, BLOCK: tl.constexpr):
    row, j = tl.program_id(0), tl.arange(0, BLOCK)
    numbers = tl.load(x + row * N + j, j < N, other=-float("inf"))
    powers = tl.exp(numbers - tl.max(numbers, 0))
    tl.store(z + row * N + j, powers / tl.sum(powers, 0), j < N)


@triton.jit
def layer_norm(x, weight, bias, z, N, BLOCK: tl.constexpr):
    row, j = tl.program_id(0), tl.arange(0, BLOCK)
    numbers = tl.load(x + row * N + j, j < N, other=0.0)
    centered = tl.where(j < N, numbers - tl.sum(numbers, 0) / N, 0.0)
    scaled = centered * tl.rsqrt(tl.sum(centered * centered, 0) / N + 1e-5)
    tl.store(z + row * N + j, scaled * tl.load(weight + j, j < N) + tl.load(bias + j, j < N), j < N)


@triton.jit
def matmul(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    i = tl.program_id(0) * BM + tl.arange(0, BM)
    j = tl.program_id(1) * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    sums = tl.zeros((BM, BN), tl.float32)
    for first in range(0, K, BK):
        left = tl.load(a + i[:, None] * K + first + k, mask=(i < M)[:, None])
        right = tl.load(b + (first + k)[:, None] * N + j, mask=j < N)
        sums = tl.dot(left, right, sums)
    tl.store(c + i[:, None] * N + j, sums.to(c.dtype.element_ty), mask=(i < M)[:, None] & (j < N))


@triton.jit
def batched_matmul(a, b, c, M: tl.constexpr, K: tl.constexpr):
    i, k = tl.arange(0, M), tl.arange(0, K)
    batch = tl.program_id(0)
    left = tl.load(a + batch * M * K + i[:, None] * K + k)
    right = tl.load(b + batch * M * K + i[None, :] * K + k[:, None])
    tl.store(c + batch * M * M + i[:, None] * M + i, tl.dot(left, right))


@triton.jit
def attention(q, k, v, o, T, scale, BLOCK: tl.constexpr, D: tl.constexpr):
    i, d = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, D)
    queries = tl.load(q + i[:, None] * D + d)
    largest = tl.full((BLOCK,), -float("inf"), tl.float32)
    total, result = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK, D), tl.float32)
    for first in range(0, T, BLOCK):
        j = first + tl.arange(0, BLOCK)
        scores = tl.dot(queries, tl.load(k + j[None, :] * D + d[:, None])) * scale
        above = tl.maximum(largest, tl.max(scores, 1))
        powers, factor = tl.exp(scores - above[:, None]), tl.exp(largest - above)
        total, largest = total * factor + tl.sum(powers, 1), above
        result = result * factor[:, None] + tl.dot(powers.to(tl.float16), tl.load(v + j[:, None] * D + d))
    tl.store(o + i[:, None] * D + d, (result / total[:, None]).to(tl.float16))


@triton.jit
def transpose(x, z, M, N, BLOCK: tl.constexpr):
    i, j = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    tl.store(z + j[:, None] * M + i, tl.trans(tl.load(x + i[:, None] * N + j)))


@triton.jit
def column_sums(x, z, M, N, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    j = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    sums = tl.zeros((ROWS, BLOCK), tl.float32)
    for first in range(0, M, ROWS):
        sums += tl.load(x + (first + tl.arange(0, ROWS))[:, None] * N + j)
    tl.store(z + j, tl.sum(sums, 0))


@triton.jit
def running_sums(x, z, N: tl.constexpr):
    j = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(z + j, tl.cumsum(tl.load(x + j), 0))


@triton.jit
def sort(x, z, N: tl.constexpr):
    j = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(z + j, tl.sort(tl.load(x + j)))


@triton.jit
def largest(x, z, places, N: tl.constexpr):
    row, j = tl.program_id(0), tl.arange(0, N)
    value, place = tl.max(tl.load(x + row * N + j), 0, return_indices=True)
    tl.store(z + row, value)
    tl.store(places + row, place)


@triton.jit
def histogram(x, counters, n, BLOCK: tl.constexpr, BINS: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    counts = tl.histogram(tl.load(x + i, i < n, other=0), BINS)
    tl.atomic_add(counters + tl.arange(0, BINS), counts)


@triton.jit
def embedding(table, places, z, D: tl.constexpr):
    d = tl.arange(0, D)
    tl.store(z + tl.program_id(0) * D + d, tl.load(table + tl.load(places + tl.program_id(0)) * D + d))


@triton.jit
def scatter_add(x, places, z, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(z + tl.load(places + i, i < n, other=0), tl.load(x + i, i < n), i < n)


@triton.jit
def dropout(x, z, n, share, seed, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    stays = tl.rand(seed, i) > share
    tl.store(z + i, tl.where(stays, tl.load(x + i, i < n) / (1 - share), 0.0), i < n)


@triton.jit
def window(x, weights, z, n, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    sums = tl.zeros((BLOCK,), tl.float32)
    for k in tl.static_range(WIDTH):
        sums += tl.load(weights + k) * tl.load(x + i + k, i < n)
    tl.store(z + i, sums, i < n)


@triton.jit
def rotate(x, angles, z, D: tl.constexpr):
    row, d = tl.program_id(0), tl.arange(0, D)
    left, right = tl.load(x + row * 2 * D + d), tl.load(x + row * 2 * D + D + d)
    angle = tl.load(angles + row * D + d)
    tl.store(z + row * 2 * D + d, left * tl.cos(angle) - right * tl.sin(angle))
    tl.store(z + row * 2 * D + D + d, left * tl.sin(angle) + right * tl.cos(angle))


@triton.jit
def compose(a, b, c, d):
    return a * c, b * c + d


@triton.jit
def recurrence(a, b, z, N: tl.constexpr):
    j = tl.program_id(0) * N + tl.arange(0, N)
    _, result = tl.associative_scan((tl.load(a + j), tl.load(b + j)), 0, compose)
    tl.store(z + j, result)


@triton.jit
def interleave(x, y, z, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    both = tl.interleave(tl.load(x + i), tl.load(y + i))
    tl.store(z + tl.program_id(0) * 2 * BLOCK + tl.arange(0, 2 * BLOCK), both)


def main() -> None:
    device = driver.active.get_active_torch_device()
    torch.manual_seed(0)
    x, y = (torch.randn(512, 512).to(device) for _ in range(2))
    z, half = torch.empty_like(x), x.half()
    n, c = x.numel(), torch.empty_like(half)
    places = torch.randint(0, 512, (n,), dtype=torch.int32).to(device)
    counters = torch.zeros(512, dtype=torch.int32).to(device)
    add[(n // 1024,)](x, y, z, n - 3, BLOCK=1024)
    gelu[(n // 1024,)](half, c, n, BLOCK=1024)
    softmax[(512,)](x, z, 512, BLOCK=512)
    layer_norm[(512,)](x, y, y, z, 500, BLOCK=512)
    matmul[(8, 8)](half, half, c, 512, 512, 512, BM=64, BN=64, BK=32)
    batched_matmul[(64,)](x, y, z, M=64, K=64)
    attention[(8,)](half, half, half, c, 512, 0.125, BLOCK=64, D=64)
    transpose[(16, 16)](x, z, 512, 512, BLOCK=32)
    column_sums[(8,)](x, z, 512, 512, ROWS=16, BLOCK=64)
    running_sums[(512,)](x, z, N=512)
    sort[(64,)](x, z, N=256)
    largest[(512,)](x, z, counters, N=512)
    histogram[(n // 1024,)](places, counters, n, BLOCK=1024, BINS=256)
    embedding[(512,)](x, places, z, D=512)
    scatter_add[(n // 1024,)](x, places, z, n, BLOCK=1024)
    dropout[(n // 1024,)](x, z, n, 0.1, 7, BLOCK=1024)
    window[(n // 2048,)](x, y, z, n // 2, WIDTH=5, BLOCK=1024)
    rotate[(512,)](x, y, z, D=256)
    recurrence[(512,)](x, y, z, N=512)
    interleave[(n // 2048,)](x, y, z, BLOCK=1024)


if __name__ == "__main__":
    main()
