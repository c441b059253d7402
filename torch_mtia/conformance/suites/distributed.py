"""Collectives and messages between processes that have a device each: every one in every dtype, waited for and not,
captured in graphs; and training in parallel, whose losses are those of one process on the CPU.

Data are small whole numbers, of which every dtype has the sums and the products, so results are compared bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from torch_mtia.conformance.database import dtype_name
from torch_mtia.conformance.settings import Settings
from torch_mtia.ranks import RankError, Ranks, StartRanks

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.time_limit(240)]

SIZES = (2, 4)
ELEMENTS = (1, 6, 40_000)  # of a part; engines treat large ones in other ways
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2)
INTEGERS = (
    *(torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint8, torch.uint16, torch.uint32, torch.uint64),
)
COMPLEX = (torch.complex64, torch.complex128)
DTYPES = (*FLOATS, *INTEGERS, *COMPLEX, torch.bool)
ON_BITS = ("BAND", "BOR", "BXOR")
REDUCED = [
    (dtype, operation)
    for dtype in DTYPES
    for operation in ("SUM", "PRODUCT", "MIN", "MAX", "AVG", *ON_BITS)
    if (operation in ON_BITS) <= (dtype in (*INTEGERS, torch.bool))
    and (operation == "AVG") <= (dtype in (*FLOATS, *COMPLEX))
    and not (dtype in COMPLEX and operation in ("PRODUCT", "MIN", "MAX"))  # PyTorch refuses them, whatever the backend
]


@pytest.fixture
def groups(pytestconfig: pytest.Config, start_ranks: StartRanks) -> Callable[[int], Ranks]:
    """By size."""
    settings = Settings.from_json(pytestconfig.getoption("--conformance"))
    return lambda size: start_ranks(size, settings.device, settings.imports)


@pytest.fixture(params=SIZES, ids=lambda size: f"{size}ranks")
def ranks(request: pytest.FixtureRequest, groups: Callable[[int], Ranks]) -> Ranks:
    return groups(request.param)


def run(ranks: Ranks, function: Callable[..., object], *args: object) -> list[Any]:
    """Runs the function on all ranks. An assertion that fails on one fails here as one."""
    try:
        return ranks.run(function, *args)
    except RankError as error:
        if "AssertionError" in str(error):
            raise AssertionError(str(error)) from None
        raise


# Data -----------------------------------------------------------------------------------------------------------------


def part(rank: int, dtype: torch.dtype, count: int) -> torch.Tensor:
    """What a rank has, on the CPU: 0, 1 and 2."""
    return ((torch.arange(count) + rank) % 3).to(dtype)


def parts(dtype: torch.dtype, count: int) -> list[torch.Tensor]:
    return [part(rank, dtype, count) for rank in range(dist.get_world_size())]


def same(results: list[torch.Tensor], expected: list[torch.Tensor], device: torch.device) -> None:
    assert len(results) == len(expected) or not expected
    for result, wanted in zip(results, expected, strict=False):
        assert result.device.type == device.type
        assert result.dtype == wanted.dtype
        assert result.shape == wanted.shape
        assert torch.equal(result.cpu().view(torch.uint8), wanted.view(torch.uint8)), f"{result.cpu()} for {wanted}"


def joined(tensors: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([tensor.view(torch.uint8) for tensor in tensors]).view(tensors[0].dtype)


# Collectives that move ------------------------------------------------------------------------------------------------
# Each: the tensors that it may write, a call, and what it is to write, nothing where that is not said. The last rank is
# the root.

Collective = tuple[list[torch.Tensor], Callable[[bool], Any], list[torch.Tensor]]


def broadcast(rank: int, dtype: torch.dtype, count: int, device: torch.device) -> Collective:
    root = dist.get_world_size() - 1
    tensor = part(rank, dtype, count).to(device)
    return [tensor], lambda later: dist.broadcast(tensor, root, async_op=later), [part(root, dtype, count)]


def all_gather(rank: int, dtype: torch.dtype, count: int, device: torch.device) -> Collective:
    mine = part(rank, dtype, count).to(device)
    outputs = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    return outputs, lambda later: dist.all_gather(outputs, mine, async_op=later), parts(dtype, count)


def all_gather_into_tensor(rank: int, dtype: torch.dtype, count: int, device: torch.device) -> Collective:
    mine = part(rank, dtype, count).to(device)
    whole = torch.empty(count * dist.get_world_size(), dtype=dtype, device=device)
    call = lambda later: dist.all_gather_into_tensor(whole, mine, async_op=later)  # noqa: E731
    return [whole], call, [joined(parts(dtype, count))]


def gather(rank: int, dtype: torch.dtype, count: int, device: torch.device) -> Collective:
    size, mine = dist.get_world_size(), part(rank, dtype, count).to(device)
    outputs = [torch.empty_like(mine) for _ in range(size)] if rank == size - 1 else None
    call = lambda later: dist.gather(mine, outputs, size - 1, async_op=later)  # noqa: E731
    return outputs or [], call, parts(dtype, count) if outputs else []


def scatter(rank: int, dtype: torch.dtype, count: int, device: torch.device) -> Collective:
    size = dist.get_world_size()
    sources = [each.to(device) for each in parts(dtype, count)] if rank == size - 1 else None
    output = torch.empty(count, dtype=dtype, device=device)
    call = lambda later: dist.scatter(output, sources, size - 1, async_op=later)  # noqa: E731
    return [output], call, [part(rank, dtype, count)]


def all_to_all(rank: int, dtype: torch.dtype, count: int, device: torch.device) -> Collective:
    size = dist.get_world_size()
    sources = [part(rank + other, dtype, count).to(device) for other in range(size)]
    outputs = [torch.empty_like(source) for source in sources]
    call = lambda later: dist.all_to_all(outputs, sources, async_op=later)  # noqa: E731
    return outputs, call, [part(other + rank, dtype, count) for other in range(size)]


def all_to_all_single(rank: int, dtype: torch.dtype, count: int, device: torch.device) -> Collective:
    """Uneven: a rank sends as many parts to another as that one's number, plus one."""
    size = dist.get_world_size()
    source = joined([part(rank, dtype, count * (other + 1)) for other in range(size)]).to(device)
    output = torch.empty(size * count * (rank + 1), dtype=dtype, device=device)
    taken, given = [count * (rank + 1)] * size, [count * (other + 1) for other in range(size)]
    call = lambda later: dist.all_to_all_single(output, source, taken, given, async_op=later)  # noqa: E731
    return [output], call, [joined([part(other, dtype, count * (rank + 1)) for other in range(size)])]


MOVES = (broadcast, all_gather, all_gather_into_tensor, gather, scatter, all_to_all, all_to_all_single)


# Collectives that reduce ----------------------------------------------------------------------------------------------


def reduced(tensors: list[torch.Tensor], operation: str) -> torch.Tensor:
    """In numbers that have all results."""
    dtype = tensors[0].dtype
    wide = torch.complex128 if dtype.is_complex else torch.float64 if dtype.is_floating_point else torch.int64
    functions: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
        "SUM": torch.add,
        "AVG": torch.add,
        "PRODUCT": torch.mul,
        "MIN": torch.minimum,
        "MAX": torch.maximum,
        "BAND": torch.bitwise_and,
        "BOR": torch.bitwise_or,
        "BXOR": torch.bitwise_xor,
    }
    result = reduce(functions[operation], [tensor.to(wide) for tensor in tensors])
    return (result / len(tensors) if operation == "AVG" else result).to(dtype)


def operation_of(name: str) -> dist.ReduceOp:
    return getattr(dist.ReduceOp, name)  # type: ignore[no-any-return]


def all_reduce(rank: int, dtype: torch.dtype, count: int, device: torch.device, operation: str) -> Collective:
    tensor = part(rank, dtype, count).to(device)
    call = lambda later: dist.all_reduce(tensor, operation_of(operation), async_op=later)  # noqa: E731
    return [tensor], call, [reduced(parts(dtype, count), operation)]


def reduce_to_root(rank: int, dtype: torch.dtype, count: int, device: torch.device, operation: str) -> Collective:
    root = dist.get_world_size() - 1
    tensor = part(rank, dtype, count).to(device)
    call = lambda later: dist.reduce(tensor, root, operation_of(operation), async_op=later)  # noqa: E731
    return [tensor], call, [reduced(parts(dtype, count), operation)] if rank == root else []


def reduce_scatter(rank: int, dtype: torch.dtype, count: int, device: torch.device, operation: str) -> Collective:
    size = dist.get_world_size()
    sources = [part(rank + other, dtype, count).to(device) for other in range(size)]
    output = torch.empty(count, dtype=dtype, device=device)
    call = lambda later: dist.reduce_scatter(output, sources, operation_of(operation), async_op=later)  # noqa: E731
    return [output], call, [reduced([part(other + rank, dtype, count) for other in range(size)], operation)]


def reduce_scatter_tensor(
    rank: int, dtype: torch.dtype, count: int, device: torch.device, operation: str
) -> Collective:
    size = dist.get_world_size()
    source = joined([part(rank + other, dtype, count) for other in range(size)]).to(device)
    output = torch.empty(count, dtype=dtype, device=device)
    operation_ = operation_of(operation)
    call = lambda later: dist.reduce_scatter_tensor(output, source, operation_, async_op=later)  # noqa: E731
    return [output], call, [reduced([part(other + rank, dtype, count) for other in range(size)], operation)]


REDUCTIONS = (all_reduce, reduce_to_root, reduce_scatter, reduce_scatter_tensor)


def local_device() -> torch.device:
    accelerator = torch.accelerator.current_accelerator()
    if dist.get_backend() == "gloo" or accelerator is None:
        return torch.device("cpu")
    return torch.device(accelerator.type, torch.accelerator.current_device_index())


def in_each_mode(rank: int, collective: Callable[..., Collective], dtype: torch.dtype, *args: object) -> None:
    """Blocking, with a work that is waited for, and, on a device with graphs, replayed."""
    device = local_device()
    for count in ELEMENTS:
        for later in (False, True):
            written, call, expected = collective(rank, dtype, count, device, *args)
            work = call(later)
            if later:
                work.wait()
            same(written, expected, device)
        if device.type == "cpu":
            continue
        written, call, expected = collective(rank, dtype, count, device, *args)
        before = [tensor.clone() for tensor in written]
        graph = torch.accelerator.Graph()
        torch.accelerator.synchronize()
        try:
            with torch.Stream(device), graph:
                call(False)
        except NotImplementedError:  # of a driver that captures none
            continue
        for _ in range(2):
            for tensor, data in zip(written, before, strict=True):
                tensor.copy_(data)
            torch.accelerator.synchronize()
            graph.replay()
            torch.accelerator.synchronize()
            same(written, expected, device)


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_name)
@pytest.mark.parametrize("collective", MOVES, ids=lambda function: function.__name__)
def test_moves(ranks: Ranks, collective: Callable[..., Collective], dtype: torch.dtype) -> None:
    run(ranks, in_each_mode, collective, dtype)


@pytest.mark.parametrize(
    ("dtype", "operation"), REDUCED, ids=[f"{dtype_name(dtype)}/{name}" for dtype, name in REDUCED]
)
@pytest.mark.parametrize("collective", REDUCTIONS, ids=lambda function: function.__name__)
def test_reduces(ranks: Ranks, collective: Callable[..., Collective], dtype: torch.dtype, operation: str) -> None:
    run(ranks, in_each_mode, collective, dtype, operation)


# Messages and objects -------------------------------------------------------------------------------------------------


def sends_in_a_ring(rank: int, dtype: torch.dtype) -> None:
    device, size = local_device(), dist.get_world_size()
    ahead, behind = (rank + 1) % size, (rank - 1) % size
    for count in ELEMENTS:
        mine = part(rank, dtype, count).to(device)
        received = torch.empty_like(mine)
        for work in dist.batch_isend_irecv(
            [dist.P2POp(dist.isend, mine, ahead), dist.P2POp(dist.irecv, received, behind)]
        ):
            work.wait()
        same([received], [part(behind, dtype, count)], device)


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_name)
def test_messages(ranks: Ranks, dtype: torch.dtype) -> None:
    run(ranks, sends_in_a_ring, dtype)


def sends_with_tags(rank: int) -> None:
    """Received in the other order than sent."""
    device = local_device()
    if rank == 0:
        works = [dist.isend(torch.full((3,), float(tag), device=device), 1, tag=tag) for tag in (1, 2, 3)]
    elif rank == 1:
        received = {tag: torch.empty(3, device=device) for tag in (3, 1, 2)}
        works = [dist.irecv(tensor, 0, tag=tag) for tag, tensor in received.items()]
    else:
        return
    for work in works:
        assert work is not None
        work.wait()
    if rank == 1:
        assert [received[tag].tolist() for tag in (1, 2, 3)] == [[1.0] * 3, [2.0] * 3, [3.0] * 3]


def test_tags(ranks: Ranks) -> None:
    run(ranks, sends_with_tags)


def receives_from_anyone(rank: int) -> None:
    device, size = local_device(), dist.get_world_size()
    if rank != 0:
        dist.send(torch.full((3,), float(rank), device=device), 0)
        return
    found = {}
    for _ in range(size - 1):
        tensor = torch.empty(3, device=device)
        source = dist.recv(tensor)
        found[source] = tensor.tolist()
    assert found == {other: [float(other)] * 3 for other in range(1, size)}


def test_a_message_from_any_rank(ranks: Ranks) -> None:
    run(ranks, receives_from_anyone)


def exchanges_objects(rank: int) -> None:
    size = dist.get_world_size()
    gathered: list[Any] = [None] * size
    dist.all_gather_object(gathered, {"rank": rank})
    assert gathered == [{"rank": other} for other in range(size)]
    told = [f"of {rank}"]
    dist.broadcast_object_list(told, src=size - 1)
    assert told == [f"of {size - 1}"]
    dist.barrier()


def test_objects(ranks: Ranks) -> None:
    run(ranks, exchanges_objects)


# Groups ---------------------------------------------------------------------------------------------------------------


def uses_a_part_of_the_ranks(rank: int) -> None:
    device, size = local_device(), dist.get_world_size()
    group = dist.new_group([0, size - 1])
    if rank in (0, size - 1):
        tensor = torch.full((4,), float(rank), device=device)
        dist.all_reduce(tensor, group=group)
        assert tensor.tolist() == [float(size - 1)] * 4


def test_a_group_of_some_ranks(ranks: Ranks) -> None:
    run(ranks, uses_a_part_of_the_ranks)


def sums_along_a_mesh(rank: int) -> None:
    device, size = local_device(), dist.get_world_size()
    mesh = init_device_mesh(device.type, (2, size // 2), mesh_dim_names=("outer", "inner"))
    for name, expected in (
        ("outer", sum(other for other in range(size) if other % (size // 2) == rank % (size // 2))),
        ("inner", sum(other for other in range(size) if other // (size // 2) == rank // (size // 2))),
    ):
        tensor = torch.full((2,), float(rank), device=device)
        dist.all_reduce(tensor, group=mesh[name].get_group())
        assert tensor.tolist() == [float(expected)] * 2


def test_a_mesh_of_two_dimensions(ranks: Ranks) -> None:
    run(ranks, sums_along_a_mesh)


# Training -------------------------------------------------------------------------------------------------------------

BATCHES, ROWS, FEATURES = 4, 4, 8


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(FEATURES, 16), nn.GELU(), nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 4))


def batches(replicas: int) -> torch.Tensor:
    """(batch, replica, row, feature)."""
    return torch.randn(BATCHES, replicas, ROWS, FEATURES, generator=torch.Generator().manual_seed(1))


def train(model: nn.Module, data: torch.Tensor) -> list[float]:
    # No lists: those of a model of which only a part is parallel would mix tensors and DTensors.
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=False)
    losses = []
    for batch in data:
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return [float(loss) for loss in losses]


def tensor_parallel(model: nn.Module, mesh: Any) -> nn.Module:
    return parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})


def data_parallel(model: nn.Module) -> nn.Module:
    return DistributedDataParallel(model)


def sharded(model: nn.Module, mesh: Any = None) -> nn.Module:
    assert isinstance(model, nn.Sequential)
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def in_parallel(kind: str, model: nn.Module, device: torch.device) -> tuple[nn.Module, int]:
    """The model, spread over all ranks, and how many of them have the same data."""
    size = dist.get_world_size()
    if kind == "DDP":
        return data_parallel(model), 1
    if kind == "FSDP2":
        return sharded(model, init_device_mesh(device.type, (size,))), 1
    if kind == "HSDP":
        return sharded(model, init_device_mesh(device.type, (2, size // 2), mesh_dim_names=("replicas", "shards"))), 1
    if kind == "TP":
        return tensor_parallel(model, init_device_mesh(device.type, (size,))), size
    mesh = init_device_mesh(device.type, (2, size // 2), mesh_dim_names=("data", "tensor"))
    return sharded(tensor_parallel(model, mesh["tensor"]), mesh["data"]), size // 2


def trains(rank: int, kind: str) -> tuple[list[float], float]:
    device = local_device()
    model, copies = in_parallel(kind, network().to(device), device)
    replicas = dist.get_world_size() // copies
    losses = train(model, batches(replicas)[:, rank // copies].to(device))
    first = next(iter(model.parameters())).detach()
    return losses, float((first.full_tensor() if isinstance(first, DTensor) else first).sum())


@pytest.mark.parametrize("kind", ["DDP", "FSDP2", "HSDP", "TP", "FSDP2 and TP"])
def test_training(ranks: Ranks, kind: str) -> None:
    results = run(ranks, trains, kind)
    replicas = {"TP": 1, "FSDP2 and TP": 2}.get(kind, ranks.size)
    reference = network()
    expected = train(reference, batches(replicas).flatten(1, 2))
    means = [sum(step) / ranks.size for step in zip(*(losses for losses, _ in results), strict=True)]
    torch.testing.assert_close(means, expected, rtol=1e-4, atol=1e-5)
    total = float(next(iter(reference.parameters())).detach().sum())
    torch.testing.assert_close([first for _, first in results], [total] * ranks.size, rtol=1e-3, atol=1e-4)


def saves(rank: int, folder: str) -> list[float]:
    device = local_device()
    model = sharded(network().to(device), init_device_mesh(device.type, (dist.get_world_size(),)))
    train(model, batches(dist.get_world_size())[:, rank].to(device))
    state_dict_saver.save(get_model_state_dict(model), checkpoint_id=folder)
    return [float(parameter.detach().full_tensor().sum()) for parameter in model.parameters()]  # type: ignore[attr-defined]


def loads(_: int, folder: str) -> list[float]:
    """As another arrangement than it was saved in."""
    device = local_device()
    torch.manual_seed(1)
    model = tensor_parallel(network().to(device), init_device_mesh(device.type, (dist.get_world_size(),)))
    state = get_model_state_dict(model)
    state_dict_loader.load(state, checkpoint_id=folder)
    set_model_state_dict(model, state)
    return [
        float((data.full_tensor() if isinstance(data, DTensor) else data).sum())
        for data in (parameter.detach() for parameter in model.parameters())
    ]


def test_checkpoints(groups: Callable[[int], Ranks], tmp_path: Path) -> None:
    """Saved by four ranks, loaded by two."""
    saved = run(groups(4), saves, str(tmp_path))
    loaded = run(groups(2), loads, str(tmp_path))
    for sums in loaded:
        torch.testing.assert_close(sums, saved[0], rtol=1e-5, atol=1e-5)
