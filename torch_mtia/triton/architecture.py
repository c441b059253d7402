"""The architecture that kernels are compiled for by default, without touching the device.

Processes that only compile ask it, so it cannot come from the device's properties; it is what they say.
"""

from __future__ import annotations

import functools
from pathlib import Path

# Of the psABI, and two above its highest; highest first: the flags that Linux lists, for what both the processor and
# the system offer.
AVX2 = frozenset({"avx2", "fma", "bmi1", "bmi2"})
AVX512 = frozenset({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"})
LEVELS: tuple[tuple[str, frozenset[str]], ...] = (
    ("x86-64-v4-bf16", AVX2 | AVX512 | {"avx512_vnni", "avx512_bf16"}),
    ("x86-64-v4-vnni", AVX2 | AVX512 | {"avx512_vnni"}),
    ("x86-64-v4", AVX2 | AVX512),
    ("x86-64-v3", AVX2),
    ("x86-64", frozenset()),
)


@functools.cache
def usable() -> tuple[str, ...]:
    """The levels whose code this machine can run."""
    flags = _flags()
    return tuple(name for name, required in LEVELS if required <= flags)


def architecture() -> str:
    """The level that suits the machine best."""
    highest, *others = usable()
    # Processors with AMX multiply bf16 without it slower than they multiply f32.
    return others[0] if highest == "x86-64-v4-bf16" and "amx_bf16" in _flags() else highest


@functools.cache
def _flags() -> frozenset[str]:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("flags"):
            return frozenset(line.partition(":")[2].split())
    return frozenset()
