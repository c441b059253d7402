"""Collectives and messages of CPU tensors, by the backend of the devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from torch_mtia.backend import device_type
from torch_mtia.conformance.suites import distributed as suite
from torch_mtia.conformance.suites.distributed import MOVES, REDUCTIONS, Collective
from torch_mtia.ranks import RankError, Ranks, StartRanks

RANKS = 3
CPU = torch.device("cpu")


@pytest.fixture(scope="module", params=["memory", "network"])
def ranks(request: pytest.FixtureRequest, start_ranks: StartRanks) -> Ranks:
    return start_ranks(RANKS, "mtia", environ={"TORCH_MTIA_MACHINE": {"memory": "", "network": "%p"}[request.param]})


def on_the_host(rank: int, function: Callable[..., object], *args: object) -> None:
    suite.local_device = lambda: CPU
    function(rank, *args)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("collective", MOVES, ids=lambda function: function.__name__)
def test_data_are_moved(ranks: Ranks, collective: Callable[..., Collective]) -> None:
    for dtype in (torch.float32, torch.int16, torch.bool):
        ranks.run(on_the_host, suite.in_each_mode, collective, dtype)


@pytest.mark.parametrize("collective", REDUCTIONS, ids=lambda function: function.__name__)
def test_data_are_reduced(ranks: Ranks, collective: Callable[..., Collective]) -> None:
    for dtype, operation in (
        (torch.float32, "AVG"),
        (torch.bfloat16, "SUM"),
        (torch.float8_e5m2, "SUM"),
        (torch.uint16, "MAX"),
        (torch.complex64, "SUM"),
    ):
        ranks.run(on_the_host, suite.in_each_mode, collective, dtype, operation)


@pytest.mark.parametrize("function", [suite.sends_with_tags, suite.receives_from_anyone, suite.exchanges_objects])
def test_messages_and_objects(ranks: Ranks, function: Callable[..., object]) -> None:
    ranks.run(on_the_host, function)


def test_messages_in_a_ring(ranks: Ranks) -> None:
    ranks.run(on_the_host, suite.sends_in_a_ring, torch.float32)


def returns_at_once(rank: int) -> None:
    ones = torch.ones(1000)
    if rank == 0:
        works = [dist.all_reduce(ones, async_op=True) for _ in range(3)]
        assert not works[-1].is_completed()
        dist.send(torch.ones(1), 1)
    else:
        if rank == 1:
            dist.recv(torch.empty(1), 0)  # a message is not behind a collective
        works = [dist.all_reduce(ones, async_op=True) for _ in range(3)]
    works[-1].wait()
    assert works[0].is_completed()
    assert ones[0].item() == RANKS**3
    assert works[-1].get_future().wait()[0].data_ptr() == ones.data_ptr()


def test_calls_do_not_wait_for_peers(ranks: Ranks) -> None:
    ranks.run(returns_at_once)


def host_and_device_in_another_order(rank: int) -> None:
    host, device = torch.ones(5), torch.ones(5, device=device_type())
    for tensor in (host, device) if rank == 0 else (device, host):
        work = dist.all_reduce(tensor, async_op=True)
        assert work is not None
    dist.barrier()
    assert device.tolist() == [RANKS] * 5
    dist.all_reduce(host)
    assert host.tolist() == [RANKS**2] * 5


def test_ranks_need_not_agree_on_the_order_of_host_and_device(ranks: Ranks) -> None:
    ranks.run(host_and_device_in_another_order)


def calls_other_sizes(rank: int) -> None:
    work = dist.all_reduce(torch.ones(1 + rank), async_op=True)
    assert work is not None
    work.wait()


def test_an_error_is_raised_by_wait() -> None:
    with Ranks(2, "mtia") as ranks, pytest.raises(RankError, match="disagree on sizes"):
        ranks.run(calls_other_sizes)


class SometimesUnused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, both: bool) -> torch.Tensor:
        return self.unused(self.used(x)) if both else self.used(x)  # type: ignore[no-any-return]


def trains_with_unused_parameters(rank: int, options: dict[str, Any]) -> list[float]:
    torch.manual_seed(0)
    model = DDP(SometimesUnused().to(device_type()), **options)
    losses = []
    for _ in range(3):
        loss = model(torch.full((2, 4), float(rank), device=device_type()), False).square().sum()
        loss.backward()
        losses.append(loss.item())
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.sub_(0.01 * parameter.grad)
    return losses


@pytest.mark.parametrize("option", ["find_unused_parameters", "static_graph"])
def test_ddp_needs_no_other_backend_for_its_flags(ranks: Ranks, option: str) -> None:
    losses = ranks.run(trains_with_unused_parameters, {option: True})
    assert losses[0][-1] < losses[0][0] or losses[1][-1] < losses[1][0]
