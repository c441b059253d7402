"""What waits for other ranks, in graphs: a replay runs it beside what those wait for, as streams do."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric_memory

from torch_mtia.backend import device_type
from torch_mtia.ranks import Ranks, StartRanks

RANKS = 3
D = device_type()
SMALL, LARGE = 1_000, 200_000  # elements: less and more than what a rank leaves for another before that asks for it


@pytest.fixture
def ranks(start_ranks: StartRanks) -> Ranks:
    return start_ranks(RANKS, "mtia")


def replays(step: Callable[[], None], check: Callable[[int], None]) -> None:
    """Runs the step, then captures it and replays it three times; `check` is told how often it has run."""
    step()
    torch.accelerator.synchronize()
    check(1)
    graph = torch.accelerator.Graph()
    with torch.Stream(D), graph:
        step()
    for run in range(3):
        graph.replay()
        torch.accelerator.synchronize()
        check(2 + run)


def exchanges(rank: int, count: int, receives_first: bool, is_batched: bool) -> None:
    if rank == 2:
        return
    mine, theirs, other = torch.full((count,), float(rank), device=D), torch.empty(count, device=D), 1 - rank

    def step() -> None:
        mine.add_(10)
        calls: list[Any] = [(dist.irecv, theirs), (dist.isend, mine)]
        if not receives_first:
            calls.reverse()
        if is_batched:
            works = dist.batch_isend_irecv([dist.P2POp(call, tensor, other) for call, tensor in calls])
        else:
            works = [call(tensor, other) for call, tensor in calls]
        for work in works:
            work.wait()

    def check(runs: int) -> None:
        assert theirs[[0, -1]].tolist() == [other + 10.0 * runs] * 2

    replays(step, check)


@pytest.mark.parametrize("is_batched", [False, True], ids=["plain", "batched"])
@pytest.mark.parametrize("receives_first", [False, True], ids=["sends first", "receives first"])
@pytest.mark.parametrize("count", [SMALL, LARGE])
def test_ranks_exchange_messages(ranks: Ranks, count: int, receives_first: bool, is_batched: bool) -> None:
    ranks.run(exchanges, count, receives_first, is_batched)


def receives_before_a_collective(rank: int) -> None:
    total, message = torch.ones(SMALL, device=D), torch.full((LARGE,), float(rank), device=D)

    def step() -> None:
        received = dist.irecv(message, 1) if rank == 0 else None
        dist.all_reduce(total)
        if rank == 1:
            dist.send(message, 0)
        if received is not None:
            received.wait()

    def check(runs: int) -> None:
        assert total[0].item() == 3.0**runs
        assert message[0].item() == (1.0 if rank < 2 else 2.0)

    replays(step, check)


def test_a_receive_does_not_keep_back_a_collective(ranks: Ranks) -> None:
    ranks.run(receives_before_a_collective)


def sends_around(rank: int) -> None:
    mine, theirs = torch.full((LARGE,), float(rank), device=D), torch.empty(LARGE, device=D)
    side = torch.Stream(D)

    def step() -> None:
        main = torch.accelerator.current_stream()
        side.wait_stream(main)
        with side:
            dist.recv(theirs, (rank - 1) % RANKS)
        dist.send(mine, (rank + 1) % RANKS)
        main.wait_stream(side)

    def check(_: int) -> None:
        assert theirs[0].item() == (rank - 1) % RANKS

    replays(step, check)


def test_messages_go_around_in_a_ring(ranks: Ranks) -> None:
    ranks.run(sends_around)


def signals_to_each_other(rank: int) -> None:
    memory = symmetric_memory.empty(16, dtype=torch.int32, device=torch.empty(0, device=D).device)
    assert dist.group.WORLD is not None
    handle = symmetric_memory.rendezvous(memory, dist.group.WORLD)
    side = torch.Stream(D)

    def step() -> None:
        main = torch.accelerator.current_stream()
        side.wait_stream(main)
        with side:
            handle.wait_signal((rank - 1) % RANKS, channel=1)
        handle.put_signal((rank + 1) % RANKS, channel=1)
        main.wait_stream(side)

    replays(step, lambda _: None)


def test_a_signal_that_is_waited_for_on_a_side_stream_is_put(ranks: Ranks) -> None:
    ranks.run(signals_to_each_other)


def asks_the_host(_: int) -> None:
    x = torch.ones(3, device=D)
    calls: dict[str, Callable[[], Any]] = {
        "torch.distributed.barrier()": dist.barrier,
        "Work.wait(timeout)": lambda: dist.all_reduce(x, async_op=True).wait(timedelta(seconds=5)),
        "Work.is_completed()": lambda: dist.all_reduce(x, async_op=True).is_completed(),
        "Work.is_success()": lambda: dist.all_reduce(x, async_op=True).is_success(),
    }
    for name, call in calls.items():
        graph = torch.accelerator.Graph()
        with (
            pytest.raises(RuntimeError, match=re.escape(f"{name} cannot be captured in a graph")),
            torch.Stream(D),
            graph,
        ):
            call()
        with pytest.raises(RuntimeError, match=re.escape(f"the graph is incomplete: {name}")):
            graph.replay()
    dist.all_reduce(x)
    assert x.tolist() == [RANKS] * 3


def test_what_asks_the_host_is_refused(ranks: Ranks) -> None:
    ranks.run(asks_the_host)


def waits_by_stream(_: int) -> None:
    memory = torch.zeros(RANKS, device=D)

    def step() -> None:
        dist.barrier(async_op=True).wait()
        dist.all_reduce(memory.fill_(1))

    replays(step, lambda _: None)
    assert memory.tolist() == [RANKS] * RANKS


def test_a_barrier_that_does_not_block_the_host_is_captured(ranks: Ranks) -> None:
    ranks.run(waits_by_stream)
