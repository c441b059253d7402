"""Operations that rearrange tensors."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from triton_language import tensors_on_mtia  # noqa: F401

pytestmark = pytest.mark.usefixtures("tensors_on_mtia")


def test_transpose_permute_and_reshape() -> None:
    @triton.jit
    def kernel(x, z, w, v, A: tl.constexpr, B: tl.constexpr, C: tl.constexpr):
        a, b, c = tl.arange(0, A)[:, None, None], tl.arange(0, B)[None, :, None], tl.arange(0, C)[None, None, :]
        x = tl.load(x + (a * B + b) * C + c)
        i = tl.arange(0, A * B * C)
        tl.store(z + i, tl.reshape(tl.permute(x, (2, 0, 1)), A * B * C))
        tl.store(w + i, tl.reshape(x, A * B * C) * 2)
        tl.store(v + tl.arange(0, A * B)[:, None] * C + tl.arange(0, C)[None, :], tl.trans(tl.reshape(x, C, A * B)))

    x = torch.randn(4, 8, 16)
    z, w, v = (torch.zeros(512) for _ in range(3))
    kernel[(1,)](x, z, w, v, A=4, B=8, C=16)
    assert torch.equal(z, x.permute(2, 0, 1).reshape(-1))
    assert torch.equal(w, x.reshape(-1) * 2)
    assert torch.equal(v.view(32, 16), x.reshape(16, 32).t())


@pytest.mark.parametrize("n", [1, 4, 64])
def test_join_split_interleave_cat(n: int) -> None:
    @triton.jit
    def kernel(x, y, z, N: tl.constexpr):
        i = tl.arange(0, N)
        a, b = tl.load(x + i), tl.load(y + i)
        joined = tl.join(a, b)
        tl.store(z + i[:, None] * 2 + tl.arange(0, 2)[None, :], joined)
        c, d = tl.split(joined * 2)
        tl.store(z + 2 * N + i, c)
        tl.store(z + 3 * N + i, d)
        tl.store(z + 4 * N + tl.arange(0, 2 * N), tl.interleave(a, b))
        tl.store(z + 6 * N + tl.arange(0, 2 * N), tl.cat(a, b, can_reorder=True))

    x, y, z = torch.randn(n), torch.randn(n), torch.zeros(8 * n)
    kernel[(1,)](x, y, z, N=n)
    both = torch.stack([x, y], 1).reshape(-1)
    assert torch.equal(z[: 6 * n], torch.cat([both, x * 2, y * 2, both]))
    assert torch.equal(z[6 * n :].sort().values, torch.cat([x, y]).sort().values)


@pytest.mark.parametrize("axis", [0, 1])
def test_gather(axis: int) -> None:
    @triton.jit
    def kernel(x, index, z, M: tl.constexpr, N: tl.constexpr, axis: tl.constexpr):
        i = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
        tl.store(z + i, tl.gather(tl.load(x + i), tl.load(index + i), axis))

    x = torch.randn(8, 32)
    index = torch.randint(0, x.shape[axis], (8, 32))
    z = torch.zeros(8, 32)
    kernel[(1,)](x, index.int(), z, M=8, N=32, axis=axis)
    assert torch.equal(z, x.gather(axis, index))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int64])
def test_gather_with_indices_of_every_width(dtype: torch.dtype) -> None:
    @triton.jit
    def kernel(x, indices, z, N: tl.constexpr):
        i = tl.arange(0, N)
        tl.store(z + i, tl.gather(tl.load(x + i), tl.load(indices + i), 0))

    x, indices, z = torch.randn(256), torch.randperm(256).to(dtype), torch.zeros(256)
    kernel[(1,)](x, indices, z, N=256)
    assert torch.equal(z, x[indices.long()])


def test_broadcasting_of_what_is_dear() -> None:
    @triton.jit
    def kernel(x, y, z, M: tl.constexpr, N: tl.constexpr):
        r, c = tl.arange(0, M), tl.arange(0, N)
        a, b = tl.exp(tl.load(x + r)), tl.exp(tl.load(y + c))
        tl.store(z + r[:, None] * N + c[None, :], a[:, None] * b[None, :] + tl.sum(a, 0))

    x, y, z = torch.randn(16), torch.randn(64), torch.zeros(16, 64)
    kernel[(1,)](x, y, z, M=16, N=64)
    assert torch.allclose(z, x.exp()[:, None] * y.exp() + x.exp().sum(), rtol=1e-5)


def test_rank_five() -> None:
    @triton.jit
    def kernel(x, z):
        i = tl.arange(0, 64)
        v = tl.reshape(tl.load(x + i), 2, 4, 2, 2, 2)
        tl.store(z + i, tl.reshape(tl.permute(v, (4, 2, 0, 3, 1)), 64))

    x, z = torch.arange(64), torch.zeros(64, dtype=torch.int64)
    kernel[(1,)](x, z)
    assert torch.equal(z, x.view(2, 4, 2, 2, 2).permute(4, 2, 0, 3, 1).reshape(-1))


def test_scalars_and_tensors_of_one_element() -> None:
    @triton.jit
    def kernel(x, z):
        v = tl.load(x + tl.arange(0, 1))
        tl.store(z + tl.arange(0, 1), v + tl.sum(v, 0))
        tl.store(z + 1, tl.load(x).to(tl.float32) * 3)

    x, z = torch.tensor([5.0]), torch.zeros(2)
    kernel[(1,)](x, z)
    assert z.tolist() == [10.0, 15.0]


def test_map_elementwise() -> None:
    @triton.jit
    def collatz(n):
        steps = 0
        while n > 1:
            n = tl.where(n % 2 == 0, n // 2, 3 * n + 1)
            steps += 1
        return steps

    @triton.jit
    def kernel(x, z, N: tl.constexpr):
        i = tl.arange(0, N)
        tl.store(z + i, tl.map_elementwise(collatz, tl.load(x + i)))

    x, z = torch.arange(1, 33, dtype=torch.int32), torch.zeros(32, dtype=torch.int32)
    kernel[(1,)](x, z, N=32)
    assert z[26] == 111
