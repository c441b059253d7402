"""Masks that let loops end early, and matrices that are turned in registers on their way in or out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
import triton
import triton.language as tl
from triton_language import tensors_on_mtia  # noqa: F401

if TYPE_CHECKING:
    from tests.conftest import RunScript

pytestmark = pytest.mark.usefixtures("tensors_on_mtia")


@triton.jit
def transposed_copy_kernel(x, z, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    mask = (m[:, None] < M) & (n[None, :] < N)
    value = tl.load(x + n[None, :] * M + m[:, None], mask, other=0)
    tl.store(z + m[:, None] * N + n[None, :], value, mask)


@pytest.mark.parametrize("dtype", [torch.int8, torch.bfloat16, torch.float32, torch.int64, torch.bool])
@pytest.mark.parametrize(("m", "n"), [(32, 64), (50, 37), (16, 16), (8, 40)])
def test_transposing(dtype: torch.dtype, m: int, n: int) -> None:
    """Whole squares are transposed in registers, with what lies beyond the edges masked."""
    x = torch.randint(0, 100, (n, m)).to(dtype)
    z = torch.zeros(m, n, dtype=dtype)
    transposed_copy_kernel[(triton.cdiv(m, 32), triton.cdiv(n, 16))](x, z, m, n, BLOCK_M=32, BLOCK_N=16)
    assert torch.equal(z, x.t())


@triton.jit
def turned_store_kernel(x, y, out, again, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, kind: tl.constexpr):
    """Reads along n, writes along m."""
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    mask = (m < M) & (n < N)
    value = tl.load(x + m * N + n, mask, other=7.0)
    if kind == "two":
        value = value * 2 + tl.load(y + m * N + n, mask, other=1.0)
    elif kind == "other mask":
        mask = mask & ((m + n) % 3 != 1)
    elif kind == "a vector":
        value += tl.load(y + m, m < M)
    tl.store(out + n * M + m, value, mask)
    if kind == "again":  # also what the store before leaves out
        tl.store(again + m * N + n, value + 1, n < N)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("kind", ["one", "two", "other mask", "a vector", "again"])
@pytest.mark.parametrize("sizes", [(32, 64), (33, 70), (5, 100), (64, 3), (1, 1)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.int64], ids=str)
def test_stores_along_another_dimension_than_loads(dtype: torch.dtype, sizes: tuple[int, int], kind: str) -> None:
    rows, columns = sizes
    x, y = (torch.randint(-9, 9, sizes).to(dtype) for _ in range(2))
    for block in ((32, 32), (16, 64), (64, 8)):
        out = torch.full((columns, rows), 99).to(dtype)
        grid = (triton.cdiv(rows, block[0]), triton.cdiv(columns, block[1]))
        again = torch.full((grid[0] * block[0], columns), 99).to(dtype)
        turned_store_kernel[grid](x, y, out, again, rows, columns, *block, kind=kind)
        expected = x.double()
        if kind == "two":
            expected = expected * 2 + y
        elif kind == "a vector":
            expected = expected + y.view(-1)[:rows, None]
        elif kind == "other mask":
            m, n = torch.arange(rows)[:, None], torch.arange(columns)
            expected = torch.where((m + n) % 3 != 1, expected, 99)
        assert torch.equal(out.double(), expected.t())
        if kind == "again":
            assert torch.equal(again[:rows].double(), expected + 1)
            assert torch.equal(again[rows:], torch.full_like(again[rows:], 8))


def test_a_matrix_is_turned_in_place() -> None:
    @triton.jit
    def kernel(x, N: tl.constexpr):
        m, n = tl.arange(0, N)[:, None], tl.arange(0, N)[None, :]
        tl.store(x + n * N + m, tl.load(x + m * N + n))
        tl.store(x + m * N + n, tl.load(x + m * N + n) + 1)

    x = torch.randn(64, 64)
    expected = x.t() + 1
    kernel[(1,)](x, N=64)
    assert torch.equal(x, expected)


@triton.jit
def one_comparison_kernel(x, p, q, size, N: tl.constexpr, kind: tl.constexpr):
    """Masks rows and columns by one comparison."""
    i = tl.arange(0, N)
    inside = i < size
    at = i[:, None] * N + i[None, :]
    value = tl.load(x + at)
    if kind == "computed" or kind == "computed, turned":
        value = tl.exp2(value)
        tl.store(p + at, value, inside[:, None])
    else:
        tl.store(p + tl.trans(at), value, inside[:, None])
    value += 0 * tl.load(p)
    if kind == "computed, turned" or kind == "stored across, turned":
        tl.store(q + at, tl.trans(value), inside[:, None])
    else:
        tl.store(q + at, value, inside[None, :])


@pytest.mark.parametrize("kind", ["computed", "computed, turned", "stored across", "stored across, turned"])
def test_one_comparison_of_rows_and_columns(kind: str) -> None:
    for n, size in ((32, 5), (64, 16), (64, 33)):
        x = torch.randint(-3, 3, (n, n)).float()
        p, q = torch.full((n, n), 99.0), torch.full((n, n), 99.0)
        expected_p, expected_q = p.clone(), q.clone()
        one_comparison_kernel[(1,)](x, p, q, size, N=n, kind=kind)
        value = x.exp2() if "computed" in kind else x
        expected_p[:size] = value[:size]
        if "turned" in kind:
            expected_q[:size] = value.t()[:size]
        else:
            expected_q[:, :size] = value[:, :size]
        assert torch.equal(p, expected_p if "computed" in kind else expected_p.t())
        assert torch.equal(q, expected_q)


def test_a_long_chain_behind_a_masked_store(run_script: RunScript) -> None:
    """In a process of its own: after a compilation of Dynamo's that failed, Python 3.12 limits the depth of calls."""
    script = """
        import torch
        import triton
        import triton.language as tl

        torch.set_default_device(torch.accelerator.current_accelerator())

        @triton.jit
        def kernel(x, p, q, size, N: tl.constexpr):
            i = tl.arange(0, N)
            at, inside = i[:, None] * N + i[None, :], (i < size)[:, None]
            value = tl.load(x + at, inside)
            total = value
            for _ in tl.static_range(3000):
                total += value
            tl.store(p + tl.trans(at), value, inside)
            tl.store(q + at, total, inside)

        x, p, q = torch.randint(9, (16, 16)), torch.zeros(16, 16), torch.zeros(16, 16)
        kernel[(1,)](x, p, q, 7, N=16)
        x[7:] = 0
        assert torch.equal(p, x.t().float())
        assert torch.equal(q, x.float() * 3001)
    """
    run_script(script, TRITON_ALWAYS_COMPILE="1").output()


@triton.jit
def shifted_block_kernel(x, z, rows, columns, stride, M: tl.constexpr, N: tl.constexpr):
    m, n = tl.arange(0, M)[:, None], tl.arange(0, N)[None, :]
    mask = (m < rows) & (n < columns)
    tl.store(z + m * stride + n, tl.load(x + m * stride + n, mask, other=0) + 1, mask)


@pytest.mark.parametrize("shift", [-70, -1, 0, 1, 70, 2048])
@pytest.mark.parametrize("sizes", [(16, 64), (16, 50), (13, 64), (13, 50), (0, 64), (100, 100)])
def test_blocks_within_and_across_the_edges_of_a_matrix(sizes: tuple[int, int], shift: int) -> None:
    """A block within them is stored without a mask, if it need not be kept until all is read."""
    memory = torch.arange(6000, dtype=torch.int32)
    expected, (rows, columns) = memory.clone(), (min(size, most) for size, most in zip(sizes, (16, 64), strict=True))
    place = torch.arange(rows)[:, None] * 80 + torch.arange(columns)[None, :]
    expected[1024 + shift + place] = memory[1024 + place] + 1
    shifted_block_kernel[(1,)](memory[1024:], memory[1024 + shift :], *sizes, 80, M=16, N=64)
    assert torch.equal(memory, expected)


@triton.jit
def far_rows_kernel(z, start, bound, N: tl.constexpr):
    row, column = tl.arange(0, N), tl.arange(0, N)
    mask = (start + row.to(tl.int64) < bound)[:, None] & (column < N)[None, :]
    tl.store(z + row[:, None] * N + column[None, :], 1, mask)


@pytest.mark.parametrize(
    ("start", "bound"),
    [(1, -(1 << 63)), (1, -(1 << 63) + 5), ((1 << 63) - 16, (1 << 63) - 1), ((1 << 63) - 20, -(1 << 63)),
     ((1 << 63) - 8, (1 << 63) - 4), (-(1 << 63), (1 << 63) - 1), (1 << 40, (1 << 40) + 3)],
)  # fmt: skip
def test_rows_and_a_bound_at_the_ends_of_64_bits(start: int, bound: int) -> None:
    z = torch.zeros(16, 16, dtype=torch.int32)
    far_rows_kernel[(1,)](z, start, bound, N=16)
    wrapped = (torch.arange(16, dtype=torch.int64, device="cpu") + start) < bound
    assert torch.equal(z.cpu(), wrapped.int()[:, None].expand(16, 16))


@triton.jit
def wrapping_bound_kernel(z, rows, FAR: tl.constexpr, N: tl.constexpr):
    row, column = tl.arange(0, N), tl.arange(0, N)
    bound = (row * FAR).to(tl.int64) - row.to(tl.int64) * FAR + rows  # changes where the 32 bits wrap
    mask = (row < bound)[:, None] & (column < N)[None, :]
    tl.store(z + row[:, None] * N + column[None, :], 1, mask)


@pytest.mark.parametrize("rows", [1, 16])
@pytest.mark.parametrize("far", [1 << 30, -(1 << 30)])
def test_a_bound_that_wraps_before_it_is_widened(far: int, rows: int) -> None:
    z = torch.zeros(16, 16, dtype=torch.int32)
    wrapping_bound_kernel[(1,)](z, rows, FAR=far, N=16)
    row = torch.arange(16, dtype=torch.int64, device="cpu")
    expected = row < (row * far).int().long() - row * far + rows
    assert torch.equal(z.cpu(), expected.int()[:, None].expand(16, 16))


@triton.jit
def padded_softmax_kernel(x, z, kept, columns, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    mask = i < columns
    row = tl.program_id(0)
    value = tl.load(x + row * columns + i, mask, other=0.0)
    largest = tl.max(tl.where(mask, value, -float("inf")), 0)
    numerator = tl.exp(value - largest)
    total = tl.sum(tl.where(mask, numerator, 0.0), 0)
    tl.store(z + row * columns + i, numerator / total, mask)
    tl.store(kept + row * BLOCK + i, numerator)


@pytest.mark.parametrize("columns", [1, 16, 100, 512])
def test_what_is_stored_beyond_a_mask_is_computed(columns: int) -> None:
    """Loops end with the mask, but not where another statement needs what lies behind."""
    x, z, kept = torch.randn(3, columns), torch.zeros(3, columns), torch.zeros(3, 512)
    padded_softmax_kernel[(3,)](x, z, kept, columns, BLOCK=512)
    torch.testing.assert_close(z, x.softmax(1))
    padded = torch.nn.functional.pad(x, (0, 512 - columns))
    torch.testing.assert_close(kept, (padded - x.amax(1, keepdim=True)).exp())


@triton.jit
def sum_of_powers_kernel(x, z, kept, columns, other, BLOCK: tl.constexpr, kind: tl.constexpr):
    i = tl.arange(0, BLOCK)
    inside = i < columns
    value = tl.load(x + i, inside, other)
    power = tl.exp(value - tl.max(value, 0)) if kind != "square" else value * value
    tl.store(z, tl.sum(power, 0))
    tl.store(z + 1, tl.sum(power * 2, 0) if kind == "twice" else tl.max(power, 0))
    tl.store(kept + i, power, inside)


@pytest.mark.parametrize("kind", ["once", "twice", "square"])
@pytest.mark.parametrize("other", [float("-inf"), 0.0, 3.0, -1e9, float("nan")])
def test_a_sum_of_computed_elements_has_all_of_them(other: float, kind: str) -> None:
    """It ends with the mask only where what lies behind adds nothing; what others read of it is complete."""
    for columns in (0, 1, 255, 256, 300, 512, 600):
        x = torch.randn(512)
        z, kept = torch.empty(2), torch.full((512,), 99.0)
        sum_of_powers_kernel[(1,)](x, z, kept, columns, other, BLOCK=512, kind=kind)
        padded = x.double()
        padded[columns:] = other
        largest = padded[~padded.isnan()].max() if columns or other == other else padded.max()
        power = padded * padded if kind == "square" else (padded - largest).exp()
        second = (2 * power).sum() if kind == "twice" else power[~power.isnan()].max() if columns else power.max()
        torch.testing.assert_close(z.double(), torch.stack((power.sum(), second)), equal_nan=True, rtol=1e-5, atol=0)
        expected = torch.full((512,), 99.0).double()
        expected[:columns] = power[:columns]
        torch.testing.assert_close(kept.double(), expected, equal_nan=True, rtol=1e-5, atol=1e-30)
