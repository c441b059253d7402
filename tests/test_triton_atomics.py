"""Atomic operations and random numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from triton_language import tensors_on_mtia, with_source  # noqa: F401

from torch_mtia.triton.architecture import usable

pytestmark = pytest.mark.usefixtures("tensors_on_mtia")


@triton.jit
def atomic_kernel(x, z, old, N: tl.constexpr):
    i = tl.arange(0, N)
    v = tl.load(x + i)
    r = tl.atomic_NAME(z + i % 4, v, mask=i % 3 != 0, sem="relaxed")
    tl.store(old + i, r, mask=i % 3 != 0)


REFERENCES: dict[str, Callable[..., Any]] = {
    "add": np.add, "max": np.maximum, "min": np.minimum, "and": np.bitwise_and, "or": np.bitwise_or,
    "xor": np.bitwise_xor, "xchg": lambda _, new: new,
}  # fmt: skip


@pytest.mark.parametrize("name", list(REFERENCES))
@pytest.mark.parametrize(
    "dtype", [torch.int32, torch.int64, torch.uint32, torch.float32, torch.float64, torch.float16, torch.bfloat16]
)
def test_read_modify_write(name: str, dtype: torch.dtype) -> None:
    if dtype.is_floating_point and name in ("and", "or", "xor"):
        pytest.skip("of integers")
    if dtype in (torch.float16, torch.bfloat16) and name != "add":
        pytest.skip("Triton offers only add for 16-bit floating point")
    x = (torch.randint(0, 20, (32,)) - (0 if dtype == torch.uint32 else 10)).to(dtype)
    z = torch.randint(0, 20, (4,)).to(dtype)
    expected, old = z.clone(), torch.zeros_like(x)
    olds = torch.zeros_like(x)
    for i in range(32):
        if i % 3:
            olds[i] = expected[i % 4]
            left, right = (
                (v.double() if dtype.is_floating_point else v.long()).cpu().numpy() for v in (expected[i % 4], x[i])
            )
            expected[i % 4] = torch.from_numpy(np.asarray(REFERENCES[name](left, right))).to(dtype)
    with_source(atomic_kernel, NAME=name)[(1,)](x, z, old, N=32)
    assert torch.equal(z, expected)
    # Triton makes of a maximum of floats one of integers for the positive and one for the negative: in that order.
    if not (dtype.is_floating_point and name in ("max", "min")):
        assert torch.equal(old, olds)


@triton.jit
def neighbours_kernel(x, total, size, shift, ROWS: tl.constexpr, N: tl.constexpr, MASKED: tl.constexpr):
    row, i = tl.arange(0, ROWS), tl.arange(0, N)
    value = tl.load(x + row[:, None] * N + i[None, :])
    place = total + (row[:, None] + tl.program_id(0)) % 4 * shift + i[None, :]
    if MASKED:
        tl.atomic_add(place, value, mask=(i[None, :] < size) & (i[None, :] % 37 != 5))
    else:
        tl.atomic_add(place, value)
    tl.atomic_add(
        total + tl.program_id(0) % N, tl.full((), 1, value.dtype)
    )  # a swap of another size, at the same places


@pytest.mark.sampled(7)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("arch", usable())
@pytest.mark.parametrize(
    "dtype", [torch.int32, torch.int64, torch.uint32, torch.float32, torch.float64, torch.float16, torch.bfloat16]
)
def test_sums_of_neighbours(dtype: torch.dtype, arch: str, masked: bool) -> None:
    programs, rows, columns, size = 32, 4, 64, 51
    x = torch.randint(0, 2, (rows, columns), device="cpu").to(dtype)  # whose sums no format rounds
    for shift in (0, 1, 8, 64):
        total = torch.zeros(3 * shift + columns, dtype=torch.int64, device="cpu")
        column = torch.arange(columns, device="cpu")
        taken = (column < size) & (column % 37 != 5) if masked else torch.ones_like(column, dtype=torch.bool)
        for program in range(programs):
            for row in range(rows):
                first = (row + program) % 4 * shift
                total[first : first + columns] += torch.where(taken, x[row].long(), 0)
            total[program % columns] += 1
        out = torch.zeros(total.shape, dtype=dtype)
        neighbours_kernel[(programs,)](x.to("mtia"), out, size, shift, ROWS=rows, N=columns, MASKED=masked, arch=arch)
        assert torch.equal(out.cpu().long(), total)


def test_scalars_and_compare_and_swap() -> None:
    @triton.jit
    def kernel(lock, z, old, N: tl.constexpr):
        while tl.atomic_cas(lock, 0, 1) == 1:
            pass
        tl.store(z, tl.load(z) + 1)
        tl.atomic_xchg(lock, 0)
        i = tl.program_id(0) * N + tl.arange(0, N)
        tl.store(old + i, tl.atomic_cas(old + i, i % N, i))

    lock, z = torch.zeros(1, dtype=torch.int32), torch.zeros(1)
    old = torch.tensor([0, 1, 5, 3], dtype=torch.int32).repeat(7)
    kernel[(7,)](lock, z, old, N=4)
    assert lock.item() == 0
    assert z.item() == 7


def test_order_with_loads_and_stores() -> None:
    @triton.jit
    def kernel(x, z, N: tl.constexpr):
        i = tl.arange(0, N)
        before = tl.load(x + i)
        tl.atomic_add(x + i, before + 1)
        after = tl.load(x + i)
        tl.store(z + i, after * 1000 + before)

    x = torch.arange(16, dtype=torch.int32)
    z = torch.zeros_like(x)
    kernel[(1,)](x.clone(), z, N=16)
    assert torch.equal(z, (2 * x + 1) * 1000 + x)


def test_random_numbers_are_philox() -> None:
    @triton.jit
    def kernel(z, u, n, seed, N: tl.constexpr):
        i = tl.arange(0, N)
        tl.store(z + i, tl.randint(seed, i))
        tl.store(u + i, tl.rand(seed, i))
        tl.store(n + i, tl.randn(seed, i))

    z, u, n = torch.zeros(4096, dtype=torch.int32), torch.zeros(4096), torch.zeros(4096)
    kernel[(1,)](z, u, n, 42, N=4096)

    def philox(counter: int, seed: int) -> int:
        c, k0, k1 = [counter, 0, 0, 0], seed & 0xFFFFFFFF, seed >> 32
        for _ in range(10):
            a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
            c = [(b >> 32) ^ c[1] ^ k0, b & 0xFFFFFFFF, (a >> 32) ^ c[3] ^ k1, a & 0xFFFFFFFF]
            k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
        return c[0]

    assert z[:32].cpu().numpy().view(np.uint32).tolist() == [philox(i, 42) for i in range(32)]
    assert u.min() >= 0
    assert u.max() < 1
    assert abs(u.mean() - 0.5) < 0.03
    assert abs(n.mean()) < 0.06
    assert abs(n.std() - 1) < 0.06
