"""The process that runs programs: reads {"seed": ..., "modes": [...]} from standard input, prints a report a mode."""

from __future__ import annotations

import gc
import json
import os
import shutil
import sys
import tempfile
import warnings
from pathlib import Path

import torch
import torch._inductor.config

from tools.compile_fuzz.execution import Outcome, Reference, judged, outcome
from tools.compile_fuzz.program import Program
from tools.compile_fuzz.shrink import shrink
from tools.compile_fuzz.statements import generate

CANDIDATES = 60  # that are tried to shrink a program


def report(seed: int, mode: str, device: str, reference: Reference, program: Program) -> dict[str, object]:
    found = outcome(program, mode, device, reference)
    text = ""
    if found.kind != "same":
        found = judged(program, mode, device, reference, found)
        if found.kind != "upstream":
            program, found = shrunk(program, mode, device, found)
        text = program.description()
    return {"seed": seed, "mode": mode, "kind": found.kind, "detail": found.detail, "program": text}


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


def main() -> None:
    device = sys.argv[1]
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    # Results of one program are of no use to another; what kernels were compiled to is, in another mode.
    folder = tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
    torch._inductor.config.fx_graph_cache = False
    gc.freeze()
    gc.set_threshold(100_000)
    try:
        for line in sys.stdin:
            asked = json.loads(line)
            program = generate(asked["seed"])
            reference = Reference(program)
            for mode in asked["modes"]:
                print(json.dumps(report(asked["seed"], mode, device, reference, program)), flush=True)
            gc.collect()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
