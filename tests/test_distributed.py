"""torch.distributed between processes that have a device each."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import torch_mtia
from torch_mtia.distributed import BACKEND
from torch_mtia.ranks import RankError, Ranks, StartRanks

RANKS = 2
DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.bool]
ONLY_MOVED = [
    torch.int16,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.float8_e4m3fn,
    torch.complex64,
    torch.complex128,
]


@pytest.fixture(scope="module", params=["memory", "network"])
def ranks(request: pytest.FixtureRequest, start_ranks: StartRanks) -> Ranks:
    """On one machine, which is what they share, and as if on two."""
    return start_ranks(RANKS, "mtia", environ={"TORCH_MTIA_MACHINE": {"memory": "", "network": "%p"}[request.param]})


@pytest.mark.sampled(2)
def test_a_group_without_a_backend_has_the_one_of_the_device(ranks: Ranks) -> None:
    assert dist.Backend.default_device_backend_map["mtia"] == BACKEND
    assert ranks.run(name_of_backend) == [BACKEND] * RANKS


def name_of_backend(_: int) -> str:
    return dist.get_backend()


def values(rank: int, dtype: torch.dtype) -> torch.Tensor:
    return (torch.arange(6) % 3 + rank).to(dtype)


def moves(rank: int, dtype: torch.dtype) -> None:
    mine, parts = values(rank, dtype).to("mtia"), [values(other, dtype) for other in range(RANKS)]

    def empty() -> torch.Tensor:
        return torch.zeros(6).to(dtype).to("mtia")

    def same(result: torch.Tensor, expected: torch.Tensor) -> None:
        assert result.device.type == "mtia"
        assert torch.equal(result.cpu().view(torch.uint8), expected.view(torch.uint8))

    broadcast = mine.clone()
    dist.broadcast(broadcast, src=1)
    same(broadcast, parts[1])
    gathered = [empty() for _ in range(RANKS)]
    dist.all_gather(gathered, mine)
    for result, part in zip(gathered, parts, strict=True):
        same(result, part)
    whole = torch.zeros(6 * RANKS).to(dtype).to("mtia")
    dist.all_gather_into_tensor(whole, mine)
    same(whole, torch.cat([part.view(torch.uint8) for part in parts]).view(dtype))
    at_root = [empty() for _ in range(RANKS)] if rank == 0 else None
    dist.gather(mine, at_root, dst=0)
    for result, part in zip(at_root or [], parts, strict=False):
        same(result, part)
    scattered = empty()
    dist.scatter(scattered, [part.to("mtia") for part in parts] if rank == 0 else None, src=0)
    same(scattered, parts[rank])
    exchanged = empty()
    dist.all_to_all_single(exchanged, mine)
    pieces = [part.view(torch.uint8).chunk(RANKS)[rank] for part in parts]
    same(exchanged, torch.cat(pieces).view(dtype))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", [*DTYPES, *ONLY_MOVED], ids=str)
def test_collectives_move_tensors_of_any_dtype(ranks: Ranks, dtype: torch.dtype) -> None:
    ranks.run(moves, dtype)


def reduces(rank: int) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.int32, torch.uint8):
        parts = [values(other, dtype) for other in range(RANKS)]
        for operation, expected in (
            (dist.ReduceOp.SUM, parts[0] + parts[1]),
            (dist.ReduceOp.PRODUCT, parts[0] * parts[1]),
            (dist.ReduceOp.MIN, torch.minimum(*parts)),
            (dist.ReduceOp.MAX, torch.maximum(*parts)),
        ):
            result = values(rank, dtype).to("mtia")
            dist.all_reduce(result, op=operation)
            assert torch.equal(result.cpu(), expected)
            part = torch.empty(6 // RANKS, dtype=dtype, device="mtia")
            dist.reduce_scatter_tensor(part, values(rank, dtype).to("mtia"), op=operation)
            assert torch.equal(part.cpu(), expected.chunk(RANKS)[rank])
    average = values(rank, torch.float32).to("mtia")
    dist.all_reduce(average, op=dist.ReduceOp.AVG)
    assert torch.equal(average.cpu(), (values(0, torch.float32) + values(1, torch.float32)) / 2)
    total = values(rank, torch.float32).to("mtia")
    dist.reduce(total, dst=1)
    assert rank == 0 or torch.equal(total.cpu(), values(0, torch.float32) + values(1, torch.float32))


def test_collectives_reduce(ranks: Ranks) -> None:
    ranks.run(reduces)


def reduces_what_is_hard(rank: int) -> None:
    """Rounding, signs and factors: where a reduction in the tensor's own dtype, or of its bytes, would be wrong."""
    parts = [(torch.arange(1000) / 7 + other / 3).bfloat16() for other in range(RANKS)]
    result = parts[rank].to("mtia")
    dist.all_reduce(result, op=dist.ReduceOp.AVG)
    assert torch.equal(result.cpu(), ((parts[0].float() + parts[1].float()) / 2).bfloat16())
    large = torch.tensor([2**63 + rank, rank], dtype=torch.uint64)
    for operation, expected in ((dist.ReduceOp.MAX, [2**63 + 1, 1]), (dist.ReduceOp.MIN, [2**63, 0])):
        result = large.to("mtia")
        dist.all_reduce(result, op=operation)
        assert result.tolist() == expected
    truths = torch.tensor([True, rank == 0, False], device="mtia")
    dist.all_reduce(truths)
    assert truths.view(torch.uint8).tolist() == [1, 1, 0]
    for factor in (0.5, torch.tensor([0.5], device="mtia")):
        scaled = torch.full((3,), float(rank + 1), device="mtia")
        dist.all_reduce(scaled, op=dist._make_nccl_premul_sum(factor))  # type: ignore[attr-defined]
        assert scaled.tolist() == [1.5] * 3
    for factor, expected in ((3.0, [6 * 2**40 + 12, -36]), (0.5, [2**40 + 2, -6])):
        integers = torch.tensor([2**40 + 2, -6], device="mtia")
        dist.all_reduce(integers, op=dist._make_nccl_premul_sum(factor))  # type: ignore[attr-defined]
        assert integers.tolist() == expected
    part = torch.empty(2, dtype=torch.complex64, device="mtia")
    dist.reduce_scatter_tensor(part, torch.full((4,), 1 + 2j * rank, device="mtia"))
    assert part.tolist() == [2 + 2j] * 2


def test_reductions_are_exact_where_the_dtype_is_short(ranks: Ranks) -> None:
    ranks.run(reduces_what_is_hard)


def refuses(_: int) -> list[str]:
    messages = []
    for tensor, operation in (
        (torch.ones(2, dtype=torch.int16, device="mtia"), dist.ReduceOp.AVG),
        (torch.ones(2, device="mtia"), dist.ReduceOp.BAND),
    ):
        with pytest.raises(TypeError) as error:
            dist.all_reduce(tensor, op=operation)
        messages.append(str(error.value))
    return messages


def test_what_cannot_be_reduced_is_refused_at_the_call(ranks: Ranks) -> None:
    for messages in ranks.run(refuses):
        assert "AVG is not defined for Short" in messages[0]
        assert "BAND is not defined for Float" in messages[1]


def drops_its_tensor(rank: int) -> bool:
    for _ in range(10):
        tensor = torch.full((1 << 20,), float(rank + 1), device="mtia")
        work = dist.all_reduce(tensor, async_op=True)
        del tensor
        other = torch.full((1 << 20,), -1.0, device="mtia")
        work.wait()
        if not bool((other == -1.0).all()):
            return False
        del work
    return True


def test_a_collective_keeps_the_memory_that_it_uses(ranks: Ranks) -> None:
    assert ranks.run(drops_its_tensor) == [True] * RANKS


def behind_queued_work(rank: int) -> tuple[bool, list[float]]:
    gate = threading.Event()
    tensor = torch.zeros(4, device="mtia")
    torch_mtia.launch_host_function(torch.mtia.current_stream(), gate.wait)
    tensor += rank + 1  # behind the gate
    work = dist.all_reduce(tensor, async_op=True)
    work.wait()  # by stream
    doubled = tensor * 2
    completed = work.is_completed()
    gate.set()
    return completed, doubled.tolist()


def test_the_host_waits_neither_at_the_call_nor_in_wait(ranks: Ranks) -> None:
    assert ranks.run(behind_queued_work) == [(False, [6.0] * 4)] * RANKS


def waits_for_what_is_done(_: int) -> bool:
    work = dist.all_reduce(torch.ones(4, device="mtia"), async_op=True)
    torch.mtia.synchronize()
    for _ in range(100):
        work.wait()
        if not torch.mtia.current_stream().query():
            return False
    return True


def test_a_wait_for_what_is_done_is_done_at_once(ranks: Ranks) -> None:
    assert ranks.run(waits_for_what_is_done) == [True] * RANKS


def future_of(rank: int) -> tuple[str, list[float], list[float]]:
    tensor = torch.full((3,), float(rank + 1), device="mtia")
    future = dist.all_reduce(tensor, async_op=True).get_future()
    halved = future.then(lambda done: done.value()[0] / 2).wait()
    return halved.device.type, halved.tolist(), future.wait()[0].tolist()


def test_futures_have_tensors_of_the_device(ranks: Ranks) -> None:
    assert ranks.run(future_of) == [("mtia", [1.5] * 3, [3.0] * 3)] * RANKS


def exchanges(rank: int) -> tuple[list[float], list[float], int]:
    peer = 1 - rank
    mine = torch.full((1 << 18,), float(rank + 1), device="mtia")
    received = torch.empty_like(mine)
    operations = [dist.P2POp(dist.isend, mine, peer), dist.P2POp(dist.irecv, received, peer)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    first, second = torch.empty(1, device="mtia"), torch.empty(1, device="mtia")
    works = [
        dist.isend(torch.tensor([1.0], device="mtia"), peer, tag=1),
        dist.isend(torch.tensor([2.0], device="mtia"), peer, tag=2),
        dist.irecv(second, peer, tag=2),
        dist.irecv(first, peer, tag=1),
    ]
    for each in works:
        assert each is not None
        each.wait()
    if rank == 0:
        dist.send(mine, 1)
        source = 0
    else:
        source = dist.recv(received)
    return received[:2].tolist(), [first.item(), second.item()], source


def test_messages_do_not_keep_each_other_back(ranks: Ranks) -> None:
    assert ranks.run(exchanges) == [([2.0, 2.0], [1.0, 2.0], 0), ([1.0, 1.0], [1.0, 2.0], 0)]


def dies(rank: int, folder: Path) -> None:
    dist.all_reduce(torch.ones(4, device="mtia"))
    torch.mtia.synchronize()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        dist.all_reduce(torch.ones(1 << 24, device="mtia"))
        torch.mtia.synchronize()
    except RuntimeError as error:
        (folder / "message").write_text(f"{type(error).__name__}: {error}")


def test_the_death_of_a_peer_is_raised_with_what_was_under_way(tmp_path: Path) -> None:
    ranks = Ranks(RANKS, "mtia")
    with pytest.raises(RankError, match="no answer of rank 1"):
        ranks.run(dies, tmp_path)
    message = (tmp_path / "message").read_text()
    assert message.startswith("DistBackendError: c10d::allreduce, number 2 of its group, on rank 0 of 2: ")


def objects(rank: int) -> list[object]:
    gathered: list[object] = [None] * RANKS
    dist.all_gather_object(gathered, {"rank": rank})
    dist.barrier()
    return gathered


def test_objects_are_gathered(ranks: Ranks) -> None:
    assert ranks.run(objects) == [[{"rank": 0}, {"rank": 1}]] * RANKS


def replays(rank: int) -> list[float]:
    tensor = torch.zeros(2, device="mtia")
    graph = torch.mtia.MTIAGraph()
    with torch.mtia.graph(graph):
        tensor += rank + 1
        dist.all_reduce(tensor)
        doubled = tensor * 2
    results = []
    for _ in range(3):
        graph.replay()
        results.append(float(doubled[0].item()))
    return results


def replays_an_uneven_exchange(rank: int) -> list[list[float]]:
    source = torch.full((2 * RANKS + 1,), float(rank), device="mtia")
    given, taken = ([2, 3], [2, 3]) if rank == 0 else ([3, 2], [3, 2])
    output = torch.zeros(sum(taken), device="mtia")
    graph = torch.mtia.MTIAGraph()
    with torch.mtia.graph(graph):
        dist.all_to_all_single(output, source, taken, given)
    results = []
    for _ in range(3):
        output.zero_()
        graph.replay()
        results.append(output.tolist())
    return results


def test_uneven_exchanges_are_replayed(ranks: Ranks) -> None:
    of_0, of_1 = ranks.run(replays_an_uneven_exchange)
    assert of_0 == [[0.0, 0.0, 1.0, 1.0, 1.0]] * 3
    assert of_1 == [[0.0, 0.0, 0.0, 1.0, 1.0]] * 3


def test_collectives_are_captured_and_replayed(ranks: Ranks) -> None:
    assert ranks.run(replays) == [[6.0, 18.0, 42.0]] * RANKS


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def train(network: nn.Module, batches: torch.Tensor) -> list[float]:
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    losses = []
    for batch in batches:
        loss = network(batch).square().mean()
        losses.append(loss.detach())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return [float(loss) for loss in losses]


def batches_of(*ranks: int) -> torch.Tensor:
    data = torch.randn(3, RANKS, 4, 8, generator=torch.Generator().manual_seed(1))
    return data[:, list(ranks)].flatten(1, 2)


def trains_data_parallel(rank: int, kind: str) -> tuple[list[float], list[str]]:
    torch_mtia.fallback.reset()
    network = model().to("mtia")
    if kind == "DDP":
        trained: nn.Module = DistributedDataParallel(network)
    elif kind == "DDP of a group of both":
        group = dist.new_group(backend="cpu:gloo,mtia:tmccl")
        trained = DistributedDataParallel(network, process_group=group)
    else:
        fully_shard(network[0])
        fully_shard(network[2])
        fully_shard(network)
        trained = network
    losses = train(trained, batches_of(rank).to("mtia"))
    weight = network.get_parameter("0.weight")
    whole = weight.full_tensor() if isinstance(weight, DTensor) else weight
    fell_back = [name for name in torch_mtia.fallback.stats() if name.startswith("c10d")]
    return [*losses, float(whole.detach().sum())], fell_back


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", ["DDP", "DDP of a group of both", "FSDP2"])
def test_data_parallel_training_is_that_of_one_process(ranks: Ranks, kind: str) -> None:
    network = model()
    expected = train(network, batches_of(0, 1))
    results = ranks.run(trains_data_parallel, kind)
    assert [fell_back for _, fell_back in results] == [[], []]
    losses = [sum(pair) / RANKS for pair in zip(*(result[:-1] for result, _ in results), strict=True)]
    torch.testing.assert_close(losses, expected, rtol=1e-5, atol=1e-6)
    for result, _ in results:
        torch.testing.assert_close(
            result[-1], float(network.get_parameter("0.weight").detach().sum()), rtol=1e-5, atol=1e-5
        )


def trains_tensor_parallel(_: int) -> list[float]:
    mesh = init_device_mesh("mtia", (RANKS,))
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    return train(parallelize_module(model().to("mtia"), mesh, plan), batches_of(0, 1).to("mtia"))


def test_tensor_parallel_training_is_that_of_one_process(ranks: Ranks) -> None:
    expected = train(model(), batches_of(0, 1))
    for losses in ranks.run(trains_tensor_parallel):
        torch.testing.assert_close(losses, expected, rtol=1e-5, atol=1e-6)


def uses_gloo(_: int) -> str:
    group = dist.new_group(backend="gloo")
    tensor = torch.ones(2, device="mtia")
    with pytest.raises(RuntimeError) as error:
        dist.all_reduce(tensor, group=group)
    on_cpu = torch.ones(2)
    dist.all_reduce(on_cpu, group=group)
    assert on_cpu.tolist() == [2.0, 2.0]
    assert tensor.tolist() == [1.0, 1.0]
    return str(error.value)


def test_a_group_of_the_host_refuses_tensors_of_the_device(ranks: Ranks) -> None:
    for message in ranks.run(uses_gloo):
        # PyTorch's own operators, which a device under another name has, say the second.
        assert "cpu:gloo,mtia:tmccl" in message or "No backend type associated" in message


def uses_both(rank: int) -> tuple[list[float], list[float]]:
    group = dist.new_group(backend="cpu:gloo,mtia:tmccl")
    tensors = torch.full((2,), float(rank)), torch.full((2,), float(rank), device="mtia")
    for tensor in tensors:
        dist.all_reduce(tensor, group=group)
    return tensors[0].tolist(), tensors[1].tolist()


def test_a_group_serves_the_host_and_the_device(ranks: Ranks) -> None:
    assert ranks.run(uses_both) == [([1.0, 1.0], [1.0, 1.0])] * RANKS


def strided(values: torch.Tensor) -> torch.Tensor:
    """These values, not side by side in memory."""
    memory = torch.zeros(2 * values.numel() + 1, dtype=values.dtype, device="mtia")
    memory[1::2] = values.to("mtia")
    return memory[1::2]


def calls_with_strided_tensors(rank: int) -> None:
    peer = 1 - rank
    mine, theirs = torch.arange(5) + rank, torch.arange(5) + peer
    total = strided(mine)
    dist.all_reduce(total)
    assert torch.equal(total.cpu(), mine + theirs)
    kept = strided(mine.to(torch.int16))
    dist.reduce(kept, dst=0)
    assert torch.equal(kept.cpu(), (mine + theirs if rank == 0 else mine).to(torch.int16))
    told = strided(mine)
    dist.broadcast(told, src=1)
    assert torch.equal(told.cpu(), torch.arange(5) + 1)
    gathered = [strided(torch.zeros(5, dtype=torch.int64)) for _ in range(RANKS)]
    dist.all_gather(gathered, strided(mine))
    assert [each.tolist() for each in gathered] == [[*range(5)], [*range(1, 6)]]
    parts = [strided(mine[: 2 + rank + to]) for to in range(RANKS)]  # of different sizes
    taken = [strided(torch.zeros(2 + source + rank, dtype=torch.int64)) for source in range(RANKS)]
    dist.all_to_all(taken, parts)
    assert torch.equal(taken[peer].cpu(), theirs[: 2 + 1])
    received = strided(torch.zeros(5, dtype=torch.int64))
    messages = [dist.P2POp(dist.isend, strided(mine), peer), dist.P2POp(dist.irecv, received, peer)]
    for work in dist.batch_isend_irecv(messages):
        work.wait()
    assert torch.equal(received.cpu(), theirs)
    outputs = [strided(torch.zeros(5, dtype=torch.int64)) for _ in range(RANKS)] if rank == 0 else None
    dist.gather(strided(mine), outputs, dst=0)
    assert outputs is None or torch.equal(outputs[1].cpu(), torch.arange(5) + 1)
    scattered = strided(torch.zeros(5, dtype=torch.int64))
    dist.scatter(scattered, [strided(torch.arange(5) + other) for other in range(RANKS)] if rank == 0 else None, src=0)
    assert torch.equal(scattered.cpu(), mine)


def test_tensors_need_not_be_contiguous(ranks: Ranks) -> None:
    ranks.run(calls_with_strided_tensors)
