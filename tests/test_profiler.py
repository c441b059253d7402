"""torch.profiler shows the device's work on the rows of its streams, and credits it to the operators that caused it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from torch_mtia.environment import settings

if TYPE_CHECKING:
    from tests.conftest import RunScript

BOTH = (ProfilerActivity.CPU, ProfilerActivity.MTIA)
Event = dict[str, Any]
# Categories of a trace.
RUNS, SUBMISSIONS = ("kernel", "privateuse1_runtime") if settings().privateuse1 else ("mtia_ccp_events", "mtia_runtime")


@pytest.fixture(autouse=True)
def _needs_the_device(device: torch.device) -> None:
    if device.type == "cpu":
        pytest.skip("about the device's own events")


@pytest.fixture
def x() -> torch.Tensor:
    """Large enough that its work is queued."""
    return torch.ones(1024, 1024, device="mtia")


def profiled(work: Callable[[], object], **options: Any) -> profile:
    torch.mtia.synchronize()
    result: profile
    with profile(activities=BOTH, **options) as result:
        work()
    return result


def trace_of(result: profile, folder: Path) -> list[Event]:
    path = folder / "trace.json"
    result.export_chrome_trace(str(path))
    events: list[Event] = json.loads(path.read_text())["traceEvents"]
    return events


def runs(trace: list[Event]) -> list[Event]:
    return [event for event in trace if event.get("cat") == RUNS]


def launches(trace: list[Event]) -> list[Event]:
    return [event for event in trace if event.get("cat") == SUBMISSIONS]


def averages(result: profile) -> dict[tuple[str, DeviceType], Any]:
    return {(row.key, row.device_type): row for row in result.key_averages()}


def test_the_device_is_among_the_supported_activities() -> None:
    assert ProfilerActivity.MTIA in torch.profiler.supported_activities()


def test_each_item_is_on_the_row_of_its_stream(x: torch.Tensor, tmp_path: Path) -> None:
    other = torch.Stream("mtia")

    def work() -> None:
        x.exp()
        with other:
            x.tanh()

    trace = trace_of(profiled(work), tmp_path)
    rows = {event["name"]: (event["pid"], event["tid"]) for event in runs(trace)}
    default = torch.mtia.default_stream().stream_id
    assert rows == {"aten::exp": (0, default), "aten::tanh": (0, other.stream_id)}
    named = {
        (event["pid"], event["tid"], event["args"]["name"])
        for event in trace
        if event["name"] == "thread_name" and event["pid"] == 0
    }
    assert (0, other.stream_id, f"stream {other.stream_id}") in named


def test_an_item_is_connected_with_its_call_and_its_operator(x: torch.Tensor, tmp_path: Path) -> None:
    trace = trace_of(profiled(lambda: x @ x), tmp_path)
    (run,) = runs(trace)
    (launch,) = launches(trace)
    operator = next(event for event in trace if event["name"] == "aten::mm" and event.get("cat") == "cpu_op")
    assert run["args"]["External id"] == launch["args"]["External id"] == operator["args"]["External id"]
    assert run["args"]["correlation"] == launch["args"]["correlation"]

    begin, end = sorted((event for event in trace if event.get("cat") == "ac2g"), key=lambda event: event["ts"])
    assert (begin["ph"], begin["tid"], end["ph"], end["tid"]) == ("s", launch["tid"], "f", run["tid"])
    assert begin["id"] == end["id"]

    assert operator["tid"] == launch["tid"]
    assert operator["ts"] <= launch["ts"] <= run["ts"]
    assert launch["ts"] + launch["dur"] <= operator["ts"] + operator["dur"]


def test_items_of_a_stream_do_not_overlap_and_keep_their_order(x: torch.Tensor, tmp_path: Path) -> None:
    names = ["exp", "sin", "cos", "tanh", "sqrt", "abs"]
    items = runs(trace_of(profiled(lambda: [getattr(x, name)() for name in names]), tmp_path))
    items.sort(key=lambda event: event["ts"])
    assert [item["name"] for item in items] == [f"aten::{name}" for name in names]
    for first, second in itertools.pairwise(items):
        assert first["ts"] + first["dur"] <= second["ts"] + 0.001  # microseconds, to three digits


def test_copies_and_fills_are_items_too(tmp_path: Path) -> None:
    def work() -> None:
        torch.arange(1000.0).to("mtia").cpu()
        torch.zeros(1000, device="mtia")

    names = [event["name"] for event in runs(trace_of(profiled(work), tmp_path))]
    assert [name.split("::")[1] for name in names] == ["copy_", "memory_copy", "memory_fill"]


def test_small_work_that_runs_within_the_call_is_shown(tmp_path: Path) -> None:
    small = torch.ones(4, device="mtia")
    trace = trace_of(profiled(small.neg), tmp_path)
    (run,) = runs(trace)
    (launch,) = launches(trace)
    assert launch["ts"] <= run["ts"]
    assert run["ts"] + run["dur"] <= launch["ts"] + launch["dur"] + 0.001


def test_the_table_credits_operators_with_the_devices_time(x: torch.Tensor) -> None:
    result = profiled(lambda: [x.matmul(x) for _ in range(3)])
    rows = averages(result)
    on_device = rows["aten::mm", DeviceType.MTIA]
    assert on_device.count == 3
    assert on_device.self_device_time_total > 0
    operator = rows["aten::mm", DeviceType.CPU]
    assert operator.self_device_time_total == pytest.approx(on_device.self_device_time_total)
    # It has no work of its own, but its child does.
    around = rows["aten::matmul", DeviceType.CPU]
    assert around.self_device_time_total == 0
    assert around.device_time_total == pytest.approx(on_device.device_time_total)
    assert f"Self {x.device.type.upper()}" in result.key_averages().table(sort_by="self_device_time_total")


def test_a_range_is_credited_with_what_it_encloses(x: torch.Tensor) -> None:
    def work() -> None:
        with record_function("outer"):
            x.exp()
            with record_function("inner"):
                x.sin()

    rows = averages(profiled(work))
    exp = rows["aten::exp", DeviceType.MTIA].device_time_total
    sin = rows["aten::sin", DeviceType.MTIA].device_time_total
    assert rows["inner", DeviceType.CPU].device_time_total == pytest.approx(sin)
    assert rows["outer", DeviceType.CPU].device_time_total == pytest.approx(exp + sin)


def test_work_of_the_backward_pass_belongs_to_its_nodes(x: torch.Tensor, tmp_path: Path) -> None:
    leaf = x.clone().requires_grad_()
    trace = trace_of(profiled(lambda: leaf.exp().sum().backward()), tmp_path)
    calls = launches(trace)
    assert len({call["tid"] for call in calls}) == 2  # this thread and autograd's
    operators = {event["args"]["External id"] for event in trace if event.get("cat") == "cpu_op"}
    assert {call["args"]["External id"] for call in calls} <= operators


def test_everything_submitted_before_the_end_is_shown(x: torch.Tensor, tmp_path: Path) -> None:
    trace = trace_of(profiled(lambda: [x.exp() for _ in range(50)]), tmp_path)
    assert len(runs(trace)) == len(launches(trace)) == 50


@pytest.mark.filterwarnings("ignore:.*Profiler clears events at the end of each cycle")
def test_a_schedule_gives_a_trace_for_each_cycle(x: torch.Tensor, tmp_path: Path) -> None:
    found: list[list[str]] = []

    def ready(result: profile) -> None:
        found.append([event["name"] for event in runs(trace_of(result, tmp_path))])

    with profile(
        activities=BOTH, schedule=schedule(wait=1, warmup=1, active=2, repeat=2), on_trace_ready=ready
    ) as result:
        for step in range(8):
            (x.exp if step < 4 else x.sin)()
            result.step()
    assert found == [["aten::exp"] * 2, ["aten::sin"] * 2]


def test_memory_of_the_device_is_credited_to_operators(x: torch.Tensor) -> None:
    kept: list[torch.Tensor] = []

    def work() -> None:
        with record_function("allocate"):
            kept.append(x + 1)
        with record_function("free"):
            kept.clear()
        with record_function("come and go"):
            x + 1

    rows = averages(profiled(work, profile_memory=True))
    assert rows["allocate", DeviceType.CPU].device_memory_usage == x.nbytes
    assert rows["free", DeviceType.CPU].device_memory_usage == -x.nbytes
    assert rows["come and go", DeviceType.CPU].device_memory_usage == 0
    assert rows["aten::add", DeviceType.CPU].device_memory_usage == 2 * x.nbytes


def test_memory_outside_of_operators_has_an_event_of_its_own(x: torch.Tensor) -> None:
    kept = [x + 1]
    rows = averages(profiled(kept.clear, profile_memory=True))
    assert rows["[memory]", DeviceType.CPU].device_memory_usage == -x.nbytes


def test_the_trace_has_the_allocators_figures(x: torch.Tensor, tmp_path: Path) -> None:
    before = torch.accelerator.memory_allocated()
    kept: list[torch.Tensor] = []
    trace = trace_of(profiled(lambda: kept.append(x + 1), profile_memory=True), tmp_path)
    figures = [event["args"] for event in trace if event["name"] == "[memory]"]
    (allocation,) = [args for args in figures if args["Device Type"] == DeviceType.MTIA.value]
    assert allocation["Bytes"] == x.nbytes
    assert allocation["Total Allocated"] == before + x.nbytes == torch.accelerator.memory_allocated()
    assert allocation["Total Reserved"] == torch.accelerator.memory_reserved()
    assert allocation["Addr"] == kept[0].data_ptr()


@pytest.mark.filterwarnings("ignore:.*export_memory_timeline.*:FutureWarning")
def test_the_memory_timeline_is_that_of_the_device(tmp_path: Path) -> None:
    model = torch.nn.Linear(256, 256, device="mtia")
    inputs = torch.ones(64, 256, device="mtia")
    options = {"profile_memory": True, "record_shapes": True, "with_stack": True}
    result = profiled(lambda: model(inputs).sum().backward(), **options)
    path = tmp_path / "timeline.json"
    result.export_memory_timeline(str(path), device="mtia:0")
    times, sizes = json.loads(path.read_text())
    assert len(times) == len(sizes) > 2
    assert max(sum(size) for size in sizes) >= 2 * 256 * 256 * 4  # weight and gradient


def test_a_profile_of_the_cpu_does_not_touch_the_device(run_script: RunScript) -> None:
    script = """
        import torch
        from torch.profiler import ProfilerActivity, profile
        with profile(activities=[ProfilerActivity.CPU]) as result:
            torch.ones(3) + 1
        assert any(row.key == "aten::add" for row in result.key_averages())
        print(torch.mtia.is_initialized())
    """
    assert run_script(script).output() == "False\n"


@pytest.mark.wide
def test_the_device_may_be_used_first_while_a_profile_runs(run_script: RunScript) -> None:
    script = """
        import torch
        from torch.profiler import profile
        with profile() as result:
            torch.ones(3, device="mtia").exp()
        print(sum(row.count for row in result.key_averages() if row.device_type == torch.autograd.DeviceType.MTIA
                  and row.key == "aten::exp"))
    """
    assert run_script(script).output() == "1\n"


@pytest.mark.wide
def test_a_forked_child_may_profile_its_cpu_only(run_script: RunScript) -> None:
    script = """
        import os, torch
        from torch.profiler import ProfilerActivity, profile

        def child():
            with profile(activities=[ProfilerActivity.CPU]) as result:
                torch.ones(3) + 1
            assert any(row.key == "aten::add" for row in result.key_averages())
            try:
                with profile():
                    pass
            except RuntimeError as error:
                return 0 if "spawn" in str(error) else 1
            return 2

        torch.ones(3, device="mtia")
        pid = os.fork()
        if pid == 0:
            os._exit(child())
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    """
    assert run_script(script).output() == "0\n"


def test_each_device_has_its_rows(run_script: RunScript, tmp_path: Path) -> None:
    script = f"""
        import torch
        from torch.profiler import profile
        tensors = [torch.ones(1024, 1024, device=f"mtia:{{index}}") for index in range(2)]
        with profile() as result:
            for x in tensors:
                x.exp()
            tensors[1].copy_(tensors[0])
            for index in range(2):
                torch.mtia.synchronize(index)
        result.export_chrome_trace({str(tmp_path / "trace.json")!r})
    """
    run_script(script, TORCH_MTIA_DEVICES="2").output()
    trace = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert sorted(event["pid"] for event in runs(trace) if event["name"] == "aten::exp") == [0, 1]
    labels = {event["pid"]: event["args"]["labels"] for event in trace if event["name"] == "process_labels"}
    assert (labels[0], labels[1]) == ("mtia:0", "mtia:1")


def test_the_log_of_launches_names_device_stream_and_operator(run_script: RunScript) -> None:
    script = """
        import torch
        x = torch.ones(4, device="mtia:1")
        stream = torch.Stream("mtia:1")
        with stream:
            x.exp()
        print(stream.stream_id)
    """
    finished = run_script(script, TORCH_MTIA_LOG="launch", TORCH_MTIA_DEVICES="2")
    stream = int(finished.output())
    assert f"torch_mtia: launch mtia:1 stream {stream} aten::exp\n" in finished.stderr
    assert "torch_mtia: launch mtia:1 stream 0 " in finished.stderr


def test_nothing_is_logged_unless_asked_for(run_script: RunScript) -> None:
    assert run_script("import torch; torch.ones(4, device='mtia').exp()").stderr == ""


def test_work_of_an_operator_that_is_gone_keeps_its_name(x: torch.Tensor, tmp_path: Path) -> None:
    library = torch.library.Library("mtia_gone", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x * 2, "CPU")
    result = profiled(lambda: torch.ops.mtia_gone.twice(x))
    library._destroy()
    assert "mtia_gone::twice" in {event["name"] for event in runs(trace_of(result, tmp_path))}
