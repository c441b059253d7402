"""Snapshots and history in the format of PyTorch's memory viewer, and the observers of running out of memory."""

from __future__ import annotations

import gc
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.cuda import _memory_viz

if TYPE_CHECKING:
    from tests.conftest import RunScript

SIZE = 3 << 20


@pytest.fixture
def _recording() -> Iterator[None]:
    torch.zeros(1, device="mtia")
    gc.collect()
    torch.mtia.empty_cache()
    torch.mtia.record_memory_history("all", "python", 100_000)
    yield
    torch.mtia.record_memory_history(None)


def an_allocation_with_a_name() -> torch.Tensor:
    return torch.empty(SIZE, dtype=torch.uint8, device="mtia")


def blocks(snapshot: dict[str, Any]) -> list[dict[str, Any]]:
    return [block for segment in snapshot["segments"] for block in segment["blocks"]]


@pytest.mark.usefixtures("_recording")
def test_a_snapshot_shows_where_memory_was_allocated() -> None:
    x = an_allocation_with_a_name()
    snapshot = torch.mtia.snapshot()
    (block,) = [block for block in blocks(snapshot) if block["address"] == x.data_ptr()]
    assert block["requested_size"] == block["size"] == SIZE
    assert block["state"] == "active_allocated"
    assert "an_allocation_with_a_name" in [frame["name"] for frame in block["frames"]]


@pytest.mark.usefixtures("_recording")
def test_a_snapshot_accounts_for_every_byte() -> None:
    x = an_allocation_with_a_name()
    segments = torch.mtia.snapshot()["segments"]
    assert sum(segment["total_size"] for segment in segments) == torch.accelerator.memory_reserved()
    assert sum(segment["allocated_size"] for segment in segments) == torch.accelerator.memory_allocated()
    for segment in segments:
        assert sum(block["size"] for block in segment["blocks"]) == segment["total_size"]
    del x


@pytest.mark.usefixtures("_recording")
def test_the_history_has_every_step() -> None:
    x = an_allocation_with_a_name()
    address = x.data_ptr()
    del x
    torch.mtia.empty_cache()
    (trace,) = torch.mtia.snapshot()["device_traces"]
    actions = [entry["action"] for entry in trace if entry.get("addr") == address]
    assert actions == ["segment_alloc", "alloc", "free_requested", "free_completed", "segment_free"]
    assert trace[-1]["action"] == "snapshot"
    times = [entry["time_us"] for entry in trace]
    assert times == sorted(times)


@pytest.mark.usefixtures("_recording")
def test_the_memory_viewer_reads_a_snapshot() -> None:
    x = an_allocation_with_a_name()
    snapshot = torch.mtia.snapshot()
    del x
    pickle.loads(pickle.dumps(snapshot))
    for plot in (_memory_viz.trace_plot, _memory_viz.segment_plot):
        assert "<html>" in plot(snapshot).lower() or "<!doctype html>" in plot(snapshot).lower()
    assert "3.0MiB" in _memory_viz.trace(snapshot)


def test_without_history_a_snapshot_has_segments_only() -> None:
    x = an_allocation_with_a_name()
    snapshot = torch.mtia.snapshot()
    (block,) = [block for block in blocks(snapshot) if block["address"] == x.data_ptr()]
    assert block["frames"] == []
    assert snapshot["device_traces"] == [[]]


def test_the_state_mode_keeps_stacks_but_no_history() -> None:
    torch.mtia.record_memory_history("state")
    x = an_allocation_with_a_name()
    snapshot = torch.mtia.snapshot()
    torch.mtia.record_memory_history(None)
    (block,) = [block for block in blocks(snapshot) if block["address"] == x.data_ptr()]
    assert block["frames"]
    assert snapshot["device_traces"] == [[]]


def test_the_latest_entries_are_kept() -> None:
    torch.mtia.record_memory_history("all", "python", 4)
    for _ in range(10):
        an_allocation_with_a_name()
    (trace,) = torch.mtia.snapshot()["device_traces"]
    torch.mtia.record_memory_history(None)
    assert [entry["action"] for entry in trace][-2:] == ["free_completed", "snapshot"]
    assert len(trace) == 4


@pytest.mark.parametrize(("enabled", "stacks", "named"), [("some", "python", "enabled"), ("all", "c++", "stacks")])
def test_other_modes_are_refused(enabled: str, stacks: str, named: str) -> None:
    with pytest.raises(ValueError, match=f"`{named}` must be"):
        torch.mtia.record_memory_history(enabled, stacks, 0)


def test_observers_are_called_before_out_of_memory_is_raised(run_script: RunScript) -> None:
    finished = run_script(
        """
        import torch
        calls = []
        def fails(*figures):
            raise RuntimeError("an observer's own error")
        torch.mtia.attach_out_of_memory_observer(fails)
        torch.mtia.attach_out_of_memory_observer(lambda *figures: calls.append(figures))
        x = torch.ones(2**26, dtype=torch.uint8, device="mtia")
        try:
            torch.empty(2**30, dtype=torch.uint8, device="mtia")
        except torch.OutOfMemoryError:
            calls.append("raised")
        free, total = torch.accelerator.get_memory_info()
        assert calls == [(0, 2**30, total, free), "raised"], calls
        """,
        TORCH_MTIA_MEMORY="512M",
    )
    finished.output()
    assert "an observer's own error" in finished.stderr


def test_an_observer_must_be_callable() -> None:
    with pytest.raises(TypeError, match=r"(?i)callable"):
        torch.mtia.attach_out_of_memory_observer(1)  # type: ignore[arg-type]


@pytest.mark.in_tree("the example uses torch.mtia")
def test_the_example(tmp_path: Path) -> None:
    """It draws a snapshot, in which the blocks of the last forward pass have their stacks."""
    example = Path(__file__).parent.parent / "examples" / "memory_snapshot.py"
    subprocess.run([sys.executable, example, "--picture", "snapshot.png"], cwd=tmp_path, check=True, timeout=120)
    assert (tmp_path / "snapshot.png").stat().st_size > 0
    snapshot = pickle.loads((tmp_path / "snapshot.pickle").read_bytes())
    assert "forward" in {frame["name"] for block in blocks(snapshot) for frame in block.get("frames", ())}
