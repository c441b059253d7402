"""Matrix products."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from triton_language import tensors_on_mtia, with_source  # noqa: F401

pytestmark = pytest.mark.usefixtures("tensors_on_mtia")


@triton.jit
def dot_kernel(x, y, c, z, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, out: tl.constexpr, add: tl.constexpr):
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    x = tl.load(x + m[:, None] * K + k[None, :])
    y = tl.load(y + k[:, None] * N + n[None, :])
    i = m[:, None] * N + n[None, :]
    if add:
        r = tl.dot(x, y, tl.load(c + i), out_dtype=out)
    else:
        r = tl.dot(x, y, out_dtype=out)
    tl.store(z + i, r)


SHAPES = [
    (16, 16, 16),
    (64, 64, 32),
    (128, 32, 16),
    (16, 128, 64),
    (1, 16, 16),
    (16, 1, 16),
    (16, 16, 1),
    (2, 4, 8),
    (8, 256, 32),
]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("add", [False, True])
def test_shapes(shape: tuple[int, int, int], add: bool) -> None:
    m, n, k = shape
    x, y, c, z = torch.randn(m, k), torch.randn(k, n), torch.randn(m, n), torch.zeros(m, n)
    dot_kernel[(1,)](x, y, c, z, M=m, N=n, K=k, out=tl.float32, add=add)
    assert torch.allclose(z, x @ y + (c if add else 0), atol=1e-4)


@pytest.mark.parametrize(
    ("operand", "result", "out"),
    [
        (torch.float16, torch.float32, tl.float32),
        (torch.float16, torch.float16, tl.float16),
        (torch.bfloat16, torch.float32, tl.float32),
        (torch.float64, torch.float64, tl.float64),
        (torch.int8, torch.int32, tl.int32),
        (torch.float8_e5m2, torch.float32, tl.float32),
        (torch.float8_e4m3fn, torch.float32, tl.float32),
    ],
)
@pytest.mark.parametrize("add", [False, True])
def test_dtypes(operand: torch.dtype, result: torch.dtype, out: tl.dtype, add: bool) -> None:
    x, y = (torch.randint(-4, 5, shape).to(operand) for shape in ((32, 64), (64, 16)))
    c, z = torch.randint(-4, 5, (32, 16)).to(result), torch.zeros(32, 16, dtype=result)
    dot_kernel[(1,)](x, y, c, z, M=32, N=16, K=64, out=out, add=add)
    expected = x.double() @ y.double() + (c.double() if add else 0)
    assert torch.equal(z.double(), expected)


@pytest.mark.parametrize("columns", [8, 128])
@pytest.mark.parametrize("turned", [False, True])
def test_batches(columns: int, turned: bool) -> None:
    @triton.jit
    def kernel(x, y, z, B: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, turned: tl.constexpr):
        b, m, n, k = tl.arange(0, B), tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
        x = tl.load(x + (b[:, None, None] * M + m[None, :, None]) * K + k[None, None, :])
        if turned:
            y = tl.load(y + b[:, None, None] * K * N + k[None, :, None] + n[None, None, :] * K)
        else:
            y = tl.load(y + (b[:, None, None] * K + k[None, :, None]) * N + n[None, None, :])
        tl.store(z + (b[:, None, None] * M + m[None, :, None]) * N + n[None, None, :], tl.dot(x, y))

    x, y, z = torch.randn(4, 16, 32), torch.randn(4, 32, columns), torch.zeros(4, 16, columns)
    given = y.transpose(1, 2).contiguous() if turned else y
    kernel[(1,)](x, given, z, B=4, M=16, N=columns, K=32, turned=turned)
    assert torch.allclose(z, x @ y, atol=1e-4)


@pytest.mark.parametrize("precision", ["ieee", "tf32", "tf32x3"])
def test_a_chain_with_transposes(precision: str) -> None:
    @triton.jit
    def kernel(x, y, z, N: tl.constexpr, precision: tl.constexpr):
        i = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
        x, y = tl.load(x + i), tl.load(y + i)
        s = tl.dot(x, tl.trans(y), input_precision=precision)
        s = s - tl.max(s, 1)[:, None]
        p = tl.exp(s)
        tl.store(z + i, tl.dot(p / tl.sum(p, 1)[:, None], y, input_precision=precision))

    x, y, z = torch.randn(32, 32), torch.randn(32, 32), torch.zeros(32, 32)
    kernel[(1,)](x, y, z, N=32, precision=precision)
    assert torch.allclose(z, (x @ y.t()).softmax(1) @ y, atol=1e-4)


def test_matmul_with_loop_carried_pointers_and_accumulator() -> None:
    @triton.jit
    def kernel(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
        m = tl.program_id(0) * BM + tl.arange(0, BM)
        n = tl.program_id(1) * BN + tl.arange(0, BN)
        k = tl.arange(0, BK)
        pa = a + m[:, None] * K + k[None, :]
        pb = b + k[:, None] * N + n[None, :]
        acc = tl.zeros((BM, BN), tl.float32)
        for start in range(0, K, BK):
            x = tl.load(pa, mask=(m[:, None] < M) & (start + k[None, :] < K), other=0.0)
            y = tl.load(pb, mask=(start + k[:, None] < K) & (n[None, :] < N), other=0.0)
            acc += tl.dot(x, y)
            pa += BK
            pb += BK * N
        tl.store(c + m[:, None] * N + n[None, :], acc.to(tl.float16), mask=(m[:, None] < M) & (n[None, :] < N))

    a, b, c = torch.randn(50, 70), torch.randn(70, 40), torch.zeros(50, 40, dtype=torch.float16)
    kernel[(4, 3)](a, b, c, 50, 40, 70, BM=16, BN=16, BK=32)
    assert torch.allclose(c.float(), a @ b, atol=2e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
@pytest.mark.parametrize("sizes", [(50, 200, 70), (33, 129, 64), (16, 128, 128)])
def test_matmul_of_batches_with_a_weight_that_lies_by_columns(dtype: torch.dtype, sizes: tuple[int, int, int]) -> None:
    @triton.jit
    def kernel(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, out: tl.constexpr):
        a += tl.program_id(2) * M * K
        b += tl.program_id(2) * N * K
        c += tl.program_id(2) * M * N
        m = tl.program_id(0) * BM + tl.arange(0, BM)[:, None]
        n = tl.program_id(1) * BN + tl.arange(0, BN)[None, :]
        total = tl.zeros((BM, BN), out)
        for first in range(0, K, BK):
            k = first + tl.arange(0, BK)
            x = tl.load(a + m * K + k[None, :], mask=(m < M) & (k[None, :] < K), other=0)
            y = tl.load(b + n * K + k[:, None], mask=(n < N) & (k[:, None] < K), other=0)
            total = tl.dot(x, y, total, out_dtype=out)
        tl.store(c + m * N + n, total, mask=(m < M) & (n < N))

    m, n, k = sizes
    a, b = (torch.randint(-4, 5, shape).to(dtype) for shape in ((2, m, k), (2, n, k)))
    out = torch.int32 if dtype == torch.int8 else torch.float32
    c = torch.zeros(2, m, n, dtype=out)
    grid = (triton.cdiv(m, 32), triton.cdiv(n, 128), 2)
    kernel[grid](a, b, c, m, n, k, BM=32, BN=128, BK=64, out=tl.int32 if dtype == torch.int8 else tl.float32)
    assert torch.equal(c.double(), a.double() @ b.double().transpose(1, 2))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("grid", [(1, 1, 1), (8, 3, 1), (9, 5, 2), (17, 1, 3), (3, 20, 2), (40, 41, 1)])
def test_programs_that_share_operands_run_once_each(grid: tuple[int, int, int], threads: int) -> None:
    @triton.jit
    def kernel(a, b, c, runs, SIZE: tl.constexpr):
        x, y, z = tl.program_id(0), tl.program_id(1), tl.program_id(2)
        i, j = tl.arange(0, SIZE)[:, None], tl.arange(0, SIZE)[None, :]
        left = tl.load(a + (z * tl.num_programs(0) + x) * SIZE * SIZE + i * SIZE + j)
        right = tl.load(b + (z * tl.num_programs(1) + y) * SIZE * SIZE + i * SIZE + j)
        tile = (z * tl.num_programs(0) + x) * tl.num_programs(1) + y
        tl.store(c + tile * SIZE * SIZE + i * SIZE + j, tl.dot(left, right))
        tl.store(runs + tile, tl.load(runs + tile) + 1)

    x, y, z = grid
    a, b = (torch.randint(-4, 5, (z, size, 16, 16)).float() for size in (x, y))
    c, runs = torch.full((z, x, y, 16, 16), torch.nan), torch.zeros(z, x, y, dtype=torch.int32)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        compiled = kernel[grid](a, b, c, runs, SIZE=16)
        torch.mtia.synchronize()
    finally:
        torch.set_num_threads(before)
    assert "programs run in bands" in compiled.asm["plan"]
    assert torch.equal(runs, torch.ones_like(runs))
    assert torch.equal(c, a[:, :, None] @ b[:, None])


@pytest.mark.parametrize("waits", ["tl.atomic_add(c, 0.0)", "tl.load(c, volatile=True)"])
def test_programs_that_may_wait_for_each_other_start_in_order(waits: str) -> None:
    @triton.jit
    def kernel(a, c):
        i, j = tl.arange(0, 16)[:, None], tl.arange(0, 16)[None, :]
        left = tl.load(a + (tl.program_id(0) * 16 + i) * 16 + j)
        right = tl.load(a + (tl.program_id(1) * 16 + i) * 16 + j)
        tile = tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
        tl.store(c + tile * 256 + i * 16 + j, tl.dot(left, right))
        WAITS  # noqa: B018, F821

    compiled = with_source(kernel, WAITS=waits).warmup(torch.float32, torch.float32, grid=(1,))
    assert "programs run in bands" not in compiled.asm["plan"]


@triton.jit
def wrapping_kernel(
    x, y, z, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, along: tl.constexpr, ROWS: tl.constexpr,
    DEPTH: tl.constexpr, out: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    m, n = (row % M)[:, None], tl.arange(0, N)
    total = tl.zeros((ROWS, N), out)
    for first in range(0, 2 * K if along else K, DEPTH):
        k = first + tl.arange(0, DEPTH)
        if along:
            k %= K
        left, right = tl.load(x + m * K + k[None, :]), tl.load(y + (n % 24)[None, :] * K + k[:, None])
        total = tl.dot(left, right, total, out_dtype=out)
    tl.store(z + row[:, None] * N + n[None, :], total)


@pytest.mark.unwatched("looks at the code of kernels")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int8])
@pytest.mark.parametrize("along", [False, True])
@pytest.mark.parametrize("rows", [16, 64])
def test_rows_that_begin_anew_at_the_end_of_a_matrix(dtype: torch.dtype, along: bool, rows: int) -> None:
    """As the templates of Inductor have them, the rows in place; `along` too, where they cannot be read in place."""
    sums, out = (torch.int32, tl.int32) if dtype == torch.int8 else (torch.float32, tl.float32)
    x, y = (torch.randint(-4, 5, shape).to(dtype) for shape in ((27, 96), (24, 96)))
    z = torch.zeros(128, 64, dtype=sums)
    kernel = wrapping_kernel[(128 // rows,)](x, y, z, M=27, N=64, K=96, along=along, ROWS=rows, DEPTH=32, out=out)
    expected = (x.double() @ y.double().t())[torch.arange(128) % 27][:, torch.arange(64) % 24]
    assert torch.equal(z.double(), expected * (2 if along else 1))
    if dtype == torch.float32:
        assert ("+= %" in kernel.asm["plan"]) == (not along)  # a tensor, not a buffer


@triton.jit
def linear_kernel(
    x, weight, bias, out, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, sums: tl.constexpr,
):  # fmt: skip
    m = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    n = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    k = tl.arange(0, K)
    mask = (m[:, None] < M) & (n[None, :] < N)
    initial = tl.load(bias + tl.broadcast_to(n[None, :], (ROWS, COLUMNS)), mask).to(sums)
    left, right = tl.load(x + (m % M)[:, None] * K + k[None, :]), tl.load(weight + (n % N)[None, :] * K + k[:, None])
    total = tl.dot(left, right, initial, out_dtype=sums)
    tl.store(out + m[:, None] * N + n[None, :], tl.maximum(total, 0), mask)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
@pytest.mark.parametrize("sizes", [(64, 128), (64, 100), (50, 64), (33, 130), (5, 7)])
def test_sums_that_begin_with_a_bias(dtype: torch.dtype, sizes: tuple[int, int]) -> None:
    """Of blocks that lie inside of a matrix, and of such that lie across its edges."""
    m, n = sizes
    sums, out = (torch.int32, tl.int32) if dtype == torch.int8 else (torch.float32, tl.float32)
    x, weight, bias = (torch.randint(-4, 5, shape).to(dtype) for shape in ((m, 96), (n, 96), (n,)))
    x, weight = (torch.nn.functional.pad(each, (0, 32)) for each in (x, weight))
    z = torch.full((m + 1, n), -1, dtype=sums)
    grid = (triton.cdiv(m, 32), triton.cdiv(n, 64))
    kernel = linear_kernel[grid](x, weight, bias, z, M=m, N=n, K=128, ROWS=32, COLUMNS=64, sums=out)
    assert torch.equal(z[:m].double(), (x.double() @ weight.double().t() + bias.double()).clamp(min=0))
    assert torch.equal(z[m], torch.full_like(z[m], -1)), "it wrote behind the last row"
    assert "= %initial" in kernel.asm["plan"]


def test_persistent_programs_take_tiles_in_turns() -> None:
    @triton.jit
    def kernel(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
        columns = tl.cdiv(N, BN)
        tiles = tl.cdiv(M, BM) * columns
        for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=True):
            m = tile // columns * BM + tl.arange(0, BM)
            n = tile % columns * BN + tl.arange(0, BN)
            acc = tl.zeros((BM, BN), tl.float32)
            for step in range(tl.cdiv(K, BK)):
                k = step * BK + tl.arange(0, BK)
                x = tl.load(a + m[:, None] * K + k[None, :], mask=(m[:, None] < M) & (k[None, :] < K), other=0.0)
                y = tl.load(b + k[:, None] * N + n[None, :], mask=(k[:, None] < K) & (n[None, :] < N), other=0.0)
                acc = tl.dot(x, y, acc)
            tl.store(c + m[:, None] * N + n[None, :], acc, mask=(m[:, None] < M) & (n[None, :] < N))

    a, b = (torch.randint(-4, 5, shape).float() for shape in ((50, 70), (70, 40)))
    for programs in (1, 3, 40):
        c = torch.zeros(50, 40)
        kernel[(programs,)](a, b, c, 50, 40, 70, BM=16, BN=16, BK=32)
        assert torch.equal(c, a @ b)


def test_weights_of_four_bits() -> None:
    """Two to a byte, with a scale and a zero for each group of rows."""

    @triton.jit
    def kernel(x, packed, scale, zero, out, N, K, BM: tl.constexpr, BN: tl.constexpr, GROUP: tl.constexpr):
        m, n = tl.arange(0, BM), tl.program_id(0) * BN + tl.arange(0, BN)
        acc = tl.zeros((BM, BN), tl.float32)
        for group in range(K // GROUP):
            byte = group * (GROUP // 2) + tl.arange(0, GROUP // 2)
            k = group * GROUP + tl.arange(0, GROUP)
            both = tl.load(packed + n[:, None] * (K // 2) + byte[None, :])
            w = tl.join(both & 15, both >> 4).reshape(BN, GROUP).to(tl.float32)
            w = (w - tl.load(zero + group * N + n)[:, None]) * tl.load(scale + group * N + n)[:, None]
            acc += tl.dot(tl.load(x + m[:, None] * K + k[None, :]), w.T)
        tl.store(out + m[:, None] * N + n[None, :], acc)

    m, n, k, group = 16, 64, 128, 32
    weight = torch.randint(0, 16, (n, k), dtype=torch.uint8)
    scale, zero = 2.0 ** torch.randint(-2, 3, (k // group, n)), torch.randint(0, 16, (k // group, n)).float()
    x, out = torch.randint(-4, 5, (m, k)).float(), torch.zeros(m, n)
    kernel[(n // 32,)](x, weight[:, ::2] | weight[:, 1::2] << 4, scale, zero, out, n, k, BM=m, BN=32, GROUP=group)
    wide = (weight - zero.repeat_interleave(group, 0).t()) * scale.repeat_interleave(group, 0).t()
    assert torch.equal(out, x @ wide.t())


@triton.jit
def dequantized_kernel(
    x, weight, scale, out, again, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, layout: tl.constexpr
):
    m, n, k = tl.arange(0, M)[:, None], tl.arange(0, N), tl.arange(0, K)
    if layout == "rows":
        both = tl.load(weight + k[:, None] * N + n[None, :])
    elif layout == "columns":
        both = tl.load(weight + n[None, :] * K + k[:, None])
    else:
        both = tl.trans(tl.load(weight + n[:, None] * K + k[None, :]))
    scales = tl.load(scale + n)
    low = ((both & 15).to(tl.int8) - 8).to(tl.bfloat16)
    high = (both >> 4).to(tl.bfloat16) * scales[None, :]
    product = tl.dot(tl.load(x + m * K + k[None, :]), low)
    product = tl.dot(tl.load(x + m * K + k[None, :]), high, product)
    tl.store(out + m * N + n[None, :], product)
    if again is not None:
        tl.store(again + k[:, None] * N + n[None, :], high)


@pytest.mark.parametrize("layout", ["rows", "columns", "transposed"])
@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("rows", [1, 2, 16])
def test_weights_that_are_computed_in_bfloat16(layout: str, again: bool, rows: int) -> None:
    n, k = 128, 32
    weight = torch.randint(0, 256, (k, n), dtype=torch.uint8)
    scale, x = (2.0 ** torch.randint(-2, 3, (n,))).bfloat16(), torch.randint(-4, 5, (rows, k)).bfloat16()
    out, high = torch.zeros(rows, n), torch.zeros(k, n).bfloat16()
    given = (weight if layout == "rows" else weight.t()).contiguous()
    dequantized_kernel[(1,)](x, given, scale, out, high if again else None, M=rows, N=n, K=k, layout=layout)
    expected = (weight >> 4).float() * scale.float()
    assert torch.equal(out, x.float() @ ((weight & 15).float() - 8) + x.float() @ expected)
    assert not again or torch.equal(high.float(), expected)


@triton.jit
def halves_kernel(x, weight, out, again, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, rounds: tl.constexpr):
    """Products that add to each other, and to what the loop carries."""
    m, n, k = tl.arange(0, M)[:, None], tl.arange(0, N)[None, :], tl.arange(0, K)
    total = tl.load(out + m * N + n)
    for round in range(rounds):
        both = tl.load(weight + (round * K + k)[:, None] * N + n)
        left = tl.load(x + m * K + k[None, :])
        low, high = (both & 15).to(tl.bfloat16), (both >> 4).to(tl.bfloat16)
        total = tl.dot(left, high, tl.dot(left, low, total))
        if again:
            tl.store(weight + (round * K + k)[:, None] * N + n, both + 1)
            tl.store(again + (round * K + k)[:, None] * N + n, high)
    tl.store(out + m * N + n, total)


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("rows", [1, 4, 8, 64])
@pytest.mark.parametrize("columns", [16, 256])
def test_products_that_add_to_each_other_share_what_they_read(again: bool, rows: int, columns: int) -> None:
    k, rounds = 32, 3
    weight = torch.randint(0, 256, (rounds * k, columns), dtype=torch.uint8)
    x, out = torch.randint(-4, 5, (rows, k)).bfloat16(), torch.randint(-4, 5, (rows, columns)).float()
    high = torch.zeros(rounds * k, columns).bfloat16()
    expected = out + (x.float() @ ((weight & 15).float() + (weight >> 4).float()).view(rounds, k, columns)).sum(0)
    given = weight.clone()
    halves_kernel[(1,)](x, given, out, high if again else None, M=rows, N=columns, K=k, rounds=rounds)
    assert torch.equal(out, expected)
    assert torch.equal(given, weight + 1 if again else weight)
    assert not again or torch.equal(high, (weight >> 4).bfloat16())


@triton.jit
def square_kernel(x, z, N: tl.constexpr, rounds: tl.constexpr, sums: tl.constexpr):
    """The right operand is what the products are added to."""
    i = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    x = tl.load(x + i)
    total = x
    for _ in range(rounds):
        initial = total.to(sums)
        total = tl.dot(x, total, tl.dot(x, total, initial, out_dtype=sums), out_dtype=sums).to(x.dtype)
    tl.store(z + i, total)


@pytest.mark.parametrize(
    ("dtype", "sums"), [(torch.float32, tl.float32), (torch.bfloat16, tl.float32), (torch.float16, tl.float16)]
)
@pytest.mark.parametrize("size", [4, 16])
def test_a_right_operand_that_is_added_to(dtype: torch.dtype, sums: tl.dtype, size: int) -> None:
    x, z = torch.eye(size).roll(1, 0).to(dtype), torch.zeros(size, size, dtype=dtype)
    square_kernel[(1,)](x, z, N=size, rounds=3, sums=sums)
    expected = x.float()
    for _ in range(3):
        expected = 2 * x.float() @ expected + expected
    assert torch.equal(z.float(), expected)


@triton.jit
def small_integers_kernel(x, signed, unsigned, small, N: tl.constexpr):
    i = tl.arange(0, N)
    x, small_x = tl.load(x + i), tl.load(small + i)
    tl.store(signed + i, x.to(tl.int8, bitcast=True).to(tl.bfloat16))
    tl.store(unsigned + i, x.to(tl.bfloat16))
    tl.store(signed + N + i, small_x.to(tl.bfloat16))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_every_number_of_eight_bits_is_a_bfloat16(dtype: torch.dtype) -> None:
    x = torch.arange(256, dtype=torch.uint8)
    signed, unsigned = torch.zeros(512).bfloat16(), torch.zeros(256).bfloat16()
    small_integers_kernel[(1,)](x, signed, unsigned, x.view(dtype), N=256)
    assert torch.equal(signed[:256], x.view(torch.int8).bfloat16())
    assert torch.equal(unsigned, x.bfloat16())
    assert torch.equal(signed[256:].nan_to_num(1e9), x.view(dtype).bfloat16().nan_to_num(1e9))


@pytest.mark.parametrize("kind", ["e4m3", "e5m2", "bf16", "e2m1"])
def test_scaled(kind: str) -> None:
    @triton.jit
    def kernel(x, sx, y, sy, z, kind: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, P: tl.constexpr):
        m, n, k, g = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K // P), tl.arange(0, K // 32)
        x = tl.load(x + m[:, None] * (K // P) + k[None, :])
        y = tl.load(y + k[:, None] * N + n[None, :])
        sx = tl.load(sx + m[:, None] * (K // 32) + g[None, :])
        sy = tl.load(sy + n[:, None] * (K // 32) + g[None, :])
        tl.store(z + m[:, None] * N + n[None, :], tl.dot_scaled(x, sx, kind, y, sy, kind))

    m, n, k = 16, 128, 64
    sx, sy = (torch.randint(120, 134, (rows, k // 32), dtype=torch.uint8) for rows in (m, n))
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])
    if kind == "e2m1":
        cx, cy = torch.randint(0, 16, (m, k), dtype=torch.uint8), torch.randint(0, 16, (k, n), dtype=torch.uint8)
        wide_x, wide_y = values[cx.long()], values[cy.long()]
        x, y = cx[:, 0::2] | cx[:, 1::2] << 4, cy[0::2] | cy[1::2] << 4
    else:
        dtype = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2, "bf16": torch.bfloat16}[kind]
        x, y = torch.randint(-4, 5, (m, k)).to(dtype), torch.randint(-4, 5, (k, n)).to(dtype)
        wide_x, wide_y = x.float(), y.float()
    scaled_x = wide_x.double() * torch.exp2(sx.double() - 127).repeat_interleave(32, 1)
    scaled_y = wide_y.double() * torch.exp2(sy.double() - 127).repeat_interleave(32, 1).t()
    z = torch.zeros(m, n)
    kernel[(1,)](x, sx, y, sy, z, kind=kind, M=m, N=n, K=k, P=2 if kind == "e2m1" else 1)
    assert ((z - scaled_x @ scaled_y).abs() <= 1e-6 * (scaled_x.abs() @ scaled_y.abs())).all()


@triton.jit
def four_bits_kernel(x, s, y, z):
    m, n = tl.arange(0, 16)[:, None], tl.arange(0, 32)[None, :]
    codes = tl.load(x + m * 16 + tl.arange(0, 16)[None, :])
    y = tl.load(y + tl.arange(0, 32)[:, None] * 32 + n)
    tl.store(z + m * 32 + n, tl.dot_scaled(codes, tl.load(s + m), "e2m1", y, None, "bf16"))


@pytest.mark.parametrize("flush", [False, True])
def test_numbers_of_four_bits_are_not_flushed_to_zero(flush: bool) -> None:
    codes = torch.arange(32, dtype=torch.uint8).repeat(16, 1) % 16
    packed, scales = codes[:, 0::2] | codes[:, 1::2] << 4, torch.full((16, 1), 127, dtype=torch.uint8)
    z = torch.zeros(16, 32)
    torch.set_flush_denormal(flush)
    try:
        four_bits_kernel[(1,)](packed, scales, torch.eye(32).bfloat16(), z)
        torch.mtia.synchronize()
    finally:
        torch.set_flush_denormal(False)
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])
    assert torch.equal(z, values[codes.long()])


@triton.jit
def power_kernel(x, z, COUNT: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    factor = tl.load(x + i)
    product = factor
    for _ in range(COUNT):
        product = tl.dot(product, factor, input_precision="ieee")
    tl.store(z + i, product)


def test_a_product_that_replaces_its_operand() -> None:
    x = torch.randint(-1, 2, (16, 16), generator=torch.Generator("mtia").manual_seed(0)).float()
    z = torch.zeros_like(x)
    power_kernel[(1,)](x, z, COUNT=4, N=16)
    assert torch.equal(z, torch.linalg.matrix_power(x, 5))
