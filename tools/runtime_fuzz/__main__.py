"""Runs random programs on the device and on the CPU, and compares. Exit status 1: something differs."""

from __future__ import annotations

import argparse
import collections
import sys
import time
from pathlib import Path

from tools.hunts.progress import Progress, digest_of_package
from tools.hunts.worker import in_turn
from tools.runtime_fuzz.fuzzer import LIMIT, Fuzzer
from tools.runtime_fuzz.order import order
from tools.runtime_fuzz.profiles import profile_of
from tools.runtime_fuzz.program import Program


def text_of(program: Program) -> str:
    """The program as Python, with the current stream and the thread of each statement."""
    lines = [f"# streams are of the devices {list(program.devices)}"]
    for step in order(program):
        stream = "" if step.action is None or step.action.stream < 0 else f"  # on streams[{step.action.stream}]"
        thread = f"  # thread {step.thread}" if program.threads > 1 else ""
        lines.append(f"{step.text}{stream}{thread}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.runtime_fuzz", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first")
    parser.add_argument("--count", type=int, default=1, help="how many, from the first on")
    parser.add_argument("--progress", type=Path, metavar="FILE", help="continue where FILE, which is updated, ends")
    parser.add_argument("--show", action="store_true", help="print the programs")
    parser.add_argument("--stop-after", type=int, default=20, metavar="N", help="failures (default: 20)")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes that run programs (default: 1)")
    parser.add_argument("--limit", type=float, default=LIMIT, metavar="S", help="seconds of a program")
    options = parser.parse_args()

    progress = Progress(options.progress, options.seed, digest_of_package())
    seeds = range(progress.next, options.seed + options.count)
    counts: collections.Counter[str] = collections.Counter()
    fuzzers = [Fuzzer(options.limit) for _ in range(options.jobs)]
    shrinker = Fuzzer(options.limit)
    start = time.monotonic()
    programs = (profile_of(seed).program(seed) for seed in seeds)
    for program, outcome in in_turn(fuzzers, programs):
        seed, profile = program.seed, profile_of(program.seed)
        if options.show:
            print(text_of(program))
        counts[outcome.kind] += 1
        features = {action.kind for action in program.actions} | {f"{program.threads} threads", profile.name}
        progress.add(seed, outcome.kind, features)
        if outcome.failed:
            print(f"seed {seed}, {profile.name}: {outcome.kind}\n{outcome.detail}", flush=True)
            small, again = shrinker.shrink(program, outcome.kind)
            print(f"{'shrunk to' if again else 'did not fail again:'}\n{text_of(small)}\n", flush=True)
        if counts.total() - counts["same"] >= options.stop_after:
            break
    progress.save()
    for fuzzer in (*fuzzers, shrinker):
        fuzzer.close()
    figures = ", ".join(f"{count} {kind}" for kind, count in counts.most_common())
    print(f"{counts.total()} programs from seed {seeds.start} in {time.monotonic() - start:.0f} s: {figures}")
    print("programs with, of all so far: " + ", ".join(f"{k} {n}" for k, n in progress.features.most_common()))
    return 0 if counts.total() == counts["same"] else 1


if __name__ == "__main__":
    sys.exit(main())
