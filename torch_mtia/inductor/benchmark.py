"""How Inductor measures kernels on mtia when it autotunes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from torch_mtia.door import device_module

MIN_SAMPLES = 3
MAX_SAMPLES = 100
# Inductor's default of 100 ms for each choice is meant for kernels of microseconds on a GPU that nobody else uses.
MAX_MILLISECONDS = 30.0


def benchmark(
    _benchmarker: object,
    call: Callable[[], Any],
    *,
    warmup: float = 25,
    rep: float = 100,
    return_mode: str = "min",
    **_options: object,
) -> float | list[float]:
    """Times `call`, each time from an idle device until it is idle again.

    Args:
        warmup, rep: milliseconds to spend, at most, before and while measuring.
        return_mode: "min" for the shortest time, "all" for the list of all.

    Returns:
        milliseconds. Other options of Inductor's benchmarkers are for GPUs and have no effect.
    """
    _samples(call, min(warmup, MAX_MILLISECONDS) / 3, 1)
    times = _samples(call, min(rep, MAX_MILLISECONDS), MIN_SAMPLES)
    return times if return_mode == "all" else min(times)


def _samples(call: Callable[[], Any], budget: float, at_least: int) -> list[float]:
    device_module().synchronize()
    times: list[float] = []
    while len(times) < at_least or (sum(times) < budget and len(times) < MAX_SAMPLES):
        start = time.perf_counter()
        call()
        device_module().synchronize()
        times.append(1e3 * (time.perf_counter() - start))
    return times
