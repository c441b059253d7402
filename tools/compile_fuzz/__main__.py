"""Runs programs on the device and on the CPU, and compares. Exit status 1: something differs."""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import hashlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from tools.compile_fuzz.program import Program
from torch_mtia.source_digest import ROOT

LIMIT = 180  # seconds for a program in one mode
PER_WORKER = 100  # programs, after which the worker makes room for another
PASSED = ("same", "upstream")


def digest() -> str:
    """Of the sources that are tested."""
    result = hashlib.sha256()
    for path in sorted(
        [*ROOT.rglob("*.py"), *(ROOT.parent / "csrc").rglob("*.[ch]*"), *(ROOT.parent / "yaml").iterdir()]
    ):
        result.update(path.read_bytes())
    return result.hexdigest()


@dataclasses.dataclass(frozen=True)
class Report:
    """Of one program in one mode, or of its shrunk form."""

    seed: int
    mode: str
    kind: str  # an Outcome's, or "crash", "hang"
    detail: str = ""
    program: str = ""  # the shrunk one


class Worker:
    """A process that runs programs. It is asked for a seed and prints one report for each mode."""

    def __init__(self, modes: list[str], device: str) -> None:
        settings = {
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
            "TORCH_MTIA_MEMORY": "2G",
            "OMP_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
        }
        command = [sys.executable, "-m", "tools.compile_fuzz.worker", device, *modes]
        self.programs = 0
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, **settings},
        )
        self._lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def run(self, seed: int, modes: list[str]) -> Iterator[Report]:
        """One report for each mode, in order, but after one of "crash" or "hang" none."""
        assert self._process.stdin is not None
        self.programs += 1
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps({"seed": seed, "modes": modes}), file=self._process.stdin, flush=True)
        for mode in modes:
            try:
                line = self._lines.get(timeout=LIMIT)
            except queue.Empty:
                yield Report(seed, mode, "hang", f"more than {LIMIT} s")
                return
            if line is None:
                yield Report(seed, mode, "crash", f"exit status {self._process.wait()}")
                return
            yield Report(**json.loads(line))

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def run(seeds: Iterable[int], modes: list[str], device: str) -> Iterator[Report]:
    """One report for each seed and mode. Workers that crash or hang are replaced."""
    worker = Worker(modes, device)
    try:
        for seed in seeds:
            left = list(modes)
            while left:
                for report in worker.run(seed, list(left)):
                    yield report
                    left.remove(report.mode)
                    if report.kind in ("crash", "hang"):
                        worker.programs = PER_WORKER
                if worker.programs >= PER_WORKER:
                    worker.close()
                    worker = Worker(modes, device)
    finally:
        worker.close()


class Progress:
    """What has been run, in a file, for a long run to be continued. Counts belong to the sources that were tested."""

    def __init__(self, path: Path | None, first: int) -> None:
        self._path = path
        self.next = first
        self._counts: dict[str, dict[str, dict[str, int]]] = {}
        if path is not None and path.exists():
            saved = json.loads(path.read_text())
            self.next, self._counts = saved["next"], saved["programs"]
        self._current = self._counts.setdefault(digest()[:12], {})

    def add(self, report: Report) -> None:
        self._count(report.mode, report.kind)

    def finish(self, program: Program) -> None:
        """All modes of a program are done."""
        self._count("programs", "backward" if program.training else "forward")
        for feature in sorted(set(program.features)):
            self._count("features", feature)
        self.next = program.seed + 1
        self.save()

    def _count(self, group: str, name: str) -> None:
        counts = self._current.setdefault(group, {})
        counts[name] = counts.get(name, 0) + 1

    def save(self) -> None:
        if self._path is not None:
            self._path.write_text(json.dumps({"next": self.next, "programs": self._counts}, indent=1) + "\n")


def main() -> int:
    from tools.compile_fuzz.execution import MODES
    from tools.compile_fuzz.statements import generate
    from torch_mtia.door import device_type

    parser = argparse.ArgumentParser(prog="python -m tools.compile_fuzz", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first")
    parser.add_argument("--count", type=int, default=1, help="how many, from the first on")
    parser.add_argument("--progress", type=Path, metavar="FILE", help="continue where FILE, which is updated, ends")
    parser.add_argument("--show", action="store_true", help="print the programs")
    parser.add_argument("--mode", choices=MODES, action="append", help="only this one; may be repeated")
    parser.add_argument("--device", default=device_type())
    parser.add_argument("--stop-after", type=int, default=1000, metavar="N", help="failures (default: 1000)")
    options = parser.parse_args()

    modes = options.mode or list(MODES)
    kinds: collections.Counter[str] = collections.Counter()
    start = time.monotonic()
    progress = Progress(options.progress, options.seed)
    seeds = range(progress.next, options.seed + options.count)
    done = 0
    for report in run(seeds, modes, options.device):
        progress.add(report)
        kinds[report.kind] += 1
        if report.kind != "same":
            text = report.program or generate(report.seed).description()
            print(f"seed {report.seed}, {report.mode}: {report.kind}\n{text}{report.detail}\n", flush=True)
        if report.mode == modes[-1]:
            done += 1
            program = generate(report.seed)
            progress.finish(program)
            if options.show:
                print(program.description())
        if sum(count for kind, count in kinds.items() if kind not in PASSED) >= options.stop_after:
            break
    elapsed = time.monotonic() - start
    figures = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    print(f"{done} programs from seed {seeds.start} in {len(modes)} modes in {elapsed:.0f} s: {figures}")
    return 0 if all(kind in PASSED for kind in kinds) else 1


if __name__ == "__main__":
    sys.exit(main())
