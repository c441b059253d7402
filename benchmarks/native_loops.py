"""Loops whose body takes less time than a line of Python: native_loops.cpp, built when a benchmark first needs it."""

from __future__ import annotations

import functools
from pathlib import Path

import torch
from torch.utils import cpp_extension

from torch_mtia.cpp_extension import COMPILE_FLAGS, include_paths, link_flags


@functools.cache
def _build() -> None:
    cpp_extension.load(
        "mtia_benchmarks",
        [str(Path(__file__).with_suffix(".cpp"))],
        extra_cflags=[*COMPILE_FLAGS, "-O2"],
        extra_include_paths=include_paths(),
        extra_ldflags=link_flags(),
        is_python_module=False,
    )


def launch(device: str, count: int, may_run_inline: bool) -> None:
    """Submits `count` empty work items to the current stream of the device."""
    _build()
    torch.ops.mtia_benchmarks.launch(torch.device(device), count, may_run_inline)


def allocate(device: str, size: int, count: int) -> None:
    """Allocates `size` bytes with c10's allocator for the device and frees them untouched, `count` times."""
    _build()
    torch.ops.mtia_benchmarks.allocate(torch.device(device), size, count)
