"""The device under test, in a process of its own, which a wrong kernel may crash or hang."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from tools.hunts.worker import Run, Worker
from tools.triton_fuzz.kernels import Buffers, Tensors, running
from tools.triton_fuzz.program import Program, Scalar

BETWEEN_CLEANINGS = 100  # programs


def device_worker(device: str, cache: Path, limit: float) -> Worker[Program, Buffers]:
    """`cache` gets what programs are compiled to, for a while."""
    return Worker(functools.partial(prepare, device, cache), {}, limit)


def prepare(device: str, cache: Path) -> Run[Program, Buffers]:
    import triton

    import torch_mtia  # noqa: F401
    from torch_mtia.triton.architecture import architecture, usable

    levels = usable()
    triton.knobs.cache.dir = str(cache)
    count = 0

    def call(program: Program, kernel: Any, tensors: Tensors) -> Tensors:
        nonlocal count
        count += 1
        if count % BETWEEN_CLEANINGS == 0:
            shutil.rmtree(cache, ignore_errors=True)
        # Mostly what the machine has, now and then a lower level.
        level = levels[program.seed // 4 % len(levels)] if program.seed % 4 == 0 else architecture()
        on_device = {name: tensor.to(device) for name, tensor in tensors.items()}
        by_position, by_name = program.arguments(on_device)
        compiled = kernel[(program.grid,)](*by_position, **by_name, arch=level)
        result = {name: tensor.cpu() for name, tensor in on_device.items()}
        if program.launched_again:
            on_device = {name: tensor.to(device) for name, tensor in tensors.items()}
            compiled[(program.grid, 1, 1)](*_direct_arguments(program, on_device, compiled.src.signature))
            for name, tensor in on_device.items():
                if not torch.equal(tensor.cpu().view(torch.uint8), result[name].view(torch.uint8)):
                    raise AssertionError(f"the compiled kernel, launched directly, gives another {name}")
        return result

    return running(call)


def _direct_arguments(
    program: Program, tensors: Tensors, signature: Mapping[str, object]
) -> list[torch.Tensor | Scalar]:
    """All arguments in order, without the constants at the end."""
    values = program.values(tensors)
    names = list(values)
    while names and signature[names[-1]] == "constexpr":
        names.pop()
    return [values[name] for name in names]
