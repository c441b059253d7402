"""Host functions run in stream order, on a thread of the driver."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import TYPE_CHECKING

import pytest
import torch

import torch_mtia

if TYPE_CHECKING:
    from tests.conftest import RunScript


def test_a_host_function_runs_behind_what_was_submitted_before() -> None:
    stream = torch.mtia.current_stream()
    x = torch.zeros(2**20, device="mtia")
    host = torch.zeros(2**20).pin_memory()
    seen = []
    for step in range(5):
        x.add_(1)
        host.copy_(x, non_blocking=True)
        torch_mtia.launch_host_function(stream, lambda step=step: seen.append((step, host[-1].item())))  # type: ignore[misc]
    stream.synchronize()
    assert seen == [(step, step + 1.0) for step in range(5)]


def test_the_caller_does_not_wait_and_later_work_does() -> None:
    stream = torch.mtia.Stream()
    release = threading.Event()
    threads = []

    def wait() -> None:
        release.wait(60)
        threads.append(threading.get_ident())

    torch_mtia.launch_host_function(stream, wait)
    assert not stream.query()
    release.set()
    stream.synchronize()
    assert threads != [threading.get_ident()]


def test_what_it_raises_is_raised_at_the_next_synchronization() -> None:
    stream = torch.mtia.Stream()
    torch_mtia.launch_host_function(stream, lambda: [][1])
    with pytest.raises(RuntimeError, match="a host function raised IndexError: list index out of range"):
        stream.synchronize()
    stream.synchronize()


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="stream must be of an mtia device, not of cpu"):
        torch_mtia.launch_host_function(torch.Stream("cpu"), print)
    with pytest.raises(TypeError, match="function must be callable, not int"):
        torch_mtia.launch_host_function(torch.mtia.current_stream(), 3)  # type: ignore[arg-type]


def test_it_is_not_kept_once_it_has_run() -> None:
    class Function:
        def __call__(self) -> None:
            pass

    function = Function()
    kept = weakref.ref(function)
    torch_mtia.launch_host_function(torch.mtia.current_stream(), function)
    del function
    torch.mtia.synchronize()
    gc.collect()
    assert kept() is None


def test_it_may_use_other_streams() -> None:
    stream, other = torch.mtia.Stream(), torch.mtia.Stream()
    results = []

    def work() -> None:
        with torch.mtia.stream(other):
            results.append((torch.ones(3, device="mtia") + 1).sum().item())

    torch_mtia.launch_host_function(stream, work)
    stream.synchronize()
    assert results == [6.0]


def test_those_still_queued_run_before_the_process_ends(run_script: RunScript) -> None:
    script = """
        import torch, torch_mtia
        x = torch.zeros(2**22, device="mtia")
        for _ in range(30):
            x.add_(1)
        torch_mtia.launch_host_function(torch.mtia.current_stream(), lambda: print("done", flush=True))
    """
    assert run_script(script).output() == "done\n"
