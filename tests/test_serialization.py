"""Tensors and storages of the device are copied deeply, saved and loaded, on their own and in modules."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import torch

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import RunScript

# Storages ------------------------------------------------------------------------------------------------------------


def bytes_on(device: torch.device, *values: int) -> torch.UntypedStorage:
    return torch.tensor(values, dtype=torch.uint8, device=device).untyped_storage()


def test_storage_elements_are_read_and_written(device: torch.device) -> None:
    storage = bytes_on(device, 1, 2, 3)
    assert storage.device == device
    assert (storage[0], storage[-1], len(storage)) == (1, 3, 3)
    storage[1] = 9
    assert storage.tolist() == [1, 9, 3]
    with pytest.raises(IndexError):
        storage[3]


def test_a_slice_of_a_storage_shares_its_memory(device: torch.device) -> None:
    storage = bytes_on(device, 1, 2, 3, 4)
    part = storage[1:3]
    assert (part.device, part.tolist()) == (device, [2, 3])
    storage[2] = 7
    assert part.tolist() == [2, 7]
    del storage
    assert part.tolist() == [2, 7]
    part.fill_(5)
    assert part.tolist() == [5, 5]


def test_storages_are_resized(device: torch.device) -> None:
    storage = bytes_on(device, 1, 2, 3)
    storage.resize_(5)
    assert (storage.nbytes(), storage[0:3].tolist()) == (5, [1, 2, 3])
    storage.resize_(2)
    assert storage.tolist() == [1, 2]
    storage.resize_(0)
    assert storage.tolist() == []


def test_storages_are_copied_between_host_and_device(device: torch.device) -> None:
    storage = torch.UntypedStorage(3, device=device)
    storage.copy_(bytes_on(torch.device("cpu"), 4, 5, 6))
    assert storage.tolist() == [4, 5, 6]
    host = torch.UntypedStorage(3).copy_(storage)
    assert host.tolist() == storage.cpu().tolist() == [4, 5, 6]
    assert storage.clone().device == storage.device
    assert storage.clone().data_ptr() != storage.data_ptr()
    assert host.to(device=device).tolist() == [4, 5, 6]


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def test_typed_storages_index_elements(device: torch.device) -> None:
    storage = torch.tensor([1.5, 2.5], device=device)._typed_storage()
    assert storage._getitem(1) == 2.5
    storage._setitem(0, 4.0)
    assert storage.untyped().nbytes() == 8
    assert storage._getitem(0) == 4.0


# Deep copies ---------------------------------------------------------------------------------------------------------


def test_a_deep_copy_of_a_tensor_is_another_tensor(device: torch.device) -> None:
    x = torch.arange(6.0, device=device).view(2, 3).t().requires_grad_()
    x.grad = torch.ones_like(x)
    y = copy.deepcopy(x)
    assert y.device == device
    assert y.data_ptr() != x.data_ptr()
    assert (y.stride(), y.requires_grad) == (x.stride(), True)
    assert torch.equal(y.detach().cpu(), x.detach().cpu())
    assert y.grad is not None
    assert y.grad.data_ptr() != x.grad.data_ptr()


def test_a_deep_copy_of_a_module_keeps_what_its_parts_share(device: torch.device) -> None:
    first, second = torch.nn.Linear(3, 3, device=device), torch.nn.Linear(3, 3, device=device)
    second.weight = first.weight
    norm = torch.nn.BatchNorm1d(3, device=device)
    first_copy, norm_copy, second_copy = copy.deepcopy((first, norm, second))
    assert first_copy.weight is second_copy.weight
    assert first_copy.weight is not first.weight
    assert torch.equal(first_copy.weight.cpu(), first.weight.cpu())
    assert norm_copy.running_mean is not None
    assert norm_copy.running_mean.device == device


def test_a_deep_copy_of_a_storage_is_made_once(device: torch.device) -> None:
    storage = bytes_on(device, 1, 2)
    first, second = copy.deepcopy([storage, storage])
    assert first is second
    assert first.tolist() == [1, 2]
    assert first.data_ptr() != storage.data_ptr()


# Files ---------------------------------------------------------------------------------------------------------------


def through_a_file(value: Any, **options: Any) -> Any:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, **options)


LOCATIONS: dict[str, tuple[Any, str]] = {
    "none": (None, "mtia:0"),
    "cpu": ("cpu", "cpu"),
    "mtia": ("mtia", "mtia:0"),
    "mtia:0": ("mtia:0", "mtia:0"),
    "device cpu": (torch.device("cpu"), "cpu"),
    "device mtia": (torch.device("mtia"), "mtia:0"),
    "dict": ({"mtia:0": "cpu"}, "cpu"),
}


@pytest.mark.parametrize("location", LOCATIONS)
def test_a_tensor_is_loaded_where_map_location_says(location: str) -> None:
    map_location, expected = LOCATIONS[location]
    x = torch.arange(6.0, device="mtia").view(2, 3).t()
    y = through_a_file(x, map_location=map_location)
    assert y.device == torch.device(expected)
    assert y.stride() == x.stride()
    assert torch.equal(y.cpu(), x.cpu())


@pytest.mark.parametrize("location", [*LOCATIONS, "function"])
def test_a_storage_is_loaded_where_map_location_says(location: str) -> None:
    locations = LOCATIONS | {"function": (lambda storage, _: storage, "cpu")}
    map_location, expected = locations[location]
    storage = torch.arange(6, dtype=torch.uint8, device="mtia").untyped_storage()
    loaded = through_a_file(storage, map_location=map_location, weights_only=False)
    assert loaded.device == torch.device(expected)
    assert loaded.tolist() == list(range(6))


@pytest.mark.parametrize(
    "map_location", ["mtia", "mtia:0", torch.device("mtia"), lambda storage, _: storage.to(device="mtia")]
)
def test_a_file_of_the_cpu_is_loaded_on_the_device(map_location: str | torch.device | Callable[..., Any]) -> None:
    whole = torch.arange(6.0)
    x, part = through_a_file([whole, whole[2:4]], map_location=map_location)
    assert x.device == part.device == torch.device("mtia:0")
    assert torch.equal(x.cpu(), whole)
    x.zero_()
    assert part.tolist() == [0, 0]  # still a part of the other


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64], ids=str)
@pytest.mark.parametrize("shape", [(), (0, 3), (4,)], ids=str)
def test_any_tensor_survives_a_file(device: torch.device, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    x = torch.ones(shape, dtype=dtype, device=device)
    torch.testing.assert_close(through_a_file(x), x)
    torch.testing.assert_close(pickle.loads(pickle.dumps(x)), x)


@torch.no_grad()
def test_requires_grad_survives_a_file_without_grad_mode(device: torch.device) -> None:
    assert through_a_file(torch.ones(2, device=device, requires_grad=True)).requires_grad


def test_requires_grad_survives_a_file(device: torch.device) -> None:
    x = through_a_file(torch.ones(2, device=device, requires_grad=True))
    assert x.requires_grad
    assert x.is_leaf


@pytest.mark.parametrize("options", [{}, {"_use_new_zipfile_serialization": False}], ids=["zip", "old format"])
@pytest.mark.parametrize("map_location", [None, "cpu"])
def test_tensors_that_share_memory_share_it_after_a_file(
    device: torch.device, options: dict[str, bool], map_location: str | None
) -> None:
    whole = torch.arange(6.0, device=device)
    file = io.BytesIO()
    torch.save({"whole": whole, "part": whole[2:4], "other": torch.arange(3, device=device)}, file, **options)
    file.seek(0)
    loaded = torch.load(file, map_location=map_location)
    assert loaded["other"].tolist() == [0, 1, 2]
    assert loaded["whole"].tolist() == [0, 1, 2, 3, 4, 5]
    loaded["whole"].zero_()
    assert loaded["part"].tolist() == [0, 0]
    assert loaded["part"].device == (torch.device("cpu") if map_location else device)


def test_lazily_conjugated_and_negated_tensors_survive_a_file(device: torch.device) -> None:
    x = torch.tensor([1 + 2j, 3 - 4j], device=device)
    assert torch.equal(through_a_file(x.conj()), x.conj())
    assert torch.equal(through_a_file(x.conj().imag), x.conj().imag)


def test_parameters_survive_a_file(device: torch.device) -> None:
    parameter = through_a_file(torch.nn.Parameter(torch.ones(2, device=device)), weights_only=False)
    assert isinstance(parameter, torch.nn.Parameter)
    assert (parameter.device, parameter.requires_grad) == (device, True)


@pytest.mark.parametrize("mmap", [False, True], ids=["read", "mmap"])
def test_training_resumes_from_a_checkpoint(device: torch.device, tmp_path: Path, mmap: bool) -> None:
    def make() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        model = torch.nn.Linear(3, 2, device=device)
        return model, torch.optim.Adam(model.parameters(), lr=0.1)

    def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> torch.Tensor:
        optimizer.zero_grad()
        model(torch.ones(4, 3, device=device)).square().sum().backward()
        optimizer.step()
        return next(model.parameters()).detach().cpu().clone()

    model, optimizer = make()
    step(model, optimizer)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "checkpoint.pt")
    expected = step(model, optimizer)
    model, optimizer = make()
    loaded = torch.load(tmp_path / "checkpoint.pt", map_location=device, mmap=mmap)
    model.load_state_dict(loaded["model"])
    optimizer.load_state_dict(loaded["optimizer"])
    torch.testing.assert_close(step(model, optimizer), expected)


def test_what_parts_of_a_module_share_they_share_after_a_move(device: torch.device) -> None:
    embedding, head = torch.nn.Embedding(4, 3), torch.nn.Linear(3, 4)
    head.weight = embedding.weight
    model = torch.nn.Sequential(embedding, torch.nn.Sequential(head)).to(device)
    assert head.weight is embedding.weight
    assert head.weight.device == device
    assert len(list(model.parameters())) == 2


@pytest.mark.in_tree("PyTorch changes the tensors of parameters in place between the device types of its own only")
def test_a_module_moves_there_and_back(device: torch.device) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    expected = {name: value.clone() for name, value in model.state_dict().items()}
    parameter = model[0].weight
    for moved in (model.to(device), model.double(), model.float(), model.cpu()):
        assert moved is model
        assert model[0].weight is parameter  # an optimizer made before the move goes on working
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, expected[name])


def test_loading_on_a_device_that_does_not_exist_says_so() -> None:
    with pytest.raises(RuntimeError, match=r"device 7 but torch.mtia.device_count\(\) is 1"):
        through_a_file(torch.ones(2), map_location="mtia:7")


def test_a_tensor_of_the_second_device_is_loaded_on_the_second(run_script: RunScript) -> None:
    finished = run_script(
        """
        import io, torch
        file = io.BytesIO()
        torch.save(torch.arange(3, device="mtia:1"), file)
        for map_location, index in ((None, 1), ("mtia:0", 0), ({"mtia:1": "mtia:0"}, 0)):
            file.seek(0)
            x = torch.load(file, map_location=map_location)
            assert x.device.index == index and x.tolist() == [0, 1, 2]
        """,
        TORCH_MTIA_DEVICES="2",
    )
    finished.output()
