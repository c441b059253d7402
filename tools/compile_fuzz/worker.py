"""What the process does that runs programs: one program in one mode at a time."""

from __future__ import annotations

import dataclasses
import functools
import os
import tempfile
import warnings
from pathlib import Path

from tools.compile_fuzz.execution import Outcome, Reference, judged, outcome
from tools.compile_fuzz.generate import generate
from tools.compile_fuzz.program import Program
from tools.compile_fuzz.shrink import shrink
from tools.hunts.worker import Run

CANDIDATES = 60  # that are tried to shrink a program


@dataclasses.dataclass(frozen=True)
class Task:
    seed: int
    mode: str


@dataclasses.dataclass(frozen=True)
class Report:
    kind: str  # an Outcome's
    detail: str = ""
    program: str = ""  # the shrunk one, if it differs


def prepare(device: str) -> Run[Task, Report]:
    import torch._inductor.config

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    # Results of one program are of no use to another; what kernels were compiled to is, in another mode.
    folder = tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder.name
    torch._inductor.config.fx_graph_cache = False

    @functools.lru_cache(maxsize=1)  # for all modes
    def made(seed: int) -> tuple[Program, Reference]:
        program = generate(seed)
        return program, Reference(program)

    def run(task: Task, _folder: object = folder) -> Report:
        program, reference = made(task.seed)
        return report(program, task.mode, device, reference)

    return run


def report(program: Program, mode: str, device: str, reference: Reference) -> Report:
    found = outcome(program, mode, device, reference)
    if found.kind == "same":
        return Report("same")
    found = judged(program, mode, device, reference, found)
    if found.kind != "upstream":
        program, found = shrunk(program, mode, device, found)
    return Report(found.kind, found.detail, program.description())


def shrunk(program: Program, mode: str, device: str, found: Outcome) -> tuple[Program, Outcome]:
    """The smallest program with the same symptom, and its outcome."""
    left = CANDIDATES

    def fails(candidate: Program) -> bool:
        nonlocal left
        left -= 1
        if left < 0:
            return False
        try:
            other = outcome(candidate, mode, device, Reference(candidate))
        except Exception:  # it does not run on the CPU
            return False
        return (other.kind, other.symptom) == (found.kind, found.symptom)

    program = shrink(program, fails)
    reference = Reference(program)
    return program, judged(program, mode, device, reference, outcome(program, mode, device, reference))
