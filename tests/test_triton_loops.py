"""Tensors that loops and branches carry, rearrange and use again."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import triton
import triton.language as tl
from triton_language import tensors_on_mtia, with_source  # noqa: F401

pytestmark = pytest.mark.usefixtures("tensors_on_mtia")


def test_tensors_carried_by_a_loop_that_read_each_other() -> None:
    @triton.jit
    def kernel(x, rounds, N: tl.constexpr):
        i = tl.arange(0, N)
        a, b = tl.load(x + i), tl.load(x + N + i)
        for k in range(rounds):
            a, b = b, a + b * (k + 1)
        tl.store(x + i, a)
        tl.store(x + N + i, b)

    for rounds in (0, 1, 4):
        x = torch.randint(-5, 5, (64,))
        a, b = x[:32].clone(), x[32:].clone()
        for k in range(rounds):
            a, b = b, a + b * (k + 1)
        kernel[(1,)](x, rounds, N=32)
        assert torch.equal(x, torch.cat([a, b]))


def test_a_carried_tensor_that_is_transposed_every_round() -> None:
    @triton.jit
    def kernel(x, rounds, N: tl.constexpr):
        i = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
        a = tl.load(x + i)
        for _ in range(rounds):
            a = tl.trans(a) + i
        tl.store(x + i, a)

    x = torch.randint(0, 9, (16, 16))
    expected = x.clone()
    for _ in range(3):
        expected = expected.t() + torch.arange(256).view(16, 16)
    kernel[(1,)](x, 3, N=16)
    assert torch.equal(x, expected)


def test_carried_tensors_of_several_shapes() -> None:
    @triton.jit
    def kernel(x, z, rounds, M: tl.constexpr, N: tl.constexpr):
        i = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
        largest = tl.full([M], float("-inf"), tl.float32)
        total = tl.zeros([M], tl.float32)
        sums = tl.zeros([M, N], tl.float32)
        for k in range(rounds):
            v = tl.load(x + k * M * N + i)
            new = tl.maximum(largest, tl.max(v, 1))
            scale = tl.exp(largest - new)
            p = tl.exp(v - new[:, None])
            total = total * scale + tl.sum(p, 1)
            sums = sums * scale[:, None] + p
            largest = new
        tl.store(z + i, sums / total[:, None])

    x, z = torch.randn(5, 8, 32), torch.zeros(8, 32)
    kernel[(1,)](x, z, 5, M=8, N=32)
    softmax = x.permute(1, 0, 2).reshape(8, -1).softmax(1).view(8, 5, 32)
    assert torch.allclose(z, softmax.sum(1), atol=1e-5)


REARRANGED: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "tl.gather(x, order, 0)": lambda x, order: x[order],
    "tl.gather(order, x & 63, 0)": lambda x, order: order[x & 63],
    "tl.gather(x, tl.gather(x, order, 0) & 63, 0)": lambda x, order: x[x[order] & 63],
    "x + tl.gather(x + 1, order, 0)": lambda x, order: x + x[order] + 1,
    "tl.gather(tl.reshape(tl.reshape(x, (8, 8)), (64,)), order, 0)": lambda x, order: x[order],
    "tl.gather(tl.reshape(x, (8, 8)), tl.reshape(order, (8, 8)) & 7, 1).reshape(64)":
        lambda x, order: x.view(8, 8).gather(1, order.view(8, 8) & 7).flatten(),
    "tl.histogram(x & 63, 64)": lambda x, _: torch.bincount(x & 63, minlength=64),
    "tl.histogram(x, 64)": lambda x, _: torch.bincount(x.clamp(max=64), minlength=65)[:64],
    "tl.flip(x, 0)": lambda x, _: x.flip(0),
    "tl.sort(x ^ order, 0)": lambda x, order: (x ^ order).sort().values,
    "tl.cumsum(x, 0, reverse=True) & 1023": lambda x, _: x.flip(0).cumsum(0).flip(0) & 1023,
    "tl.associative_scan(x, 0, last_odd)": lambda x, _: scanned(x),
    "tl.reshape(tl.trans(tl.reshape(x, (4, 16))), (64,))": lambda x, _: x.view(4, 16).t().flatten(),
    "tl.reshape(tl.reshape(x, (4, 16)).trans(), (64,)) + x": lambda x, _: x.view(4, 16).t().flatten() + x,
    "swapped_pairs(x)": lambda x, _: x.view(32, 2).flip(1).flatten(),
    "tl.interleave(*tl.split(tl.trans(tl.reshape(x, (2, 32)))))": lambda x, _: x.view(2, 32).t().flatten(),
    "swapped_halves(x)": lambda x, _: x.roll(32),
    "tl.sum(x[None, :] * (order[:, None] & 3), 1) & 1023": lambda x, order: (x * (order[:, None] & 3)).sum(1) & 1023,
    "tl.reduce(x[:, None] + order[None, :], 0, last_odd)":
        lambda x, order: torch.stack([scanned(x + o)[-1] for o in order]),
    "tl.map_elementwise(twice_or_less, x)": lambda x, _: torch.where(x > 30, 30 - x, 2 * x),
}  # fmt: skip


@triton.jit
def last_odd(a, b):
    return tl.where(b & 1 != 0, b, a)


def scanned(x: torch.Tensor) -> torch.Tensor:
    last = 0
    found: list[int] = []
    for number in x.tolist():
        last = number if not found or number & 1 else last
        found.append(last)
    return torch.tensor(found, device="cpu")


@triton.jit
def swapped_pairs(x):
    even, odd = tl.split(tl.reshape(x, (32, 2)))
    return tl.reshape(tl.join(odd, even), (64,))


@triton.jit
def swapped_halves(x):
    first, second = tl.split(tl.trans(tl.reshape(x, (2, 32))))
    return tl.cat(second, first, can_reorder=False)


@triton.jit
def twice_or_less(x):
    if x > 30:
        return 30 - x
    return 2 * x


@triton.jit
def replacing_kernel(x, z, rounds, N: tl.constexpr):
    i = tl.arange(0, N)
    order, x = tl.load(x + N + i), tl.load(x + i)  # noqa: F841
    for _ in range(rounds):
        x = EXPRESSION  # type: ignore[name-defined]  # noqa: F821
    tl.store(z + i, x)


@triton.jit
def summing_kernel(x, z, rounds, N: tl.constexpr):
    """What is replaced is needed before and afterwards."""
    i = tl.arange(0, N)
    order, x = tl.load(x + N + i), tl.load(x + i)  # noqa: F841
    before, after = tl.zeros([N], tl.int32), tl.zeros([N], tl.int32)
    for _ in range(rounds):
        before += x
        old = x + 1
        pairs = tl.reshape(x, (N // 2, 2))
        x = EXPRESSION  # type: ignore[name-defined]  # noqa: F821
        after += old * x + tl.reshape(pairs, (N,))
    tl.store(z + i, before + after * 3 + x)


@triton.jit
def swapping_kernel(x, z, rounds, N: tl.constexpr):
    i = tl.arange(0, N)
    order, x = tl.load(x + N + i), tl.load(x + i)  # noqa: F841
    y = x * 2
    for _ in range(rounds):
        x, y = y, EXPRESSION  # type: ignore[name-defined]  # noqa: F821
    tl.store(z + i, x + 7 * y)


@triton.jit
def while_kernel(x, z, rounds, N: tl.constexpr):
    i = tl.arange(0, N)
    order, x = tl.load(x + N + i), tl.load(x + i)  # noqa: F841
    k = 0
    y = x
    while k < rounds:
        if k % 2 == 0:
            x, y = EXPRESSION, x  # type: ignore[name-defined]  # noqa: F821
        else:
            x, y = y, x
        k += 1
    tl.store(z + i, x + 7 * y)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("expression", REARRANGED)
def test_carried_tensors_that_are_rearranged(expression: str) -> None:
    order = torch.randperm(64, generator=torch.Generator("mtia").manual_seed(1), dtype=torch.int32).cpu()
    start = torch.arange(64, dtype=torch.int32, device="cpu") * 5 % 64

    def step(x: torch.Tensor) -> torch.Tensor:
        return REARRANGED[expression](x, order).int()

    def replacing(x: torch.Tensor, rounds: int) -> torch.Tensor:
        for _ in range(rounds):
            x = step(x)
        return x

    def summing(x: torch.Tensor, rounds: int) -> torch.Tensor:
        before, after = torch.zeros_like(x), torch.zeros_like(x)
        for _ in range(rounds):
            before, old, x = before + x, x, step(x)
            after += (old + 1) * x + old
        return before + after * 3 + x

    def swapping(x: torch.Tensor, rounds: int) -> torch.Tensor:
        y = x * 2
        for _ in range(rounds):
            x, y = y, step(x)
        return x + 7 * y

    def alternating(x: torch.Tensor, rounds: int) -> torch.Tensor:
        y = x
        for k in range(rounds):
            x, y = (step(x), x) if k % 2 == 0 else (y, x)
        return x + 7 * y

    for kernel, expected in (
        (replacing_kernel, replacing),
        (summing_kernel, summing),
        (swapping_kernel, swapping),
        (while_kernel, alternating),
    ):
        for rounds in (0, 1, 2, 5):
            z = torch.zeros(64, dtype=torch.int32)
            source = torch.cat([start, order]).to("mtia")
            with_source(kernel, EXPRESSION=expression)[(1,)](source, z, rounds, N=64)
            assert z.tolist() == expected(start, rounds).tolist(), (expected.__name__, rounds)


def test_halves_that_change_places_every_round() -> None:
    @triton.jit
    def kernel(x, rounds, N: tl.constexpr):
        i = tl.arange(0, N)[:, None] * 2 + tl.arange(0, 2)[None, :]
        pairs = tl.load(x + i)
        for _ in range(rounds):
            left, right = tl.split(pairs)
            pairs = tl.join(right, left)
        tl.store(x + i, pairs)

    for rounds in (1, 2):
        x = torch.arange(64)
        kernel[(1,)](x, rounds, N=32)
        assert torch.equal(x, torch.arange(64).view(32, 2).flip(1).flatten() if rounds == 1 else torch.arange(64))


def test_what_a_loop_only_moved_outlives_what_it_started_from() -> None:
    @triton.jit
    def carried_kernel(x, z, rounds, steps, N: tl.constexpr):
        i = tl.arange(0, N)
        order, x = tl.load(x + N + i), tl.load(x + i)
        total = tl.zeros([N], tl.int32)
        for k in range(rounds):
            moved = x
            for _ in range(steps):
                moved += 1
            x = tl.gather(order, (order + k) & (N - 1), 0)
            total += moved
        tl.store(z + i, total)

    order = torch.randperm(64, dtype=torch.int32)
    x, z = torch.arange(64, dtype=torch.int32) * 3, torch.zeros(64, dtype=torch.int32)
    carried_kernel[(1,)](torch.cat([x, order]), z, 4, 5, N=64)
    expected = torch.zeros_like(x)
    for k in range(4):
        expected += x + 5
        x = order[(order + k) & 63]
    assert torch.equal(z, expected)

    @triton.jit
    def loaded_kernel(rows, x, rounds, M: tl.constexpr, N: tl.constexpr, COLUMNS: tl.constexpr):
        i = tl.arange(0, M)
        pointers = x + tl.load(rows + i)[:, None] * COLUMNS + tl.arange(0, N)[None, :]
        total = tl.zeros([M, N], tl.int32)
        for _ in range(rounds):
            total += tl.load(pointers)
            pointers += N
        tl.store(rows + i, tl.zeros([M], tl.int32))
        tl.store(pointers, total)

    rows, x = torch.randperm(16, dtype=torch.int32), torch.randint(0, 9, (16, 64), dtype=torch.int32)
    expected = x.clone()
    expected[:, 48:] = x[:, :48].view(16, 3, 16).sum(1)
    loaded_kernel[(1,)](rows, x, 3, M=16, N=16, COLUMNS=64)
    assert torch.equal(x, expected)
    assert not rows.any()


def test_pointers_that_a_loop_moved_are_stored_through_over_where_they_were_loaded_from() -> None:
    @triton.jit
    def kernel(x, rounds, M: tl.constexpr, N: tl.constexpr):
        i = tl.arange(0, M)
        pointers = x + tl.load(x + i)[:, None] * N + tl.arange(0, N)[None, :]
        for _ in range(rounds):
            pointers += N
        tl.store(pointers, tl.full([M, N], -1, tl.int32))

    x = torch.zeros(5 * 32, dtype=torch.int32)
    x[:4] = torch.tensor([2, 0, 3, 1])
    kernel[(1,)](x, 0, M=4, N=32)
    assert x.tolist() == [-1] * 128 + [0] * 32


def test_an_accumulator_that_is_its_own_operand() -> None:
    @triton.jit
    def kernel(x, z, rounds, N: tl.constexpr):
        i = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
        a, b, c, d = tl.load(x + i), tl.load(x + i), tl.load(x + i), tl.load(x + i)
        for _ in range(rounds):
            a = tl.dot(a, tl.trans(a), a)
            b = tl.dot(tl.trans(b), b, tl.trans(b))
            c = tl.dot(tl.load(x + i), c)
            d = tl.dot(d.to(tl.float16), d.to(tl.float16), d, out_dtype=tl.float32)
        tl.store(z + i, a)
        tl.store(z + N * N + i, b)
        tl.store(z + 2 * N * N + i, c)
        tl.store(z + 3 * N * N + i, d)

    x = (torch.arange(256) % 3 - 1).float().view(16, 16) * (torch.eye(16) + torch.eye(16).roll(1, 0))
    for rounds in (0, 1, 2):
        z = torch.zeros(4, 16, 16)
        kernel[(1,)](x, z, rounds, N=16)
        a = b = c = d = x
        for _ in range(rounds):
            a, b, c, d = a + a @ a.t(), b.t() + b.t() @ b, x @ c, d + d @ d
        assert torch.equal(z, torch.stack([a, b, c, d]))


@triton.jit
def _swap_pairs_in_a_branch(x, swapped, out, flag, SIZE: tl.constexpr):
    lane = tl.arange(0, SIZE)
    loaded = tl.load(x + lane)
    tl.store(x + lane, loaded + 1)
    value = tl.abs(loaded).to(tl.int16)
    result = value
    if tl.load(flag) > 0:
        first, second = tl.split(tl.reshape(value, (SIZE // 2, 2)))
        result = tl.interleave(second, first)
    tl.store(swapped + lane, result)
    tl.store(out + lane, value)


@pytest.mark.parametrize("taken", [False, True])
def test_a_value_that_a_branch_rearranges_is_right_behind_it(taken: bool) -> None:
    x = torch.arange(-8, 8, dtype=torch.int32)
    flag = torch.tensor([int(taken)])
    swapped, out = (torch.full((16,), 99, dtype=torch.int16) for _ in range(2))
    expected = x.abs().to(torch.int16)
    _swap_pairs_in_a_branch[(1,)](x, swapped, out, flag, SIZE=16)
    assert torch.equal(out, expected)
    assert torch.equal(swapped, expected.view(8, 2).flip(1).flatten() if taken else expected)


@triton.jit
def _exchange_extremes(x, out, rounds):
    i = tl.arange(0, 1)
    one = tl.full((1,), 3, tl.float32)
    other = tl.load(x + i).to(tl.uint8).to(tl.float16).to(tl.float32)
    for _ in range(rounds):
        one, other = tl.gather(other, (i + 1) & 0, 0), one
        one = tl.maximum(one, tl.broadcast_to(tl.min(other, 0, keep_dims=True), (1,)))
        other = tl.maximum(other, tl.broadcast_to(tl.min(one, 0, keep_dims=True), (1,)))
    tl.store(out + i, one)


def test_extremes_that_a_loop_exchanges() -> None:
    x, out = torch.zeros(1, dtype=torch.int32), torch.zeros(1)
    _exchange_extremes[(1,)](x, out, 3)
    assert out.item() == 3


@triton.jit
def _follow_moved_indices(table, x, out, rounds, SIZE: tl.constexpr):
    i = tl.arange(0, SIZE)
    index = tl.load(table + i)
    for k in range(rounds):
        tl.store(out + k * SIZE + i, tl.load(x + index))
        tl.store(table + i, index * 0)
        index += 1


def test_indices_that_a_loop_moves_are_read_before_it_writes() -> None:
    table, x = torch.randint(0, 50, (32,), dtype=torch.int32), torch.randn(64)
    expected = torch.stack([x[table + k] for k in range(3)])
    out = torch.empty(3, 32)
    _follow_moved_indices[(1,)](table, x, out, 3, SIZE=32)
    assert torch.equal(out, expected)


# Compiling takes no longer the more ways there are through what a kernel computes ------------------------------------

REUSED = 40  # each use twice: far too often for who takes every way


def reused(t: torch.Tensor) -> torch.Tensor:
    for _ in range(REUSED):
        t = t * t * 0.1 + t * 0.5
    return t


@triton.jit
def reuse(t, TIMES: tl.constexpr):
    for _ in tl.static_range(TIMES):
        t = t * t * 0.1 + t * 0.5
    return t


def test_what_a_loop_carries_may_be_used_again_and_again() -> None:
    @triton.jit
    def kernel(z, x, n, TIMES: tl.constexpr, N: tl.constexpr):
        t = tl.load(x + tl.arange(0, N))
        for _ in range(n):
            t = reuse(t, TIMES) + 1
        tl.store(z + tl.arange(0, N), t)

    x, z = torch.rand(64), torch.zeros(64)
    kernel[(1,)](z, x, 2, TIMES=REUSED, N=64)
    assert torch.allclose(z, reused(reused(x) + 1) + 1)


def test_what_is_kept_under_a_mask_may_be_used_again_and_again() -> None:
    @triton.jit
    def kernel(z, x, n, TIMES: tl.constexpr, N: tl.constexpr):
        i = tl.arange(0, N)
        t = tl.exp(tl.load(x + i, mask=i < n))
        tl.store(z + i, t, mask=i < n)
        tl.store(z + N + i, reuse(t, TIMES) + tl.load(x + i, mask=i < n), mask=i < n)

    x, z = torch.rand(64), torch.zeros(2, 64)
    kernel[(1,)](z, x, 50, TIMES=REUSED, N=64)
    assert torch.allclose(z[:, :50], torch.stack([x.exp(), reused(x.exp()) + x])[:, :50])
    assert not z[:, 50:].any()


def test_what_is_reduced_under_a_mask_may_be_used_again_and_again() -> None:
    @triton.jit
    def kernel(z, x, n, TIMES: tl.constexpr, N: tl.constexpr):
        i = tl.arange(0, N)
        mask = i < n
        for k in tl.static_range(TIMES):
            mask = (mask & (i != 60 + k)) & (mask & (i > -1 - k))
        tl.store(z, tl.sum(reuse(tl.load(x + i, mask=mask, other=0.0), TIMES), 0))

    x, z = torch.rand(64), torch.zeros(1)
    kernel[(1,)](z, x, 50, TIMES=REUSED, N=64)
    assert torch.allclose(z, reused(x[:50]).sum())


def test_indices_may_be_used_again_and_again() -> None:
    @triton.jit
    def kernel(x, n, TIMES: tl.constexpr, N: tl.constexpr):
        i = tl.arange(0, N)
        k = i
        for _ in tl.static_range(TIMES):
            k = k * n + k
            k = k * 2 - k + i - i
        v = tl.load(x + k)
        tl.store(x + k + 1, v)

    x = torch.arange(65.0)
    kernel[(1,)](x, 0, TIMES=REUSED, N=64)
    assert torch.equal(x, torch.cat([torch.zeros(1), torch.arange(64.0)]))
