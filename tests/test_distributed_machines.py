"""Groups of ranks on two machines: shared memory within each, the network between them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _make_nccl_premul_sum

from torch_mtia.backend import device_type
from torch_mtia.conformance.suites.distributed import MOVES, REDUCTIONS, Collective, in_each_mode, sends_in_a_ring
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


def reduces_much(rank: int) -> None:
    """More than what a machine sends to all others, and what is rounded once, after all machines are added."""
    size = len(MACHINES)
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.int64):
        parts = [((torch.arange(120_003) % 9 + other) / 8 + 256 * (other == 0)).to(dtype) for other in range(size)]
        wide = torch.stack(parts).to(torch.float64).sum(0)
        summed = parts[rank].to(device_type())
        dist.all_reduce(summed)
        assert torch.equal(summed.cpu(), wide.to(dtype))
        scattered = torch.empty(120_003 // size, dtype=dtype, device=device_type())
        dist.reduce_scatter_tensor(scattered, parts[rank].to(device_type()))
        assert torch.equal(scattered.cpu(), wide.to(dtype).chunk(size)[rank])
    for dtype, expected in ((torch.float32, 0.5 + 1.5 + 2.5), (torch.bfloat16, 4.5), (torch.int32, 0 + 1 + 2)):
        scaled = torch.ones(5, dtype=dtype, device=device_type())
        dist.all_reduce(scaled, op=_make_nccl_premul_sum(rank + 0.5))
        assert scaled.tolist() == [expected] * 5


def test_much_is_reduced_between_machines(ranks: Ranks) -> None:
    ranks.run(reduces_much)


def moves_nothing(rank: int) -> None:
    device, size = device_type(), len(MACHINES)
    empty = torch.empty(0, device=device)
    dist.broadcast(empty, 1)
    dist.all_reduce(empty)
    dist.all_gather([torch.empty(0, device=device) for _ in range(size)], empty)
    dist.gather(empty, [torch.empty(0, device=device) for _ in range(size)] if rank == 1 else None, 1)
    dist.reduce_scatter_tensor(torch.empty(0, device=device), empty)
    given = torch.full((rank,), float(rank), device=device)  # all of it for the last rank
    taken = torch.empty(3 if rank == 2 else 0, device=device)
    sizes = [0, 1, 2] if rank == 2 else [0, 0, 0]
    dist.all_to_all_single(taken, given, sizes, [0, 0, rank])
    assert taken.tolist() == ([1.0, 2.0, 2.0] if rank == 2 else [])


def test_tensors_may_be_empty(ranks: Ranks) -> None:
    ranks.run(moves_nothing)


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
