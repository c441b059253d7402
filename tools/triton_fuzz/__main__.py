"""Runs programs on mtia and in the interpreter, and compares. Exit status 1: something differs."""

from __future__ import annotations

import argparse
import collections
import dataclasses
import gc
import json
import linecache
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
import triton

from tools.triton_fuzz.oracle import InterpreterError, Oracle, load_kernel
from tools.triton_fuzz.program import Buffer, Program
from tools.triton_fuzz.statements import generate
from torch_mtia.door import device_type
from torch_mtia.source_digest import source_digest
from torch_mtia.triton.architecture import architecture, usable

BETWEEN_CLEANINGS = 100  # programs


@dataclasses.dataclass(frozen=True)
class Outcome:
    kind: str  # "same", "different", "error": ours raised, "not interpreted": the interpreter raised
    detail: str = ""


class Fuzzer:
    """Runs programs of many seeds. `folder` gets their sources and what they are compiled to."""

    def __init__(self, folder: Path, device: str) -> None:
        self._folder = folder
        self._device = device
        self._oracle = Oracle()
        self._levels = usable()

    def close(self) -> None:
        self._oracle.close()

    def run(self, seeds: Iterable[int]) -> Iterator[tuple[int, Outcome]]:
        """The seeds with their outcomes. The interpreter is a program ahead."""
        started: collections.deque[Program] = collections.deque()
        for seed in seeds:
            program = generate(seed)
            self._path(program).write_text(program.source)
            self._oracle.start(program, self._path(program))
            started.append(program)
            if len(started) > 1:
                yield self._finish(started.popleft())
        if started:
            yield self._finish(started.popleft())

    def _path(self, program: Program) -> Path:
        return self._folder / f"seed_{program.seed}.py"

    def _finish(self, program: Program) -> tuple[int, Outcome]:
        with triton.knobs.cache.scope():
            triton.knobs.cache.dir = str(self._folder / "cache")
            outcome = self._compare(program)
        self._path(program).unlink()
        linecache.cache.pop(str(self._path(program)), None)
        if program.seed % BETWEEN_CLEANINGS == 0:
            shutil.rmtree(self._folder / "cache", ignore_errors=True)
            gc.collect()
        return program.seed, outcome

    def _compare(self, program: Program) -> Outcome:
        try:
            expected = self._oracle.result(program)
        except InterpreterError as error:
            return Outcome("not interpreted", str(error))
        # Mostly what the machine has, now and then a lower level.
        level = self._levels[program.seed // 4 % len(self._levels)] if program.seed % 4 == 0 else architecture()
        try:
            tensors = {name: tensor.to(self._device) for name, tensor in program.tensors().items()}
            load_kernel(self._path(program))[(program.grid,)](*program.arguments(tensors), arch=level)
            actual = {name: tensor.cpu() for name, tensor in tensors.items()}
        except Exception:
            return Outcome("error", f"{level}\n{traceback.format_exc()}")
        differences = [
            difference
            for buffer in program.buffers
            if buffer.aliases is None and (difference := compare(buffer, actual[buffer.name], expected[buffer.name]))
        ]
        return Outcome("different", "\n".join([level, *differences])) if differences else Outcome("same")


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


class Progress:
    """What has been run, in a file, for a long run to be continued. Counts belong to the compiler that was tested."""

    def __init__(self, path: Path | None, first: int) -> None:
        self._path = path
        self.next = first
        self._counts: dict[str, dict[str, int]] = {}
        if path is not None and path.exists():
            saved = json.loads(path.read_text())
            self.next, self._counts = saved["next"], saved["programs"]
        self._current = self._counts.setdefault(source_digest("triton")[:12], {})

    def add(self, seed: int, outcome: Outcome) -> None:
        self._current[outcome.kind] = self._current.get(outcome.kind, 0) + 1
        self.next = seed + 1
        if self._path is not None and self.next % 20 == 0:
            self.save()

    def save(self) -> None:
        if self._path is not None:
            self._path.write_text(json.dumps({"next": self.next, "programs": self._counts}, indent=1) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.triton_fuzz", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first")
    parser.add_argument("--count", type=int, default=1, help="how many, from the first on")
    parser.add_argument("--progress", type=Path, metavar="FILE", help="continue where FILE, which is updated, ends")
    parser.add_argument("--show", action="store_true", help="print the sources")
    parser.add_argument("--device", default=device_type())
    parser.add_argument("--stop-after", type=int, default=20, metavar="N", help="failures (default: 20)")
    options = parser.parse_args()

    counts: collections.Counter[str] = collections.Counter()
    start = time.monotonic()
    progress = Progress(options.progress, options.seed)
    seeds = range(progress.next, options.seed + options.count)
    with tempfile.TemporaryDirectory() as folder:
        fuzzer = Fuzzer(Path(folder), options.device)
        gc.freeze()  # what is there by now stays, and need not be looked at again
        gc.set_threshold(100_000)
        for seed, outcome in fuzzer.run(seeds):
            if options.show:
                print(generate(seed).source)
            counts[outcome.kind] += 1
            progress.add(seed, outcome)
            if outcome.kind != "same":
                print(f"seed {seed}: {outcome.kind}\n{outcome.detail}\n", flush=True)
            if counts.total() - counts["same"] >= options.stop_after:
                break
        progress.save()
        fuzzer.close()
    figures = ", ".join(f"{count} {kind}" for kind, count in counts.most_common())
    print(f"{counts.total()} programs from seed {seeds.start} in {time.monotonic() - start:.0f} s: {figures}")
    return 0 if counts.total() == counts["same"] else 1


if __name__ == "__main__":
    sys.exit(main())
