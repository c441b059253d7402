"""Compares random kernels on mtia with Triton's interpreter. Exit status 1: something differs."""

from __future__ import annotations

import argparse
import collections
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tools.hunts.progress import Progress
from tools.hunts.worker import Outcome
from tools.triton_fuzz.fuzzer import Fuzzer, Pair
from tools.triton_fuzz.program import Program
from tools.triton_fuzz.shrink import shrink
from torch_mtia.backend import device_type
from torch_mtia.source_digest import source_digest

IN_MEMORY = Path("/dev/shm")


def report(program: Program, outcome: Outcome, pair: Pair) -> Iterator[str]:
    """What went wrong, and a short program in which it does."""
    yield f"seed {program.seed}: {outcome.kind}\n{outcome.detail}"

    def fails(candidate: Program) -> bool:
        pair.start(candidate)
        return _same_kind(pair.finish(), outcome)

    if not fails(program):
        yield "which does not happen again"
        return
    shrunk = shrink(program, fails)
    yield f"{shrunk.source}\n{shrunk.call}"


def _same_kind(one: Outcome, other: Outcome) -> bool:
    """Exceptions are the same if their messages are, but for numbers."""
    return one.kind == other.kind and (one.kind not in ("error", "not interpreted") or _message(one) == _message(other))


def _message(outcome: Outcome) -> str:
    return re.sub(r"\d+", "", outcome.detail.strip().splitlines()[-1])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.triton_fuzz", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first")
    parser.add_argument("--count", type=int, default=1, help="how many, from the first on")
    parser.add_argument("--progress", type=Path, metavar="FILE", help="continue where FILE, which is updated, ends")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="pairs of processes (default: 1)")
    parser.add_argument("--show", action="store_true", help="print the sources")
    parser.add_argument("--features", action="store_true", help="print how many programs have which statements")
    parser.add_argument("--device", default=device_type())
    parser.add_argument("--stop-after", type=int, default=20, metavar="N", help="failures (default: 20)")
    options = parser.parse_args()

    outcomes: collections.Counter[str] = collections.Counter()
    features: collections.Counter[str] = collections.Counter()
    start = time.monotonic()
    progress = Progress(options.progress, options.seed, source_digest("triton")[:12])
    seeds = range(progress.next, options.seed + options.count)
    with tempfile.TemporaryDirectory(dir=IN_MEMORY if IN_MEMORY.is_dir() else None) as folder:
        fuzzer = Fuzzer(Path(folder), options.device, options.jobs)
        shrinker: Pair | None = None
        for program, outcome in fuzzer.run(seeds):
            if options.show:
                print(f"{program.source}\n{program.call}")
            outcomes[outcome.kind] += 1
            features.update(program.features)
            progress.add(program.seed, outcome.kind, program.features)
            if outcome.failed:
                shrinker = shrinker or Pair(options.device, Path(folder) / "shrink", limit=20)
                for text in report(program, outcome, shrinker):
                    print(text, flush=True)
            if outcomes.total() - outcomes["same"] >= options.stop_after:
                break
        progress.save()
        fuzzer.close()
        if shrinker is not None:
            shrinker.close()
    if options.features:
        print("\n".join(f"{count:8} {feature}" for feature, count in features.most_common()))
    figures = ", ".join(f"{count} {kind}" for kind, count in outcomes.most_common())
    print(f"{outcomes.total()} programs from seed {seeds.start} in {time.monotonic() - start:.0f} s: {figures}")
    return 0 if outcomes.total() == outcomes["same"] else 1


if __name__ == "__main__":
    sys.exit(main())
