"""What is built on collectives trains as one process does."""

from __future__ import annotations

import copy
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DataParallel, comm
from torch.nn.parallel import DistributedDataParallel as DDP

from torch_mtia.backend import device_type
from torch_mtia.distributed import BACKEND
from torch_mtia.ranks import Ranks, StartRanks

RANKS = 2
D = device_type()


@pytest.fixture
def ranks(start_ranks: StartRanks) -> Ranks:
    return start_ranks(RANKS, "mtia")


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def data() -> torch.Tensor:
    return torch.randn(3, RANKS, 4, 8, generator=torch.Generator().manual_seed(1))


def train(network: nn.Module, batches: torch.Tensor, optimizer: torch.optim.Optimizer | None = None) -> list[float]:
    optimizer = optimizer or torch.optim.SGD(network.parameters(), lr=0.1)
    losses = []
    for batch in batches:
        loss = network(batch).float().square().mean()
        losses.append(loss.detach())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return [float(loss) for loss in losses]


def hooked(hook: Callable[..., Any], state: object = None) -> nn.Module:
    network = DDP(model().to(D))
    network.register_comm_hook(state, hook)
    return network


def sharded(network: nn.Sequential, **options: Any) -> nn.Module:
    for part in (network[0], network[2], network):
        fully_shard(part, **options)
    return network


def mesh_of(*shape: int) -> Any:
    return init_device_mesh(D, shape, mesh_dim_names=("replicate", "shard")[-len(shape) :])


def of_both() -> Any:
    """DDP reduces what it knows of unused parameters on the CPU."""
    return dist.new_group(backend=f"cpu:gloo,{D}:{BACKEND}")


LAYERS: dict[str, tuple[Callable[[], nn.Module], float]] = {
    "DDP, static graph": (lambda: DDP(model().to(D), static_graph=True, process_group=of_both()), 1e-5),
    "DDP, unused parameters": (lambda: DDP(model().to(D), find_unused_parameters=True, process_group=of_both()), 1e-5),
    "DDP, fp16": (lambda: hooked(default_hooks.fp16_compress_hook), 1e-3),
    "DDP, bf16": (lambda: hooked(default_hooks.bf16_compress_hook), 1e-2),
    "DDP, PowerSGD": (
        lambda: hooked(powerSGD_hook.powerSGD_hook, powerSGD_hook.PowerSGDState(None, 4, start_powerSGD_iter=2)),
        1e-2,
    ),
    "DDP, compiled": (lambda: torch.compile(DDP(model().to(D))), 1e-5),  # type: ignore[dict-item, return-value]
    "FSDP1": (lambda: FSDP(model(), device_id=torch.device(D, 0), use_orig_params=True), 1e-5),
    "FSDP2 of a module of the CPU": (lambda: sharded(model(), mesh=mesh_of(RANKS)), 1e-5),
    "FSDP2, mixed precision": (
        lambda: sharded(model().to(D), mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32)),
        3e-2,
    ),
    "FSDP2, CPU offload": (lambda: sharded(model(), mesh=mesh_of(RANKS), offload_policy=CPUOffloadPolicy()), 1e-5),
    "HSDP, replicated": (lambda: sharded(model().to(D), mesh=mesh_of(RANKS, 1)), 1e-5),
    "HSDP, sharded": (lambda: sharded(model().to(D), mesh=mesh_of(1, RANKS)), 1e-5),
}


def trains(rank: int, name: str) -> list[float]:
    return train(LAYERS[name][0](), data()[:, rank].to(D))


def mean(results: list[list[float]]) -> list[float]:
    return [sum(each) / RANKS for each in zip(*results, strict=True)]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", LAYERS)
def test_training_is_that_of_one_process(ranks: Ranks, name: str) -> None:
    expected, tolerance = train(model(), data().flatten(1, 2)), LAYERS[name][1]
    torch.testing.assert_close(mean(ranks.run(trains, name)), expected, rtol=tolerance, atol=tolerance)


def trains_with_zero(rank: int) -> list[float]:
    network = DDP(model().to(D))
    optimizer = ZeroRedundancyOptimizer(network.parameters(), torch.optim.Adam, lr=0.1)
    return train(network, data()[:, rank].to(D), optimizer)


def test_the_state_of_an_optimizer_is_sharded(ranks: Ranks) -> None:
    network = model()
    expected = train(network, data().flatten(1, 2), torch.optim.Adam(network.parameters(), lr=0.1))
    torch.testing.assert_close(mean(ranks.run(trains_with_zero)), expected, rtol=1e-4, atol=1e-5)


LATE: dict[str, Callable[[], nn.Module]] = {
    "DDP": lambda: DDP(model().to(D)),
    "FSDP1": lambda: FSDP(model().to(D), use_orig_params=True),
    "FSDP2": lambda: sharded(model().to(D)),
}


def waits_for_nobody(rank: int, name: str) -> list[float]:
    """The other rank begins its last step when this one has been through it."""
    network, batches = LATE[name](), data()[:, rank].to(D)
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.1)
    losses = train(network, batches[:2], optimizer)  # DDP agrees on its buckets in the second step
    store = dist.distributed_c10d._get_default_store()
    if rank == 1:
        store.wait([name], timedelta(seconds=20))
    loss = network(batches[2]).square().mean()
    loss.backward()
    optimizer.step()
    if rank == 0:
        store.set(name, "is through")
    return [*losses, float(loss)]


@pytest.mark.parametrize("name", LATE)
def test_a_step_is_enqueued_without_waiting_for_other_ranks(ranks: Ranks, name: str) -> None:
    network = model()
    expected = train(network, data().flatten(1, 2), torch.optim.AdamW(network.parameters(), lr=0.1))
    torch.testing.assert_close(mean(ranks.run(waits_for_nobody, name)), expected, rtol=1e-4, atol=1e-5)


def scales(rank: int) -> list[tuple[float, bool]]:
    network = FSDP(model(), device_id=torch.device(D, rank), use_orig_params=True)
    scaler = ShardedGradScaler(device=D, init_scale=64.0)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    results = []
    for overflows in (False, True, False):
        before = [parameter.detach().clone() for parameter in network.parameters()]
        loss = network(torch.ones(4, 8, device=D)).square().mean()
        if overflows and rank == 1:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        moved = any(not torch.equal(a, b) for a, b in zip(before, network.parameters(), strict=True))
        results.append((scaler.get_scale(), moved))
    return results


def test_no_rank_makes_a_step_in_which_one_has_overflowed(ranks: Ranks) -> None:
    assert ranks.run(scales) == [[(64.0, True), (32.0, False), (32.0, True)]] * RANKS


def joins(rank: int) -> list[torch.Tensor]:
    """The second rank has a batch more."""
    network = DDP(model().to(D))
    with network.join():
        train(network, data()[: 2 + rank, rank].to(D))
    return [parameter.detach().cpu() for parameter in network.parameters()]


def test_ranks_have_different_numbers_of_batches(ranks: Ranks) -> None:
    network = model()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    batches = data()
    for present in (batches[0], batches[1], batches[2, 1:]):
        (sum(network(batch).square().mean() for batch in present) / RANKS).backward()
        optimizer.step()
        optimizer.zero_grad()
    for parameters in ranks.run(joins):
        torch.testing.assert_close(parameters, [parameter.detach() for parameter in network.parameters()])


def tracks_memory(_: int) -> tuple[dict[str, int], dict[str, int]]:
    network = sharded(model().to(D))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    batch = data()[0, 0].to(D)
    with FSDPMemTracker(network, optimizer) as tracker:
        train(network, batch[None], optimizer)
    peak, current = (next(iter(tracker.get_tracker_snapshot(kind).values())) for kind in ("peak", "current"))
    return {str(kind): size for kind, size in peak.items()}, {str(kind): size for kind, size in current.items()}


def test_the_memory_of_parts_is_tracked(ranks: Ranks) -> None:
    size = 4 * sum(parameter.numel() for parameter in model().parameters())
    for peak, current in ranks.run(tracks_memory):
        assert current["_FSDPRefType.SHARDED_PARAM"] == size // RANKS
        assert peak["_FSDPRefType.ALL_GATHER"] > 0
        assert current["_FSDPRefType.UNSHARDED_PARAM"] == 0


def accumulates(rank: int) -> Any:
    network, batches = DDP(model().to(D)), data()[:, rank].to(D)
    with network.no_sync():
        network(batches[0]).square().mean().backward()
    network(batches[1]).square().mean().backward()
    return network.module[0].weight.grad.cpu()


def test_gradients_are_accumulated_without_synchronization(ranks: Ranks) -> None:
    network, batches = model(), data().flatten(1, 2)
    for batch in batches[:2]:
        network(batch).square().mean().backward()
    for gradient in ranks.run(accumulates):
        torch.testing.assert_close(gradient, network[0].weight.grad)


def logs_times(rank: int) -> dict[str, Any]:
    network = DDP(model().to(D))
    network._set_ddp_runtime_logging_sample_rate(1)
    train(network, data()[:, rank].to(D))
    logged: dict[str, Any] = network._get_ddp_logging_data()
    return logged


def test_ddp_logs_the_times_of_the_device(ranks: Ranks) -> None:
    for logged in ranks.run(logs_times):
        for part in ("forward_compute", "backward_compute", "backward_comm"):
            assert logged[f"avg_{part}_time"] > 0


def normalized() -> tuple[nn.Sequential, torch.Tensor]:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()), torch.randn(2 * RANKS, 3, 8, 8)


def synchronizes_batch_norm(rank: int, is_compiled: bool) -> list[torch.Tensor]:
    plain, images = normalized()
    network = DDP(nn.SyncBatchNorm.convert_sync_batchnorm(plain).to(D))
    run: Any = torch.compile(network) if is_compiled else network
    output = run(images.chunk(RANKS)[rank].to(D))
    output.square().mean().backward()
    norm = network.module[1]
    gradients = (network.module[0].weight.grad, norm.weight.grad, norm.bias.grad)
    tensors = (output.detach(), *gradients, norm.running_mean, norm.running_var)
    return [tensor.cpu() for tensor in tensors]


@pytest.mark.parametrize("is_compiled", [False, True])
def test_batch_norm_has_the_statistics_of_all_ranks(ranks: Ranks, is_compiled: bool) -> None:
    network, images = normalized()
    output = network(images)
    output.square().mean().backward()
    norm = network[1]
    gradients = (network[0].weight.grad, norm.weight.grad, norm.bias.grad)
    expected = [*gradients, norm.running_mean, norm.running_var]
    for rank, (part, *others) in enumerate(ranks.run(synchronizes_batch_norm, is_compiled)):
        torch.testing.assert_close(part, output.detach().chunk(RANKS)[rank], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(others, expected, rtol=1e-4, atol=1e-5)


def of_sequences() -> tuple[nn.Sequential, torch.Tensor]:
    torch.manual_seed(0)
    return nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8)), torch.randn(2, 4 * RANKS, 8)


def divides_sequences(rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    network, sequence = of_sequences()
    plan = {
        "0": SequenceParallel(),
        "1": ColwiseParallel(input_layouts=Shard(1)),
        "3": RowwiseParallel(output_layouts=Replicate()),
    }
    parallel: Any = parallelize_module(network.to(D), mesh_of(RANKS), plan)
    output = parallel(sequence.chunk(RANKS, 1)[rank].to(D))
    output.square().mean().backward()
    return output.detach().cpu(), parallel[1].weight.grad.full_tensor().cpu()


def test_sequences_and_products_are_divided(ranks: Ranks) -> None:
    network, sequence = of_sequences()
    output = network(sequence)
    output.square().mean().backward()
    for result, gradient in ranks.run(divides_sequences):
        torch.testing.assert_close(result, output.detach())
        torch.testing.assert_close(gradient, network[1].weight.grad)


def difference(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output - target).square().mean()


def layers_of_a_pipeline() -> tuple[list[nn.Linear], torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return [nn.Linear(8, 8) for _ in range(2 * RANKS)], torch.randn(8, 8), torch.randn(8, 8)


def pipelines(rank: int, interleaved: bool) -> list[float]:
    layers, inputs, targets = layers_of_a_pipeline()
    parts: list[nn.Module] = [nn.Sequential(*layers[2 * rank : 2 * rank + 2])]
    if interleaved:
        parts = [layers[rank], layers[rank + RANKS]]
    stages = [
        PipelineStage(
            part.to(D),
            rank + index * RANKS,
            len(parts) * RANKS,
            torch.device(D, torch.accelerator.current_device_index()),
        )
        for index, part in enumerate(parts)
    ]
    schedule: Any = (
        ScheduleInterleaved1F1B(stages, 4, loss_fn=difference)  # type: ignore[arg-type]
        if interleaved
        else Schedule1F1B(stages[0], 4, loss_fn=difference)
    )
    optimizer = torch.optim.SGD([weight for stage in stages for weight in stage.submod.parameters()], lr=0.1)
    losses: list[torch.Tensor] = []
    arguments = (inputs.to(D),) if rank == 0 else ()
    for _ in range(3):
        if rank == RANKS - 1:
            some: list[torch.Tensor] = []
            schedule.step(*arguments, target=targets.to(D), losses=some)
            losses += some
        else:
            schedule.step(*arguments)
        optimizer.step()
        optimizer.zero_grad()
    return [float(loss) for loss in losses]


@pytest.mark.parametrize("interleaved", [False, True])
def test_pipelines(ranks: Ranks, interleaved: bool) -> None:
    layers, inputs, targets = layers_of_a_pipeline()
    network = nn.Sequential(*layers)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    expected = []
    for _ in range(3):
        losses = [
            difference(network(part), target) for part, target in zip(inputs.chunk(4), targets.chunk(4), strict=True)
        ]
        torch.stack(losses).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        expected += [float(loss) for loss in losses]
    torch.testing.assert_close(ranks.run(pipelines, interleaved)[-1], expected)


def saves(_: int, folder: Path) -> None:
    save({"model": get_model_state_dict(sharded(model().to(D)))}, checkpoint_id=folder)


def test_a_checkpoint_of_many_ranks_is_read_by_one_process(ranks: Ranks, tmp_path: Path) -> None:
    ranks.run(saves, tmp_path)
    network = model()
    expected = copy.deepcopy(network.state_dict())
    for parameter in network.parameters():
        nn.init.zeros_(parameter)
    state = {"model": network.state_dict()}
    load(state, checkpoint_id=tmp_path, no_dist=True)
    torch.testing.assert_close(state["model"], expected)


def copies(_: int) -> tuple[list[float], list[object]]:
    devices = [torch.device(D, index) for index in range(RANKS)]
    network = DataParallel(model().to(devices[0]), device_ids=devices)
    losses = train(network, data().flatten(1, 2).to(devices[0]))
    numbers = torch.arange(4.0, device=devices[0])
    scattered = comm.scatter(numbers, devices, chunk_sizes=[1, 3])
    gathered = comm.gather(scattered, destination=devices[1])
    everywhere = comm.broadcast(numbers, devices)
    return losses, [
        [part.tolist() for part in scattered],
        gathered.tolist(),
        gathered.device.index,
        [each.device.index for each in everywhere],
        comm.reduce_add(everywhere, 0).tolist(),
    ]


@pytest.mark.wide
def test_one_process_trains_on_several_devices(ranks: Ranks) -> None:
    expected = train(model(), data().flatten(1, 2))
    numbers = [0.0, 1.0, 2.0, 3.0]
    for losses, results in ranks.run(copies):
        torch.testing.assert_close(losses, expected)
        assert results == [[[0.0], [1.0, 2.0, 3.0]], numbers, 1, [0, 1], [0.0, 2.0, 4.0, 6.0]]


def gathers_compiled(rank: int) -> float:
    from torch._inductor import config
    from torch.distributed import _functional_collectives as functional

    def function(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        group = dist.group.WORLD
        assert group is not None
        parts = [functional.all_gather_tensor(each, 0, group) for each in (first, second)]
        return parts[0].sum() + (parts[1] * 2).sum()

    with config.patch(bucket_all_gathers_fx="all"):
        compiled = torch.compile(function)
        return float(compiled(torch.ones(4, device=D) * rank, torch.ones(6, device=D)))


@pytest.mark.wide
def test_compiled_collectives_are_bucketed(ranks: Ranks) -> None:
    assert ranks.run(gathers_compiled) == [4.0 + 24.0] * RANKS
