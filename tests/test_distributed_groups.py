"""Process groups of the devices: how they are made and divided, and what tells about them."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store, TCPStore
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.distributed_c10d import _coalescing_manager, _set_pg_timeout

import torch_mtia
from tests.conftest import RunScript
from torch_mtia.backend import device_module, device_type
from torch_mtia.distributed import BACKEND, backend_of, records
from torch_mtia.ranks import Ranks, StartRanks
from torch_mtia.upstream_gates.process_groups import of_this_attempt

RANKS = 4


@pytest.fixture
def ranks(start_ranks: StartRanks) -> Ranks:
    return start_ranks(RANKS, "mtia", bound=True)


def mine(rank: int) -> torch.Tensor:
    return torch.full((3,), float(rank), device=torch.device(device_type(), rank))


def total(rank: int, group: dist.ProcessGroup | None = None) -> float:
    tensor = mine(rank)
    dist.all_reduce(tensor, group=group)
    return float(tensor[0])


def start(rank: int) -> tuple[int, str, float]:
    device_module().set_device(rank)
    return device_module().device_count(), dist.get_backend(), total(rank)


def test_a_process_has_as_many_devices_as_its_machine_has_ranks(ranks: Ranks) -> None:
    assert ranks.run(start) == [(RANKS, BACKEND, 6.0)] * RANKS


def splits(rank: int) -> tuple[float | None, float | None]:
    halves = dist.split_group(split_ranks=[[0, 2], [1, 3]])
    some = dist.split_group(split_ranks=[[1, 2]])
    assert halves is not None
    if not isinstance(some, dist.ProcessGroup):  # None, or from PyTorch 2.14 on GroupMember.NON_GROUP_MEMBER
        some = None
    assert copy.deepcopy(backend_of(halves).options)._timeout == backend_of(halves).options._timeout  # type: ignore[union-attr]
    return total(rank, halves), None if some is None else total(rank, some)


def test_groups_are_split(ranks: Ranks) -> None:
    assert ranks.run(splits) == [(2.0, None), (4.0, 3.0), (2.0, 3.0), (4.0, None)]


def meshes(rank: int) -> list[float]:
    results = []
    for shape, names in (((4,), ("a",)), ((2, 2), ("a", "b")), ((2, 1, 2), ("a", "b", "c"))):
        mesh = init_device_mesh(device_type(), shape, mesh_dim_names=names)
        results += [total(rank, mesh.get_group(name)) for name in names]
    return results


def test_meshes_of_a_bound_device_have_up_to_three_dimensions(ranks: Ranks) -> None:
    rows, columns = [1.0, 1.0, 5.0, 5.0], [2.0, 4.0, 2.0, 4.0]
    expected = [[6.0, columns[rank], rows[rank], columns[rank], float(rank), rows[rank]] for rank in range(RANKS)]
    assert ranks.run(meshes) == expected


def new_groups(rank: int) -> float | None:
    group = dist.new_group([0, 3])
    return total(rank, group) if rank in (0, 3) else None


def test_ranks_that_a_new_group_leaves_out_do_nothing_for_it(ranks: Ranks) -> None:
    assert ranks.run(new_groups) == [3.0, None, None, 3.0]


def numbers(rank: int) -> tuple[int, list[Any]]:
    group = dist.new_group(backend=f"cpu:gloo,{device_type()}:{BACKEND}")
    before = group._get_sequence_number_for_group()
    total(rank, group)
    dist.broadcast(mine(rank), 0, group=group)
    device_module().synchronize()
    after = group._get_sequence_number_for_group()
    last = [(r["operation"], r["sequence_number"], r["sizes"], r["dtype"], r["state"]) for r in records(group)]
    assert records(group)[0]["rank"] == rank
    return after - before, last


def test_a_group_tells_its_last_calls(ranks: Ranks) -> None:
    calls = [
        ("c10d::allreduce", 1, [[3]], "Float", "completed"),
        ("c10d::broadcast", 2, [[3]], "Float", "completed"),
    ]
    assert ranks.run(numbers) == [(2, calls)] * RANKS


def timeouts(rank: int) -> tuple[float, str]:
    group = dist.new_group()
    _set_pg_timeout(timedelta(seconds=17), group)
    dist.monitored_barrier(group, timedelta(seconds=20))
    if rank == 2:
        return backend_of(group).options._timeout.total_seconds(), ""  # type: ignore[union-attr]
    with pytest.raises(RuntimeError) as error:
        dist.monitored_barrier(group, timedelta(milliseconds=200))
    return backend_of(group).options._timeout.total_seconds(), str(error.value)  # type: ignore[union-attr]


def test_a_monitored_barrier_names_the_ranks_that_are_missing(ranks: Ranks) -> None:
    results = ranks.run(timeouts)
    assert [timeout for timeout, _ in results] == [17.0] * RANKS
    for rank in (0, 1, 3):
        assert "Rank 2 failed to pass monitoredBarrier in 200 ms" in results[rank][1]


def test_processes_that_are_started_again_do_not_meet_the_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    server = TCPStore("localhost", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=20))
    server.set("torch_mtia/1", "dead")

    def join(rank: int) -> Store:
        client = TCPStore("localhost", server.port, is_master=False, timeout=timedelta(seconds=20))
        store: Store = of_this_attempt(client, rank, 2, timedelta(seconds=20))
        return store

    with ThreadPoolExecutor() as pool:
        first = pool.submit(join, 0)
        server.get("torch_mtia/dead")  # the first has found what another attempt left
        second = pool.submit(join, 1)
        second.result().set("key", "value")
        assert first.result().get("key") == b"value"
    assert not server.check(["key"])


MEETS = """
from datetime import timedelta
import torch, torch.distributed as dist
dist.init_process_group("gloo", timeout=timedelta(seconds=60))
x = torch.ones(3)
dist.all_reduce(x)
print(x.tolist(), "torch_mtia" in __import__("sys").modules)
dist.destroy_process_group()  # or gloo may end the process by an abort
"""


def test_a_group_of_the_cpu_needs_the_package_on_no_rank(run_script: RunScript) -> None:
    server = TCPStore("localhost", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60))

    def join(rank: int) -> str:
        address = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(server.port)}
        ranks = {"RANK": str(rank), "WORLD_SIZE": "2", "TORCHELASTIC_USE_AGENT_STORE": "True"}
        return (
            run_script(MEETS, timeout=120, TORCH_DEVICE_BACKEND_AUTOLOAD=str(rank), **address, **ranks).output().strip()
        )

    with ThreadPoolExecutor() as pool:
        assert list(pool.map(join, range(2))) == ["[2.0, 2.0, 2.0] False", "[2.0, 2.0, 2.0] True"]


def waits_beside_many_groups(rank: int) -> None:
    pairs = [dist.new_group([0, 1]) for _ in range(8)]
    others, store = dist.new_group([0, 2]), dist.distributed_c10d._get_default_store()
    x, y = mine(rank), mine(rank)
    for group in pairs if rank < 2 else ():
        dist.all_reduce(x, group=group)
    device_module().synchronize()
    if rank == 0:
        first = dist.all_reduce(x, group=pairs[0], async_op=True)
        second = dist.all_reduce(y, group=others, async_op=True)
        second.wait()
        first.wait()
    elif rank == 1:
        store.get("the other group is done")
        dist.all_reduce(x, group=pairs[0])
    elif rank == 2:
        dist.all_reduce(y, group=others)
        device_module().synchronize()
        store.set("the other group is done", "")
    device_module().synchronize()


def test_groups_do_not_wait_for_each_other(ranks: Ranks) -> None:
    ranks.run(waits_beside_many_groups)


def makes_many_groups(rank: int) -> None:
    for _ in range(40):
        group = dist.new_group()
        assert total(rank, group) == 6.0
        dist.destroy_process_group(group)


@pytest.mark.wide
def test_groups_can_be_made_again_and_again(ranks: Ranks) -> None:
    ranks.run(makes_many_groups)


def coalesces(rank: int) -> tuple[list[float], list[float]]:
    device = torch.device(device_type(), rank)
    tensors = [mine(rank) + index for index in range(3)]
    with _coalescing_manager(device=device, async_ops=True) as work:
        for tensor in tensors:
            dist.all_reduce(tensor)
    work.wait()
    others = [mine(rank) for _ in range(RANKS)]
    with _coalescing_manager(device=device):
        for source, tensor in enumerate(others):
            dist.broadcast(tensor, source)
    return [float(tensor[0]) for tensor in tensors], [float(tensor[0]) for tensor in others]


def test_calls_are_coalesced(ranks: Ranks) -> None:
    assert ranks.run(coalesces) == [([6.0, 10.0, 14.0], [0.0, 1.0, 2.0, 3.0])] * RANKS


def sums_sparse(rank: int) -> list[float]:
    indices = torch.tensor([[rank, RANKS] if rank else [RANKS]])
    tensor = torch.sparse_coo_tensor(indices, torch.ones(indices.shape[1]) * (rank + 1), (RANKS + 1,))
    reduced = tensor.to(mine(rank).device)
    dist.all_reduce(reduced)
    result: list[float] = reduced.to_dense().tolist()
    return result


def test_sparse_tensors_are_summed(ranks: Ranks) -> None:
    assert ranks.run(sums_sparse) == [[0.0, 2.0, 3.0, 4.0, 10.0]] * RANKS


def finds_nan(tensor: torch.Tensor) -> None:
    torch.ops.c10d.check_for_nan(tensor)
    device_module().synchronize()


def checks(rank: int) -> tuple[str, dict[str, int]]:
    torch_mtia.fallback.reset()
    torch.ops.c10d.check_for_nan(mine(rank))
    with pytest.raises(RuntimeError) as error:
        finds_nan(mine(rank) / 0 * 0)
    return str(error.value), {name: 1 for name in torch_mtia.fallback.stats() if "c10d" in name}


def test_nan_is_found_on_the_device(ranks: Ranks) -> None:
    for message, fell_back in ranks.run(checks):
        assert "NaN" in message
        assert not fell_back


def objects(rank: int) -> list[object]:
    device = mine(rank).device
    gathered: list[object] = [None] * RANKS
    dist.all_gather_object(gathered, rank)
    listed: list[object] = [{"from": rank}]
    dist.broadcast_object_list(listed, 1, device=device)
    scattered: list[object] = [None]
    dist.scatter_object_list(scattered, list("abcd") if rank == 0 else None, 0)
    sent: list[object] = ["sent"]
    if rank == 0:
        dist.send_object_list(sent, 3)
    elif rank == 3:
        received: list[object] = [None]
        dist.recv_object_list(received, 0)
        assert received == sent
    return [gathered, listed, scattered]


def test_objects_travel(ranks: Ranks) -> None:
    assert ranks.run(objects) == [[[0, 1, 2, 3], [{"from": 1}], [letter]] for letter in "abcd"]


def receives(rank: int) -> set[int]:
    if rank:
        dist.send(mine(rank), 0)
        return set()
    found = set()
    for _ in range(1, RANKS):
        tensor = torch.empty_like(mine(rank))
        source = dist.recv(tensor)
        assert float(tensor[0]) == source
        found.add(source)
    return found


def test_a_message_of_anyone_tells_who_sent_it(ranks: Ranks) -> None:
    assert ranks.run(receives)[0] == {1, 2, 3}


def stops(rank: int) -> float:
    group = dist.new_group()
    total(rank, group)
    device_module().synchronize()
    dist.distributed_c10d._abort_process_group(group)
    return total(rank)


def test_a_group_that_is_aborted_leaves_the_others(ranks: Ranks) -> None:
    assert ranks.run(stops) == [6.0] * RANKS


def test_a_dry_run_has_any_number_of_ranks(run_script: RunScript) -> None:
    script = """
    import torch, torch.distributed as dist
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from torch_mtia.backend import device_type

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=64)
    mesh = init_device_mesh(device_type(), (8, 8), mesh_dim_names=("replicate", "shard"))
    model = nn.Linear(64, 64).to(device_type())
    fully_shard(model, mesh=mesh)
    model(torch.ones(2, 64, device=device_type())).sum().backward()
    works = dist.batch_isend_irecv([dist.P2POp(dist.isend, torch.ones(1, device=device_type()), 1)])
    print(tuple(model.weight.to_local().shape), tuple(model.weight.grad.to_local().shape), len(works))
    """
    assert run_script(script).output().strip() == "(8, 64) (8, 64) 1"


def replays_collectives_of_two_groups(rank: int) -> None:
    device = torch.device(device_type(), rank)
    first, second = dist.new_group(), dist.new_group()
    x, y = torch.ones(1000, device=device), torch.ones(1000, device=device)
    graph = torch.accelerator.Graph()
    torch.accelerator.synchronize()
    with torch.Stream(device), graph:
        works = [dist.all_reduce(tensor, group=group, async_op=True) for tensor, group in ((x, first), (y, second))]
        for work in reversed(works):
            work.wait()
    for _ in range(5):
        graph.replay()
    torch.accelerator.synchronize()
    assert x[0].item() == y[0].item() == RANKS**5


def test_collectives_of_two_groups_are_captured_in_one_graph(ranks: Ranks) -> None:
    ranks.run(replays_collectives_of_two_groups)
