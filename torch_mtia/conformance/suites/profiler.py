"""torch.profiler with what the device reports, the counter of floating-point operations, and the timer."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils import benchmark
from torch.utils.flop_counter import FlopCounterMode

from torch_mtia.conformance.agreement import network, numbers
from torch_mtia.conformance.database import CPU

pytestmark = pytest.mark.filterwarnings("ignore")


def activity_of(device: torch.device) -> Any:
    """What the profiler calls work of the device."""
    return getattr(ProfilerActivity, device.type.upper(), ProfilerActivity.PrivateUse1)


def activities(device: torch.device) -> list[Any]:
    return [*{ProfilerActivity.CPU, activity_of(device)}]


def profiled(device: torch.device, work: Callable[[], Any], **options: Any) -> Any:
    with profile(activities=activities(device), **options) as made:
        work()
        if device != CPU:
            torch.accelerator.synchronize()
    return made


def product(device: torch.device) -> Callable[[], torch.Tensor]:
    x, y = numbers(32, 64, device=device), numbers(64, 48, device=device)
    return lambda: torch.mm(x, y).relu()


def of_the_host(made: Any) -> dict[str, Any]:
    """The last event of each name. Work of the device may have the name of the operator that caused it."""
    return {event.name: event for event in made.events() if event.device_type == DeviceType.CPU}


def averages_of(made: Any) -> dict[str, Any]:
    return {event.key: event for event in made.key_averages() if event.device_type == DeviceType.CPU}


def count(made: Any, name: str) -> int:
    return sum(event.name == name and event.device_type == DeviceType.CPU for event in made.events())


def of_the_device(made: Any) -> list[Any]:
    return [event for event in made.events() if event.device_type != DeviceType.CPU]


def trace_of(made: Any, path: Path) -> list[dict[str, Any]]:
    made.export_chrome_trace(str(path))
    data = path.read_bytes()
    events: list[dict[str, Any]] = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)["traceEvents"]
    return events


def test_activities(device: torch.device) -> None:
    assert {*activities(device)} <= torch.profiler.supported_activities()


def test_operators_are_named(device: torch.device) -> None:
    made = profiled(device, product(device), record_shapes=True)
    found = of_the_host(made)
    assert {"aten::mm", "aten::relu"} <= found.keys()
    assert found["aten::mm"].input_shapes[:2] == [[32, 64], [64, 48]]
    assert found["aten::mm"].cpu_time_total > 0
    assert made.events().total_average() is not None


def test_averages(device: torch.device) -> None:
    work = product(device)
    averages = averages_of(profiled(device, lambda: [work() for _ in range(7)]))
    assert averages["aten::mm"].count == 7
    assert averages["aten::mm"].cpu_time_total >= averages["aten::mm"].self_cpu_time_total > 0


@pytest.mark.parametrize("order", ["cpu_time_total", "self_cpu_time_total", "count", "device_time_total"])
def test_tables(device: torch.device, order: str) -> None:
    made = profiled(device, product(device), record_shapes=True)
    assert "aten::mm" in made.key_averages(group_by_input_shape=True).table(sort_by=order, row_limit=50)


def test_work_of_the_device(accelerator: torch.device) -> None:
    """It has a name, lies in the time of the profile, and counts as the time of the operator that caused it."""
    made = profiled(accelerator, product(accelerator))
    events = of_the_device(made)
    assert len(events) >= 2  # a product and a comparison
    assert all(event.name and event.time_range.elapsed_us() >= 0 for event in events)
    assert averages_of(made)["aten::mm"].device_time_total > 0
    start = min(event.time_range.start for event in made.events() if event.device_type == DeviceType.CPU)
    assert all(event.time_range.start >= start - 1000 for event in events)


def test_work_of_the_device_alone(accelerator: torch.device) -> None:
    with profile(activities=[activity_of(accelerator)]) as made:
        product(accelerator)()
        torch.accelerator.synchronize()
    assert of_the_device(made)
    assert "aten::mm" not in of_the_host(made)


def test_work_of_two_streams(accelerator: torch.device) -> None:
    streams = [torch.Stream(accelerator) for _ in range(2)]
    work = product(accelerator)
    torch.accelerator.synchronize()

    def both() -> None:
        for stream in streams:
            with stream:
                work()

    assert len({event.device_resource_id for event in of_the_device(profiled(accelerator, both))}) >= 2


def test_copies_are_seen(accelerator: torch.device) -> None:
    host = numbers(1 << 16)
    made = profiled(accelerator, lambda: host.to(accelerator).cpu())
    assert count(made, "aten::copy_") >= 2
    assert len(of_the_device(made)) >= 2


def test_ranges_of_ones_own(device: torch.device) -> None:
    work = product(device)

    @record_function("decorated")
    def decorated() -> None:
        work()

    def ranges() -> None:
        with record_function("outer"), record_function("inner"):
            work()
        decorated()

    events = of_the_host(profiled(device, ranges))
    assert events["inner"].cpu_parent.name == "outer"
    assert {child.name for child in events["inner"].cpu_children} >= {"aten::mm", "aten::relu"}
    assert "aten::mm" in {child.name for child in events["decorated"].cpu_children}


def test_backward_is_seen(device: torch.device) -> None:
    weight = numbers(8, 8, device=device).requires_grad_()
    events = profiled(device, lambda: (weight @ weight).sum().backward()).events()
    names = {event.name for event in events}
    assert "MmBackward0" in names
    assert "autograd::engine::evaluate_function: MmBackward0" in names
    forward = [event.sequence_nr for event in events if event.name == "aten::mm" and event.sequence_nr >= 0]
    backward = [event.sequence_nr for event in events if event.name == "MmBackward0"]
    assert set(backward) <= set(forward)


def test_memory(device: torch.device) -> None:
    made = profiled(device, lambda: torch.empty(1 << 16, device=device), profile_memory=True)
    used = averages_of(made)["aten::empty"]
    assert (used.cpu_memory_usage if device == CPU else used.device_memory_usage) >= 4 << 16


def test_operations_are_counted(device: torch.device) -> None:
    averages = averages_of(profiled(device, product(device), with_flops=True))
    assert averages["aten::mm"].flops == 2 * 32 * 64 * 48


def test_modules_and_stacks(device: torch.device) -> None:
    net, x = network(device), numbers(3, 4, device=device)
    made = profiled(device, lambda: net(x), with_stack=True, with_modules=True)
    assert any("Linear" in event.name for event in made.events())


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_traces(device: torch.device, tmp_path: Path, name: str) -> None:
    def ranges() -> None:
        with record_function("a range of mine"):
            product(device)()

    events = trace_of(profiled(device, ranges, record_shapes=True, profile_memory=True), tmp_path / name)
    spans = [event for event in events if event.get("ph") == "X"]
    assert {"aten::mm", "a range of mine"} <= {event["name"] for event in spans}
    for event in spans:
        assert event["dur"] >= 0
        assert event["ts"] > 0
        assert {"pid", "tid", "cat"} <= event.keys()
    if device != CPU:
        assert any(event["cat"] not in ("cpu_op", "user_annotation", "Trace", "Operator") for event in spans)


def test_a_schedule(device: torch.device, tmp_path: Path) -> None:
    ready = []
    work = product(device)

    def on_trace_ready(made: Any) -> None:
        ready.append(count(made, "aten::mm"))
        torch.profiler.tensorboard_trace_handler(str(tmp_path))(made)

    with profile(
        activities=activities(device),
        schedule=torch.profiler.schedule(wait=1, warmup=1, active=2, repeat=2),
        on_trace_ready=on_trace_ready,
    ) as made:
        for _ in range(9):
            work()
            made.step()
    assert ready == [2, 2]
    assert list(tmp_path.glob("*.pt.trace.json"))


def test_profiles_follow_each_other(device: torch.device) -> None:
    work = product(device)
    expected = work()
    for _ in range(3):
        made = profiled(device, work)
        assert torch.equal(work(), expected)
        assert count(made, "aten::mm") == 1


def test_an_error_ends_the_profile(device: torch.device) -> None:
    with pytest.raises(ZeroDivisionError), profile(activities=activities(device)):
        raise ZeroDivisionError
    assert count(profiled(device, product(device)), "aten::mm") == 1


def test_the_record_of_execution(device: torch.device, tmp_path: Path) -> None:
    observer = torch.profiler.ExecutionTraceObserver().register_callback(str(tmp_path / "record.json"))
    observer.start()
    product(device)()
    observer.stop()
    observer.unregister_callback()
    nodes = json.loads((tmp_path / "record.json").read_text())["nodes"]
    assert "aten::mm" in {node["name"] for node in nodes}
    assert str(device) in (tmp_path / "record.json").read_text()


# Counting and timing -------------------------------------------------------------------------------------------------

COUNTED: dict[str, tuple[Callable[[torch.device], Any], int]] = {
    "mm": (lambda d: numbers(3, 4, device=d) @ numbers(4, 5, device=d), 2 * 3 * 4 * 5),
    "bmm": (lambda d: numbers(2, 3, 4, device=d) @ numbers(2, 4, 5, device=d), 2 * 2 * 3 * 4 * 5),
    "linear": (
        lambda d: torch.nn.functional.linear(numbers(3, 4, device=d), numbers(5, 4, device=d), numbers(5, device=d)),
        2 * 3 * 4 * 5,
    ),
    "conv2d": (
        lambda d: torch.nn.functional.conv2d(numbers(1, 3, 6, 6, device=d), numbers(4, 3, 3, 3, device=d)),
        2 * 4 * 4 * 4 * 3 * 9,
    ),
    "backward": (lambda d: (numbers(3, 4, device=d).requires_grad_() @ numbers(4, 5, device=d)).sum().backward(), 240),
}


@pytest.mark.parametrize("name", COUNTED)
def test_the_counter_of_operations(device: torch.device, name: str) -> None:
    call, expected = COUNTED[name]
    with FlopCounterMode(display=False) as counter:
        call(device)
    assert counter.get_total_flops() == expected


def test_the_counter_of_operations_by_module(device: torch.device) -> None:
    net = network(device)
    with FlopCounterMode(display=False) as counter:
        net(numbers(3, 4, device=device))
    counts = counter.get_flop_counts()
    assert sum(counts["Sequential.0"].values()) == 2 * 3 * 4 * 8
    assert sum(counts["Sequential.2"].values()) == 2 * 3 * 8 * 3


def test_the_timer(device: torch.device) -> None:
    timer = benchmark.Timer("torch.mm(x, x)", globals={"torch": torch, "x": numbers(64, 64, device=device)})
    measured = timer.timeit(10)
    assert measured.number_per_run == 10
    assert measured.mean > 0
    assert timer.blocked_autorange(min_run_time=0.01).median > 0
