"""What a launch accesses and computes is counted, exactly, and bounds the time that it takes on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton import knobs

from torch_mtia.portability import bound
from torch_mtia.portability.counting import Counts, count
from torch_mtia.portability.launches import Recording
from torch_mtia.triton import targets


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with knobs.cache.scope():
        knobs.cache.dir = str(tmp_path_factory.mktemp("cache"))
        yield Path(knobs.cache.dir)


def counts_of(kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> Counts:
    recording = Recording(count)
    recording.start()
    try:
        kernel[grid](*arguments, **constants)
    finally:
        recording.stop()
    (found,) = recording.specializations
    assert found.counts is not None
    return found.counts


@triton.jit
def add(x, y, z, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(z + i, tl.load(x + i, i < n) + tl.load(y + i, i < n), i < n)


def test_masked_lanes_access_nothing() -> None:
    x, y, z = (torch.ones(1000).to("mtia") for _ in range(3))
    found = counts_of(add, (2,), x, y, z, 1000, BLOCK=512)
    assert found == Counts(2, 8000, 4000, 8000, 4000, {}, {"f32": 1024})
    assert z.cpu().eq(2).all()


@triton.jit
def product(a, b, c, K, M: tl.constexpr, BK: tl.constexpr):
    i, k = tl.program_id(0) * M + tl.arange(0, M), tl.arange(0, BK)
    j = tl.program_id(1) * M + tl.arange(0, M)
    sums = tl.zeros((M, M), tl.float32)
    for first in range(0, K, BK):
        sums = tl.dot(tl.load(a + i[:, None] * K + first + k), tl.load(b + (first + k)[:, None] * 128 + j), sums)
    tl.store(c + i[:, None] * 128 + j, sums)


@pytest.mark.parametrize(("dtype", "unit"), [(torch.float16, "f16"), (torch.bfloat16, "f16"), (torch.float32, "f32")])
def test_a_matmul_reads_its_operands_once_for_each_row_and_column_of_tiles(dtype: torch.dtype, unit: str) -> None:
    a, b = (torch.randint(-3, 3, (128, 128)).to(dtype).to("mtia") for _ in range(2))
    c = torch.empty(128, 128, device="mtia")
    found = counts_of(product, (4, 4), a, b, c, 128, M=32, BK=16)
    size = 128 * 128 * a.element_size()
    assert found == Counts(16, 2 * size, 65536, 4 * 2 * size, 65536, {unit: 2 * 128**3}, {})
    assert torch.equal(c.cpu().double(), a.cpu().double() @ b.cpu().double())


@triton.jit
def softmax(out, x, n, BLOCK: tl.constexpr):
    columns = tl.arange(0, BLOCK)
    numbers = tl.load(x + tl.program_id(0) * n + columns, columns < n, other=-float("inf"))
    powers = tl.exp(numbers - tl.max(numbers, 0))
    tl.store(out + tl.program_id(0) * n + columns, powers / tl.sum(powers, 0), columns < n)


def test_a_row_that_is_used_twice_is_read_once() -> None:
    x = torch.randn(50, 100).to("mtia")
    found = counts_of(softmax, (50,), torch.empty_like(x), x, 100, BLOCK=128)
    # A difference, an exponential and a quotient of each, and two reductions.
    assert found == Counts(50, 20000, 20000, 20000, 20000, {}, {"f32": 50 * (3 * 128 + 2 * 127)})


@triton.jit
def in_place(x, rounds, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    for _ in range(rounds):
        tl.store(x + i, tl.load(x + i) * 2)


def test_what_a_launch_has_written_is_not_read_from_memory() -> None:
    found = counts_of(in_place, (1,), torch.ones(256).to("mtia"), 3, BLOCK=256)
    assert found == Counts(1, 1024, 1024, 3 * 1024, 3 * 1024, {}, {"f32": 3 * 256})


@triton.jit
def branches(x, y, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    if tl.program_id(0) % 2 == 0:
        tl.store(y + i, tl.exp(tl.load(x + i)))
    else:
        tl.atomic_add(y + i, 1.0)


def test_only_what_a_program_does_is_counted() -> None:
    x, y = torch.ones(64).to("mtia"), torch.zeros(64).to("mtia")
    found = counts_of(branches, (5,), x, y, BLOCK=64)
    # Three programs store, two add: an atomic operation reads and writes, what was written before.
    assert found == Counts(5, 256, 256, 5 * 256, 5 * 256, {}, {"f32": 3 * 64})


@triton.jit
def strided(x, y, step, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i * step) + tl.load(x + i // 2))


def test_an_address_counts_once_whoever_reads_it() -> None:
    x, y = torch.ones(512).to("mtia"), torch.empty(64, device="mtia")
    found = counts_of(strided, (2,), x, y, 8, BLOCK=64)
    # 64 elements 8 apart and the first 32; elements 0, 8, 16 and 24 are in both.
    assert found == Counts(2, 4 * (64 + 32 - 4), 256, 2 * 2 * 256, 2 * 256, {}, {"f32": 2 * 64})


@triton.jit
def scans(x, y, M: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, M)[:, None] * N + tl.arange(0, N)
    tl.store(y + i, tl.cumsum(tl.load(x + i), 1).to(tl.float16))


def test_scans_combine_one_time_less_than_there_are_elements() -> None:
    x, y = torch.ones(8, 32).to("mtia"), torch.empty(8, 32, dtype=torch.float16, device="mtia")
    assert counts_of(scans, (1,), x, y, M=8, N=32) == Counts(1, 1024, 512, 1024, 512, {}, {"f32": 8 * 31})


# Bounds ---------------------------------------------------------------------------------------------------------------


def test_the_bound_is_the_slowest_of_memory_tensor_cores_and_other_arithmetic() -> None:
    memory = Counts(1, 3350 * 10**6, 1000, 0, 0, {}, {})  # a second's worth is 3,350e9
    matmul = Counts(1, 1, 1, 0, 0, {"f16": 9894 * 10**8, "f4": 10**15}, {})
    other = Counts(1, 1, 1, 0, 0, {}, {"f32": 669 * 10**8, "f16": 4 * 669 * 10**8})
    for counts, limit, microseconds in (
        (memory, "memory", 1000.0),
        (matmul, "tensor cores", 1000.0),
        (other, "other arithmetic", 1000.0),
    ):
        first = next(bound.bounds(counts, "cuda:90"))
        assert (first.product, first.limit) == ("H100 SXM", limit)
        assert first.microseconds == pytest.approx(microseconds)
        assert "whitepaper" in first.source


def test_what_is_written_may_stay_in_the_cache() -> None:
    (a100,) = bound.bounds(Counts(1, 2039 * 10**3, (40 << 20) + 2039 * 10**3, 0, 0, {}, {}), "cuda:80")
    assert a100.microseconds == pytest.approx(2.0)
    assert not list(bound.bounds(Counts(1, 1, 1, 1, 1, {}, {}), "cuda:86"))


def test_a_report_with_bounds_says_first_what_they_are() -> None:
    x, y, z = (torch.ones(1024).to("mtia") for _ in range(3))
    with targets("cuda:90", bound=True) as report:
        for _ in range(2):
            add[(1,)](x, y, z, 1024, BLOCK=1024)
    assert str(report).startswith(bound.FIRST_LINE)
    assert (
        report.to_html().partition("<body>")[2].lstrip().startswith(f"<p><b>{bound.FIRST_LINE.partition(chr(39))[0]}")
    )
    assert "no H100 SXM runs this launch faster than 0.00245 us: memory" in str(report)
    for text in (str(report), report.to_html()):
        assert "8,192 bytes read (8,192 issued), 4,096 written (4,096 issued)" in text


def test_a_launch_that_a_graph_captures_is_not_counted() -> None:
    x, y, z = (torch.ones(1024).to("mtia") for _ in range(3))
    graph = torch.mtia.MTIAGraph()
    with targets("cuda:90", bound=True) as report, torch.mtia.graph(graph):
        add[(1,)](x, y, z, 1024, BLOCK=256)
    graph.replay()
    assert z.cpu()[:256].eq(2).all()
    assert "not counted: 1 specialization" in str(report)
