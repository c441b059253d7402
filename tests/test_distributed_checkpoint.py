"""Checkpoints of many ranks: read by other numbers of them, divided in other ways, and saved while training goes on."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint import filesystem
from torch.distributed.checkpoint._state_dict_stager import StateDictStager
from torch.distributed.checkpoint.staging import BlockingAsyncStager, DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save, save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from torch_mtia.backend import device_type
from torch_mtia.distributed import BACKEND
from torch_mtia.ranks import Ranks, StartRanks

D = device_type()
PLAN = {"0": ColwiseParallel(), "2": RowwiseParallel()}


@pytest.fixture(scope="module")
def four(start_ranks: StartRanks) -> Ranks:
    return start_ranks(4, "mtia")


@pytest.fixture(scope="module")
def two(start_ranks: StartRanks) -> Ranks:
    return start_ranks(2, "mtia")


@pytest.fixture(scope="module")
def delayed(start_ranks: StartRanks) -> Ranks:
    """Work of the device runs late, unless somebody waits for it."""
    return start_ranks(2, "mtia", environ={"TORCH_MTIA_DELAY": "1"})


def model(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))


def in_one_process(seed: int) -> nn.Module:
    return model(seed).to(D if dist.is_initialized() else "cpu")


def sharded(seed: int) -> nn.Module:
    network = model(seed).to(D)
    for part in (network[0], network[2], network):
        fully_shard(part)
    return network


def of_products(seed: int) -> nn.Module:
    mesh = init_device_mesh(D, (dist.get_world_size(),))
    return parallelize_module(model(seed).to(D), mesh, PLAN)


def of_both(seed: int) -> nn.Module:
    mesh = init_device_mesh(D, (2, 2), mesh_dim_names=("batches", "products"))
    network = model(seed).to(D)
    parallelize_module(network, mesh["products"], PLAN)
    for part in (network[0], network[2], network):
        fully_shard(part, mesh=mesh["batches"])
    return network


def step(network: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    inputs = torch.randn(4, 8, generator=torch.Generator().manual_seed(1))
    network(inputs.to(next(network.parameters()).device)).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def trained(network: nn.Module) -> tuple[nn.Module, torch.optim.Optimizer]:
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.1, foreach=False)
    step(network, optimizer)
    return network, optimizer


def state_of(network: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    names, states = get_state_dict(network, optimizer)
    return {"model": names, "optimizer": states}


def whole(state: Any) -> Any:
    """On the CPU."""
    if isinstance(state, dict):
        return {name: whole(value) for name, value in state.items()}
    if isinstance(state, torch.Tensor):
        return getattr(state, "full_tensor", lambda: state)().cpu().clone()
    return state


def tensors(state: dict[str, Any]) -> Any:
    return whole({"model": state["model"], "optimizer": state["optimizer"]["state"]})


def saves(_: int, folder: Path) -> Any:
    state = state_of(*trained(sharded(0)))
    save(state, checkpoint_id=folder)
    return tensors(state)


def loads(_: int, make: Any, folder: Path, no_dist: bool = False) -> Any:
    network, optimizer = trained(make(1))
    state = state_of(network, optimizer)
    load(state, checkpoint_id=folder, no_dist=no_dist)
    set_state_dict(network, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    loaded = tensors(state_of(network, optimizer))
    step(network, optimizer)
    return loaded, tensors(state_of(network, optimizer))["model"]


@pytest.fixture(scope="module")
def saved(four: Ranks, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """By FSDP2 on four ranks."""
    folder = tmp_path_factory.mktemp("checkpoint")
    return folder, four.run(saves, folder)[0]


def check(results: list[Any], saved: tuple[Path, Any]) -> None:
    expected, after = loads(0, in_one_process, saved[0], no_dist=True)
    torch.testing.assert_close(expected, saved[1], rtol=0, atol=0)
    for loaded, stepped in results:
        torch.testing.assert_close(loaded, expected, rtol=0, atol=0)
        torch.testing.assert_close(stepped, after)


def test_as_products_on_two_ranks(saved: tuple[Path, Any], two: Ranks) -> None:
    check(two.run(loads, of_products, saved[0]), saved)


def test_in_two_dimensions_on_four_ranks(saved: tuple[Path, Any], four: Ranks) -> None:
    check(four.run(loads, of_both, saved[0]), saved)


def test_not_divided_on_two_ranks(saved: tuple[Path, Any], two: Ranks) -> None:
    check(two.run(loads, in_one_process, saved[0]), saved)


def test_as_a_file_of_torch_save(saved: tuple[Path, Any], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.checkpoint.format_utils", "dcp_to_torch"]
    subprocess.run([*command, str(saved[0]), str(tmp_path / "file.pt")], check=True)
    torch.testing.assert_close(torch.load(tmp_path / "file.pt")["model"], saved[1]["model"], rtol=0, atol=0)


STAGERS: dict[str, Any] = {
    "the default one": lambda: None,
    "DefaultStager": DefaultStager,
    "DefaultStager, not shared": lambda: DefaultStager(StagingOptions(use_shared_memory=False)),
    "DefaultStager, at once": lambda: DefaultStager(StagingOptions(use_async_staging=False, use_shared_memory=False)),
    "BlockingAsyncStager": lambda: BlockingAsyncStager(cache_staged_state_dict=True),
}


def saves_while_it_trains(_: int, folder: Path, name: str) -> None:
    group = dist.new_group(backend=f"cpu:gloo,{D}:{BACKEND}")
    expected = tensors(state_of(*trained(sharded(0))))
    network, optimizer = trained(sharded(0))
    stager = STAGERS[name]()
    response: Any = async_save(
        state_of(network, optimizer), checkpoint_id=folder, process_group=group, async_stager=stager
    )
    if not isinstance(response, Future):
        response.staging_completion.result()
        response = response.upload_completion
    for _ in range(3):
        step(network, optimizer)
    response.result()
    if stager is not None:
        stager.close()
    state = state_of(network, optimizer)
    load(state, checkpoint_id=folder)
    torch.testing.assert_close(tensors(state), expected, rtol=0, atol=0)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", STAGERS)
def test_training_goes_on_while_a_checkpoint_is_saved(delayed: Ranks, name: str, tmp_path: Path) -> None:
    delayed.run(saves_while_it_trains, tmp_path, name)


def test_what_is_not_shared_is_staged_in_pinned_memory() -> None:
    tensor = torch.arange(1000.0, device=D)
    stager = StateDictStager(pin_memory=True)
    for number in range(2):
        staged = stager.stage({"tensor": tensor}, non_blocking=True)["tensor"]
        torch.accelerator.synchronize()
        assert staged.is_pinned()
        torch.testing.assert_close(staged, torch.arange(1000.0) + number, rtol=0, atol=0)
        tensor += 1
    stager.close()


@pytest.mark.wide
def test_what_is_next_is_copied_while_a_checkpoint_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaders = []

    class Loader(filesystem._OverlappingCpuLoader):
        def start_loading(self) -> None:
            loaders.append(self)
            super().start_loading()

    monkeypatch.setattr(filesystem, "_OverlappingCpuLoader", Loader)
    state = {str(index): torch.arange(300_000.0, device=D) + index for index in range(4)}
    save(state, checkpoint_id=tmp_path, no_dist=True)
    assert loaders
    loaded = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    load(loaded, checkpoint_id=tmp_path, no_dist=True)
    torch.testing.assert_close(loaded, state, rtol=0, atol=0)
