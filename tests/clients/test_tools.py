"""Viewers read what the device writes."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.profiler import ProfilerActivity, profile, tensorboard_trace_handler
from torch.utils.tensorboard import SummaryWriter

from torch_mtia.door import device_module


def test_tensorboard_shows_tensors_of_the_device(tmp_path: Path, device: torch.device) -> None:
    layer = torch.nn.Linear(4, 2, device=device)
    with SummaryWriter(str(tmp_path)) as writer:
        writer.add_scalar("loss", torch.tensor(0.5, device=device), 1)
        writer.add_histogram("weight", layer.weight, 1)
        writer.add_image("picture", torch.rand(3, 8, 8, device=device), 1)
        writer.add_graph(layer, torch.ones(1, 4, device=device))
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert [event.value for event in events.Scalars("loss")] == [0.5]
    assert events.Tags()["histograms"] == ["weight"]
    assert events.Tags()["images"] == ["picture"]
    assert events.Tags()["graph"]


def test_the_viewer_of_profiles_reads_a_trace(tmp_path: Path, device: torch.device) -> None:
    data = pytest.importorskip("torch_tb_profiler.profiler.data")
    run = pytest.importorskip("torch_tb_profiler.profiler.loader")
    inputs = torch.ones(64, 64, device=device)
    activities = [ProfilerActivity.CPU, ProfilerActivity.MTIA]
    with profile(activities=activities, on_trace_ready=tensorboard_trace_handler(str(tmp_path), "worker")) as profiler:
        for _ in range(2):
            inputs @ inputs
            device_module().synchronize()
            profiler.step()
    loader = run.RunLoader("run", str(tmp_path), None)
    (only,) = loader.load().profiles.values()
    assert data
    assert any("mm" in str(row) for row in only.operation_table_by_name["data"])


def test_a_snapshot_of_memory_is_drawn(tmp_path: Path, device: torch.device) -> None:
    from torch.cuda import _memory_viz

    device_module().memory._record_memory_history(max_entries=100)
    try:
        kept = torch.ones(1024, device=device)
        snapshot = device_module().memory._snapshot()
    finally:
        device_module().memory._record_memory_history(enabled=None)
    (tmp_path / "snapshot").write_bytes(pickle.dumps(snapshot))
    page = _memory_viz.trace_plot(snapshot, device=device.index)
    assert kept.numel() == 1024
    assert "<script" in page
