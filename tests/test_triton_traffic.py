"""Bytes and operations of kernels of many kinds equal a count by hand: masks, broadcasts, atomics, loops, descriptors,
gathers, overlapping accesses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton import knobs

from tests.test_triton_counting import counts_of
from torch_mtia.portability.counting import Counts


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with knobs.cache.scope():
        knobs.cache.dir = str(tmp_path_factory.mktemp("cache"))
        yield Path(knobs.cache.dir)


def ones(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(*shape, dtype=dtype).to("mtia")


@triton.jit
def copy_tiles(x, y, M, N, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[:, None]
    j = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    mask = (i < M) & (j < N)
    tl.store(y + i * N + j, tl.load(x + i * N + j, mask), mask)


def test_tiles_that_end_in_both_dimensions() -> None:
    size = 4 * 70 * 45
    found = counts_of(copy_tiles, (3, 2), ones(70, 45), ones(70, 45), 70, 45, BLOCK=32)
    assert found == Counts(6, size, size, size, size, {}, {})


@triton.jit
def add_bias(x, bias, y, M: tl.constexpr, N: tl.constexpr):
    i, j = tl.arange(0, M)[:, None], tl.arange(0, N)[None, :]
    tl.store(y + i * N + j, tl.load(x + i * N + j) + tl.load(bias + j))


@triton.jit
def add_bias_of_each(x, bias, y, M: tl.constexpr, N: tl.constexpr):
    i, j = tl.arange(0, M)[:, None], tl.arange(0, N)[None, :]
    tl.store(y + i * N + j, tl.load(x + i * N + j) + tl.load(bias + j + 0 * i))


@pytest.mark.parametrize(("kernel", "issued"), [(add_bias, 64), (add_bias_of_each, 16 * 64)])
def test_a_row_that_is_broadcast_is_loaded_as_often_as_its_pointers_say(kernel: Any, issued: int) -> None:
    found = counts_of(kernel, (1,), ones(16, 64), ones(64), ones(16, 64), M=16, N=64)
    size = 4 * 16 * 64
    assert found == Counts(1, size + 4 * 64, size, size + 4 * issued, size, {}, {"f32": 16 * 64})


@triton.jit
def scale(x, factor, n, BLOCK: tl.constexpr):
    by = tl.load(factor)
    for first in range(tl.program_id(0) * BLOCK, n, tl.num_programs(0) * BLOCK):
        i = first + tl.arange(0, BLOCK)
        tl.store(x + i, tl.load(x + i, i < n) * by, i < n)


def test_a_loop_over_the_grid_loads_its_scalar_once_in_each_program() -> None:
    found = counts_of(scale, (3,), ones(1000, dtype=torch.float16), ones(1, dtype=torch.float16), 1000, BLOCK=128)
    # Eight blocks, the last of 104 elements.
    assert found == Counts(3, 2000 + 2, 2000, 2000 + 3 * 2, 2000, {}, {"f16": 8 * 128})


@triton.jit
def histogram(x, counters, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(counters + tl.load(x + i, i < n), 1, i < n)


def test_atomics_read_and_write_each_lane_that_is_not_masked() -> None:
    x, counters = (torch.arange(100) % 7).int().to("mtia"), torch.zeros(10, dtype=torch.int32).to("mtia")
    found = counts_of(histogram, (2,), x, counters, 100, BLOCK=64)
    assert found == Counts(2, 400 + 4 * 7, 4 * 7, 400 + 400, 400, {}, {})
    assert counters.tolist() == [15, 15, 14, 14, 14, 14, 14, 0, 0, 0]


@triton.jit
def collatz(x, steps):
    number, count = tl.load(x + tl.program_id(0)), 0
    while number > 1:
        number = tl.where(number % 2 == 0, number // 2, 3 * number + 1)
        tl.store(steps + tl.program_id(0), count + 1)
        count += 1


def test_a_while_loop_counts_each_time_round() -> None:
    x, steps = torch.tensor([1, 8, 6], dtype=torch.int32).to("mtia"), torch.zeros(3, dtype=torch.int32).to("mtia")
    # None, 3 and 8 steps, each of which is stored.
    assert counts_of(collatz, (3,), x, steps) == Counts(3, 12, 8, 12, 4 * 11, {}, {})
    assert steps.tolist() == [0, 3, 8]


@triton.jit
def batched(a, b, c, B: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    batch = tl.arange(0, B)[:, None, None]
    i, j, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    left = tl.load(a + batch * M * K + i[None, :, None] * K + k[None, None, :])
    right = tl.load(b + batch * K * N + k[None, :, None] * N + j[None, None, :])
    product = tl.dot(left, right)
    tl.store(c + batch * M * N + i[None, :, None] * N + j[None, None, :], product)


@pytest.mark.parametrize(
    ("dtype", "result", "unit"),
    [(torch.int8, torch.int32, "i8"), (torch.float8_e5m2, torch.float32, "f8"), (torch.float64, torch.float64, "f64")],
)
def test_a_dot_of_three_dimensions_is_one_of_each_batch(dtype: torch.dtype, result: torch.dtype, unit: str) -> None:
    B, M, N, K = 2, 16, 32, 64
    a, b = (torch.ones(shape).to(dtype).to("mtia") for shape in ((B, M, K), (B, K, N)))
    c = torch.zeros(B, M, N, dtype=result).to("mtia")
    found = counts_of(batched, (1,), a, b, c, B=B, M=M, N=N, K=K)
    read, written = a.element_size() * B * K * (M + N), c.element_size() * B * M * N
    assert found == Counts(1, read, written, read, written, {unit: 2 * B * M * N * K}, {})
    assert c.cpu().eq(K).all()


@triton.jit
def of_descriptors(x, y, M, N, BLOCK: tl.constexpr):
    source = tl.make_tensor_descriptor(x, [M, N], [N, 1], [BLOCK, BLOCK])
    target = tl.make_tensor_descriptor(y, [M, N], [N, 1], [BLOCK, BLOCK])
    place = [tl.program_id(0) * BLOCK, tl.program_id(1) * BLOCK]
    target.store(place, source.load(place))


@triton.jit
def of_block_pointers(x, y, M, N, BLOCK: tl.constexpr):
    place = (tl.program_id(0) * BLOCK, tl.program_id(1) * BLOCK)
    source = tl.make_block_ptr(x, (M, N), (N, 1), place, (BLOCK, BLOCK), (1, 0))
    target = tl.make_block_ptr(y, (M, N), (N, 1), place, (BLOCK, BLOCK), (1, 0))
    tl.store(target, tl.load(source, boundary_check=(0, 1)), boundary_check=(0, 1))


@pytest.mark.parametrize("kernel", [of_descriptors, of_block_pointers])
def test_what_is_outside_of_a_descriptor_is_not_accessed(kernel: Any) -> None:
    size = 4 * 40 * 36
    found = counts_of(kernel, (2, 2), ones(40, 36), ones(40, 36), 40, 36, BLOCK=32)
    assert found == Counts(4, size, size, size, size, {}, {})


@triton.jit
def take(x, indices, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + tl.load(indices + i, i < n, other=0), i < n), i < n)


def test_a_gather_reads_each_element_that_is_indexed_once() -> None:
    indices = torch.tensor([5, 5, 900, 7, 5] * 20).to("mtia")
    found = counts_of(take, (2,), ones(1000), indices, ones(100), 100, BLOCK=64)
    assert found == Counts(2, 8 * 100 + 4 * 3, 400, 8 * 100 + 400, 400, {}, {})


@triton.jit
def shuffle(x, y, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    left, right = tl.load(x + i), tl.load(x + BLOCK + i)
    both = tl.cat(left, right, can_reorder=True)
    first, second = tl.split(tl.join(left, right))
    mirrored = tl.gather(first, BLOCK - 1 - i, 0)
    tl.store(y + i, mirrored + tl.flip(second, 0) + tl.sum(both, 0))


def test_cat_join_split_gather_and_flip_compute_nothing() -> None:
    found = counts_of(shuffle, (1,), ones(128), ones(64), BLOCK=64)
    # Two additions of each, and a sum of 128.
    assert found == Counts(1, 512, 256, 512, 256, {}, {"f32": 2 * 64 + 127})


@triton.jit
def combine(a, b, c, d):
    return a * c, b * c + d


@triton.jit
def linear_recurrence(a, b, y, M: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    _, result = tl.associative_scan((tl.load(a + i), tl.load(b + i)), 1, combine)
    tl.store(y + i, result)


def test_a_scan_counts_what_it_combines_with() -> None:
    found = counts_of(linear_recurrence, (1,), ones(4, 32), ones(4, 32), ones(4, 32), M=4, N=32)
    assert found == Counts(1, 1024, 512, 1024, 512, {}, {"f32": 3 * 4 * 31})


@triton.jit
def window(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    total = tl.load(x + i, mask) + 2.0 * tl.load(x + i + 1, mask) + 4.0 * tl.load(x + i + 2, mask)
    tl.store(y + i, total, mask)


def test_loads_that_overlap_read_each_element_once() -> None:
    found = counts_of(window, (4,), ones(202), ones(200), 200, BLOCK=64)
    # Two products and two sums of each lane of four blocks.
    assert found == Counts(4, 4 * 202, 800, 3 * 800, 800, {}, {"f32": 4 * 4 * 64})


@triton.jit
def overlapping_stores(x, BLOCK: tl.constexpr):
    i = tl.program_id(0) * (BLOCK // 2) + tl.arange(0, BLOCK)
    tl.store(x + i, 1.0)


def test_stores_that_overlap_write_each_element_once() -> None:
    found = counts_of(overlapping_stores, (5,), ones(192), BLOCK=64)
    assert found == Counts(5, 0, 4 * 192, 0, 5 * 256, {}, {})


@triton.jit
def partly_written(x, y, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(x + i, 1.0, i < BLOCK // 4)
    tl.store(y + i, tl.load(x + i))


def test_only_what_was_not_written_is_read_from_memory() -> None:
    found = counts_of(partly_written, (1,), ones(64), ones(64), BLOCK=64)
    assert found == Counts(1, 4 * 48, 4 * (16 + 64), 256, 4 * (16 + 64), {}, {})


@triton.jit
def transposed(x, y, N, BLOCK: tl.constexpr):
    i, j = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + j[:, None] * N + i, tl.trans(tl.load(x + i[:, None] * N + j)))


def test_a_transpose_reads_and_writes_once() -> None:
    size = 2 * 64 * 64
    found = counts_of(transposed, (2, 2), *(ones(64, 64, dtype=torch.bfloat16) for _ in "xy"), 64, BLOCK=32)
    assert found == Counts(4, size, size, size, size, {}, {})


@triton.jit(noinline=True)
def squared(x):
    return x * x


@triton.jit
def returns_early(x, y, n, BLOCK: tl.constexpr):
    if tl.program_id(0) * BLOCK >= n:
        return
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.sigmoid(tl.load(x + i)) * squared(tl.load(x)))


def test_programs_that_return_early_and_functions_that_are_called() -> None:
    found = counts_of(returns_early, (8,), ones(256), ones(256), 128, BLOCK=64)
    # Two programs work. 1 / (1 + exp(0 - x)) is four operations of each lane, and there is a product; one is a scalar.
    assert found == Counts(8, 512, 512, 512 + 2 * 4, 512, {}, {"f32": 2 * (64 * 5 + 1)})


@triton.jit
def row_maximum(x, y, places, M: tl.constexpr, N: tl.constexpr):
    i, j = tl.arange(0, M)[:, None], tl.arange(0, N)[None, :]
    numbers = tl.load(x + i * N + j).to(tl.float32)
    tl.store(places + tl.arange(0, M), tl.argmax(numbers, 1))
    tl.store(y + tl.arange(0, N), tl.max(numbers, 0))


def test_reductions_count_what_they_combine_with_and_comparisons_do_not_count() -> None:
    x = ones(8, 16, dtype=torch.bfloat16)
    found = counts_of(row_maximum, (1,), x, ones(16), ones(8, dtype=torch.int32), M=8, N=16)
    assert found == Counts(1, 256, 4 * 24, 256, 4 * 24, {}, {"f32": 16 * 7})
