"""Whether a driver runs work as mtia_runtime.h says: streams, events, kernels. See driver.py."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from ctypes import byref, c_double, c_int32, c_int64, c_uint64, c_void_p
from functools import partial
from typing import Any

import pytest

from torch_mtia.conformance import driver_api
from torch_mtia.conformance.driver_api import DESTROY, RELOCATE, RUN, Driver, kernel_image, sized
from torch_mtia.conformance.driver_fixtures import (
    INTEGER,
    KEPT,
    ONE,
    POINTER,
    SECONDS,
    STORE,
    TO_DEVICE,
    TO_HOST,
    WITHIN,
    assert_waits_for_its_turn,
    destroy_stream,
    held,
    launch,
    launch_kernel,
    launch_late,
    new_stream,
    read,
    write,
)

# Streams and work -----------------------------------------------------------------------------------------------------


def test_work_of_a_stream_runs_in_order(api: Driver, stream: Any) -> None:
    ran: list[int] = []
    for number in range(100):
        assert launch(api, stream, partial(ran.append, number)) == "MTIA_SUCCESS"
    api("stream_synchronize", stream)
    assert ran == list(range(100))
    assert api.call("stream_query", stream) == "MTIA_SUCCESS"


def test_streams_are_concurrent(api: Driver, stream: Any) -> None:
    go, seen = threading.Event(), []
    with new_stream(api) as second:
        launch(api, stream, lambda: seen.append(go.wait(SECONDS)))
        launch(api, second, go.set)
        api("stream_synchronize", second)
        api("stream_synchronize", stream)
    assert seen == [True]


def test_a_busy_stream_says_so_and_does_not_block_its_caller(api: Driver, stream: Any) -> None:
    with held(api, stream):
        assert api.call("stream_query", stream) == "MTIA_ERROR_NOT_READY"
    api("stream_synchronize", stream)
    assert api.call("stream_query", stream) == "MTIA_SUCCESS"


@pytest.mark.parametrize("function", ["stream_synchronize", "event_synchronize", "device_synchronize"])
def test_synchronizing_waits_for_work(
    api: Driver, needs: Callable[[str], None], stream: Any, event: Any, function: str
) -> None:
    needs(function)
    ran: list[int] = []
    launch_late(api, stream, lambda: ran.append(1))
    api("event_record", event, stream)
    api(function, {"stream_synchronize": stream, "event_synchronize": event, "device_synchronize": 0}[function])
    assert ran == [1]


def test_destroying_a_stream_waits_for_nothing_and_loses_no_work(api: Driver, needs: Callable[[str], None]) -> None:
    needs("stream_destroy")
    done = threading.Event()
    doomed = api.get("stream_create", c_void_p, 0, 0, None)
    with held(api, doomed):
        launch(api, doomed, done.set)
        api("stream_destroy", doomed)
        assert not done.is_set()
    assert done.wait(SECONDS)


def test_priorities_have_a_range(api: Driver, needs: Callable[[str], None]) -> None:
    needs("stream_priority_range")
    lowest, highest = c_int32(), c_int32()
    api("stream_priority_range", byref(lowest), byref(highest))
    assert highest.value <= lowest.value
    for priority in (lowest.value, highest.value, lowest.value + 100, highest.value - 100):  # those beyond: the nearest
        destroy_stream(api, api.get("stream_create", c_void_p, 0, priority, None))


def test_a_failure_is_reported_once_and_the_stream_goes_on(api: Driver, stream: Any) -> None:
    ran: list[int] = []
    launch(api, stream, lambda: ran.append(1), fails=True)
    launch(api, stream, lambda: ran.append(2))
    assert api.call("stream_synchronize", stream) == "MTIA_ERROR_LAUNCH_FAILED"
    assert api.message()
    assert api.call("stream_synchronize", stream) == "MTIA_SUCCESS"
    assert ran == [1, 2]


def test_device_synchronize_reports_failures_of_streams(api: Driver, needs: Callable[[str], None], stream: Any) -> None:
    needs("device_synchronize")
    launch(api, stream, lambda: None, fails=True)
    assert api.call("device_synchronize", 0) == "MTIA_ERROR_LAUNCH_FAILED"
    assert api.call("device_synchronize", 0) == "MTIA_SUCCESS"


def test_a_failure_is_reported_by_no_other_stream_query_or_event(api: Driver, stream: Any, event: Any) -> None:
    with new_stream(api) as second:
        launch(api, second, lambda: None, fails=True)
        api("event_record", event, second)
        api("event_synchronize", event)
        assert api.call("event_query", event) == "MTIA_SUCCESS"
        while (status := api.call("stream_query", second)) == "MTIA_ERROR_NOT_READY":
            time.sleep(0.001)
        assert status == "MTIA_SUCCESS"
        api("stream_synchronize", stream)
        assert api.call("stream_synchronize", second) == "MTIA_ERROR_LAUNCH_FAILED"


def test_work_inside_work_runs_at_once(api: Driver, stream: Any) -> None:
    ran: list[str] = []

    def outer() -> None:
        launch(api, stream, lambda: ran.append("inner"))
        ran.append("outer")

    launch(api, stream, outer)
    api("stream_synchronize", stream)
    assert ran == ["inner", "outer"]


def test_argument_blocks_are_moved_and_destroyed_once(api: Driver, stream: Any) -> None:
    """The caller destroys the original, the driver its copy, if it made one."""
    moved: list[int] = []
    destroyed: list[int] = []
    used: list[bytes] = []

    def relocate(to: int, source: int) -> None:
        ctypes.memmove(to, source, 32)
        moved.append(to)

    def use(args: int, _context: int) -> int:
        used.append(ctypes.string_at(args, 4))
        return 0

    run = RUN(use)
    callbacks = RELOCATE(relocate), DESTROY(destroyed.append)
    KEPT.extend([run, *callbacks])
    block = ctypes.create_string_buffer(b"args", 32)
    work = sized("mtia_work", run=ctypes.cast(run, c_void_p), args=ctypes.addressof(block), args_size=32, name=b"moved")
    work.relocate, work.destroy = (ctypes.cast(callback, c_void_p) for callback in callbacks)
    with held(api, stream):  # so that it is queued
        api("stream_launch", stream, byref(work))
        ctypes.memset(block, 0, 32)
    api("stream_synchronize", stream)
    launch(api, stream, lambda: None)
    api("stream_synchronize", stream)  # whatever came before is gone by now
    assert used == [b"args"]
    assert len(moved) >= 1
    assert len(set(destroyed)) == len(destroyed) <= len(moved)
    assert moved[-1] in destroyed


def test_work_is_told_where_it_runs(api: Driver) -> None:
    seen: list[Any] = []
    tag = 0x1234
    with new_stream(api, tag=tag) as tagged:
        context_type = driver_api.structure("mtia_work_context")

        def run(_args: int, context: int) -> int:
            found = context_type.from_address(context)
            seen.append((found.device, found.stream_tag, found.num_threads >= 1))
            return 0

        callback = RUN(run)
        KEPT.append(callback)
        api("stream_launch", tagged, byref(sized("mtia_work", run=ctypes.cast(callback, c_void_p), num_threads=1)))
        api("stream_synchronize", tagged)
    assert seen == [(0, tag, True)]


# Events ---------------------------------------------------------------------------------------------------------------


def test_an_event_that_was_never_recorded_is_complete(api: Driver, stream: Any, event: Any) -> None:
    assert api.call("event_query", event) == "MTIA_SUCCESS"
    api("event_synchronize", event)
    api("stream_wait_event", stream, event)
    api("stream_synchronize", stream)


def test_an_event_completes_behind_its_work(api: Driver, stream: Any, event: Any) -> None:
    with held(api, stream):
        api("event_record", event, stream)
        assert api.call("event_query", event) == "MTIA_ERROR_NOT_READY"
    api("event_synchronize", event)
    assert api.call("event_query", event) == "MTIA_SUCCESS"


def test_an_event_orders_streams(api: Driver, stream: Any, event: Any) -> None:
    ran: list[str] = []
    with new_stream(api) as second:
        with held(api, stream):
            launch_late(api, stream, lambda: ran.append("first"))
            api("event_record", event, stream)
            api("stream_wait_event", second, event)
            launch(api, second, lambda: ran.append("second"))
            assert api.call("stream_query", second) == "MTIA_ERROR_NOT_READY"
        api("stream_synchronize", second)
    assert ran == ["first", "second"]


def test_an_event_stands_for_its_last_record(api: Driver, stream: Any, event: Any) -> None:
    api("event_record", event, stream)
    api("event_synchronize", event)
    with held(api, stream):
        api("event_record", event, stream)
        assert api.call("event_query", event) == "MTIA_ERROR_NOT_READY"


def test_who_waits_for_an_event_does_not_wait_for_its_next_record(api: Driver, stream: Any, event: Any) -> None:
    done = threading.Event()
    with new_stream(api) as waits, new_stream(api) as busy, held(api, busy):
        with held(api, stream):
            api("event_record", event, stream)
            api("stream_wait_event", waits, event)
            launch(api, waits, done.set)
            api("event_record", event, busy)
        assert done.wait(SECONDS)


def test_an_event_orders_streams_of_two_devices(api: Driver, stream: Any, event: Any) -> None:
    if api.get("device_count", c_int32) < 2:
        pytest.skip("the driver has no second device")
    ran: list[str] = []
    with new_stream(api, device=1) as second:
        with held(api, second):
            launch_late(api, second, lambda: ran.append("first"))
            api("event_record", event, second)
            assert api.call("event_query", event) == "MTIA_ERROR_NOT_READY"
            api("stream_wait_event", stream, event)
            launch(api, stream, lambda: ran.append("second"))
            assert api.call("stream_query", stream) == "MTIA_ERROR_NOT_READY"
        api("stream_synchronize", stream)
    assert ran == ["first", "second"]


def test_time_between_events(api: Driver, stream: Any, event: Any) -> None:
    began = time.monotonic()
    end = api.get("event_create", c_void_p, 1)
    untimed = api.get("event_create", c_void_p, 0)
    assert api.call("event_elapsed_time", event, end, byref(c_double())) == "MTIA_ERROR_INVALID_VALUE"
    api("event_record", event, stream)
    with held(api, stream):
        launch(api, stream, lambda: time.sleep(0.05))
        api("event_record", end, stream)
        api("event_record", untimed, stream)
        assert api.call("event_elapsed_time", event, end, byref(c_double())) == "MTIA_ERROR_NOT_READY"
    api("event_synchronize", end)
    here = 1000 * (time.monotonic() - began)
    assert 45 < api.get("event_elapsed_time", c_double, event, end) < here + 5
    api("event_synchronize", untimed)
    assert api.call("event_elapsed_time", event, untimed, byref(c_double())) == "MTIA_ERROR_INVALID_VALUE"
    api("event_destroy", end)
    api("event_destroy", untimed)


# Kernels --------------------------------------------------------------------------------------------------------------

# *out = the word after the relocated address
RELOCATED = bytes.fromhex("488b0539000000 488b00 4c8b0f 4c034e10 498901 c3").ljust(64, b"\0")
RELOCATED += (72).to_bytes(8, "little") + (4242).to_bytes(8, "little")
# reports an error without a text
FAILS = bytes.fromhex("488b4618 48c70001000000 c6401800 c3")


def test_kernels_run_all_programs(api: Driver, stream: Any, memory: int, load: Any) -> None:
    store = load(kernel_image(STORE, [POINTER, INTEGER], "store"), "store")
    write(api, stream, memory, bytes(8 * 301))
    assert launch_kernel(api, stream, store, (10, 6, 5), memory, 77) == "MTIA_SUCCESS"
    words = (c_uint64 * 301).from_buffer_copy(read(api, stream, memory, 8 * 301))
    assert list(words) == [77] * 300 + [0]


def test_kernels_are_relocated(api: Driver, stream: Any, memory: int, load: Any) -> None:
    function = load(kernel_image(RELOCATED, [POINTER], "relocated", relocation=64), "relocated")
    assert launch_kernel(api, stream, function, (1, 1, 1), memory) == "MTIA_SUCCESS"
    assert int.from_bytes(read(api, stream, memory, 8), "little") == 4242


def test_an_empty_grid_runs_nothing(api: Driver, stream: Any, memory: int, load: Any) -> None:
    store = load(kernel_image(STORE, [POINTER, INTEGER], "store"), "store")
    write(api, stream, memory, bytes(8))
    assert launch_kernel(api, stream, store, (4, 0, 1), memory, 77) == "MTIA_SUCCESS"
    assert read(api, stream, memory, 8) == bytes(8)


def test_wrong_launches_are_refused(api: Driver, stream: Any, memory: int, load: Any) -> None:
    store = load(kernel_image(STORE, [POINTER, INTEGER], "store"), "store")
    assert launch_kernel(api, stream, store, (1, 1, 1), memory) == "MTIA_ERROR_INVALID_VALUE"
    assert launch_kernel(api, stream, store, (-1, 1, 1), memory, 1) == "MTIA_ERROR_INVALID_VALUE"
    if api.get("device_count", c_int32) > 1:
        with new_stream(api, device=1) as other:
            assert launch_kernel(api, other, store, (1, 1, 1), memory, 1) == "MTIA_ERROR_INVALID_VALUE"


def test_a_kernel_that_reports_an_error(api: Driver, stream: Any, load: Any) -> None:
    fails = load(kernel_image(FAILS, [POINTER], "fails_on_purpose"), "fails_on_purpose")
    assert launch_kernel(api, stream, fails, (1, 1, 1), 0) == "MTIA_SUCCESS"
    assert api.call("stream_synchronize", stream) == "MTIA_ERROR_LAUNCH_FAILED"
    assert "fails_on_purpose" in api.message()
    assert api.call("stream_synchronize", stream) == "MTIA_SUCCESS"


@pytest.mark.parametrize(
    ("header", "status"),
    [
        ({"magic": 1}, "INVALID_VALUE"),
        ({"image_size": 5}, "INVALID_VALUE"),
        ({"entry_offset": 1 << 40}, "INVALID_VALUE"),
        ({"relocation": 1 << 40}, "INVALID_VALUE"),
        ({"version": 2}, "NOT_SUPPORTED"),
        ({"cpu_features": 1 << 63}, "NOT_SUPPORTED"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_images_that_cannot_be_loaded(
    api: Driver, needs: Callable[[str], None], header: dict[str, int], status: str
) -> None:
    needs("KERNELS")
    image = kernel_image(STORE, [POINTER, INTEGER], "store", **header)
    assert api.call("module_load", 0, image, len(image), byref(c_uint64())) == f"MTIA_ERROR_{status}"
    assert api.message()


def test_a_function_that_the_module_lacks(api: Driver, needs: Callable[[str], None]) -> None:
    needs("KERNELS")
    image = kernel_image(STORE, [POINTER, INTEGER], "store")
    module = api.get("module_load", c_void_p, 0, image, len(image))
    assert api.call("module_get_function", module, b"other", byref(c_uint64())) == "MTIA_ERROR_INVALID_VALUE"
    api("module_unload", module)


def test_a_module_may_be_unloaded_under_its_launches(
    api: Driver, needs: Callable[[str], None], stream: Any, memory: int
) -> None:
    needs("KERNELS")
    image = kernel_image(STORE, [POINTER, INTEGER], "store")
    module = api.get("module_load", c_void_p, 0, image, len(image))
    function = api.get("module_get_function", c_void_p, module, b"store")
    with held(api, stream):
        assert launch_kernel(api, stream, function, (3, 1, 1), memory, 9) == "MTIA_SUCCESS"
        api("module_unload", module)
    assert read(api, stream, memory, 24) == (9).to_bytes(8, "little") * 3


# Turns ----------------------------------------------------------------------------------------------------------------


def test_a_copy_waits_for_its_turn(api: Driver, stream: Any, memory: int) -> None:
    write(api, stream, memory + 64, b"\1")
    for source, kind in ((ctypes.addressof(ONE), TO_DEVICE), (memory + 64, WITHIN)):
        submit = partial(api, "memory_copy", stream, memory, source, 1, kind)
        assert_waits_for_its_turn(api, stream, memory, submit)
    here = ctypes.create_string_buffer(1)
    with held(api, stream):
        api("memory_copy", stream, ctypes.addressof(here), memory, 1, TO_HOST)
        time.sleep(0.05)
        assert here.raw == b"\0"
    api("stream_synchronize", stream)
    assert here.raw == b"\1"


def test_a_fill_waits_for_its_turn(api: Driver, stream: Any, memory: int) -> None:
    submit = partial(api, "memory_fill", stream, memory, ctypes.addressof(ONE), 1, 1)
    assert_waits_for_its_turn(api, stream, memory, submit)


def test_a_kernel_waits_for_its_turn(api: Driver, stream: Any, memory: int, load: Any) -> None:
    store = load(kernel_image(STORE, [POINTER, INTEGER], "store"), "store")
    submit = partial(launch_kernel, api, stream, store, (1, 1, 1), memory, 1)
    assert_waits_for_its_turn(api, stream, memory, submit)


# Tracing --------------------------------------------------------------------------------------------------------------


def traced(api: Driver) -> list[str]:
    """Returns the calls of a new tracer."""
    traced_calls: list[str] = []

    def begin(_tag: int, _work: int) -> int:
        traced_calls.append("submitting")
        return 5

    submitting = ctypes.CFUNCTYPE(c_uint64, c_void_p, c_void_p)(begin)
    submitted = ctypes.CFUNCTYPE(None, c_uint64)(lambda number: traced_calls.append(f"submitted {number}"))
    ran = ctypes.CFUNCTYPE(None, c_uint64, c_int64, c_int64)(
        lambda number, start, end: traced_calls.append(f"ran {number} {start <= end}")
    )
    KEPT.extend([submitting, submitted, ran])
    tracer = sized("mtia_tracer")
    tracer.submitting, tracer.submitted, tracer.ran = (ctypes.cast(f, c_void_p) for f in (submitting, submitted, ran))
    KEPT.append(tracer)
    api("set_tracer", byref(tracer))
    return traced_calls


def test_a_tracer_is_told_of_work(api: Driver, needs: Callable[[str], None], stream: Any) -> None:
    needs("TRACING")
    traced_calls = traced(api)
    launch(api, stream, lambda: None)
    api("stream_synchronize", stream)
    api("set_tracer", None)
    assert sorted(traced_calls) == ["ran 5 True", "submitted 5", "submitting"]


def test_a_tracer_is_told_of_copies_and_fills_until_it_is_taken_away(
    api: Driver, needs: Callable[[str], None], stream: Any, memory: int
) -> None:
    needs("TRACING")
    traced_calls = traced(api)
    api("memory_fill", stream, memory, ctypes.addressof(ONE), 1, 8)
    api("memory_copy", stream, memory + 8, memory, 8, WITHIN)
    api("stream_synchronize", stream)
    assert traced_calls.count("ran 5 True") == 2
    api("set_tracer", None)
    launch(api, stream, lambda: None)
    api("stream_synchronize", stream)
    assert traced_calls.count("ran 5 True") == 2
