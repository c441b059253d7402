"""Whether a driver captures and launches graphs as mtia_runtime.h says. See driver.py."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import byref, c_uint32, c_uint64, c_void_p
from functools import partial
from typing import Any

import pytest

from torch_mtia.conformance import driver_api
from torch_mtia.conformance.driver_api import CONSTANTS, Driver, kernel_image, sized
from torch_mtia.conformance.driver_fixtures import (
    INTEGER,
    ONE,
    POINTER,
    STORE,
    WITHIN,
    assert_waits_for_its_turn,
    launch,
    launch_kernel,
    launch_late,
    new_stream,
    read,
    write,
)

CAPTURABLE = CONSTANTS["MTIA_WORK_CAPTURABLE"]


@pytest.fixture
def graphs(needs: Callable[[str], None]) -> None:
    needs("GRAPHS")


def capture_of(api: Driver, stream: Any, submit: Callable[[], object]) -> Any:
    api("stream_begin_capture", stream)
    try:
        submit()
    finally:
        graph = api.get("stream_end_capture", c_void_p, stream)
    return graph


@pytest.mark.usefixtures("graphs")
def test_captured_work_runs_when_the_graph_is_launched(api: Driver, stream: Any, memory: int) -> None:
    ran: list[int] = []
    write(api, stream, memory, bytes(16))
    ones = ctypes.create_string_buffer(b"\1", 1)

    def submit() -> None:
        launch(api, stream, lambda: ran.append(1), flags=CAPTURABLE)
        api("memory_fill", stream, memory, ctypes.addressof(ones), 1, 8)
        api("memory_copy", stream, memory + 8, memory, 8, WITHIN)

    graph = capture_of(api, stream, submit)
    assert ran == []
    assert api.get("graph_num_nodes", c_uint32, graph) == 3
    executable = api.get("graph_instantiate", c_void_p, graph)
    api("graph_destroy", graph)  # separately, in any order
    assert read(api, stream, memory, 16) == bytes(16)
    for _ in range(2):
        api("graph_launch", executable, stream, None)
    assert read(api, stream, memory, 16) == b"\1" * 16
    assert ran == [1, 1]
    api("graph_exec_destroy", executable)


@pytest.mark.usefixtures("graphs")
def test_captured_kernels_run_when_the_graph_is_launched(api: Driver, stream: Any, memory: int, load: Any) -> None:
    store = load(kernel_image(STORE, [POINTER, INTEGER], "store"), "store")
    write(api, stream, memory, bytes(24))
    graph = capture_of(api, stream, lambda: launch_kernel(api, stream, store, (3, 1, 1), memory, 9))
    executable = api.get("graph_instantiate", c_void_p, graph)
    api("graph_destroy", graph)
    for _ in range(2):
        assert read(api, stream, memory, 24) == bytes(24)
        api("graph_launch", executable, stream, None)
        assert read(api, stream, memory, 24) == (9).to_bytes(8, "little") * 3
        write(api, stream, memory, bytes(24))
    api("graph_exec_destroy", executable)


@pytest.mark.usefixtures("graphs")
def test_captures_have_different_numbers(api: Driver, stream: Any) -> None:
    numbers = []
    for _ in range(2):
        graph = capture_of(api, stream, lambda: numbers.append(api.get("stream_capture_id", c_uint64, stream)))
        api("graph_destroy", graph)
    assert len({0, *numbers}) == 3


@pytest.mark.usefixtures("graphs")
def test_a_capture_without_a_place_for_its_graph_goes_on(api: Driver, stream: Any) -> None:
    def submit() -> None:
        launch(api, stream, lambda: None, flags=CAPTURABLE)
        assert api.call("stream_end_capture", stream, None) == "MTIA_ERROR_INVALID_VALUE"
        launch(api, stream, lambda: None, flags=CAPTURABLE)

    graph = capture_of(api, stream, submit)
    assert api.get("graph_num_nodes", c_uint32, graph) == 2
    api("graph_destroy", graph)


@pytest.mark.usefixtures("graphs")
def test_streams_join_by_events_and_nodes_know_what_they_depend_on(api: Driver, stream: Any, event: Any) -> None:
    with new_stream(api, tag=7) as second:

        def submit() -> None:
            launch(api, stream, lambda: None, flags=CAPTURABLE)
            api("event_record", event, stream)
            api("stream_wait_event", second, event)
            assert api.get("stream_capture_id", c_uint64, second) == api.get("stream_capture_id", c_uint64, stream) != 0
            launch(api, second, lambda: None, flags=CAPTURABLE)

        graph = capture_of(api, stream, submit)
        assert api.get("stream_capture_id", c_uint64, second) == 0
        node = sized("mtia_graph_node")
        api("graph_node", graph, 1, byref(node))
        assert (node.stream_tag, node.num_dependencies) == (7, 1)
        assert c_uint32.from_address(node.dependencies).value == 0
        assert api.call("graph_node", graph, 2, byref(node)) == "MTIA_ERROR_INVALID_VALUE"
        api("graph_destroy", graph)


@pytest.mark.usefixtures("graphs")
def test_a_capture_refuses_what_it_cannot_keep(api: Driver, stream: Any, event: Any) -> None:
    outside = api.get("event_create", c_void_p, 0)
    with new_stream(api) as other:
        api("event_record", outside, other)

        def submit() -> None:
            assert launch(api, stream, lambda: None) == "MTIA_ERROR_NOT_SUPPORTED"
            assert api.call("stream_query", stream) == "MTIA_ERROR_NOT_SUPPORTED"
            assert api.call("stream_synchronize", stream) == "MTIA_ERROR_NOT_SUPPORTED"
            assert api.call("stream_wait_event", stream, outside) == "MTIA_ERROR_NOT_SUPPORTED"
            api("event_record", event, stream)
            assert api.call("event_query", event) == "MTIA_ERROR_NOT_SUPPORTED"
            assert api.call("event_synchronize", event) == "MTIA_ERROR_NOT_SUPPORTED"
            assert api.call("stream_begin_capture", stream) == "MTIA_ERROR_INVALID_VALUE"

        graph = capture_of(api, stream, submit)
    assert api.get("graph_num_nodes", c_uint32, graph) == 0
    assert api.call("stream_end_capture", stream, byref(c_uint64())) == "MTIA_ERROR_INVALID_VALUE"
    api("graph_destroy", graph)
    api("event_destroy", outside)


@pytest.mark.usefixtures("graphs")
def test_parameters_are_set_before_the_first_node(api: Driver, stream: Any) -> None:
    cell, seen = c_uint64(0), []
    graph = capture_of(api, stream, lambda: launch(api, stream, lambda: seen.append(cell.value), flags=CAPTURABLE))
    executable = api.get("graph_instantiate", c_void_p, graph)
    for number in (5, 6):
        value = c_uint64(number)
        parameters = driver_api.structure("mtia_graph_parameters")(ctypes.addressof(cell), ctypes.addressof(value), 8)
        api("graph_launch", executable, stream, byref(parameters))
        value.value = 0  # it was read before the return
    api("stream_synchronize", stream)
    assert seen == [5, 6]
    api("graph_exec_destroy", executable)
    api("graph_destroy", graph)


@pytest.mark.usefixtures("graphs")
def test_destroying_an_executable_waits_for_its_launches(api: Driver, stream: Any) -> None:
    ran: list[int] = []
    graph = capture_of(api, stream, lambda: launch(api, stream, lambda: ran.append(1), flags=CAPTURABLE))
    executable = api.get("graph_instantiate", c_void_p, graph)
    launch_late(api, stream, lambda: None)
    api("graph_launch", executable, stream, None)
    api("graph_exec_destroy", executable)
    assert ran == [1]
    api("graph_destroy", graph)


@pytest.mark.usefixtures("graphs")
def test_a_graph_waits_for_its_turn(api: Driver, stream: Any, memory: int) -> None:
    graph = capture_of(api, stream, partial(api, "memory_fill", stream, memory, ctypes.addressof(ONE), 1, 1))
    executable = api.get("graph_instantiate", c_void_p, graph)
    assert_waits_for_its_turn(api, stream, memory, partial(api, "graph_launch", executable, stream, None))
    api("graph_exec_destroy", executable)
    api("graph_destroy", graph)
