"""Files: where they are loaded to, what shares memory in them, states of training; and the copies of Python."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from torch_mtia.conformance.agreement import EXACT, numbers
from torch_mtia.conformance.database import CPU, assert_same

pytestmark = pytest.mark.filterwarnings("ignore")


def saved(value: Any, **options: Any) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(value, file, **options)
    file.seek(0)
    return file


def address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, 3, bias=False)  # the norm takes it away, and leaves rounding for a gradient
        self.norm = torch.nn.BatchNorm1d(3)
        self.tied = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.norm(self.first(x))
        return result


LOCATIONS: dict[str, tuple[Callable[[torch.device], Any], bool]] = {
    "none": (lambda _: None, True),
    "name of the CPU": (lambda _: "cpu", False),
    "the CPU": (lambda _: CPU, False),
    "name": (lambda d: str(d), True),
    "type": (lambda d: d.type, True),
    "device": (lambda d: d, True),
    "table": (lambda d: {str(d): "cpu"}, False),
    "table without it": (lambda _: {"meta": "cpu"}, True),
    "function": (lambda _: lambda storage, _location: storage, False),
    "function that leaves it": (lambda _: lambda _storage, _location: None, True),
}


@pytest.mark.parametrize("format", ["zip", "legacy"])
@pytest.mark.parametrize("name", LOCATIONS)
def test_map_location(device: torch.device, name: str, format: str) -> None:
    here = numbers(5, 4)
    file = saved({"x": here.to(device)}, _use_new_zipfile_serialization=format == "zip")
    location, stays = LOCATIONS[name]
    loaded = torch.load(file, map_location=location(device))["x"]
    assert loaded.device == (device if stays else CPU)
    assert torch.equal(loaded.cpu(), here)


def test_a_file_of_the_cpu_is_loaded_to_the_device(device: torch.device) -> None:
    here = numbers(5, 4)
    for location in (device, str(device), {"cpu": str(device)}):
        loaded = torch.load(saved(here), map_location=location)
        assert_same(loaded, here, device, EXACT)


def test_a_file_of_a_device_that_is_not_there(accelerator: torch.device) -> None:
    name = f"{accelerator.type}:{torch.accelerator.device_count()}"
    with pytest.raises((RuntimeError, AssertionError)):
        torch.load(saved(numbers(3)), map_location=name)
    assert torch.load(saved(numbers(3)), map_location=accelerator).device == accelerator


@pytest.mark.parametrize("weights_only", [True, False])
def test_views_of_one_storage_still_share_it(device: torch.device, weights_only: bool) -> None:
    x = torch.arange(12.0, device=device)
    for location in (None, "cpu"):
        file = saved({"whole": x, "rows": x.view(3, 4)[1:], "column": x.view(3, 4)[:, 2]})
        loaded = torch.load(file, map_location=location, weights_only=weights_only)
        assert len({address(tensor) for tensor in loaded.values()}) == 1
        assert loaded["column"].stride() == (4,)
        loaded["whole"].fill_(5)
        assert loaded["rows"].unique().tolist() == loaded["column"].unique().tolist() == [5]


def test_what_a_tensor_has_is_kept(device: torch.device) -> None:
    parameter = torch.nn.Parameter(numbers(2, 3, device=device))
    buffer = torch.nn.Buffer(numbers(3, device=device))
    leaf = numbers(2, device=device).requires_grad_()
    lazy = numbers(3, device=device, dtype=torch.complex64).conj()
    images = numbers(1, 2, 3, 4, device=device).contiguous(memory_format=torch.channels_last)
    loaded = torch.load(saved([parameter, buffer, leaf, lazy, images]), weights_only=False)
    assert isinstance(loaded[0], torch.nn.Parameter)
    assert loaded[2].requires_grad
    assert loaded[3].is_conj()
    assert loaded[4].is_contiguous(memory_format=torch.channels_last)
    for ours, theirs in zip(loaded, (parameter, buffer, leaf, lazy, images), strict=True):
        assert ours.device == device
        assert torch.equal(ours, theirs)


def test_a_state_dict(device: torch.device) -> None:
    torch.manual_seed(0)
    net = Net().to(device)
    assert net.tied is net.first.weight
    net(numbers(8, 4, device=device))
    state = torch.load(saved(net.state_dict()), weights_only=True)
    assert address(state["tied"]) == address(state["first.weight"])
    for place in (device, CPU):
        other = Net().to(place)
        other.load_state_dict(state)
        assert_same(dict(other.cpu().state_dict()), dict(copy.deepcopy(net).cpu().state_dict()), CPU, EXACT)
    assigned = Net().to("meta")
    assigned.load_state_dict(state, assign=True)
    assert assigned.first.weight.device == device


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad"])
def test_the_state_of_an_optimizer(device: torch.device, name: str) -> None:
    """Training that is stored and goes on elsewhere takes the same steps."""

    def step(net: Net, optimizer: torch.optim.Optimizer, place: torch.device) -> None:
        optimizer.zero_grad()
        (net(numbers(8, 4, device=place)) * numbers(8, 3, device=place)).sum().backward()
        optimizer.step()

    kwargs: dict[str, Any] = {"lr": 0.01, **({"momentum": 0.9} if name in ("SGD", "RMSprop") else {})}
    torch.manual_seed(0)
    net = Net().to(device)
    optimizer = getattr(torch.optim, name)(net.parameters(), **kwargs)
    for _ in range(3):
        step(net, optimizer, device)
    file = saved({"net": net.state_dict(), "optimizer": optimizer.state_dict()})
    step(net, optimizer, device)
    for place in (device, CPU):
        file.seek(0)
        state = torch.load(file, map_location=place)
        other = Net().to(place)
        other.load_state_dict(state["net"])
        resumed = getattr(torch.optim, name)(other.parameters(), **kwargs)
        resumed.load_state_dict(state["optimizer"])
        step(other, resumed, place)
        expected = dict(copy.deepcopy(net).cpu().state_dict())
        assert_same(dict(other.cpu().state_dict()), expected, CPU, {"rtol": 1e-4, "atol": 1e-5})


def test_mapped_files_and_paths(device: torch.device, tmp_path: Path) -> None:
    here = numbers(1000)
    torch.save(here, tmp_path / "x.pt")
    mapped = torch.load(tmp_path / "x.pt", mmap=True, map_location="cpu")
    assert torch.equal(mapped.to(device).cpu(), here)
    torch.save(here.to(device), tmp_path / "y.pt")
    assert_same(torch.load(tmp_path / "y.pt"), here, device, EXACT)


def test_rebuilding_with_skipped_data(device: torch.device) -> None:
    with torch.serialization.skip_data():
        file = saved(numbers(5, device=device))
    assert torch.load(file).shape == (5,)


def test_whole_modules(device: torch.device) -> None:
    torch.manual_seed(0)
    net, x = Net().to(device).eval(), numbers(3, 4, device=device)
    expected = net(x).detach().cpu()
    traced: Any = torch.jit.trace(net, x)
    exported: Any = torch.export.export(net, (x,))
    for store, load in (
        (torch.save, lambda file: torch.load(file, weights_only=False)),
        (lambda _, file: torch.jit.save(traced, file), lambda file: torch.jit.load(file, map_location=device)),
        (lambda _, file: torch.export.save(exported, file), lambda file: torch.export.load(file).module()),
    ):
        file = io.BytesIO()
        store(net, file)
        file.seek(0)
        assert_same(load(file)(x).detach(), expected, device, {})


# Copies of Python ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_pickle(device: torch.device, protocol: int) -> None:
    there = numbers(3, 4, device=device).t()[1:]
    again = pickle.loads(pickle.dumps(there, protocol))
    assert_same(again, there.cpu(), device, EXACT)
    assert again.stride() == there.stride()


def test_deepcopy(device: torch.device) -> None:
    x = torch.arange(6.0, device=device)
    pair = copy.deepcopy([x, x[2:], x])
    assert pair[0] is pair[2]
    assert address(pair[0]) == address(pair[1]) != address(x)
    pair[0].zero_()
    assert x.tolist() == [0, 1, 2, 3, 4, 5]
    shallow = copy.copy(x)
    shallow.add_(1)
    assert x[0].item() == 1
    leaf = numbers(3, device=device).requires_grad_()
    leaf.square().sum().backward()
    other = copy.deepcopy(leaf)
    assert other.requires_grad
    assert_same(other.grad, leaf.grad.cpu() if leaf.grad is not None else None, device, EXACT)
    with pytest.raises(RuntimeError, match="deepcopy"):
        copy.deepcopy(leaf * 2)
