"""Streams run their work in order, different streams concurrently, and events are the only order between them."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
import torch

if TYPE_CHECKING:
    from tests.conftest import RunScript

LARGE = 2**24  # elements: work that no driver runs on the calling thread
LINKS = 40


def submit_large_work(value: float = 1.0) -> torch.Tensor:
    """Enqueues work that keeps the current stream busy for hundreds of milliseconds; every element ends as `value`."""
    x = torch.full((LARGE,), value - LINKS, device="mtia")
    for _ in range(LINKS):
        x.add_(1)
    return x


def every_element_is(x: torch.Tensor, value: float) -> bool:
    host = x.cpu()
    return bool((host == value).all())


def test_a_stream_runs_in_order() -> None:
    x = submit_large_work(3.0)
    small = x[:16] * 2  # small work, behind large work
    assert small.tolist() == [6.0] * 16
    assert every_element_is(x, 3.0)


def test_a_launch_does_not_wait_for_its_work() -> None:
    x = submit_large_work()
    assert not torch.mtia.current_stream().query()
    torch.mtia.synchronize()
    assert torch.mtia.current_stream().query()
    assert every_element_is(x, 1.0)


def test_no_launch_waits_not_even_the_first_of_an_operator(run_script: RunScript) -> None:
    script = """
        import threading
        import torch, torch_mtia
        dtypes = (torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.complex64)
        inputs = [torch.ones(64, 64, device="mtia").to(dtype) for dtype in dtypes]
        index = torch.zeros(4, 4, device="mtia", dtype=torch.long)
        stream = torch.mtia.current_stream()
        stream.synchronize()
        gate = threading.Event()
        opened = []
        torch_mtia.launch_host_function(stream, lambda: opened.append(gate.wait(60)))
        for x in inputs:
            x @ x
            x.cumsum(0)
            x.gather(0, index)
            x.index_select(0, index[0])
            for length in range(1, 24):
                torch.cat([x] * length)
        y = inputs[0]
        y.sort()
        y.softmax(0)
        torch.nn.functional.embedding(index, y)
        torch.nn.functional.layer_norm(y, (64,))
        torch.nn.functional.conv1d(y[None], torch.ones(8, 64, 3, device="mtia"))
        gate.set()
        torch.mtia.synchronize()
        print(opened)
    """
    assert run_script(script).output() == "[True]\n"


def test_streams_run_concurrently() -> None:
    busy, free = torch.Stream("mtia"), torch.Stream("mtia")
    torch.mtia.synchronize()
    with torch.mtia.stream(busy):
        x = submit_large_work()
    with torch.mtia.stream(free):
        y = torch.ones(2**20, device="mtia") + 1
    free.synchronize()
    assert not busy.query()
    assert every_element_is(y, 2.0)
    busy.synchronize()
    assert every_element_is(x, 1.0)


def test_wait_stream_orders_two_streams() -> None:
    first, second = torch.Stream("mtia"), torch.Stream("mtia")
    with torch.mtia.stream(first):
        x = submit_large_work(5.0)
    second.wait_stream(first)
    with torch.mtia.stream(second):
        y = x + 1
    second.synchronize()
    assert every_element_is(y, 6.0)
    x.record_stream(second)


def test_an_event_orders_two_streams() -> None:
    first, second = torch.Stream("mtia"), torch.Stream("mtia")
    event = torch.Event("mtia")
    with torch.mtia.stream(first):
        x = submit_large_work(5.0)
        event.record()
    assert not event.query()
    event.wait(second)
    with torch.mtia.stream(second):
        y = x * 2
    event.synchronize()
    assert event.query()
    second.synchronize()
    assert every_element_is(y, 10.0)
    x.record_stream(second)


def test_work_before_the_event_is_all_that_a_waiter_waits_for() -> None:
    busy, waiter = torch.Stream("mtia"), torch.Stream("mtia")
    torch.mtia.synchronize()
    event = busy.record_event()
    with torch.mtia.stream(busy):
        x = submit_large_work()
    waiter.wait_event(event)
    waiter.synchronize()
    assert not busy.query()
    busy.synchronize()
    assert every_element_is(x, 1.0)


def test_an_event_that_was_never_recorded_is_complete() -> None:
    event = torch.Event("mtia")
    assert event.query()
    event.synchronize()
    event.wait()
    torch.mtia.synchronize()


def test_recording_again_replaces_what_an_event_stands_for() -> None:
    event = torch.Event("mtia")
    event.record()
    event.synchronize()
    x = submit_large_work()
    event.record()
    assert not event.query()
    event.synchronize()
    assert event.query()
    assert every_element_is(x, 1.0)


def test_elapsed_time_of_two_events() -> None:
    start, middle, end = (torch.Event("mtia", enable_timing=True) for _ in range(3))
    start.record()
    submit_large_work()
    middle.record()
    submit_large_work()
    end.record()
    end.synchronize()
    assert start.elapsed_time(middle) > 0
    assert start.elapsed_time(end) == pytest.approx(start.elapsed_time(middle) + middle.elapsed_time(end), abs=1e-2)
    assert end.elapsed_time(start) == pytest.approx(-start.elapsed_time(end), abs=1e-2)


def test_elapsed_time_wants_events_with_timing() -> None:
    start, end = torch.Event("mtia"), torch.Event("mtia", enable_timing=True)
    start.record()
    end.record()
    torch.mtia.synchronize()
    with pytest.raises(ValueError, match="Both events must be created with argument 'enable_timing=True'"):
        start.elapsed_time(end)


def test_elapsed_time_wants_recorded_events() -> None:
    start, end = (torch.Event("mtia", enable_timing=True) for _ in range(2))
    start.record()
    with pytest.raises(ValueError, match="Both events must be recorded before calculating elapsed time"):
        start.elapsed_time(end)


def test_elapsed_time_wants_complete_events() -> None:
    start, end = (torch.Event("mtia", enable_timing=True) for _ in range(2))
    start.record()
    submit_large_work()
    end.record()
    with pytest.raises(RuntimeError, match="Both events must be completed before calculating elapsed time"):
        start.elapsed_time(end)


def test_the_default_stream_is_current_at_first() -> None:
    assert torch.mtia.current_stream() == torch.mtia.default_stream()
    assert torch.accelerator.current_stream() == torch.mtia.current_stream()
    assert torch.mtia.default_stream().stream_id == 0


def test_new_streams_differ_from_each_other_and_from_the_default() -> None:
    streams = [torch.Stream("mtia") for _ in range(4)]
    assert len({*streams, torch.mtia.default_stream()}) == 5
    assert all(stream.device == torch.device("mtia", 0) for stream in streams)


@pytest.mark.parametrize("priority", [-1, 0, -100, 100])
def test_any_priority_gives_a_working_stream(priority: int) -> None:
    with torch.mtia.stream(torch.Stream("mtia", priority=priority)):
        assert (torch.ones(3, device="mtia") + 1).tolist() == [2, 2, 2]


def test_many_streams_can_be_asked_for() -> None:
    streams = [torch.Stream("mtia") for _ in range(200)]
    for stream in streams:
        with torch.mtia.stream(stream):
            assert torch.ones(1, device="mtia").item() == 1


def test_contexts_restore_the_stream() -> None:
    outer, inner = torch.Stream("mtia"), torch.Stream("mtia")
    with torch.mtia.stream(outer):
        with torch.mtia.stream(inner):
            assert torch.mtia.current_stream() == inner
        with inner:
            assert torch.mtia.current_stream() == inner
        with torch.mtia.stream(None):
            assert torch.mtia.current_stream() == outer
        assert torch.mtia.current_stream() == outer
    assert torch.mtia.current_stream() == torch.mtia.default_stream()


def test_contexts_restore_the_stream_after_an_exception() -> None:
    def fail_in(context: torch.mtia.StreamContext | torch.Stream) -> None:
        with context:
            torch.ones(3, device="mtia") + torch.ones(4, device="mtia")

    stream = torch.Stream("mtia")
    for context in (torch.mtia.stream(stream), stream):
        with pytest.raises(RuntimeError, match="size of tensor"):
            fail_in(context)
        assert torch.mtia.current_stream() == torch.mtia.default_stream()


def test_the_current_stream_belongs_to_the_thread() -> None:
    stream = torch.Stream("mtia")
    with torch.mtia.stream(stream), ThreadPoolExecutor(1) as other:
        assert other.submit(torch.mtia.current_stream).result() == torch.mtia.default_stream()
        other.submit(torch.mtia.set_stream, torch.Stream("mtia")).result()
        assert torch.mtia.current_stream() == stream


def test_accelerator_set_stream() -> None:
    stream = torch.Stream()
    assert stream.device.type == "mtia"
    torch.accelerator.set_stream(stream)
    try:
        assert torch.mtia.current_stream() == stream
    finally:
        torch.accelerator.set_stream(torch.mtia.default_stream())


def test_threads_may_share_a_stream() -> None:
    def count(x: torch.Tensor) -> None:
        for _ in range(200):
            x.add_(1)

    small, large = torch.zeros(16, device="mtia"), torch.zeros(2**18, device="mtia")
    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(count, x) for x in (small, large) for _ in range(3)]:
            done.result()
    assert every_element_is(small, 600.0)
    assert every_element_is(large, 600.0)


def test_record_stream_keeps_memory_until_that_stream_is_done() -> None:
    side = torch.Stream("mtia")
    x = torch.ones(LARGE, device="mtia")
    side.wait_stream(torch.mtia.current_stream())
    with torch.mtia.stream(side):
        before = submit_large_work()
        y = x + 1
    x.record_stream(side)
    del x
    overwritten = torch.full((LARGE,), -1.0, device="mtia")
    torch.mtia.synchronize()
    assert every_element_is(y, 2.0)
    assert every_element_is(overwritten, -1.0)
    assert every_element_is(before, 1.0)


@pytest.mark.parametrize("lazy", [torch.conj, torch._neg_view])
def test_record_stream_of_a_lazy_view_is_of_its_memory(lazy: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """The general kernels of those views corrupt the heap for an operator that returns nothing, on every device."""
    in_use = torch.mtia.memory_allocated()
    side = torch.Stream("mtia")
    x = lazy(torch.ones(LARGE, dtype=torch.complex64, device="mtia"))
    side.wait_stream(torch.mtia.current_stream())
    with torch.mtia.stream(side):
        before = submit_large_work()
        y = lazy(x).real + 1
    x.record_stream(side)
    del x
    overwritten = torch.full((LARGE,), -1.0, dtype=torch.complex64, device="mtia")
    torch.mtia.synchronize()
    assert every_element_is(y, 2.0)
    assert every_element_is(overwritten.real, -1.0)
    assert every_element_is(before, 1.0)
    del y, overwritten, before
    assert torch.mtia.memory_allocated() == in_use


def test_an_event_of_one_device_orders_a_stream_of_another(run_script: RunScript) -> None:
    finished = run_script(
        """
        import torch
        x = torch.zeros(2**24, device="mtia:1")
        with torch.mtia.device(1):
            for _ in range(20):
                x.add_(1)
            event = torch.mtia.current_stream().record_event()
        event.wait(torch.mtia.current_stream(0))
        after = torch.mtia.current_stream(0).record_event()
        after.synchronize()
        assert event.query()
        stream = torch.Stream("mtia:1")
        with torch.mtia.stream(stream):
            assert torch.mtia.current_stream(1) == stream
        assert torch.mtia.current_stream(1) == torch.mtia.default_stream(1)
        assert x[-1].item() == 20
        """,
        TORCH_MTIA_DEVICES="2",
    )
    finished.output()
