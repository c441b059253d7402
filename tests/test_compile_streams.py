"""What of torch.mtia compiled code may use with fullgraph=True: devices, streams, events, waiting."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor

if TYPE_CHECKING:
    from tests.conftest import RunScript

Function = Callable[[Tensor], Tensor]


def in_a_device(x: Tensor) -> Tensor:
    with torch.mtia.device(0):
        return x + torch.ones(64, device="mtia")


def in_the_device_of_a_name(x: Tensor) -> Tensor:
    with torch.mtia.device("mtia:0"):
        return x * 2


def in_a_new_stream(x: Tensor) -> Tensor:
    stream = torch.mtia.Stream()
    stream.wait_stream(torch.mtia.current_stream())
    with torch.mtia.stream(stream):
        y = x * 3 + 1
    torch.mtia.current_stream().wait_stream(stream)
    return y * 2


def in_no_stream(x: Tensor) -> Tensor:
    with torch.mtia.stream(None):
        return x * 3


def behind_an_event(x: Tensor) -> Tensor:
    stream, event = torch.mtia.Stream(), torch.mtia.Event()
    stream.wait_stream(torch.mtia.current_stream())
    with torch.mtia.stream(stream):
        y = x * 5
        event.record(stream)
    torch.mtia.current_stream().wait_event(event)
    return y - 1


def after_waiting(x: Tensor) -> Tensor:
    y = x + 1
    torch.mtia.synchronize()
    return y * 2


def of_numbers(x: Tensor) -> Tensor:
    if torch.mtia.is_available():
        x = x * 2
    return x + torch.mtia.current_device() + torch.mtia.device_count()


FUNCTIONS = [
    in_a_device,
    in_the_device_of_a_name,
    in_a_new_stream,
    in_no_stream,
    behind_an_event,
    after_waiting,
    of_numbers,
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_a_whole_function_is_one_graph(function: Function, dynamic: bool) -> None:
    torch._dynamo.reset()
    x = torch.arange(64.0)
    compiled = torch.compile(function, fullgraph=True, dynamic=dynamic)
    expected = function(x.to("mtia"))
    assert torch.equal(compiled(x.to("mtia")).cpu(), expected.cpu())


def test_the_stream_is_the_one_that_work_goes_to(run_script: RunScript) -> None:
    """With delays, work that is not in its stream, or does not wait, gives other numbers."""
    script = """
        import torch

        @torch.compile(fullgraph=True)
        def function(x):
            stream = torch.mtia.Stream()
            stream.wait_stream(torch.mtia.current_stream())
            with torch.mtia.stream(stream):
                y = x @ x
            torch.mtia.current_stream().wait_stream(stream)
            return y + 1

        for n in range(30):
            x = torch.full((64, 64), float(n), device="mtia")
            assert torch.equal(function(x).cpu(), torch.full((64, 64), 64.0 * n * n + 1)), n
    """
    finished = run_script(script, TORCH_MTIA_DELAY="5", TORCH_MTIA_LOG="launch")
    finished.output()
    lines = [line for line in finished.stderr.splitlines() if "mm" in line]
    assert lines
    assert not [line for line in lines if "stream 0 " in line]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "where",
    [
        "current_stream(1)",
        *(pytest.param(w, marks=pytest.mark.wide) for w in ("current_stream('mtia:1')", "device(1)")),
    ],
)
def test_the_current_stream_of_another_device_is_not_traced(run_script: RunScript, where: str) -> None:
    """Upstream takes that of the current device, and what is computed would not be waited for."""
    inside = where.startswith("device")
    script = f"""
        import contextlib, torch

        def function(x):
            with torch.mtia.{where if inside else "device(0)"}:
                torch.mtia.{"current_stream()" if inside else where}.synchronize()
                return x + 1

        x = torch.zeros(3, device="mtia:1")
        try:
            torch.compile(function, fullgraph=True)(x)
        except torch._dynamo.exc.Unsupported as error:
            assert "another device" in str(error), error
        else:
            raise AssertionError
        assert torch.compile(function)(x).tolist() == [1.0] * 3
        torch._dynamo.reset()
        with torch.mtia.device(1):  # it is the current one, within and outside
            assert torch.compile(function, fullgraph={inside})(x).tolist() == [1.0] * 3
    """
    run_script(script, TORCH_MTIA_DEVICES="2").output()


@pytest.mark.wide
def test_the_device_is_the_current_one_within(run_script: RunScript) -> None:
    script = """
        import torch

        @torch.compile(fullgraph=True)
        def function(x):
            with torch.mtia.device(1):
                inside = torch.mtia.current_device()
                y = torch.ones(8, device="mtia") * 2
                torch.mtia.synchronize()
            return y, x + torch.mtia.current_device() + inside * 10

        y, x = function(torch.zeros(8, device="mtia:0"))
        assert y.device == torch.device("mtia", 1), y.device
        assert y.tolist() == [2.0] * 8
        assert x.device == torch.device("mtia", 0)
        assert x.tolist() == [10.0] * 8, x
        assert torch.mtia.current_device() == 0
    """
    run_script(script, TORCH_MTIA_DEVICES="2").output()
