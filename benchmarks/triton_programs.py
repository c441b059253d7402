"""Hand-written Triton kernels that triton_kernels.py measures, in addition to those of the examples."""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

BLOCK = 4096


@triton.jit
def silu_mul_kernel(x_pointer, y_pointer, out_pointer, size, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < size
    x = tl.load(x_pointer + offsets, mask)
    y = tl.load(y_pointer + offsets, mask)
    tl.store(out_pointer + offsets, x / (1.0 + tl.exp(-x)) * y, mask)


def silu_mul(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    silu_mul_kernel[(triton.cdiv(x.numel(), BLOCK),)](x, y, out, x.numel(), BLOCK=BLOCK)
    return out


@triton.jit
def gelu_kernel(x_pointer, out_pointer, size, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < size
    x = tl.load(x_pointer + offsets, mask)
    tl.store(out_pointer + offsets, 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476)), mask)


def gelu(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    gelu_kernel[(triton.cdiv(x.numel(), BLOCK),)](x, out, x.numel(), BLOCK=BLOCK)
    return out


@triton.jit
def rms_norm_kernel(x_pointer, weight_pointer, out_pointer, columns, epsilon, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offsets = tl.arange(0, BLOCK)
    mask = offsets < columns
    x = tl.load(x_pointer + row * columns + offsets, mask, other=0.0)
    weight = tl.load(weight_pointer + offsets, mask, other=0.0)
    scale = 1.0 / tl.sqrt(tl.sum(x * x, axis=0) / columns + epsilon)
    tl.store(out_pointer + row * columns + offsets, x * scale * weight, mask)


def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    rows, columns = x.shape
    out = torch.empty_like(x)
    rms_norm_kernel[(rows,)](x, weight, out, columns, 1e-6, BLOCK=triton.next_power_of_2(columns))
    return out


@triton.jit
def sum_rows_kernel(x_pointer, out_pointer, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offsets = tl.arange(0, BLOCK)
    x = tl.load(x_pointer + row * columns + offsets, offsets < columns, other=0.0)
    tl.store(out_pointer + row, tl.sum(x, axis=0))


def sum_last_axis(x: torch.Tensor) -> torch.Tensor:
    rows, columns = x.shape
    out = torch.empty(rows, device=x.device)
    sum_rows_kernel[(rows,)](x, out, columns, BLOCK=triton.next_power_of_2(columns))
    return out


@triton.jit
def sum_columns_kernel(x_pointer, out_pointer, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((COLUMNS,), tl.float32)
    for first in range(0, rows, ROWS):
        row = first + tl.arange(0, ROWS)
        mask = (row[:, None] < rows) & (column[None, :] < columns)
        total += tl.sum(tl.load(x_pointer + row[:, None] * columns + column[None, :], mask, other=0.0), axis=0)
    tl.store(out_pointer + column, total, column < columns)


def sum_first_axis(x: torch.Tensor) -> torch.Tensor:
    rows, columns = x.shape
    out = torch.empty(columns, device=x.device)
    sum_columns_kernel[(triton.cdiv(columns, 256),)](x, out, rows, columns, ROWS=16, COLUMNS=256)
    return out


@triton.jit
def transpose_add_kernel(x_pointer, y_pointer, out_pointer, size, BLOCK: tl.constexpr):
    row = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = (row[:, None] < size) & (column[None, :] < size)
    x = tl.load(x_pointer + column[None, :] * size + row[:, None], mask)
    y = tl.load(y_pointer + row[:, None] * size + column[None, :], mask)
    tl.store(out_pointer + row[:, None] * size + column[None, :], x + y, mask)


def transpose_add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    size = x.shape[0]
    out = torch.empty_like(y)
    transpose_add_kernel[(triton.cdiv(size, 64), triton.cdiv(size, 64))](x, y, out, size, BLOCK=64)
    return out


@triton.jit
def cross_entropy_kernel(logits_pointer, labels_pointer, losses_pointer, classes, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    start = logits_pointer + row.to(tl.int64) * classes
    maximum = tl.full((BLOCK,), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, classes, BLOCK):  # a running maximum and sum for each lane
        offsets = first + tl.arange(0, BLOCK)
        x = tl.load(start + offsets, offsets < classes, other=-float("inf"))
        new_maximum = tl.maximum(maximum, x)
        total = total * tl.exp(maximum - new_maximum) + tl.exp(x - new_maximum)
        maximum = new_maximum
    highest = tl.max(maximum, axis=0)
    logarithm = tl.log(tl.sum(total * tl.exp(maximum - highest), axis=0))
    tl.store(losses_pointer + row, highest + logarithm - tl.load(start + tl.load(labels_pointer + row)))


def cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    rows, classes = logits.shape
    losses = torch.empty(rows, device=logits.device)
    cross_entropy_kernel[(rows,)](logits, labels, losses, classes, BLOCK=1024)
    return losses.mean()


@triton.jit
def rotary_kernel(x_pointer, cosine_pointer, sine_pointer, out_pointer, length, HALF: tl.constexpr, ROWS: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)  # one vector of one head at one position
    d = tl.arange(0, HALF)
    angle = (row % length)[:, None] * HALF + d[None, :]
    cosine = tl.load(cosine_pointer + angle)
    sine = tl.load(sine_pointer + angle)
    first = row[:, None] * (2 * HALF) + d[None, :]
    a = tl.load(x_pointer + first)
    b = tl.load(x_pointer + first + HALF)
    tl.store(out_pointer + first, a * cosine - b * sine)
    tl.store(out_pointer + first + HALF, b * cosine + a * sine)


def rotary(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """Rotates (batch, heads, length, dimension) by angles of (length, dimension / 2); length is a multiple of 16."""
    batch, heads, length, dimension = x.shape
    out = torch.empty_like(x)
    programs = batch * heads * length // 16
    rotary_kernel[(programs,)](x, cosine, sine, out, length, HALF=dimension // 2, ROWS=16)
    return out


@triton.jit
def matmul_kernel(
    a_pointer,
    b_pointer,
    out_pointer,
    N,
    K,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    ACCUMULATOR: tl.constexpr,
):
    """Of contiguous matrices whose sizes are multiples of the blocks'."""
    m = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    a = a_pointer + m[:, None] * K + k[None, :]
    b = b_pointer + k[:, None] * N + n[None, :]
    accumulator = tl.zeros((BLOCK_M, BLOCK_N), ACCUMULATOR)
    for _ in range(0, K, BLOCK_K):
        accumulator = tl.dot(tl.load(a), tl.load(b), accumulator, out_dtype=ACCUMULATOR)
        a += BLOCK_K
        b += BLOCK_K * N
    tl.store(out_pointer + m[:, None] * N + n[None, :], accumulator.to(out_pointer.dtype.element_ty))


def matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    (m, k), n = a.shape, b.shape[1]
    integers = a.dtype == torch.int8
    out = torch.empty(m, n, device=a.device, dtype=torch.int32 if integers else a.dtype)
    block_m, block_n, block_k = min(m, 512), min(n, 64), min(k, 256)
    matmul_kernel[(n // block_n, m // block_m)](
        a,
        b,
        out,
        n,
        k,
        BLOCK_M=block_m,
        BLOCK_N=block_n,
        BLOCK_K=block_k,
        ACCUMULATOR=tl.int32 if integers else tl.float64 if a.dtype == torch.float64 else tl.float32,
    )
    return out


GROUP = 64  # rows of weights that share a scale


@triton.jit
def int4_matmul_kernel(
    x_pointer,
    weight_pointer,
    scale_pointer,
    out_pointer,
    N,
    K,
    M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    GROUP: tl.constexpr,
):
    """Of few rows and weights of four bits: a byte has one of the first half of its group, and one of the second."""
    m = tl.arange(0, M)
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, GROUP // 2)
    accumulator = tl.zeros((M, BLOCK_N), tl.float32)
    for group in range(K // GROUP):
        both = tl.load(weight_pointer + (group * (GROUP // 2) + k)[:, None] * N + n[None, :])
        x = x_pointer + m[:, None] * K + group * GROUP + k[None, :]
        low = ((both & 15).to(tl.int8) - 8).to(tl.bfloat16)
        high = ((both >> 4).to(tl.int8) - 8).to(tl.bfloat16)
        product = tl.dot(tl.load(x + GROUP // 2), high, tl.dot(tl.load(x), low))
        accumulator += product * tl.load(scale_pointer + group * N + n)[None, :]
    tl.store(out_pointer + m[:, None] * N + n[None, :], accumulator.to(tl.bfloat16))


def int4_matmul(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """x @ w, of a power of two of rows; `weight` has K / 2 rows, `scale` K / GROUP."""
    (m, k), n = x.shape, weight.shape[1]
    out = torch.empty(m, n, device=x.device, dtype=x.dtype)
    int4_matmul_kernel[(n // 128,)](x, weight, scale, out, n, k, M=m, BLOCK_N=128, GROUP=GROUP)
    return out


@triton.jit
def decoding_kernel(
    q_pointer, k_pointer, v_pointer, out_pointer, length, scale, DIMENSION: tl.constexpr, BLOCK: tl.constexpr
):
    """Attention of one query of each head to all of its keys."""
    head = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, DIMENSION)
    q = tl.load(q_pointer + head * DIMENSION + d).to(tl.float32) * scale
    maximum, total = -float("inf"), 0.0
    accumulator = tl.zeros((DIMENSION,), tl.float32)
    for first in range(0, length, BLOCK):
        row = first + tl.arange(0, BLOCK)
        place = (head * length + row)[:, None] * DIMENSION + d[None, :]
        k = tl.load(k_pointer + place, row[:, None] < length, other=0.0)
        scores = tl.where(row < length, tl.sum(q[None, :] * k.to(tl.float32), axis=1), -float("inf"))
        new_maximum = tl.maximum(maximum, tl.max(scores, axis=0))
        weights = tl.exp2(scores - new_maximum)
        correction = tl.exp2(maximum - new_maximum)
        v = tl.load(v_pointer + place, row[:, None] < length, other=0.0)
        accumulator = accumulator * correction + tl.sum(weights[:, None] * v.to(tl.float32), axis=0)
        total = total * correction + tl.sum(weights, axis=0)
        maximum = new_maximum
    tl.store(out_pointer + head * DIMENSION + d, (accumulator / total).to(out_pointer.dtype.element_ty))


def decoding(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Of contiguous (batch, heads, 1, dimension) and (batch, heads, length, dimension)."""
    batch, heads, length, dimension = k.shape
    out = torch.empty_like(q)
    scale = math.log2(math.e) / math.sqrt(dimension)
    decoding_kernel[(batch * heads,)](q, k, v, out, length, scale, DIMENSION=dimension, BLOCK=128)
    return out
