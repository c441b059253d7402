"""The parts of the device around its operators: allocators, streams, the profiler.

All cases take about a minute, some of them less:
    python benchmarks/runtime.py
    python benchmarks/runtime.py --cases profiler

Allocators are compared with glibc's best settings for the CPU, which reuse freed memory. glibc's own settings, which
most programs have, return large blocks to the kernel:
    python benchmarks/runtime.py --cases allocate --settings default
"""

from __future__ import annotations

import itertools
import random
import sys

import native_loops
import torch
from timing import MEBIBYTE, SEED, Case, Group, Side, Target, main, on

KIBIBYTE = 2**10
ALLOCATIONS = 1000
LAUNCHES = 10_000

# bytes, least ratio through the raw allocators, least ratio through torch.empty
ALLOCATION_SIZES = (("64 B", 64, 0.7, 0.8), ("64 MiB", 64 * MEBIBYTE, 0.7, 0.8))

STREAMS = 4
ALLOCATIONS_OF_A_PASS = 100_000
WARM_UP_PASSES = 10
LIVE = 64  # allocations of each stream that live at a time
MIXED_SIZES = (64, 1000, 4 * KIBIBYTE, 100_000, MEBIBYTE, 3 * MEBIBYTE, 12 * MEBIBYTE)


ALLOCATORS = Group("allocation", "glibc, through the CPU device's allocator")
MIXED = Group("allocation on several streams", "")
OVERLAP = Group("two streams on one thread", "the same work on one stream")
PROFILED = Group("launch under the profiler", "a launch without the profiler")


def raw_case(label: str, size: int, ratio: float) -> Case:
    return Case(
        f"allocate and free {label}, raw",
        ALLOCATORS,
        lambda: raw_allocations("mtia", size),
        lambda: raw_allocations("cpu", size),
        operations=ALLOCATIONS,
        target=Target(ratio=ratio),
    )


def empty_case(label: str, size: int, ratio: float) -> Case:
    return Case(
        f"allocate and free {label}, torch.empty",
        ALLOCATORS,
        lambda: empty_tensors("mtia", size),
        lambda: empty_tensors("cpu", size),
        operations=ALLOCATIONS,
        target=Target(ratio=ratio),
    )


CASES = (
    *(raw_case(label, size, raw) for label, size, raw, _ in ALLOCATION_SIZES),
    *(empty_case(label, size, empty) for label, size, _, empty in ALLOCATION_SIZES),
    Case(f"mixed sizes on {STREAMS} streams", MIXED, lambda: mixed_sizes(), operations=ALLOCATIONS_OF_A_PASS),
    Case(
        "matmul beside a copy",
        OVERLAP,
        lambda: matmul_and_copy(streams=2),
        lambda: matmul_and_copy(streams=1),
        target=Target(ratio=1 / 0.65),
    ),
    Case(
        "a launch under the profiler",
        PROFILED,
        lambda: launches(profiled=True),
        lambda: launches(profiled=False),
        operations=LAUNCHES,
        target=Target(excess_us=2),
    ),
)


# Allocators ----------------------------------------------------------------------------------------------------------


def raw_allocations(device: str, size: int) -> Side:
    torch.empty(size, dtype=torch.uint8, device=device)
    return on(device, lambda: native_loops.allocate(device, size, ALLOCATIONS), lambda: size)


def empty_tensors(device: str, size: int) -> Side:
    def run() -> None:
        for _ in range(ALLOCATIONS):
            torch.empty(size, dtype=torch.uint8, device=device)

    return on(device, run, lambda: size)


def mixed_sizes() -> Side:
    """Passes of equal allocations, in equal order; raises if a pass after the warm-up reserves more memory."""
    order = random.Random(SEED)
    sizes = [order.choice(MIXED_SIZES) // order.randint(1, 4) for _ in range(ALLOCATIONS_OF_A_PASS // STREAMS)]
    streams = [torch.Stream("mtia") for _ in range(STREAMS)]
    reserved = sys.maxsize

    def run() -> None:
        for stream in streams:
            live: list[torch.Tensor | None] = [None] * LIVE
            with stream:
                for size, slot in zip(sizes, itertools.cycle(range(LIVE))):
                    live[slot] = torch.empty(size, dtype=torch.uint8, device="mtia")
        if torch.accelerator.memory_reserved() > reserved:
            raise RuntimeError(f"reserved memory grew from {reserved} to {torch.accelerator.memory_reserved()} bytes")

    for _ in range(WARM_UP_PASSES):
        run()
    reserved = torch.accelerator.memory_reserved()
    return on("mtia", run, lambda: None)


# Streams -------------------------------------------------------------------------------------------------------------


def matmul_and_copy(streams: int) -> Side:
    """A matmul and a copy of about equal time that do not depend on each other, with one thread."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(SEED)
    a = torch.randn(1024, 1024, generator=generator).to("mtia")
    result = torch.empty_like(a)
    source = torch.zeros(128 * MEBIBYTE, dtype=torch.uint8).pin_memory()
    target = torch.empty_like(source, device="mtia")
    first = torch.Stream("mtia")
    second = torch.Stream("mtia") if streams == 2 else first

    def run() -> None:
        with first:
            torch.mm(a, a, out=result)
        with second:
            target.copy_(source, non_blocking=True)

    return on("mtia", run, lambda: result.cpu())


# The profiler --------------------------------------------------------------------------------------------------------


def launches(profiled: bool) -> Side:
    if profiled:
        torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.MTIA]).start()  # until the process ends
    return on("mtia", lambda: native_loops.launch("mtia", LAUNCHES, True), lambda: LAUNCHES)


if __name__ == "__main__":
    sys.exit(main(CASES, __doc__))
