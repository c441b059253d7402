"""Libraries that read data: batches are pinned, and made on the device."""

from __future__ import annotations

import datasets
import torch
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader


def rows() -> datasets.Dataset:
    return datasets.Dataset.from_dict({"x": [[float(n), 2.0] for n in range(16)], "y": [n % 2 for n in range(16)]})


def test_datasets_are_on_the_device(device: torch.device) -> None:
    batch = next(iter(DataLoader(rows().with_format("torch", device=device.type), batch_size=4)))
    assert (batch["x"].device, batch["y"].device) == (device, device)
    assert batch["x"][:, 0].tolist() == [0.0, 1.0, 2.0, 3.0]


def test_datasets_are_mapped_on_the_device(device: torch.device) -> None:
    doubled = rows().with_format("torch", device=device.type).map(lambda row: {"z": row["x"] * 2})
    assert doubled[3]["z"].tolist() == [6.0, 4.0]


def test_batches_of_workers_are_pinned(device: torch.device) -> None:
    loader = DataLoader(rows().with_format("torch"), batch_size=8, pin_memory=True, num_workers=1)
    for batch in loader:
        assert batch["x"].is_pinned()
        assert batch["x"].to(device, non_blocking=True).sum().item() == batch["x"].sum().item()


def test_a_loader_goes_on_from_its_state(device: torch.device) -> None:
    values = list(torch.arange(8.0))
    loader: StatefulDataLoader[torch.Tensor] = StatefulDataLoader(values, batch_size=2, pin_memory=True)
    batches = iter(loader)
    assert next(batches).is_pinned()
    state = loader.state_dict()
    again: StatefulDataLoader[torch.Tensor] = StatefulDataLoader(values, batch_size=2, pin_memory=True)
    again.load_state_dict(state)
    assert [batch.to(device).tolist() for batch in again] == [[2.0, 3.0], [4.0, 5.0], [6.0, 7.0]]
