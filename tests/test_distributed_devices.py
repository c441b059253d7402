"""Processes that use several devices in one group: calls belong together by their order, whatever the device."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch._C._distributed_c10d import _make_nccl_premul_sum
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.distributed_c10d import _coalescing_manager
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from torch_mtia.backend import device_type
from torch_mtia.ranks import Ranks, StartRanks

RANKS = 2
DEVICES = [torch.device(device_type(), index) for index in range(2)]


@pytest.fixture(scope="module", params=["memory", "network"])
def ranks(request: pytest.FixtureRequest, start_ranks: StartRanks) -> Ranks:
    return start_ranks(RANKS, "mtia", environ={"TORCH_MTIA_MACHINE": {"memory": "", "network": "%p"}[request.param]})


def keep_busy(device: torch.device) -> None:
    x = torch.ones(1 << 21, device=device)
    for _ in range(4):
        x.mul_(2)


def reduces_on_both(rank: int) -> None:
    for _ in range(30):
        values = [
            torch.full((1024,), value, device=device) for value, device in zip((1.0, 100.0), DEVICES, strict=True)
        ]
        if rank == 0:
            keep_busy(DEVICES[0])  # holds back the first device's call on this rank only
        works = [dist.all_reduce(value, async_op=True) for value in values]
        for work in works:
            work.wait()
        assert [value[0].item() for value in values] == [2.0, 200.0]


def test_calls_of_two_devices_are_not_mixed_up(ranks: Ranks) -> None:
    ranks.run(reduces_on_both)


def moves_on_both(rank: int) -> None:
    other = 1 - rank
    for step in range(5):
        mine = [torch.arange(6.0, device=device) + 10 * rank + 100 * index for index, device in enumerate(DEVICES)]
        theirs = [torch.arange(6.0) + 10 * other + 100 * index for index in range(2)]
        if step % 2 == rank:
            keep_busy(DEVICES[step % 2])
        gathered = [[torch.empty(6, device=device) for _ in range(RANKS)] for device in DEVICES]
        exchanged = [torch.empty(6, device=device) for device in DEVICES]
        scattered = [torch.empty(3, device=device) for device in DEVICES]
        works: list[Any] = []
        for index in range(2):
            works.append(dist.all_gather(gathered[index], mine[index], async_op=True))
            works.append(dist.all_to_all_single(exchanged[index], mine[index], async_op=True))
            works.append(dist.reduce_scatter_tensor(scattered[index], mine[index], async_op=True))
            works.append(dist.broadcast(mine[index], step % 2, async_op=True))
        for work in works:
            work.wait()
        for index in range(2):
            here = torch.arange(6.0) + 10 * rank + 100 * index
            parts = [here, theirs[index]] if rank == 0 else [theirs[index], here]
            assert [part.tolist() for part in gathered[index]] == [part.tolist() for part in parts]
            assert exchanged[index].tolist() == torch.cat([part.chunk(2)[rank] for part in parts]).tolist()
            assert scattered[index].tolist() == (parts[0] + parts[1]).chunk(2)[rank].tolist()
            assert mine[index].tolist() == parts[step % 2].tolist()


def test_every_kind_of_call_keeps_its_device(ranks: Ranks) -> None:
    ranks.run(moves_on_both)


def uses_another_device_than_the_other_rank(rank: int) -> None:
    own = DEVICES[rank]
    torch.accelerator.set_device_index(0)
    dist.barrier()  # of the device that is current in the beginning
    torch.accelerator.set_device_index(rank)
    for step in range(3):
        first, second = (torch.full((3,), float(step), device=DEVICES[index]) for index in (rank, 1 - rank))
        dist.all_reduce(first)
        dist.all_reduce(second.add_(10))
        assert first.tolist() == [2.0 * step] * 3
        assert second.tolist() == [2.0 * (step + 10)] * 3
    objects: list[object] = [None] * RANKS
    dist.all_gather_object(objects, rank)
    assert objects == [0, 1]
    dist.barrier(device_ids=[rank])
    assert own == torch.empty(0, device=device_type()).device


def test_ranks_need_not_use_the_same_devices(ranks: Ranks) -> None:
    ranks.run(uses_another_device_than_the_other_rank)


def sends_from_both(rank: int) -> None:
    for _ in range(5):
        if rank == 0:
            keep_busy(DEVICES[0])
            works = [dist.isend(torch.full((4,), float(index), device=DEVICES[index % 2]), 1) for index in range(6)]
            for work in works:
                work.wait()  # type: ignore[union-attr]
        else:
            received = [torch.empty(4, device=DEVICES[index % 3 // 2]) for index in range(6)]
            works = [dist.irecv(tensor, 0) for tensor in received]
            for work in works:
                work.wait()  # type: ignore[union-attr]
            assert [tensor[0].item() for tensor in received] == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


def test_messages_of_two_devices_arrive_in_the_order_of_the_calls(ranks: Ranks) -> None:
    ranks.run(sends_from_both)


def coalesces_on_each(rank: int) -> None:
    results = []
    for index, device in enumerate(DEVICES):
        tensors = [torch.full((5,), float(rank + number + 10 * index), device=device) for number in range(3)]
        with _coalescing_manager(device=device, async_ops=True) as work:
            for tensor in tensors:
                dist.all_reduce(tensor)
        results.append((work, tensors))
    for index, (work, tensors) in reversed(list(enumerate(results))):
        work.wait()
        assert [tensor[0].item() for tensor in tensors] == [1.0 + 2 * (number + 10 * index) for number in range(3)]


def test_calls_are_coalesced_on_each_device(ranks: Ranks) -> None:
    ranks.run(coalesces_on_each)


def names_a_device_that_is_not_there(_: int) -> None:
    for number in (2, 256, 257, 1 << 32):
        with pytest.raises(RuntimeError, match=f"{device_type()}:{number} does not exist"):
            dist.barrier(device_ids=[number])
    dist.barrier(device_ids=[1])


def test_a_barrier_of_a_device_that_is_not_there_is_refused(ranks: Ranks) -> None:
    ranks.run(names_a_device_that_is_not_there)


def replays_on_both(_: int) -> None:
    values = [torch.ones(100, device=device) * (index + 1) for index, device in enumerate(DEVICES)]
    for device in DEVICES:
        torch.accelerator.synchronize(device)
    graph = torch.accelerator.Graph()
    side = torch.Stream(DEVICES[0])
    with side, graph:
        first = torch.accelerator.current_stream(DEVICES[1])
        first.wait_stream(side)
        works = [dist.all_reduce(value, async_op=True) for value in values]
        for work in works:
            work.wait()
        values[1].mul_(2)
        side.wait_stream(first)
    for _ in range(3):
        graph.replay()
    for device in DEVICES:
        torch.accelerator.synchronize(device)
    assert [value[0].item() for value in values] == [8.0, 128.0]


def test_a_graph_has_calls_of_both(ranks: Ranks) -> None:
    ranks.run(replays_on_both)


def captures_between(rank: int) -> None:
    for _ in range(10):
        values = [torch.full((100,), value, device=device) for value, device in zip((1.0, 100.0), DEVICES, strict=True)]
        captured = torch.ones(100, device=DEVICES[1])
        for device in DEVICES:
            torch.accelerator.synchronize(device)
        graph = torch.accelerator.Graph()
        with torch.Stream(DEVICES[1]), graph:
            if rank == 0:
                keep_busy(DEVICES[0])
            dist.all_reduce(values[0])  # runs now, as the current stream of its device is not captured
            dist.all_reduce(captured)
        dist.all_reduce(values[1])
        assert [value[0].item() for value in values] == [2.0, 200.0]
        graph.replay()
        assert captured[0].item() == 2.0


def test_a_call_in_a_capture_is_not_in_the_order_of_those_around_it(ranks: Ranks) -> None:
    ranks.run(captures_between)


def premultiplies(_: int) -> None:
    x = torch.ones(4, device=DEVICES[0])
    for where in ("cpu", DEVICES[1]):
        factor = torch.full((1,), 5.0, device=where)
        with pytest.raises(ValueError, match=r"expected the factor of PREMUL_SUM to be on \w+:0, .*, got one on "):
            dist.all_reduce(x, op=_make_nccl_premul_sum(factor))
    dist.all_reduce(x, op=_make_nccl_premul_sum(torch.full((1,), 5.0, device=DEVICES[0])))
    assert x.tolist() == [10.0] * 4


def test_a_factor_of_another_device_is_refused(ranks: Ranks) -> None:
    ranks.run(premultiplies)


def coalesces_both(_: int) -> None:
    values = [torch.ones(4, device=device) for device in DEVICES]
    group: Any = dist.group.WORLD._get_backend(DEVICES[0])  # type: ignore[union-attr]
    group._start_coalescing()
    work = group.allreduce([values[0]])
    with pytest.raises(ValueError, match="calls that are coalesced are of one device"):
        group.allreduce([values[1]])
    work.wait()
    dist.all_reduce(values[1])
    assert [value.tolist() for value in values] == [[2.0] * 4] * 2


def test_coalesced_calls_of_two_devices_are_refused_before_they_run(ranks: Ranks) -> None:
    ranks.run(coalesces_both)


class OverBoth(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 64)
        self.second = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.first(x.to(self.first.weight.device)))
        result: torch.Tensor = self.second(y.to(self.second.weight.device))
        return result

    def spread(self) -> OverBoth:
        self.first.to(DEVICES[0])
        self.second.to(DEVICES[1])
        return self


def trains(rank: int) -> list[bytes]:
    torch.manual_seed(0)
    model = DistributedDataParallel(OverBoth().spread(), bucket_cap_mb=0.01)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(rank)
    for step in range(20):
        if step % 2 == rank:
            keep_busy(DEVICES[step // 2 % 2])
        optimizer.zero_grad()
        model(torch.randn(16, 64, generator=generator)).square().sum().backward()
        optimizer.step()
    return [parameter.detach().cpu().numpy().tobytes() for parameter in model.parameters()]


def test_a_module_over_two_devices_is_trained(ranks: Ranks) -> None:
    first, second = ranks.run(trains)
    assert first == second


def reduces_in_a_thread_for_each(_: int) -> None:
    groups = [dist.new_group() for _ in DEVICES]

    def run(index: int) -> None:
        for _ in range(50):
            x = torch.full((64,), 100.0**index, device=DEVICES[index])
            dist.all_reduce(x, group=groups[index])
            assert x[0].item() == RANKS * 100.0**index

    with ThreadPoolExecutor() as threads:
        list(threads.map(run, range(len(DEVICES))))


def test_a_thread_for_each_device_has_a_group_of_its_own(ranks: Ranks) -> None:
    ranks.run(reduces_in_a_thread_for_each)


def shards(rank: int) -> None:
    """A group of each kind of layer for each device: FSDP2 on one, DTensors on the other."""
    groups = [dist.new_group(), dist.new_group()]
    torch.manual_seed(0)
    networks = [nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)) for _ in DEVICES]
    expected = []
    x = torch.arange(32.0).view(4, 8) / 32
    for network in networks:
        network(x).sum().backward()
        expected.append([parameter.grad.clone() for parameter in network.parameters()])  # type: ignore[union-attr]
        network.zero_grad()
    for device, network in zip(DEVICES, networks, strict=True):
        torch.accelerator.set_device_index(device.index)
        mesh = init_device_mesh(device.type, (RANKS,))
        fully_shard(network.to(device), mesh=mesh)
    torch.accelerator.set_device_index(rank)
    for _ in range(2):
        outputs = [network(x.to(device)).sum() for device, network in zip(DEVICES, networks, strict=True)]
        for output in reversed(outputs):
            output.backward()
        for network, gradients in zip(networks, expected, strict=True):
            for parameter, gradient in zip(network.parameters(), gradients, strict=True):
                assert isinstance(parameter.grad, DTensor)
                torch.testing.assert_close(parameter.grad.full_tensor().cpu(), gradient)
            network.zero_grad()
    for device, group in zip(DEVICES, groups, strict=True):
        reduced = functional.all_reduce(torch.ones(3, device=device) + rank, "sum", group)
        assert reduced.tolist() == [3.0] * 3
    mesh = init_device_mesh(device_type(), (RANKS,))
    whole = torch.arange(8.0).view(4, 2)
    parts = [distribute_tensor(whole.to(device), mesh, [Shard(0)]) for device in (DEVICES[rank], DEVICES[rank])]
    total = parts[0] + parts[1]
    assert isinstance(total, DTensor)
    assert total.full_tensor().tolist() == (2 * whole).tolist()


def test_modules_are_sharded_on_each_device(ranks: Ranks) -> None:
    ranks.run(shards)
