"""The architecture that kernels are compiled for by default, without touching the device.

Processes that only compile ask it, so it cannot come from the device's properties; it is what they say.
"""

from __future__ import annotations

import ctypes
import functools
import platform
from pathlib import Path

# Of the psABI, and three above its highest; highest first: the flags that Linux lists, for what both the processor and
# the system offer.
AVX2 = frozenset({"avx2", "fma", "bmi1", "bmi2"})
AVX512 = frozenset({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"})
AMX = frozenset({"amx_tile", "amx_bf16", "amx_int8"})
LEVELS: tuple[tuple[str, frozenset[str]], ...] = (
    ("x86-64-v4-amx", AVX2 | AVX512 | AMX | {"avx512_vnni", "avx512_bf16"}),
    ("x86-64-v4-bf16", AVX2 | AVX512 | {"avx512_vnni", "avx512_bf16"}),
    ("x86-64-v4-vnni", AVX2 | AVX512 | {"avx512_vnni"}),
    ("x86-64-v4", AVX2 | AVX512),
    ("x86-64-v3", AVX2),
    ("x86-64", frozenset()),
)
AARCH64 = ("aarch64",)
_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA = 158, 0x1023, 18


@functools.cache
def usable() -> tuple[str, ...]:
    """The levels whose code this machine can run."""
    if platform.machine() == "aarch64":
        return AARCH64
    flags = _flags() if _may_use_tiles() else _flags() - AMX
    return tuple(name for name, required in LEVELS if required <= flags)


def _may_use_tiles() -> bool:
    """Linux gives a process the registers of AMX only on request, which holds for all of its threads; the driver asks
    too (csrc/runtime/host/processor.cpp)."""
    return _flags() >= AMX and ctypes.CDLL(None).syscall(_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA) == 0


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
