"""Measures the first calls of compiled functions, in this process. compile.py runs it, with empty or filled caches.

python benchmarks/compile_start.py mtia programs      # or models, lengths; prints seconds
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from compile_models import LLAMA, MODELS, Model, Shape
from compile_programs import PROGRAMS, Program
from timing import Side, sampled_by

LENGTHS = range(16, 136, 12)  # of Llama's sequences
LOADED = "PyCodeCache.load_by_key_path"  # upstream's name for running generated code, which compiles its kernels


def first_calls(what: str, device: str) -> dict[str, float]:
    """Seconds until the results of the first calls are there: of all programs, of a training step of each model, or of
    Llama with each of `LENGTHS`. `kernels` is the part in which generated kernels are compiled. Imports that both
    devices need are excluded."""
    import torch._dynamo.utils
    import torch._inductor.compile_fx

    torch.ones(1, device=device).sum().item()
    calls = {
        "programs": lambda: [of_program(program, device) for program in PROGRAMS],
        "models": lambda: [of_model(model, device, [Shape(layers=2)]) for model in MODELS],
        "lengths": lambda: [of_model(LLAMA, device, [Shape(layers=2, tokens=length) for length in LENGTHS])],
    }[what]()
    total = kernels = 0.0
    for call in calls:
        start = time.perf_counter()
        call()
        if device != "cpu":
            torch.accelerator.synchronize()
        total += time.perf_counter() - start
        kernels += sum(torch._dynamo.utils.compilation_time_metrics[LOADED])
        torch._dynamo.reset()  # forgets these times too
    return {"calls": total, "kernels": kernels}


def of_program(program: Program, device: str) -> Callable[[], object]:
    operands = [operand.to(device) for operand in program.operands()]
    return lambda: torch.compile(program.function)(*operands)


def of_model(model: Model, device: str, shapes: list[Shape]) -> Callable[[], object]:
    network = torch.compile(model.make(shapes[0]).to(device))
    return lambda: [model.loss(network, shape, device).backward() for shape in shapes]


def started(what: str, device: str, key: str, warm: bool) -> Side:
    """A side whose time is one figure of `first_calls`, in a fresh process with empty caches or, if `warm`, with caches
    that an earlier process has filled. For `kernels`, that process compiles without workers."""
    threads = {"TORCHINDUCTOR_COMPILE_THREADS": "1"} if key == "kernels" else {}
    folder = tempfile.TemporaryDirectory()
    runs = [0]

    def measure() -> float:
        runs[0] += not warm
        caches = {"TORCHINDUCTOR_CACHE_DIR": str(Path(folder.name) / str(runs[0]))}
        command = [sys.executable, __file__, device, what, str(torch.get_num_threads())]
        finished = subprocess.run(
            command, env=os.environ | caches | threads, stdout=subprocess.PIPE, text=True, check=True
        )
        return float(json.loads(finished.stdout)[key])

    if warm:
        measure()
    return sampled_by(measure)


if __name__ == "__main__":
    torch.set_num_threads(int(sys.argv[3]) if len(sys.argv) > 3 else torch.get_num_threads())
    torch.manual_seed(0)
    print(json.dumps(first_calls(sys.argv[2], sys.argv[1])))
