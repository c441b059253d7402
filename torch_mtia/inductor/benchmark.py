"""How Inductor measures kernels on mtia when it autotunes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from torch_mtia import _C

MAX_SAMPLES = 100
# Inductor's default of 100 ms for each choice is meant for kernels of microseconds on a GPU that nobody else uses.
MAX_MILLISECONDS = 30.0

# Whoever shares the processor makes samples longer, never shorter, and by the scheduler's slices, which are longer than
# most kernels: one of 0.3 ms can take 8 ms many times in a row, if its threads get the cores one after the other. Who
# has slept goes first, so samples are taken in bursts, with pauses between them; and the shortest is believed once
# samples of several bursts agree in which threads did not wait for a core, or when that has been tried for so long.
BURST = 2.0
PAUSE = 2.0
CONFIRMATIONS = 3
SAME = 1.05
WAITED = 0.05
MAX_DOUBT = 300.0


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
        warmup, rep: milliseconds to spend, at most, before and while measuring; more, if the samples differ.
        return_mode: "min" for the shortest time, "all" for the list of all.

    Returns:
        milliseconds. Other options of Inductor's benchmarkers are for GPUs and have no effect.
    """
    _warm_up(call, min(warmup, MAX_MILLISECONDS) / 3)
    times = _samples(call, min(rep, MAX_MILLISECONDS))
    return times if return_mode == "all" else min(times)


def _warm_up(call: Callable[[], Any], budget: float) -> None:
    _wait()
    end = time.perf_counter() + 1e-3 * budget
    while _time(call) and time.perf_counter() < end:
        pass


class _Burst(NamedTuple):
    samples: list[float]
    is_disturbed: bool
    """Whether threads waited for cores for a part of it that too few samples show. Short ones speak for themselves."""


def _samples(call: Callable[[], Any], budget: float) -> list[float]:
    bursts = [_burst(call)]
    while not _is_settled(bursts, budget):
        time.sleep(1e-3 * PAUSE)
        bursts.append(_burst(call))
    return [sample for burst in bursts for sample in burst.samples]


def _burst(call: Callable[[], Any]) -> _Burst:
    before = _waited()
    samples = [_time(call)]
    while sum(samples) < BURST:
        samples.append(_time(call))
    is_disturbed = _waited_since(before) > WAITED * sum(samples) and len(samples) < CONFIRMATIONS
    return _Burst(samples, is_disturbed)


def _is_settled(bursts: list[_Burst], budget: float) -> bool:
    shortest = min(min(burst.samples) for burst in bursts)
    spent = sum(sum(burst.samples) for burst in bursts)
    agreeing = [burst for burst in bursts if not burst.is_disturbed and min(burst.samples) <= SAME * shortest]
    is_enough = spent >= budget or sum(len(burst.samples) for burst in bursts) >= MAX_SAMPLES
    return spent >= MAX_DOUBT or (len(agreeing) >= CONFIRMATIONS and is_enough)


def _waited() -> dict[str, float]:
    """Milliseconds for which each thread of this process could have run and had no core; empty where the kernel does
    not say."""
    waited = {}
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # it has ended
            waited[thread.name] = 1e-6 * int((thread / "schedstat").read_text().split()[1])
    return waited


def _waited_since(before: dict[str, float]) -> float:
    """Of all threads together; one that has ended meanwhile takes what it had waited with it, and must not take that
    from what the others waited."""
    return sum(now - before.get(thread, 0.0) for thread, now in _waited().items())


def _wait() -> None:
    """For all work of the current device. The sanitizer must not take it for a wait of the program, which would order
    what the program has not ordered, in the processes that measure and not in those that find the result cached."""
    _C._wait_unobserved(-1)


def _time(call: Callable[[], Any]) -> float:
    """Milliseconds."""
    start = time.perf_counter()
    call()
    _wait()
    return 1e3 * (time.perf_counter() - start)
