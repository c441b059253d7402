"""The architecture that kernels are compiled for by default, without touching the device.

Processes that only compile ask it, so it cannot come from the device's properties; it is what they say.
"""

from __future__ import annotations

import functools
from pathlib import Path

# Of the psABI, highest first: the flags that Linux lists, for what both the processor and the system offer.
AVX2 = frozenset({"avx2", "fma", "bmi1", "bmi2"})
AVX512 = frozenset({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"})
LEVELS: tuple[tuple[str, frozenset[str]], ...] = (
    ("x86-64-v4", AVX2 | AVX512),
    ("x86-64-v3", AVX2),
    ("x86-64", frozenset()),
)


@functools.cache
def architecture() -> str:
    """The name of the machine's level."""
    flags: set[str] = set()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("flags"):
            flags = set(line.partition(":")[2].split())
            break
    return next(name for name, required in LEVELS if required <= flags)
