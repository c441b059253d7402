"""torch.accelerator: devices in every way to name one, streams, events, graphs."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import accelerator as acc

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("accelerator")]

N = 1 << 16

OF_A_DEVICE: dict[str, Callable[..., Any]] = {
    "synchronize": acc.synchronize,
    "current_stream": acc.current_stream,
    "get_device_capability": acc.get_device_capability,
    "get_memory_info": acc.get_memory_info,
    "memory_stats": acc.memory_stats,
    "memory_allocated": acc.memory_allocated,
    "memory_reserved": acc.memory_reserved,
    "max_memory_allocated": acc.max_memory_allocated,
    "max_memory_reserved": acc.max_memory_reserved,
    "reset_peak_memory_stats": acc.reset_peak_memory_stats,
    "reset_accumulated_memory_stats": acc.reset_accumulated_memory_stats,
}


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    """Each test begins and ends with the first device and its own stream."""
    gc.collect()
    index, stream = acc.current_device_index(), acc.current_stream()
    yield
    acc.set_device_index(index)
    acc.set_stream(stream)


# Devices -------------------------------------------------------------------------------------------------------------


def test_there_is_one(device: torch.device) -> None:
    assert acc.is_available()
    assert acc.device_count() >= 1
    for check in (False, True):
        assert acc.current_accelerator(check_available=check) == torch.device(device.type)
    assert str(device.type) == acc.current_accelerator().type  # type: ignore[union-attr]


@pytest.mark.parametrize("form", ["number", "name", "device"])
def test_the_device_is_set(device: torch.device, form: str) -> None:
    for index in range(acc.device_count()):
        name = f"{device.type}:{index}"
        value: Any = {"number": index, "name": name, "device": torch.device(name)}[form]
        acc.set_device_index(value)
        assert acc.current_device_index() == acc.current_device_idx() == index
        assert torch.ones(1, device=device.type).device.index == index
        assert acc.current_stream().device_index == index
    acc.set_device_idx(0)
    assert acc.current_device_index() == 0


def test_device_index_returns_to_the_device_before(second: torch.device) -> None:
    with acc.device_index(second.index):
        with acc.device_index(0):
            assert acc.current_device_index() == 0
        with acc.device_index(None):
            assert acc.current_device_index() == second.index
        assert acc.current_device_index() == second.index
    with pytest.raises(KeyError), acc.device_index(second.index):
        raise KeyError
    assert acc.current_device_index() == 0


def test_a_thread_begins_with_the_first_device(second: torch.device) -> None:
    found = []
    acc.set_device_index(second)
    thread = threading.Thread(target=lambda: found.append(acc.current_device_index()))
    thread.start()
    thread.join()
    assert found == [0]


def test_a_tensor_of_another_device_does_not_change_the_current_one(second: torch.device) -> None:
    (torch.ones(N, device=second) * 2).sum().item()
    assert acc.current_device_index() == 0


def test_the_current_device_of_backward(second: torch.device) -> None:
    x = torch.ones(N, device=second, requires_grad=True)
    (x * 3).sum().backward()
    assert x.grad is not None
    assert x.grad.device == second
    assert acc.current_device_index() == 0


def test_the_capability_names_dtypes_that_the_device_has(device: torch.device) -> None:
    found = acc.get_device_capability()["supported_dtypes"]
    assert torch.float32 in found
    for dtype in found:
        assert torch.zeros(3, dtype=dtype, device=device).dtype == dtype
    assert acc.get_device_capability(device) == acc.get_device_capability(device.index)


@pytest.mark.parametrize("name", OF_A_DEVICE)
def test_how_a_device_is_named(device: torch.device, name: str) -> None:
    function = OF_A_DEVICE[name]
    answers = [function(form) for form in (None, device.index, str(device), device, torch.device(device.type))]
    assert all(answer == answers[0] for answer in answers)
    with pytest.raises(ValueError, match="cpu"):
        function("cpu")


@pytest.mark.parametrize(
    "name", ["synchronize", "current_stream", "get_device_capability", "get_memory_info", "memory_stats"]
)
def test_a_device_that_is_not_there_is_refused(device: torch.device, name: str) -> None:
    with pytest.raises((RuntimeError, ValueError)):
        OF_A_DEVICE[name](acc.device_count())
    assert torch.ones(2, device=device).sum().item() == 2


def test_a_device_that_is_not_there_is_not_set(device: torch.device) -> None:
    for wrong in (acc.device_count(), "cpu", torch.device(device.type)):
        with pytest.raises((RuntimeError, ValueError)):
            acc.set_device_index(wrong)
    with pytest.raises(RuntimeError), acc.device_index(acc.device_count()):
        pass
    assert acc.current_device_index() == 0


# Streams -------------------------------------------------------------------------------------------------------------


def test_streams_are_set_and_compared(device: torch.device) -> None:
    before = acc.current_stream()
    stream = torch.Stream(device)
    assert stream != before
    assert before == acc.current_stream(device)
    assert stream.device == before.device == device
    acc.set_stream(stream)
    assert acc.current_stream() == stream
    assert hash(acc.current_stream()) == hash(stream)
    acc.set_stream(before)
    assert acc.current_stream() == before


def test_nested_streams(device: torch.device) -> None:
    before = acc.current_stream()
    first, second = torch.Stream(device), torch.Stream(device, priority=-1)
    with first:
        with second:
            assert acc.current_stream() == second
        assert acc.current_stream() == first
    assert acc.current_stream() == before


def test_a_stream_sets_its_device(second: torch.device) -> None:
    stream = torch.Stream(second)
    with stream:
        assert acc.current_device_index() == second.index
    assert acc.current_device_index() == 0
    acc.set_stream(stream)
    assert acc.current_device_index() == second.index


def test_synchronize_waits(device: torch.device) -> None:
    streams = [torch.Stream(device) for _ in range(3)]
    for stream in streams:
        with stream:
            torch.ones(N, device=device).exp().sum()
    acc.synchronize()
    assert all(stream.query() for stream in streams)


def test_a_stream_is_known_by_its_numbers(device: torch.device) -> None:
    stream = torch.Stream(device)
    numbers = {name: getattr(stream, name) for name in ("stream_id", "device_index", "device_type")}
    assert torch.Stream(**numbers) == stream
    assert len({torch.Stream(device) for _ in range(3)} | {stream}) > 1


def test_many_streams(device: torch.device) -> None:
    results = []
    for stream in [torch.Stream(device) for _ in range(100)]:
        with stream:
            results.append(torch.ones(100, device=device) * 2)
    acc.synchronize()
    assert torch.stack(results).sum().item() == 20_000


def test_a_stream_of_another_device_is_not_set(device: torch.device) -> None:
    before = acc.current_stream()
    with pytest.raises((RuntimeError, ValueError, TypeError)):
        acc.set_stream(torch.Stream("cpu"))
    assert acc.current_stream() == before == acc.current_stream(device)


# Events --------------------------------------------------------------------------------------------------------------


def test_events_of_streams(device: torch.device) -> None:
    first, second = torch.Stream(device), torch.Stream(device)
    with first:
        x = torch.ones(N, device=device).cumsum(0)
    event = first.record_event()
    second.wait_event(event)
    with second:
        y = x + 1
    second.synchronize()
    assert event.query()
    assert y[-1].item() == N + 1


def test_an_event_is_recorded_again(device: torch.device) -> None:
    event, x = torch.Event(device), torch.zeros(N, device=device)
    assert event.query()  # nothing to wait for
    for step in range(1, 4):
        x.add_(1)
        event.record()
        event.synchronize()
        assert event.query()
        assert x[0].item() == step


def test_time_between_events(device: torch.device) -> None:
    untimed = [torch.Event(device) for _ in range(2)]
    for event in untimed:
        event.record()
    with pytest.raises((RuntimeError, ValueError)):
        untimed[0].elapsed_time(untimed[1])
    timed = [torch.Event(device, enable_timing=True) for _ in range(3)]
    with pytest.raises((RuntimeError, ValueError)):
        timed[0].elapsed_time(timed[1])
    for event in timed:
        torch.ones(N, device=device).exp()
        event.record()
    acc.synchronize()
    first, second, both = (timed[i].elapsed_time(timed[j]) for i, j in ((0, 1), (1, 2), (0, 2)))
    assert first > 0
    assert second > 0
    assert both == pytest.approx(first + second, abs=0.01)


# Graphs --------------------------------------------------------------------------------------------------------------


def test_a_graph_is_replayed(device: torch.device) -> None:
    x = torch.zeros(N, device=device)
    x.add_(1)
    acc.synchronize()
    stream, graph = torch.Stream(device), acc.Graph()
    with stream, graph:
        y = x * 3
        x.add_(1)
    assert x.sum().item() == N  # captured, not run
    for _ in range(3):
        graph.replay()
    acc.synchronize()
    assert (x[0].item(), y[0].item()) == (4, 9)
    graph.reset()


def captured(graph: acc.Graph, device: torch.device, work: Callable[[], object]) -> acc.Graph:
    with torch.Stream(device), graph:
        work()
    return graph


def test_a_graph_that_is_kept(device: torch.device, tmp_path: Path) -> None:
    x = torch.zeros(8, device=device)
    graph = acc.Graph(keep_graph=True)
    graph.enable_debug_mode()
    captured(graph, device, lambda: x.add_(1)).instantiate()
    graph.replay()
    graph.replay()
    acc.synchronize()
    assert x.unique().tolist() == [2]
    graph.debug_dump(str(tmp_path / "graph"))
    assert (tmp_path / "graph").stat().st_size > 0


def test_graphs_share_a_pool(device: torch.device) -> None:
    x = torch.ones(8, device=device)
    first = captured(acc.Graph(), device, lambda: x.mul_(2))
    second = captured(acc.Graph(pool=first.pool()), device, lambda: x.copy_(x.exp().log() + 1))
    assert second.pool() == first.pool()
    for graph in (first, second, first):
        graph.replay()
    acc.synchronize()
    torch.testing.assert_close(x.cpu(), torch.full((8,), 6.0))


def test_a_graph_is_captured_again_after_a_reset(device: torch.device) -> None:
    x = torch.zeros(8, device=device)
    graph = acc.Graph()
    with pytest.raises(RuntimeError):
        graph.replay()
    captured(graph, device, lambda: x.add_(1))
    with pytest.raises(RuntimeError):
        captured(graph, device, lambda: x.add_(5))
    graph.reset()
    captured(graph, device, lambda: x.add_(7)).replay()
    acc.synchronize()
    assert x.unique().tolist() == [7]


def test_a_graph_cannot_wait_for_a_value(device: torch.device) -> None:
    x = torch.ones(8, device=device)
    captured(acc.Graph(), device, lambda: x.add_(1))  # what does not wait can be captured
    with pytest.raises(RuntimeError):
        captured(acc.Graph(), device, lambda: x.sum().item())
    assert (x + 1).sum().item() == 16


def test_a_graph_draws_new_numbers(device: torch.device) -> None:
    x = torch.zeros(64, device=device)
    graph = captured(acc.Graph(), device, lambda: x.uniform_())
    drawn = []
    for seed in (1, None, 1):
        if seed is not None:
            torch.manual_seed(seed)
        graph.replay()
        acc.synchronize()
        drawn.append(x.cpu())
    assert torch.equal(drawn[0], drawn[2])
    assert not torch.equal(drawn[0], drawn[1])
