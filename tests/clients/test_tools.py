"""Viewers read what the device writes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.cuda import _memory_viz
from torch.profiler import ProfilerActivity, profile, tensorboard_trace_handler
from torch.utils.tensorboard import SummaryWriter

from torch_mtia.backend import device_module


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
    from torch_tb_profiler.profiler.data import RunProfileData
    from torch_tb_profiler.profiler.run_generator import RunGenerator

    inputs = torch.ones(64, 64, device=device)
    activities = [ProfilerActivity.CPU, ProfilerActivity.MTIA]
    with profile(activities=activities, on_trace_ready=tensorboard_trace_handler(str(tmp_path), "worker")):
        inputs @ inputs
    (trace,) = tmp_path.iterdir()
    files = SimpleNamespace(read=lambda path: Path(path).read_bytes())
    shown = RunGenerator("worker", 1, RunProfileData.parse("worker", 1, str(trace), files)).generate_run_profile()
    assert "aten::mm" in {row["name"] for row in shown.operation_table_by_name["data"]}


@pytest.fixture
def _recording() -> Iterator[None]:
    device_module().record_memory_history("all", "python", 1000)
    yield
    device_module().record_memory_history(None)


@pytest.mark.usefixtures("_recording")
def test_a_snapshot_of_memory_is_drawn(device: torch.device) -> None:
    kept = torch.ones(3, 1 << 18, device=device)
    snapshot = device_module().snapshot()
    assert "3.0MiB" in _memory_viz.trace(snapshot)
    assert "<script" in _memory_viz.trace_plot(snapshot)
    assert kept.is_contiguous()
