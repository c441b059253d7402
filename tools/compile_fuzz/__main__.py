"""Runs programs on the device and on the CPU, and compares. Exit status 1: something differs."""

from __future__ import annotations

import argparse
import collections
import functools
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from tools.compile_fuzz.worker import Report, Task, prepare
from tools.hunts.progress import Progress, digest_of_package
from tools.hunts.worker import Failure, Worker, in_turn

LIMIT = 180  # seconds for a program in one mode, with what it takes to shrink it
PER_PROCESS = 100  # programs, after which another process takes over: compiled code stays in memory
PASSED = ("same", "upstream")
SETTINGS = {
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
    "TORCH_MTIA_MEMORY": "2G",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}


def run(seeds: Iterable[int], modes: list[str], device: str, jobs: int = 1) -> Iterator[tuple[Task, Report]]:
    """One report for each seed and mode, in order. All modes of a seed are run by one process."""
    workers = [
        Worker[Task, Report](functools.partial(prepare, device), SETTINGS, LIMIT, PER_PROCESS * len(modes))
        for _ in range(jobs)
    ]
    tasks = (Task(seed, mode) for seed in seeds for mode in modes)
    try:
        for task, result in in_turn(workers, tasks, together=len(modes)):
            yield task, Report(result.kind, result.detail) if isinstance(result, Failure) else result
    finally:
        for worker in workers:
            worker.close()


def main() -> int:
    from tools.compile_fuzz.execution import MODES
    from tools.compile_fuzz.generate import generate
    from torch_mtia.backend import device_type

    parser = argparse.ArgumentParser(prog="python -m tools.compile_fuzz", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first")
    parser.add_argument("--count", type=int, default=1, help="how many, from the first on")
    parser.add_argument("--progress", type=Path, metavar="FILE", help="continue where FILE, which is updated, ends")
    parser.add_argument("--show", action="store_true", help="print the programs")
    parser.add_argument("--mode", choices=MODES, action="append", help="only this one; may be repeated")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes that run programs (default: 1)")
    parser.add_argument("--device", default=device_type())
    parser.add_argument("--stop-after", type=int, default=1000, metavar="N", help="failures (default: 1000)")
    options = parser.parse_args()

    modes = options.mode or list(MODES)
    kinds: collections.Counter[str] = collections.Counter()
    start = time.monotonic()
    progress = Progress(options.progress, options.seed, digest_of_package())
    seeds = range(progress.next, options.seed + options.count)
    done = 0
    for task, report in run(seeds, modes, options.device, options.jobs):
        kinds[report.kind] += 1
        if report.kind != "same":
            text = report.program or generate(task.seed).description()
            print(f"seed {task.seed}, {task.mode}: {report.kind}\n{text}{report.detail}\n", flush=True)
        outcome = f"{task.mode}: {report.kind}"
        if task.mode == modes[-1]:
            done += 1
            program = generate(task.seed)
            progress.add(task.seed, outcome, [*program.features, "backward" if program.training else "forward"])
            if options.show:
                print(program.description())
        else:
            progress.outcomes[outcome] += 1
        if sum(count for kind, count in kinds.items() if kind not in PASSED) >= options.stop_after:
            break
    progress.save()
    elapsed = time.monotonic() - start
    figures = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    print(f"{done} programs from seed {seeds.start} in {len(modes)} modes in {elapsed:.0f} s: {figures}")
    return 0 if all(kind in PASSED for kind in kinds) else 1


if __name__ == "__main__":
    sys.exit(main())
