"""Reductions, scans and what is built on them, over every axis, dtype and kind of combine function."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from triton_language import tensors_on_mtia, with_source  # noqa: F401

pytestmark = pytest.mark.usefixtures("tensors_on_mtia")

DTYPES = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint32, torch.float16, torch.bfloat16,
          torch.float32, torch.float64)  # fmt: skip


@triton.jit
def vector_kernel(x, z, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x + i)
    tl.store(z, EXPRESSION)  # type: ignore[name-defined]  # noqa: F821


@triton.jit
def matrix_kernel(x, z, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, axis: tl.constexpr):
    x = tl.load(x + tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :])
    tl.store(z + tl.arange(0, K), EXPRESSION)  # type: ignore[name-defined]  # noqa: F821


def numbers(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    low = 0 if not dtype.is_signed else -9
    return torch.randint(low, 10, shape, generator=torch.Generator("mtia").manual_seed(3)).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["sum", "max", "min", "argmax", "argmin", "xor_sum"])
@pytest.mark.parametrize("n", [1, 2, 8, 64, 512])
def test_vectors(dtype: torch.dtype, name: str, n: int) -> None:
    if name == "xor_sum" and dtype.is_floating_point:
        pytest.skip("xor is of integers")
    x = numbers((n,), dtype)
    z = torch.zeros(1, dtype=torch.int32 if name.startswith("arg") else torch.float64)
    with_source(vector_kernel, EXPRESSION=f"tl.{name}(x, 0)")[(1,)](x, z, N=n)
    values = x.double().cpu().numpy() if name != "xor_sum" else x.cpu().numpy().astype(np.int64)
    expected = {"xor_sum": np.bitwise_xor.reduce}.get(name) or getattr(np, name)
    if name == "sum" and not dtype.is_floating_point:
        assert z.item() == values.sum()
    elif name == "sum":
        assert abs(z.item() - values.sum()) <= abs(values).sum() * torch.finfo(dtype).eps * 4
    else:
        assert z.item() == expected(values)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("shape", [(1, 64), (64, 1), (2, 32), (32, 2), (16, 128), (128, 16), (4, 4)])
@pytest.mark.parametrize("name", ["sum", "max", "argmin"])
def test_matrices(axis: int, shape: tuple[int, int], name: str) -> None:
    x = numbers(shape, torch.float32)
    z = torch.zeros(shape[1 - axis], dtype=torch.int32 if name == "argmin" else torch.float32)
    kernel = with_source(matrix_kernel, EXPRESSION=f"tl.{name}(x, axis)")
    kernel[(1,)](x, z, M=shape[0], N=shape[1], K=shape[1 - axis], axis=axis)
    np.testing.assert_array_equal(z.cpu().numpy(), getattr(np, name)(x.cpu().numpy(), axis))


def test_higher_ranks_and_all_axes() -> None:
    @triton.jit
    def kernel(x, z, w, A: tl.constexpr, B: tl.constexpr, C: tl.constexpr):
        a, b, c = tl.arange(0, A)[:, None, None], tl.arange(0, B)[None, :, None], tl.arange(0, C)[None, None, :]
        x = tl.load(x + (a * B + b) * C + c)
        tl.store(z + tl.arange(0, A)[:, None] * C + tl.arange(0, C)[None, :], tl.sum(x, 1))
        tl.store(w, tl.max(x))

    x = torch.randn(4, 8, 16)
    z, w = torch.zeros(4, 16), torch.zeros(1)
    kernel[(1,)](x, z, w, A=4, B=8, C=16)
    assert torch.allclose(z, x.sum(1), atol=1e-5)
    assert w.item() == x.max().item()


def test_ties_go_to_the_left() -> None:
    x, z = torch.zeros(256), torch.full((1,), -1, dtype=torch.int32)
    with_source(vector_kernel, EXPRESSION="tl.argmax(x, 0)")[(1,)](x, z, N=256)
    assert z.item() == 0
    x[100] = x[200] = 5
    with_source(vector_kernel, EXPRESSION="tl.argmax(x, 0)")[(1,)](x, z, N=256)
    assert z.item() == 100


@triton.jit
def welford_combine(mean_1, m2_1, weight_1, mean_2, m2_2, weight_2):
    delta = mean_2 - mean_1
    weight = weight_1 + weight_2
    ratio = tl.where(weight == 0.0, 0.0, weight_2 / weight)
    return mean_1 + delta * ratio, m2_1 + m2_2 + delta * delta * weight_1 * ratio, weight


def test_several_operands() -> None:
    @triton.jit
    def kernel(x, z, M: tl.constexpr, N: tl.constexpr, axis: tl.constexpr):
        x = tl.load(x + tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :])
        mean, m2, weight = tl.reduce((x, tl.zeros_like(x), tl.full([M, N], 1.0, tl.float32)), axis, welford_combine)
        K: tl.constexpr = N if axis == 0 else M
        k = tl.arange(0, K)
        tl.store(z + k, mean)
        tl.store(z + K + k, m2 / weight)

    x = torch.randn(32, 64) + 100
    for axis in (0, 1):
        z = torch.zeros(2, x.shape[1 - axis])
        kernel[(1,)](x, z, M=32, N=64, axis=axis)
        assert torch.allclose(z[0], x.mean(axis), rtol=1e-5)
        assert torch.allclose(z[1], x.var(axis, correction=0), rtol=1e-3)


@triton.jit
def compose(factor, offset, next_factor, next_offset):
    return factor * next_factor, offset * next_factor + next_offset


@triton.jit
def composed_kernel(f, o, zf, zo, M: tl.constexpr, N: tl.constexpr, axis: tl.constexpr):
    i = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    factor, offset = tl.reduce((tl.load(f + i), tl.load(o + i)), axis, compose)
    rest = tl.arange(0, N if axis == 0 else M)
    tl.store(zf + rest, factor)
    tl.store(zo + rest, offset)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("shape", [(4, 256), (256, 4), (1, 64), (32, 1), (2, 2)])
def test_what_is_not_commutative_is_combined_in_order(axis: int, shape: tuple[int, int]) -> None:
    """Functions x -> factor * x + offset, one after the other."""
    generator = torch.Generator("mtia").manual_seed(5)
    factors, offsets = torch.randint(-9, 10, (2, *shape), generator=generator, dtype=torch.int32)
    out = torch.zeros(2, shape[1 - axis], dtype=torch.int32)
    composed_kernel[(1,)](factors, offsets, out[0], out[1], M=shape[0], N=shape[1], axis=axis)
    factor = torch.ones(shape[1 - axis], dtype=torch.int32)
    offset = torch.zeros_like(factor)
    for next_factor, next_offset in zip(factors.unbind(axis), offsets.unbind(axis), strict=True):
        factor, offset = factor * next_factor, offset * next_factor + next_offset
    assert out.tolist() == [factor.tolist(), offset.tolist()]


@triton.jit
def branching_combine(a, b):
    if a > b:
        c = a - b
    else:
        c = b - a
    return tl.maximum(a, b) + c * 0


def test_control_flow_in_the_combine_function() -> None:
    @triton.jit
    def kernel(x, z, N: tl.constexpr):
        tl.store(z, tl.reduce(tl.load(x + tl.arange(0, N)), 0, branching_combine))

    x, z = torch.randn(128), torch.zeros(1)
    kernel[(1,)](x, z, N=128)
    assert z.item() == x.max().item()


# Scans ----------------------------------------------------------------------------------------------------------------


@triton.jit
def scan_kernel(x, z, M: tl.constexpr, N: tl.constexpr, axis: tl.constexpr, reverse: tl.constexpr):
    i = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    x = tl.load(x + i)
    tl.store(z + i, EXPRESSION)  # type: ignore[name-defined]  # noqa: F821


@triton.jit
def last_nonzero(a, b):
    return tl.where(b != 0, b, a)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("shape", [(1, 64), (64, 1), (2, 8), (16, 32), (1, 4), (256, 2)])
@pytest.mark.parametrize("name", ["sum", "prod", "custom"])
def test_scans(axis: int, reverse: bool, shape: tuple[int, int], name: str) -> None:
    x = torch.randint(-1, 2, shape).float() if name != "prod" else torch.randint(0, 2, shape).float() * 3 - 2
    expression = {
        "sum": "tl.cumsum(x, axis, reverse=reverse)",
        "prod": "tl.cumprod(x, axis, reverse=reverse)",
        "custom": "tl.associative_scan(x, axis, last_nonzero, reverse=reverse)",
    }[name]
    z = torch.zeros_like(x)
    with_source(scan_kernel, EXPRESSION=expression)[(1,)](x, z, M=shape[0], N=shape[1], axis=axis, reverse=reverse)
    source = x.flip(axis) if reverse else x
    if name == "custom":
        expected = source.clone()
        for k in range(1, shape[axis]):
            before, here = expected.select(axis, k - 1), expected.select(axis, k)
            here.copy_(torch.where(here != 0, here, before))
    else:
        expected = source.cumsum(axis) if name == "sum" else source.cumprod(axis)
    assert torch.equal(z, expected.flip(axis) if reverse else expected)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float64])
def test_scan_dtypes(dtype: torch.dtype) -> None:
    x = torch.randint(-1, 2, (4, 32)).to(dtype)
    z = torch.zeros(4, 32, dtype=torch.float64)
    kernel = with_source(scan_kernel, EXPRESSION="tl.cumsum(x, axis, reverse=reverse)")
    kernel[(1,)](x, z, M=4, N=32, axis=1, reverse=False)
    assert torch.equal(z, x.double().cumsum(1))


# Sorting --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.int32, torch.float32, torch.int16, torch.float16])
@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("shape", [(1, 8), (4, 32)])
def test_sort(dtype: torch.dtype, descending: bool, shape: tuple[int, int]) -> None:
    @triton.jit
    def kernel(x, z, M: tl.constexpr, N: tl.constexpr, descending: tl.constexpr):
        i = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
        tl.store(z + i, tl.sort(tl.load(x + i), descending=descending))

    x = torch.randint(-1000, 1000, shape).to(dtype)
    z = torch.zeros_like(x)
    kernel[(1,)](x, z, M=shape[0], N=shape[1], descending=descending)
    assert torch.equal(z, x.sort(1, descending=descending).values)


def test_topk_flip_and_histogram() -> None:
    @triton.jit
    def kernel(x, top, flipped, counts, N: tl.constexpr, K: tl.constexpr):
        i = tl.arange(0, N)
        v = tl.load(x + i)
        tl.store(top + tl.arange(0, K), tl.topk(v, K))
        tl.store(flipped + i, tl.flip(v, 0))
        tl.store(counts + tl.arange(0, 16), tl.histogram(v, 16, mask=i < N - 4))

    x = torch.randint(0, 16, (64,), dtype=torch.int32)
    top, flipped, counts = torch.zeros(8, dtype=torch.int32), torch.zeros_like(x), torch.zeros(16, dtype=torch.int32)
    kernel[(1,)](x, top, flipped, counts, N=64, K=8)
    assert torch.equal(top, x.topk(8).values)
    assert torch.equal(flipped, x.flip(0))
    assert torch.equal(counts, torch.bincount(x[:60], minlength=16).int())
