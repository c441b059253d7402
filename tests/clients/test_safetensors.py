"""safetensors reads from, and writes to, the device."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, load_model, save_file, save_model


@pytest.fixture
def file(tmp_path: Path, device: torch.device) -> Path:
    path = tmp_path / "tensors"
    save_file({"a": torch.arange(6.0, device=device).view(2, 3), "b": torch.ones(3, dtype=torch.bfloat16)}, path)
    return path


def test_a_file_is_loaded_to_the_device(file: Path, device: torch.device) -> None:
    for name in (device.type, str(device), 0):
        loaded = load_file(file, device=name)
        assert {tensor.device for tensor in loaded.values()} == {device}
        assert torch.equal(loaded["a"].cpu(), torch.arange(6.0).view(2, 3))
    assert load_file(file)["a"].device.type == "cpu"


def test_parts_of_a_file_are_loaded_to_the_device(file: Path, device: torch.device) -> None:
    with safe_open(file, framework="pt", device=str(device)) as opened:
        assert opened.get_tensor("b").device == device
        assert torch.equal(opened.get_slice("a")[:, 1:].cpu(), torch.tensor([[1.0, 2.0], [4.0, 5.0]]))


def test_a_model_is_saved_and_loaded(tmp_path: Path, device: torch.device) -> None:
    saved, loaded = (torch.nn.Linear(3, 3, device=device) for _ in range(2))
    save_model(saved, str(tmp_path / "model"))
    load_model(loaded, tmp_path / "model", device=str(device))
    assert torch.equal(saved.weight, loaded.weight)


def test_a_device_that_there_is_not_raises(file: Path) -> None:
    with pytest.raises(SafetensorError):
        load_file(file, device="nowhere")
