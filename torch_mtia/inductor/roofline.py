"""How fast the device is, for Inductor's estimates: measured when first asked for."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import _disable_current_modes

from torch_mtia import _C
from torch_mtia.backend import device_type

COLLECTIVE_LATENCY_US = 50.0  # of a collective of a few bytes: two threads wake up on each rank
ROUNDS = 3


def memory_bandwidth() -> float:
    """Returns GB/s, read and written, of a copy that is larger than the caches."""
    return _agreed("memory_bandwidth", _memory_bandwidth)


def teraflops(dtype: torch.dtype) -> float:
    """Returns 10^12 operations a second of a matrix product; 0 for a dtype that has none."""
    return _agreed(f"teraflops/{dtype}", lambda: _teraflops(dtype))


def collective_us(name: str, num_bytes: int, ranks: int) -> float:
    """Returns the microseconds of a collective of ranks that share memory: it copies once through shared buffers."""
    if ranks <= 1:
        return 0.0
    touches = 4.5 if "all_reduce" in name else 3.0
    return COLLECTIVE_LATENCY_US + touches * num_bytes / memory_bandwidth() / 1e3


_known: tuple[Any, dict[str, float]] = (None, {})
"""The figures that the ranks have agreed on, and the store in which they are."""


def _agreed(name: str, measure: Callable[[], float]) -> float:
    """Returns the figure of the rank that asked first: all must come to the same schedule."""
    global _known
    if not (dist.is_available() and dist.is_initialized()):
        return measure()
    store = dist.distributed_c10d._get_default_store()
    if _known[0] is not store:
        _known = (store, {})
    figures = _known[1]
    if name not in figures:
        key = f"torch_mtia/{name}"
        if not store.check([key]):
            store.compare_set(key, "", repr(measure()))
        figures[name] = float(store.get(key))
    return figures[name]


def _seconds(run: Callable[[], object]) -> float:
    def sample() -> float:
        _C._wait_unobserved(-1)
        start = time.perf_counter()
        run()
        _C._wait_unobserved(-1)
        return time.perf_counter() - start

    sample()
    return min(sample() for _ in range(ROUNDS))


@functools.cache
def _memory_bandwidth() -> float:
    with _disable_current_modes():  # Inductor asks in the middle of tracing
        source = torch.ones(64 << 20, dtype=torch.uint8, device=device_type())
        target = torch.empty_like(source)
        return 2 * source.nbytes / _seconds(lambda: target.copy_(source)) / 1e9


@functools.cache
def _teraflops(dtype: torch.dtype) -> float:
    if not dtype.is_floating_point or dtype.itemsize == 1:
        return 0.0
    size = 768
    with _disable_current_modes(), torch.no_grad():
        matrix = torch.ones(size, size, dtype=dtype, device=device_type())
        return 2 * size**3 / _seconds(lambda: matrix @ matrix) / 1e12
