"""What both processes do with a program: make a kernel of its source, and hand out its buffers."""

from __future__ import annotations

import importlib.util
import linecache
from collections.abc import Callable
from typing import Any, TypeAlias

import torch

from tools.hunts.worker import Run
from tools.triton_fuzz.program import Program

Tensors: TypeAlias = dict[str, torch.Tensor]
Buffers: TypeAlias = dict[str, bytes]  # not every dtype can be pickled
# Calls a program's kernel, which is given with the tensors: it changes the tensors, or returns them changed.
Call: TypeAlias = Callable[[Program, Any, Tensors], Tensors]


def running(call: Call) -> Run[Program, Buffers]:
    torch.set_num_threads(1)

    def run(program: Program) -> Buffers:
        name = f"<seed {program.seed}>"
        try:
            tensors = call(program, _load_kernel(name, program.source), program.tensors())
        finally:
            linecache.cache.pop(name, None)
        return {name: tensor.view(torch.uint8).numpy().tobytes() for name, tensor in tensors.items()}

    return run


def _load_kernel(name: str, source: str) -> Any:
    """The function `kernel` of a source; Triton reads it where Python keeps the lines for tracebacks."""
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    module = importlib.util.module_from_spec(importlib.machinery.ModuleSpec("fuzzed", None, origin=name))
    exec(compile(source, name, "exec"), module.__dict__)
    return module.kernel
