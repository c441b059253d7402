"""Memory of a device: what is counted, and what the allocator keeps, gives back and refuses."""

from __future__ import annotations

import gc
import itertools
import random
import threading

import pytest
import torch
from torch import accelerator as acc

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("accelerator")]

N = 1 << 16
FIGURES = ("current", "peak", "allocated", "freed")
KINDS = ("allocated_bytes", "reserved_bytes", "active_bytes", "active", "segment", "inactive_split")
COUNTERS = ("num_alloc_retries", "num_ooms", "num_device_alloc", "num_device_free")


@pytest.fixture(autouse=True)
def _without_garbage() -> None:
    gc.collect()


# Counting ------------------------------------------------------------------------------------------------------------


def test_the_names_of_figures() -> None:
    stats = acc.memory_stats()
    for kind in KINDS:
        for pool in ("all", "large_pool", "small_pool"):
            for figure in FIGURES:
                assert stats[f"{kind}.{pool}.{figure}"] >= 0
    assert all(stats[name] >= 0 for name in COUNTERS)
    assert list(stats) == sorted(stats)


@pytest.mark.parametrize("size", [1, 1000, N, 4 * N, 1 << 24])
def test_figures_agree_with_each_other(device: torch.device, size: int) -> None:
    before = acc.memory_stats()
    kept = [torch.empty(size, dtype=torch.uint8, device=device) for _ in range(3)]
    del kept[1]
    after = acc.memory_stats()
    for kind in KINDS:
        change = {figure: after[f"{kind}.all.{figure}"] - before[f"{kind}.all.{figure}"] for figure in FIGURES}
        assert change["current"] == change["allocated"] - change["freed"], kind
        for figure in ("current", "allocated", "freed"):
            parts = [after[f"{kind}.{pool}.{figure}"] for pool in ("large_pool", "small_pool")]
            assert sum(parts) == after[f"{kind}.all.{figure}"], kind
        assert after[f"{kind}.all.peak"] >= after[f"{kind}.all.current"], kind
    assert after["allocated_bytes.all.current"] - before["allocated_bytes.all.current"] >= 2 * size
    assert after["active.all.current"] - before["active.all.current"] == 2
    assert acc.memory_allocated() == after["allocated_bytes.all.current"] <= acc.memory_reserved()
    assert acc.memory_reserved() == after["reserved_bytes.all.current"]


def test_the_peak_of_an_expression(device: torch.device) -> None:
    x = torch.ones(N * 16, device=device)
    acc.reset_peak_memory_stats()
    base = acc.memory_allocated()
    ((x + 1) * 2).sum()  # two intermediate results at once
    assert acc.max_memory_allocated() - base >= 2 * x.nbytes
    assert acc.max_memory_allocated() - base < 3 * x.nbytes + 65536
    assert acc.max_memory_reserved() >= acc.max_memory_allocated()


def test_accumulated_figures_are_reset(device: torch.device) -> None:
    torch.empty(N, device=device)
    acc.reset_accumulated_memory_stats()
    stats = acc.memory_stats()
    assert stats["allocated_bytes.all.allocated"] == stats["allocated_bytes.all.freed"] == stats["num_ooms"] == 0
    torch.empty(N, device=device)
    stats = acc.memory_stats()
    assert stats["allocated_bytes.all.allocated"] == stats["allocated_bytes.all.freed"] >= 4 * N


def test_each_device_counts_its_own(device: torch.device, second: torch.device) -> None:
    before = acc.memory_allocated(device), acc.memory_allocated(second)
    x = torch.empty(N, device=second)
    assert acc.memory_allocated(device) == before[0]
    assert acc.memory_allocated(second) >= before[1] + x.nbytes


def test_memory_info_falls_by_what_is_taken(device: torch.device) -> None:
    acc.empty_cache()
    free, total = acc.get_memory_info()
    x = torch.ones(1 << 24, device=device)
    less, same = acc.get_memory_info()
    assert same == total
    assert free - less >= x.nbytes // 2  # other processes may give some back
    del x


# The allocator -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 100, N, 1 << 22])
def test_a_freed_block_is_used_again(device: torch.device, count: int) -> None:
    x = torch.empty(count, device=device)
    address, reserved = x.data_ptr(), acc.memory_reserved()
    del x
    y = torch.empty(count, device=device)
    assert y.data_ptr() == address
    assert acc.memory_reserved() == reserved


def test_a_loop_needs_no_more_memory(device: torch.device) -> None:
    def step() -> float:
        x = torch.ones(N, device=device, requires_grad=True)
        (x.exp() * x).sum().backward()
        return x.sum().item()

    step()
    reserved, allocations = acc.memory_reserved(), acc.memory_stats()["num_device_alloc"]
    for _ in range(20):
        step()
    assert (acc.memory_reserved(), acc.memory_stats()["num_device_alloc"]) == (reserved, allocations)


def test_the_cache_is_emptied_of_what_is_not_in_use(device: torch.device) -> None:
    kept = torch.full((N,), 7.0, device=device)
    torch.empty(1 << 24, device=device)
    acc.empty_cache()
    assert acc.memory_reserved() >= acc.memory_allocated()
    assert kept.unique().tolist() == [7.0]
    reserved = acc.memory_reserved()
    acc.empty_cache()
    assert acc.memory_reserved() == reserved


def test_live_blocks_do_not_overlap(device: torch.device) -> None:
    """Sizes at random, freed in an order at random: each block keeps what was written to it."""
    chance = random.Random(0)
    before = acc.memory_allocated()
    live: dict[int, torch.Tensor] = {}
    for number in range(300):
        if live and chance.random() < 0.4:
            value = chance.choice([*live])
            assert live.pop(value).eq(value).all()
        size = int(2 ** chance.uniform(0, 18))
        live[number] = torch.full((size,), number, dtype=torch.int32, device=device)
    spans = sorted((x.data_ptr(), x.data_ptr() + x.nbytes) for x in live.values())
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
    assert all(bool(x.eq(value).all()) for value, x in live.items())
    live.clear()
    acc.synchronize()
    assert acc.memory_allocated() == before


def test_addresses_are_aligned(device: torch.device) -> None:
    kept = [torch.empty(size, dtype=torch.uint8, device=device) for size in range(1, 200, 7)]
    assert all(x.data_ptr() % 16 == 0 for x in kept)


def test_no_elements_need_no_memory(device: torch.device) -> None:
    before = acc.memory_allocated()
    x = torch.empty(0, 5, device=device)
    assert acc.memory_allocated() == before
    assert x.data_ptr() == 0


def test_too_much_memory_is_refused_and_the_device_goes_on(device: torch.device) -> None:
    kept = torch.full((N,), 3.0, device=device)
    _, total = acc.get_memory_info()
    before, ooms = acc.memory_allocated(), acc.memory_stats()["num_ooms"]
    for _ in range(3):
        with pytest.raises(torch.OutOfMemoryError) as caught:
            torch.empty(4 * total, dtype=torch.uint8, device=device)
        assert isinstance(caught.value, RuntimeError)
    del caught
    assert acc.memory_stats()["num_ooms"] == ooms + 3
    assert acc.memory_allocated() == before
    assert (kept * 2).unique().tolist() == [6.0]


def test_too_much_memory_for_a_result(device: torch.device) -> None:
    """An operator that cannot have its result leaves no part of it behind."""
    _, total = acc.get_memory_info()
    rows = torch.ones(1, device=device).expand(2 * total)
    before = acc.memory_allocated()
    with pytest.raises(torch.OutOfMemoryError):
        rows + 1
    assert acc.memory_allocated() == before


def test_memory_of_threads(device: torch.device) -> None:
    wrong = []

    def body(value: int) -> None:
        for size in range(1, 40):
            x = torch.full((size * 997,), float(value), device=device)
            if x.sum().item() != size * 997 * value:
                wrong.append((value, size))

    before = acc.memory_allocated()
    threads = [threading.Thread(target=body, args=(value,)) for value in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    acc.synchronize()
    assert wrong == []
    assert acc.memory_allocated() == before


def test_recorded_memory_is_not_given_away(device: torch.device) -> None:
    """A block that another stream has still to read is not the next tensor's."""
    stream = torch.Stream(device)
    for value in range(1, 10):
        x = torch.full((N,), float(value), device=device)
        stream.wait_stream(acc.current_stream())
        with stream:
            for _ in range(10):
                y = x * 2
        x.record_stream(stream)
        del x
        torch.full((N,), -1.0, device=device)
        acc.current_stream().wait_stream(stream)
        assert y.unique().tolist() == [2.0 * value]
    acc.synchronize()


def test_the_host_cache_is_emptied(device: torch.device) -> None:
    host = torch.arange(N).pin_memory()
    there = host.to(device, non_blocking=True)
    del host
    acc.empty_host_cache()
    assert torch.equal(there.cpu(), torch.arange(N))


def test_the_cache_makes_room(device: torch.device) -> None:
    """What is kept of tensors that are gone goes back before a new one is refused."""
    acc.empty_cache()
    free, _ = acc.get_memory_info()
    retries = acc.memory_stats()["num_alloc_retries"]
    first = torch.empty(free * 6 // 10, dtype=torch.uint8, device=device)
    del first
    second = torch.empty(free * 7 // 10, dtype=torch.uint8, device=device)
    assert acc.memory_stats()["num_alloc_retries"] == retries + 1
    del second
    acc.empty_cache()
    assert acc.memory_reserved() < free * 6 // 10
