"""What the runtime asks and waits for itself, between two accesses of a program: lines that order nothing.

Each is a function of the program's streams. Where nothing is captured, all streams are idle before it asks, so that
whatever it asks is done; of that the sanitizer does not hear.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from torch_mtia import _C
from torch_mtia.graphs import is_stream_capturing
from torch_mtia.memory import set_per_process_memory_fraction

Streams = tuple[torch.Stream, ...]
Between = Callable[[Streams], None]
MIB = 1 << 20


def become_idle() -> None:
    if not is_stream_capturing(torch.mtia.current_stream()):
        _C._wait_unobserved(-1)


def free_recorded(streams: Streams) -> None:
    """Of each stream a tensor that the others have used is freed, and another one allocated."""
    for stream in streams:
        with stream:
            x = torch.ones(300, device="mtia")
            for other in streams:
                x.record_stream(other)
            become_idle()
            del x
            torch.empty(300, device="mtia")


def free_recorded_late(streams: Streams) -> None:
    """The same, where the streams are done only after the tensor was freed."""
    tensors = []
    for stream in streams:
        with stream:
            tensors.append(torch.ones(300, device="mtia"))
            for other in streams:
                tensors[-1].record_stream(other)
    tensors.clear()
    become_idle()
    for stream in streams:
        with stream:
            torch.empty(300, device="mtia")


def free_pinned(streams: Streams) -> None:
    """Pinned memory that each stream has copied is freed, and more of it allocated."""
    pinned = []
    for stream in streams:
        with stream:
            pinned.append(torch.ones(300).pin_memory())
            pinned[-1].to("mtia", non_blocking=True)
    become_idle()
    pinned.clear()
    torch.empty(300, pin_memory=True)


def empty_cache(streams: Streams) -> None:
    for stream in streams:
        with stream:
            torch.empty(32 * MIB, dtype=torch.uint8, device="mtia")
    become_idle()
    torch.accelerator.empty_cache()


def allocate_under_pressure(streams: Streams) -> None:
    """Each stream has freed memory, and a request is met after it was waited for and has gone back to the driver."""
    empty_cache(streams)
    with at_most_more(128 * MIB):
        for stream in streams:
            with stream:
                torch.empty(96 * MIB, dtype=torch.uint8, device="mtia")
                torch.empty(112 * MIB, dtype=torch.uint8, device="mtia")


def run_out_of_memory(streams: Streams) -> None:
    with at_most_more(128 * MIB):
        for stream in streams:
            with stream:
                torch.empty(96 * MIB, dtype=torch.uint8, device="mtia")
                try:
                    torch.empty(256 * MIB, dtype=torch.uint8, device="mtia")
                except torch.OutOfMemoryError:
                    continue
                raise AssertionError("there is more memory than was allowed")


def reduce_and_drop(_: Streams) -> None:
    """A tensor of the current stream was reduced and is dropped, and another one allocated. Only of that stream: the
    group's waits for the stream that it is called in."""
    x = torch.ones(300, device="mtia")
    dist.all_reduce(x, async_op=True)
    become_idle()
    del x
    torch.empty(300, device="mtia")


@contextmanager
def at_most_more(size: int) -> Iterator[None]:
    """The device may hold no more than that beside what it holds now."""
    total: Any = torch.mtia.get_device_properties(0)["total_memory"]
    set_per_process_memory_fraction((torch.accelerator.memory_reserved() + size) / total)
    try:
        yield
    finally:
        set_per_process_memory_fraction(1.0)


LOCAL: tuple[Between, ...] = (
    free_recorded,
    free_recorded_late,
    free_pinned,
    empty_cache,
    allocate_under_pressure,
    run_out_of_memory,
)
IN_CAPTURES: tuple[Between, ...] = (free_recorded_late, free_pinned)  # what may be captured
