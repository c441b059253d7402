"""Runs programs on mtia and in the interpreter, and compares. Exit status 1: something differs."""

from __future__ import annotations

import argparse
import collections
import dataclasses
import gc
import linecache
import sys
import tempfile
import time
import traceback
from pathlib import Path

import torch

from tools.triton_fuzz.oracle import InterpreterError, Oracle, load_kernel
from tools.triton_fuzz.program import Buffer, Program
from tools.triton_fuzz.statements import generate


@dataclasses.dataclass(frozen=True)
class Outcome:
    kind: str  # "same", "different", "error": ours raised, "not interpreted": the interpreter raised
    detail: str = ""


class Fuzzer:
    """Runs programs of many seeds. `folder` gets their sources."""

    def __init__(self, folder: Path, device: str = "mtia") -> None:
        self._folder = folder
        self._device = device
        self._oracle = Oracle()

    def close(self) -> None:
        self._oracle.close()

    def run(self, seed: int) -> Outcome:
        program = generate(seed)
        path = self._folder / f"seed_{seed}.py"
        path.write_text(program.source)
        try:
            return self._compare(program, path)
        finally:
            path.unlink()
            linecache.clearcache()
            if seed % 100 == 0:
                gc.collect()

    def _compare(self, program: Program, path: Path) -> Outcome:
        try:
            expected = self._oracle.run(program, path)
        except InterpreterError as error:
            return Outcome("not interpreted", str(error))
        try:
            tensors = {name: tensor.to(self._device) for name, tensor in program.tensors().items()}
            load_kernel(path)[(program.grid,)](*program.arguments(tensors))
            actual = {name: tensor.cpu() for name, tensor in tensors.items()}
        except Exception:
            return Outcome("error", traceback.format_exc())
        differences = [
            difference
            for buffer in program.buffers
            if buffer.aliases is None and (difference := compare(buffer, actual[buffer.name], expected[buffer.name]))
        ]
        return Outcome("different", "\n".join(differences)) if differences else Outcome("same")


def compare(buffer: Buffer, actual: torch.Tensor, expected: torch.Tensor) -> str:
    """What is wrong with a buffer; empty: nothing."""
    if buffer.tolerance:
        error = (actual.double() - expected.double()).abs() / expected.double().abs().clamp(min=1)
        wrong = ~((error <= buffer.tolerance) | (actual == expected))
    else:
        wrong = actual != expected
    if not wrong.any():
        return ""
    index = int(wrong.nonzero()[0])
    return (
        f"{buffer.name} ({buffer.dtype}): {int(wrong.sum())} of {len(wrong)} elements, the first [{index}] is "
        f"{actual[index].item()!r} where the interpreter says {expected[index].item()!r}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.triton_fuzz", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first")
    parser.add_argument("--count", type=int, default=1, help="how many, from the first on")
    parser.add_argument("--show", action="store_true", help="print the sources")
    parser.add_argument("--device", default="mtia")
    parser.add_argument("--stop-after", type=int, default=20, metavar="N", help="failures (default: 20)")
    options = parser.parse_args()

    counts: collections.Counter[str] = collections.Counter()
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        fuzzer = Fuzzer(Path(folder), options.device)
        for seed in range(options.seed, options.seed + options.count):
            if options.show:
                print(generate(seed).source)
            outcome = fuzzer.run(seed)
            counts[outcome.kind] += 1
            if outcome.kind != "same":
                print(f"seed {seed}: {outcome.kind}\n{outcome.detail}\n", flush=True)
            if counts.total() - counts["same"] >= options.stop_after:
                break
        fuzzer.close()
    figures = ", ".join(f"{count} {kind}" for kind, count in counts.most_common())
    print(f"{counts.total()} programs from seed {options.seed} in {time.monotonic() - start:.0f} s: {figures}")
    return 0 if counts.total() == counts["same"] else 1


if __name__ == "__main__":
    sys.exit(main())
