"""torch.compile of programs that communicate: results are eager's, and nothing falls back to the CPU."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
import torch._inductor.config as inductor_config
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch._inductor.kernel.custom_op import CustomOpConfig, register_custom_op_autotuning
from torch._inductor.select_algorithm import AlgorithmSelectorCache
from torch._inductor.utils import fresh_cache
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP

import torch_mtia
from torch_mtia.backend import device_type
from torch_mtia.inductor import roofline
from torch_mtia.ranks import Ranks, StartRanks

RANKS = 2
D = device_type()


@pytest.fixture
def ranks(start_ranks: StartRanks) -> Ranks:
    return start_ranks(RANKS, "mtia")


def products_beside_collectives(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    world: Any = dist.group.WORLD
    gathered: torch.Tensor = functional.all_gather_tensor(x, 0, world)
    product = torch.relu(x @ weight) @ weight
    total: torch.Tensor = functional.all_reduce(product, "sum", world)
    part: torch.Tensor = functional.reduce_scatter_tensor(gathered @ weight, "sum", 0, world)
    return total.sum() + part.sum() + gathered.sum()


def operands(rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(rank)
    weight = torch.randn(64, 64, generator=torch.Generator().manual_seed(7))
    return torch.randn(64, 64, generator=generator).to(D), weight.to(D)


def compiled_as_eager(rank: int, settings: dict[str, Any], options: dict[str, Any]) -> None:
    torch._dynamo.reset()
    x, weight = operands(rank)
    expected = products_beside_collectives(x, weight)
    scheduling = inductor_config.aten_distributed_optimizations
    before = {name: getattr(scheduling, name) for name in settings}
    for name, value in settings.items():
        setattr(scheduling, name, value)
    try:
        compiled = torch.compile(products_beside_collectives, **options)
        with torch_mtia.fallback.forbid():
            for _ in range(3):  # a graph is captured after the first call
                torch.testing.assert_close(compiled(x, weight), expected, rtol=1e-4, atol=1e-2)
    finally:
        for name, value in before.items():
            setattr(scheduling, name, value)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, id="plain"),
        pytest.param({"enable_overlap_scheduling": True}, id="overlap"),
        pytest.param({"enable_overlap_scheduling": True, "collective_bucketing": True}, id="overlap, buckets"),
        pytest.param({"enable_overlap_scheduling": True, "collective_estimator": "benchmark"}, id="overlap, timed"),
    ],
)
def test_collectives_are_scheduled_between_products(ranks: Ranks, settings: dict[str, Any]) -> None:
    ranks.run(compiled_as_eager, settings, {})


def test_collectives_are_replayed_in_graphs(ranks: Ranks) -> None:
    ranks.run(compiled_as_eager, {}, {"mode": "reduce-overhead"})


def conditions_between_collectives(x: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    world: Any = dist.group.WORLD
    # torch.cond has no rule for the tensors of eager collectives that nobody has waited for.
    total: torch.Tensor = functional.wait_tensor(functional.all_reduce(x, "sum", world))
    chosen = torch.cond(first, torch.sin, torch.cos, (total,))
    gathered: torch.Tensor = functional.wait_tensor(functional.all_gather_tensor(chosen, 0, world))
    chosen = torch.cond(second, torch.exp, torch.tanh, (gathered,))
    result: torch.Tensor = functional.wait_tensor(functional.all_reduce(chosen, "sum", world))
    return result


def compiled_conditions(rank: int) -> None:
    torch._dynamo.reset()
    x = torch.full((4, 4), float(rank + 1), device=D)
    # The ranks take different branches: each must still call its collectives in the order of the program.
    first, second = (torch.tensor(rank == number, device=D) for number in (0, 1))
    expected = conditions_between_collectives(x, first, second)
    compiled = torch.compile(conditions_between_collectives, fullgraph=True)
    torch.testing.assert_close(compiled(x, first, second), expected)


def test_conditions_between_collectives_keep_their_order(ranks: Ranks) -> None:
    ranks.run(compiled_conditions)


def figures(_: int) -> tuple[float, float, float]:
    return (
        roofline.memory_bandwidth(),
        roofline.teraflops(torch.float32),
        roofline.collective_us("all_reduce", 1 << 20, 2),
    )


def test_all_ranks_know_the_same_figures(ranks: Ranks) -> None:
    first, second = ranks.run(figures)
    assert first == second
    assert all(figure > 0 for figure in first)


def twice_by_parts(x: torch.Tensor) -> torch.Tensor:
    world: Any = dist.group.WORLD
    halves = [functional.all_reduce(half.contiguous(), "sum", world) for half in x.chunk(2)]
    return torch.cat([half * 2 for half in halves])


def twice_at_once(x: torch.Tensor) -> torch.Tensor:
    world: Any = dist.group.WORLD
    total: torch.Tensor = functional.all_reduce(x, "sum", world)
    return total * 2


def chooses_among_collectives(rank: int) -> None:
    torch._dynamo.reset()

    @torch.library.custom_op("torch_mtia_test::twice_reduced", mutates_args=())
    def twice_reduced(x: torch.Tensor) -> torch.Tensor:
        return twice_at_once(x).clone()

    @twice_reduced.register_fake
    def _(x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x)

    register_custom_op_autotuning(
        twice_reduced,
        configs=[CustomOpConfig(twice_at_once), CustomOpConfig(twice_by_parts)],
        input_gen_fns={"x": lambda fake: torch.ones(fake.shape, dtype=fake.dtype, device=D)},
    )
    x = torch.full((32, 8), float(rank), device=D)
    times: list[float] = []
    measure = AlgorithmSelectorCache.benchmark_collective_choice

    def measured(choice: Any, arguments: Any) -> float:
        times.append(measure(choice, arguments))
        return times[-1]

    with fresh_cache(), mock.patch.object(AlgorithmSelectorCache, "benchmark_collective_choice", measured):
        result = torch.compile(twice_reduced, mode="max-autotune")(x)
    assert len(times) >= 2
    assert all(map(math.isfinite, times))
    assert torch.equal(result.cpu(), torch.full((32, 8), 2.0))


def test_an_operator_that_communicates_is_autotuned(ranks: Ranks) -> None:
    ranks.run(chooses_among_collectives)


def has_a_choice_that_fails(rank: int) -> str:
    def all_reduced(out: torch.Tensor) -> None:
        if rank == 1:
            raise RuntimeError("this rank cannot")
        dist.all_reduce(out)

    choice: Any = mock.Mock(benchmark_collective=all_reduced)
    arguments: Any = mock.Mock()
    arguments.get_benchmark_tensors().unpack.return_value = ([], torch.zeros(4, device=D))
    with inductor_config.patch(collective_benchmark_timeout=1.0):
        assert math.isinf(AlgorithmSelectorCache.benchmark_collective_choice(choice, arguments))
    try:
        dist.all_reduce(torch.zeros(4, device=D))
        torch.accelerator.synchronize()
    except RuntimeError as error:
        return str(error)
    return ""


def test_a_choice_that_fails_on_one_rank_holds_up_nobody() -> None:
    with Ranks(RANKS, "mtia") as processes:
        for error in processes.run(has_a_choice_that_fails):
            assert "timeout" in error or not error


def products_are_autotuned_by_all(rank: int) -> None:
    torch._dynamo.reset()
    x, weight = operands(rank)

    def chain(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x @ weight) @ weight.t()

    with inductor_config.patch(distributed_max_autotune_gemm=True, max_autotune_gemm=True):
        torch.testing.assert_close(torch.compile(chain)(x), chain(x), rtol=1e-4, atol=1e-3)


def test_ranks_share_the_autotuning_of_products(ranks: Ranks) -> None:
    ranks.run(products_are_autotuned_by_all)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)).to(D)


def sharded(model: nn.Module) -> Any:
    for layer in model.children():
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    return fully_shard(model)


PARALLEL: dict[str, Callable[[nn.Module], Any]] = {"DDP": DDP, "FSDP2": sharded}


def losses_of(rank: int, kind: str, compiles: bool, ddp_optimizer: str) -> list[float]:
    torch._dynamo.reset()
    model = PARALLEL[kind](network())
    data = torch.randn(3, RANKS, 4, 8, generator=torch.Generator().manual_seed(1))[:, rank].to(D)
    with torch._dynamo.config.patch(optimize_ddp=ddp_optimizer):
        run: Any = torch.compile(model) if compiles else model
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        losses = []
        for batch in data:
            loss = run(batch).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    return losses


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("kind", "ddp_optimizer"),
    [("DDP", "ddp_optimizer"), ("DDP", "no_optimization"), ("DDP", "python_reducer"), ("FSDP2", "ddp_optimizer")],
)
def test_compiled_training_has_eagers_losses(ranks: Ranks, kind: str, ddp_optimizer: str) -> None:
    expected = ranks.run(losses_of, kind, False, "ddp_optimizer")
    found = ranks.run(losses_of, kind, True, ddp_optimizer)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
