"""Groups of ranks on two machines: shared memory within each, the network between them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

from torch_mtia.conformance.suites.distributed import MOVES, REDUCTIONS, Collective, in_each_mode, sends_in_a_ring
from torch_mtia.door import device_type
from torch_mtia.ranks import Ranks, StartRanks

MACHINES = ("a", "b", "a")  # of each rank: machines of different sizes, whose ranks do not follow each other


@pytest.fixture
def ranks(start_ranks: StartRanks) -> Ranks:
    return start_ranks(len(MACHINES), "mtia", environ=[{"TORCH_MTIA_MACHINE": name} for name in MACHINES])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("collective", MOVES, ids=lambda function: function.__name__)
def test_data_are_moved(ranks: Ranks, collective: Callable[..., Collective]) -> None:
    for dtype in (torch.float32, torch.int16, torch.bool):
        ranks.run(in_each_mode, collective, dtype)


@pytest.mark.parametrize("collective", REDUCTIONS, ids=lambda function: function.__name__)
@pytest.mark.parametrize(
    ("dtype", "operations"),
    [
        (torch.float32, ("SUM", "AVG", "PRODUCT", "MIN", "MAX")),
        (torch.bfloat16, ("SUM", "AVG")),
        (torch.float8_e4m3fn, ("SUM",)),
        (torch.int32, ("BAND", "BOR", "BXOR")),
        (torch.uint16, ("SUM", "MAX")),
        (torch.complex64, ("SUM", "AVG")),
    ],
)
def test_data_are_reduced(
    ranks: Ranks, collective: Callable[..., Collective], dtype: torch.dtype, operations: tuple[str, ...]
) -> None:
    for operation in operations:
        ranks.run(in_each_mode, collective, dtype, operation)


def test_messages_arrive(ranks: Ranks) -> None:
    ranks.run(sends_in_a_ring, torch.float32)


def broadcasts_from_all(rank: int) -> None:
    for root in range(len(MACHINES)):
        tensor = torch.full((5,), float(rank), device=device_type())
        dist.broadcast(tensor, root)
        assert tensor.tolist() == [root] * 5


def test_every_rank_can_be_the_root(ranks: Ranks) -> None:
    ranks.run(broadcasts_from_all)


def reduces_uneven_parts(rank: int) -> None:
    parts = [torch.full((other + 1,), float(rank + other), device=device_type()) for other in range(len(MACHINES))]
    output = torch.empty(rank + 1, device=device_type())
    dist.reduce_scatter(output, parts)
    assert output.tolist() == [3.0 + 3 * rank] * (rank + 1)
    assert parts[0].tolist() == [rank]  # what is given is not written


def test_parts_may_have_different_sizes(ranks: Ranks) -> None:
    ranks.run(reduces_uneven_parts)


def gathers_in_a_group_of_one_machine(rank: int) -> None:
    group = dist.new_group([0, 2])
    if rank == 1:
        return
    tensor = torch.full((3,), float(rank), device=device_type())
    dist.all_reduce(tensor, group=group)
    assert tensor.tolist() == [2.0] * 3


@pytest.mark.wide
def test_groups_within_a_machine_share_memory(ranks: Ranks) -> None:
    ranks.run(gathers_in_a_group_of_one_machine)
