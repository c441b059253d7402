"""The device under test, in a process of its own, which a wrong kernel may crash or hang."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from tools.triton_fuzz.program import Program
from tools.triton_fuzz.worker import Run, Tensors, Worker

BETWEEN_CLEANINGS = 100  # programs


def device_worker(device: str, cache: Path, limit: float) -> Worker:
    """`cache` gets what programs are compiled to, for a while."""
    return Worker(prepare, device, cache, limit=limit)


def prepare(device: str, cache: Path) -> Run:
    import triton

    import torch_mtia  # noqa: F401
    from torch_mtia.triton.architecture import architecture, usable

    levels = usable()
    triton.knobs.cache.dir = str(cache)
    count = 0

    def run(program: Program, kernel: Any, tensors: Tensors) -> Tensors:
        nonlocal count
        count += 1
        if count % BETWEEN_CLEANINGS == 0:
            shutil.rmtree(cache, ignore_errors=True)
        # Mostly what the machine has, now and then a lower level.
        level = levels[program.seed // 4 % len(levels)] if program.seed % 4 == 0 else architecture()
        on_device = {name: tensor.to(device) for name, tensor in tensors.items()}
        by_position, by_name = program.arguments(on_device)
        kernel[(program.grid,)](*by_position, **by_name, arch=level)
        return {name: tensor.cpu() for name, tensor in on_device.items()}

    return run
