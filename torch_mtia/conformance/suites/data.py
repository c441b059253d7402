"""Data on its way to a device and back: files, copies of Python, loaders, pinned memory, storages, NumPy, printing."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from torch_mtia.conformance.agreement import EXACT, assert_agrees, numbers
from torch_mtia.conformance.database import CPU, assert_same

pytestmark = pytest.mark.filterwarnings("ignore")

N = 1 << 12


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


# Files ---------------------------------------------------------------------------------------------------------------

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
    here = numbers(N)
    torch.save(here, tmp_path / "x.pt")
    mapped = torch.load(tmp_path / "x.pt", mmap=True, map_location="cpu")
    assert torch.equal(mapped.to(device).cpu(), here)
    torch.save(here.to(device), tmp_path / "y.pt")
    assert_same(torch.load(tmp_path / "y.pt"), here, device, EXACT)


def test_rebuilding_with_skipped_data(device: torch.device) -> None:
    with torch.serialization.skip_data():
        file = saved(numbers(5, device=device))
    assert torch.load(file).shape == (5,)


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


# Loaders and copies --------------------------------------------------------------------------------------------------


@pytest.mark.time_limit(240)
@pytest.mark.parametrize(("workers", "pinned"), [(0, False), (0, True), (2, False), (2, True)])
def test_a_loader_feeds_the_device(device: torch.device, workers: int, pinned: bool) -> None:
    features, labels = numbers(103, 6), torch.arange(103)
    loader = DataLoader(TensorDataset(features, labels), batch_size=10, num_workers=workers, pin_memory=pinned)
    rows, seen = torch.zeros(6, device=device), []
    for batch, label in loader:
        assert batch.is_pinned() == (pinned and torch.accelerator.is_available())
        rows += batch.to(device, non_blocking=True).sum(0)
        seen.append(label.to(device, non_blocking=True))
    assert torch.equal(torch.cat(seen).cpu(), labels)
    assert_same(rows, features.sum(0), device, {"rtol": 1e-4, "atol": 1e-4})


def test_collating_on_the_device(device: torch.device) -> None:
    dataset = TensorDataset(numbers(10, 3, device=device), torch.arange(10, device=device))
    order = torch.Generator().manual_seed(0)
    parts = [*DataLoader(dataset, batch_size=4, shuffle=True, generator=order)]
    assert all(tensor.device == device for part in parts for tensor in part)
    assert sorted(torch.cat([part[1] for part in parts]).tolist()) == [*range(10)]


def test_pinned_memory(accelerator: torch.device) -> None:
    host = numbers(N)
    assert not host.is_pinned()
    pinned = host.pin_memory()
    assert pinned.is_pinned()
    assert pinned.pin_memory().data_ptr() == pinned.data_ptr()
    assert pinned[10:].is_pinned()
    assert torch.equal(pinned, host)
    for made in (torch.empty(5, pin_memory=True), torch.zeros_like(host, pin_memory=True)):
        assert made.is_pinned()
    assert torch.empty_like(pinned).is_pinned() is False
    with pytest.raises(RuntimeError, match="pin"):
        host.to(accelerator).pin_memory()


def test_copies_that_do_not_block(device: torch.device) -> None:
    host = numbers(N)
    if device != CPU:
        host = host.pin_memory()
    back = [torch.empty_like(host) for _ in range(8)]
    there = host.to(device, non_blocking=True)
    for result in back:
        there = there + 1
        result.copy_(there, non_blocking=True)
    if device != CPU:
        torch.accelerator.synchronize()
    expected = host.clone()
    for result in back:
        expected = expected + 1
        assert torch.equal(result, expected)


COPIES: dict[str, Callable[[torch.device], Any]] = {
    "to another dtype": lambda d: torch.empty(3, 4, dtype=torch.int64, device=d).copy_(numbers(3, 4) * 9),
    "from the device with another dtype": lambda d: torch.empty(3, 4, dtype=torch.float64).copy_(numbers(3, 4).to(d)),
    "to strides": lambda d: torch.zeros(4, 6, device=d)[:, ::2].copy_(numbers(4, 3)),
    "from strides": lambda d: torch.zeros(3, 4).copy_(numbers(4, 6).to(d)[:, ::2].t()),
    "broadcast": lambda d: torch.zeros(5, 4, device=d).copy_(numbers(4)),
    "broadcast from the device": lambda d: torch.zeros(5, 4).copy_(numbers(4).to(d)),
    "conjugated": lambda d: torch.zeros(4, dtype=torch.complex64, device=d).copy_(
        numbers(4, dtype=torch.complex64).conj()
    ),
    "conjugated from the device": lambda d: torch.zeros(4, dtype=torch.complex64).copy_(
        numbers(4, dtype=torch.complex64).to(d).conj()
    ),
    "to an overlap of itself": lambda d: (x := numbers(9).to(d))[1:].copy_(x[:-1].clone()),
    "to channels last": lambda d: (
        torch.zeros(2, 3, 4, 5, device=d).contiguous(memory_format=torch.channels_last).copy_(numbers(2, 3, 4, 5))
    ),
    "of nothing": lambda d: torch.zeros(0, 3, device=d).copy_(torch.zeros(0, 3)),
    "of a number": lambda d: torch.zeros((), device=d).copy_(torch.tensor(4)),
    "to with copy": lambda d: (x := numbers(3).to(d)).to(d, copy=True).add_(x),
    "type": lambda d: numbers(3).to(d).type(torch.float64),
    "foreach": lambda d: torch._foreach_copy_(
        [torch.zeros(3, device=d), torch.zeros(2, device=d)], [numbers(3), numbers(2)]
    ),
}


@pytest.mark.parametrize("name", COPIES)
def test_copies(device: torch.device, name: str) -> None:
    assert_agrees(COPIES[name], device, EXACT)


def test_to_returns_the_tensor_itself_where_nothing_changes(device: torch.device) -> None:
    x = numbers(4, device=device)
    assert x.to(device) is x
    assert x.to(device.type) is x
    assert x.to(torch.float32) is x
    assert x.to(device, copy=True) is not x
    assert x.to(x).data_ptr() == x.data_ptr()


# Storages, NumPy, printing -------------------------------------------------------------------------------------------


def test_storages(device: torch.device) -> None:
    x = torch.arange(6, dtype=torch.float32, device=device)
    storage = x.untyped_storage()
    assert (storage.device, storage.nbytes(), len(storage)) == (device, 24, 24)
    assert storage.data_ptr() == x.data_ptr()
    assert bytes(storage.tolist()) == numpy.arange(6, dtype=numpy.float32).tobytes()
    assert bytes(storage.cpu().tolist()) == bytes(storage.tolist())
    assert storage.clone().data_ptr() != storage.data_ptr()
    storage.fill_(0)  # type: ignore[attr-defined]
    assert x.tolist() == [0] * 6
    storage.resize_(0)
    assert storage.nbytes() == 0
    made = torch.UntypedStorage(16, device=device)
    assert torch.zeros(0, dtype=torch.int32, device=device).set_(made).shape == (4,)
    typed = torch.arange(3, device=device).storage()
    assert (typed.dtype, typed.tolist(), typed[1]) == (torch.int64, [0, 1, 2], 1)


def test_storages_are_copied_across(device: torch.device) -> None:
    here = torch.arange(4, dtype=torch.int32).untyped_storage()
    there = torch.UntypedStorage(16, device=device).copy_(here)
    assert there.tolist() == here.tolist()
    assert torch.UntypedStorage(16).copy_(there).tolist() == here.tolist()
    with pytest.raises(RuntimeError):
        torch.zeros(0, device=device).set_(torch.UntypedStorage(4, device="meta"))


def test_numpy(device: torch.device) -> None:
    array = numpy.arange(12, dtype=numpy.float64).reshape(3, 4)
    there = torch.from_numpy(array).to(device)
    assert numpy.array_equal(there.numpy(force=True), array)
    assert numpy.array_equal(there.t()[1:].cpu().numpy(), array.T[1:])
    assert torch.tensor(array, device=device).dtype == torch.float64
    assert (there + numpy.float64(2)).device == device
    assert (there * numpy.int64(2)).dtype == torch.float64
    assert numpy.array_equal(there.requires_grad_().numpy(force=True), array)
    if device != CPU:
        with pytest.raises(TypeError, match="cpu"):
            there.detach().numpy()


def test_dlpack(device: torch.device) -> None:
    dlpack: Any = torch.utils.dlpack
    x = torch.arange(6.0, device=device).view(2, 3).t()
    for shared in (dlpack.from_dlpack(x), dlpack.from_dlpack(dlpack.to_dlpack(x))):
        assert (shared.device, shared.data_ptr(), shared.stride()) == (device, x.data_ptr(), x.stride())
        assert torch.equal(shared, x)


def test_lists_and_numbers(device: torch.device) -> None:
    here = numbers(2, 3, 2)
    for x in (here, here.t_() if here.dim() == 2 else here.transpose(0, 2), here[:0], here[0, 0, 0]):
        assert x.to(device).tolist() == x.tolist()
    assert float(numbers(1, device=device)) == numbers(1).item()
    assert [*range(5)][torch.tensor(3, device=device)] == 3
    assert complex(torch.tensor(1 + 2j, device=device)) == 1 + 2j
    with pytest.raises(RuntimeError, match="Tensor with 3 elements"):
        numbers(3, device=device).item()
    with pytest.raises(RuntimeError, match="ambiguous"):
        bool(numbers(3, device=device) > 0)


PRINTED: dict[str, Callable[[torch.device], torch.Tensor]] = {
    "number": lambda d: torch.tensor(2.5, device=d),
    "matrix": lambda d: torch.arange(6.0, device=d).view(2, 3),
    "large and small": lambda d: torch.tensor([1e-8, 1.0, 1e8], device=d),
    "not finite": lambda d: torch.tensor([float("inf"), float("nan"), -float("inf")], device=d),
    "complex": lambda d: torch.tensor([1 + 2j], device=d),
    "summarized": lambda d: torch.arange(5000, device=d),
    "no elements": lambda d: torch.zeros(0, 3, device=d),
    "leaf": lambda d: torch.ones(2, device=d, requires_grad=True),
    "result": lambda d: torch.ones(2, device=d, requires_grad=True) * 2,
    "parameter": lambda d: torch.nn.Parameter(torch.ones(2, device=d)),
    "bool": lambda d: torch.tensor([True, False], device=d),
}


@pytest.mark.parametrize("name", PRINTED)
def test_printing(device: torch.device, name: str) -> None:
    def words(tensor: torch.Tensor) -> str:
        return "".join(repr(tensor).replace(f"device='{device}', ", "").replace(f", device='{device}'", "").split())

    tensor = PRINTED[name](device)
    assert device == CPU or f"device='{device}'" in repr(tensor)
    assert words(tensor) == words(PRINTED[name](CPU))
    assert f"{tensor}" == (str(tensor.item()) if tensor.dim() == 0 else str(tensor))
