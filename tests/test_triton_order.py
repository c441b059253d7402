"""TORCH_MTIA_ORDER=SEED runs the programs of a launch in a random order, in turns: what relies on an order fails."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import torch
import triton
import triton.language as tl

from torch_mtia import sanitizer

if TYPE_CHECKING:
    from tests.conftest import RunScript

SEEDS = (1, 2, 3, 1 << 40)
PROGRAMS = 64


@triton.jit
def order_of_programs(counter, out):
    number = tl.program_id(0) + tl.num_programs(0) * (tl.program_id(1) + tl.num_programs(1) * tl.program_id(2))
    tl.store(out + number, tl.atomic_add(counter, 1))


@triton.jit
def counts_without_atomics(counter):
    tl.store(counter, tl.load(counter) + 1)


@triton.jit
def counts_around_an_atomic(counter, arrivals):
    seen = tl.load(counter)
    tl.atomic_add(arrivals, 1)
    tl.store(counter, seen + 1)


@triton.jit
def counts_with_atomics(counter, out):
    tl.store(out + tl.program_id(0), tl.atomic_add(counter, 1) * 0 + 1)


@triton.jit
def counts_under_a_lock(lock, counter):
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    tl.store(counter, tl.load(counter) + 1)
    tl.debug_barrier()
    tl.atomic_xchg(lock, 0)


@triton.jit
def sum_of_the_last(x, partial, arrivals, out, PROGRAMS: tl.constexpr, IS_RIGHT: tl.constexpr):
    """The last program to arrive adds what all have stored; wrong if one arrives before it has stored."""
    at, lanes = tl.program_id(0), tl.arange(0, PROGRAMS)
    value = tl.sum(tl.load(x + at * 16 + tl.arange(0, 16)), 0)
    if IS_RIGHT:
        tl.store(partial + at, value)
        tl.debug_barrier()
    arrived = tl.atomic_add(arrivals, 1)
    if not IS_RIGHT:
        tl.store(partial + at, value)
    if arrived == PROGRAMS - 1:
        tl.store(out, tl.sum(tl.load(partial + lanes, volatile=True), 0))


@triton.jit
def one_after_the_other(turn, log):
    at = tl.program_id(0)
    while tl.atomic_add(turn, 0) != at:
        pass
    tl.store(log + at, at)
    tl.atomic_add(turn, 1)


@triton.jit
def meet(arrived, flag, seen, PROGRAMS: tl.constexpr):
    """Every program waits for all others, in one of two ways."""
    at = tl.program_id(0)
    if tl.atomic_add(arrived, 1) == PROGRAMS - 1:
        tl.atomic_xchg(flag, 1)
    while tl.load(flag, volatile=True) == 0:
        pass
    tl.store(seen + at, tl.atomic_add(arrived, 0))


@triton.jit
def adds_before(x, sums):
    """A scan that relies on programs that run one after the other, in ascending order."""
    at = tl.program_id(0)
    before = tl.load(sums + at - 1, mask=at > 0, other=0)
    tl.store(sums + at, before + tl.load(x + at))


@triton.jit
def split_product(a, b, c, K, SIZE: tl.constexpr, STEP: tl.constexpr):
    m, n = tl.arange(0, SIZE)[:, None], tl.arange(0, SIZE)[None, :]
    k = tl.program_id(0) * STEP + tl.arange(0, STEP)
    product = tl.dot(tl.load(a + m * K + k[None, :]), tl.load(b + k[:, None] * SIZE + n))
    tl.atomic_add(c + m * SIZE + n, product)


def zeros(count: int) -> torch.Tensor:
    return torch.zeros(count, dtype=torch.int32).to("mtia")


def order(grid: tuple[int, ...], **options: Any) -> list[int]:
    count = math.prod(grid)
    counter, out = zeros(1), torch.full((count,), -1, dtype=torch.int32).to("mtia")
    order_of_programs[grid](counter, out, **options)
    return out.tolist()


@pytest.mark.parametrize("grid", [(1,), (7,), (60,), (3, 4, 5), (128, 2), (1000,)])
@pytest.mark.parametrize("seed", [1, 2, 1 << 40])
def test_every_program_runs_once_in_an_order_of_the_seed(grid: tuple[int, ...], seed: int) -> None:
    found = order(grid, order=seed)
    assert sorted(found) == list(range(math.prod(grid)))
    assert order(grid, order=seed) == found


def test_each_seed_has_an_order_of_its_own() -> None:
    orders = [tuple(order((60,), order=seed)) for seed in range(4)]
    assert len(set(orders)) == 4
    assert orders[0] == tuple(range(60))


@pytest.mark.parametrize("kernel", [counts_without_atomics, counts_around_an_atomic])
def test_a_counter_that_is_read_and_written_loses_counts(kernel: Any) -> None:
    def count(**options: Any) -> int:
        counter, arrivals = zeros(1), zeros(1)
        kernel[(PROGRAMS,)](*((counter,) if kernel is counts_without_atomics else (counter, arrivals)), **options)
        return int(counter.item())

    assert all(count(order=seed) < PROGRAMS for seed in SEEDS)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_counter_of_atomics_and_one_under_a_lock_are_right(seed: int) -> None:
    counter, lock, out = zeros(1), zeros(1), zeros(PROGRAMS)
    counts_with_atomics[(PROGRAMS,)](counter, out, order=seed)
    assert (counter.item(), out.sum().item()) == (PROGRAMS, PROGRAMS)
    counter.zero_()
    counts_under_a_lock[(PROGRAMS,)](lock, counter, order=seed)
    assert (counter.item(), lock.item()) == (PROGRAMS, 0)


def last_sum(is_right: bool, seed: int) -> bool:
    x = torch.arange(16 * PROGRAMS, dtype=torch.int32).to("mtia")
    out = zeros(1)
    sum_of_the_last[(PROGRAMS,)](x, zeros(PROGRAMS), zeros(1), out, PROGRAMS, is_right, order=seed)
    return int(out.item()) == int(x.sum().item())


def test_a_program_that_arrives_before_it_has_stored_is_found() -> None:
    assert all(last_sum(True, seed) for seed in SEEDS)
    assert not all(last_sum(False, seed) for seed in SEEDS)


def test_a_scan_that_relies_on_ascending_programs_is_wrong() -> None:
    x, sums = torch.ones(PROGRAMS, dtype=torch.int32).to("mtia"), zeros(PROGRAMS)
    adds_before[(PROGRAMS,)](x, sums, order=1)
    assert sums.tolist() != list(range(1, PROGRAMS + 1))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("programs", [2, PROGRAMS, 1000])
def test_programs_that_wait_for_the_one_before_end(programs: int, seed: int) -> None:
    log = torch.full((programs,), -1, dtype=torch.int32).to("mtia")
    one_after_the_other[(programs,)](zeros(1), log, order=seed)
    assert log.tolist() == list(range(programs))


@pytest.mark.parametrize("seed", SEEDS)
def test_programs_may_wait_for_all_others(seed: int) -> None:
    seen = zeros(PROGRAMS)
    meet[(PROGRAMS,)](zeros(1), zeros(1), seen, PROGRAMS, order=seed)
    assert seen.tolist() == [PROGRAMS] * PROGRAMS


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_product_that_is_split_over_programs_is_right(dtype: torch.dtype) -> None:
    a, b = torch.randint(-4, 5, (32, 256)).to(dtype), torch.randint(-4, 5, (256, 32)).to(dtype)
    expected = a.float() @ b.float()
    for seed in SEEDS:
        c = torch.zeros(32, 32).to("mtia")
        split_product[(8,)](a.to("mtia"), b.to("mtia"), c, 256, SIZE=32, STEP=32, order=seed)
        assert c.cpu().equal(expected)


def reports_of(run: Callable[[], object]) -> list[sanitizer.Report]:
    for kernel in (counts_under_a_lock, counts_around_an_atomic, sum_of_the_last):
        kernel.device_caches.clear()  # what was compiled before is not watched
    sanitizer.reports().clear()
    with sanitizer.enabled("kernels"):
        run()
    found = list(sanitizer.reports())
    sanitizer.reports().clear()
    return found


@pytest.mark.parametrize("seed", SEEDS)
def test_the_sanitizer_follows_programs_that_take_turns(seed: int, capfd: pytest.CaptureFixture[str]) -> None:
    def under_a_lock() -> None:
        counter = zeros(1)
        counts_under_a_lock[(PROGRAMS,)](zeros(1), counter, order=seed)
        assert counter.item() == PROGRAMS

    assert not reports_of(under_a_lock)
    assert not reports_of(lambda: last_sum(True, seed))
    assert reports_of(lambda: counts_around_an_atomic[(PROGRAMS,)](zeros(1), zeros(1), order=seed))
    assert reports_of(lambda: last_sum(False, seed))


SCRIPT = """
import torch, triton, triton.language as tl
torch.set_num_threads({threads})
@triton.jit
def race(counter, arrivals, out):
    seen = tl.load(counter)
    tl.store(out + tl.program_id(0), tl.atomic_add(arrivals, 1))
    tl.store(counter, seen + 1)
counter, arrivals = (torch.zeros(1, dtype=torch.int32, device="mtia") for _ in range(2))
out = torch.zeros(5000, dtype=torch.int32, device="mtia")
compiled = race[(5000,)](counter, arrivals, out)
print("programs run in a random order, in turns, of seed 3" in compiled.asm["plan"])
print(counter.item(), out.tolist())
"""


def test_the_setting_is_the_seed_of_all_kernels_and_threads_change_nothing(
    run_script: RunScript, tmp_path: Any
) -> None:
    seen = []
    for threads in (1, 4, 4):
        (tmp_path / f"launches{threads}.py").write_text(SCRIPT.format(threads=threads))
        seen.append(run_script(f"import launches{threads}", TORCH_MTIA_ORDER="3").output().split("\n"))
    assert seen[0] == seen[1] == seen[2]
    assert seen[0][0] == "True"
    (tmp_path / "usual.py").write_text(SCRIPT.format(threads=1))
    assert run_script("import usual").output().startswith("False\n")
