"""Host functions in streams: see docs/streams.md."""

from __future__ import annotations

import atexit
import functools
import time
from collections.abc import Callable

import torch

from torch_mtia import _C, graphs
from torch_mtia.backend import device_module, device_type

__all__ = ["launch_host_function"]


def launch_host_function(stream: torch.Stream, function: Callable[[], object]) -> None:
    """Submits a call of `function()` to the stream: it runs after earlier work of the stream and before later work.

    Returns at once. The function runs on a thread of the driver, with the interpreter lock, and must not wait for the
    stream. An exception in it is raised as RuntimeError, with its text, at the stream's next synchronizing call. If the
    stream is being captured, the function becomes a node of the graph and is called at each replay. Mirrors CUDA's
    cudaLaunchHostFunc.

    Args:
        stream: of an mtia device.
        function: takes no arguments; its result is ignored. It is referenced until it has been called; in a graph,
            until some time after the graph is destroyed.

    Raises:
        ValueError: the stream is not of an mtia device.
        TypeError: the function is not callable.
    """
    if stream.device.type != device_type():
        raise ValueError(f"stream must be of an {device_type()} device, not of {stream.device}")
    if not callable(function):
        raise TypeError(f"function must be callable, not {type(function).__name__}")
    _finish_before_exit()
    call = function if graphs.is_stream_capturing(stream) else _once(function)
    _C._launch_host_function(stream.stream_id, stream.device_index, call)


def sleep(cycles: int) -> None:
    """Has the current stream do nothing for a while, in which others overtake it. The counterpart of torch.cuda._sleep.

    Args:
        cycles: of a clock of 1 GHz.
    """
    launch_host_function(device_module().current_stream(), lambda: time.sleep(cycles / 1e9))


def _once(function: Callable[[], object]) -> Callable[[], object]:
    """Returns what calls the function and then no longer keeps it."""
    pending = [function]
    return lambda: pending.pop()()


@functools.cache
def _finish_before_exit() -> None:
    """Registers a wait: a function that is still queued when the interpreter ends could not run any more.

    Errors of work that nobody has waited for stay with their streams: an exit handler does not raise.
    """
    atexit.register(_C._finish_host_functions)
