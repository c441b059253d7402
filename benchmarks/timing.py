"""How every benchmark measures, compares, prints and saves. A benchmark script is its table CASES and a call of main().

The rules: both sides go through one timing function, which waits for the device inside the timed region; their results
are compared before anything is timed; samples of the two sides alternate; medians and quartiles are reported.

Note [A process for each side]
The sides live in processes of their own. In one process the thread pools of the device and of the CPU would count as
too many threads for the machine, libgomp would then put its threads to sleep between parallel regions, and the CPU
would look up to ten times slower than it is. Only one of the two runs at a time.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import gc
import io
import json
import math
import multiprocessing
import os
import platform
import re
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils.flop_counter import FlopCounterMode

from torch_mtia.door import device_type

DEVICE = device_type()
"""The device that is measured, by its name in this process."""

# glibc hands large blocks back to the kernel and gets fresh pages each time. The CPU's best settings keep them.
PEER_SETTINGS = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "-1"}
MINIMUM_SAMPLE_SECONDS = 0.01
PAUSE_SECONDS = 0.02  # between samples
NOISE = 0.97  # of a bar "not below 1.0"
SAME_KERNEL = "same kernel"  # notes of rows that stay out of the mean
MEMORY_FLOOR = "memory floor"
ROOF = "roof"


@dataclasses.dataclass(frozen=True)
class Side:
    """One of two ways to do the same thing, with its operands."""

    run: Callable[[], object]  # may return before the work is done
    synchronize: Callable[[], None]  # returns when it is
    result: Callable[[], object]  # after a run: what it computed, in CPU tensors or numbers
    measure: Callable[[], float] | None = None  # takes a sample itself, in seconds, in place of `run`


def on(device: str, run: Callable[[], object], result: Callable[[], object]) -> Side:
    """A side whose work is done on a device."""
    return Side(run, torch.accelerator.synchronize if device == DEVICE else lambda: None, result)


def wait_for_compile_workers() -> None:
    """They take the cores while they start, which is after the first compilation."""
    from torch._inductor.async_compile import AsyncCompile

    torch.compile(lambda x: x + 1)(torch.ones(3, device=DEVICE))
    AsyncCompile.wait_pool_ready()


@dataclasses.dataclass(frozen=True)
class Bar:
    """What a case has to reach. All that are given must hold."""

    ratio: float | None = None  # at least: the peer's time over ours
    excess_us: float | None = None  # at most: our time minus the peer's
    most_us: float | None = None  # at most: our time

    def is_met(self, ours_us: float, peer_us: float) -> bool:
        excess = math.inf if self.excess_us is None else self.excess_us
        most = math.inf if self.most_us is None else self.most_us
        return self.allows(peer_us / ours_us) and ours_us - peer_us <= excess and ours_us <= most

    def allows(self, ratio: float) -> bool:
        return ratio >= (NOISE if self.ratio == 1.0 else self.ratio or 0.0)

    def __str__(self) -> str:
        ratio = [] if self.ratio is None else [f">= {self.ratio:.2f}"]
        excess = [] if self.excess_us is None else [f"<= +{self.excess_us:g} us"]
        most = [] if self.most_us is None else [f"<= {self.most_us:g} us"]
        return ", ".join(ratio + excess + most)


@dataclasses.dataclass(frozen=True)
class Group:
    """Cases that have a bar together, for the geometric mean of their ratios."""

    name: str
    bar: Bar


@dataclasses.dataclass(frozen=True)
class Tolerance:
    """Of the difference between the two results."""

    relative: float
    absolute: float


@dataclasses.dataclass(frozen=True)
class Work:
    """What cannot be done without: see Note [Roof]."""

    bytes_moved: int
    flops: int = 0
    dtype: torch.dtype = torch.float32  # of the factors of products


# What upstream does not count.
PRODUCTS = {
    torch.ops.aten._int_mm: lambda a, b, **_: 2 * a[0] * a[1] * b[1],
    torch.ops.mkldnn._linear_pointwise: lambda a, b, *_, **__: 2 * a[0] * a[1] * b[0],
}


def work_of(function: Callable[..., Any], operands: Callable[[], Sequence[torch.Tensor]]) -> Work:
    """Of a function that reads its operands and writes its results once: found from shapes, nothing is computed."""
    with FakeTensorMode():
        read = list(operands())
        function(*read)  # for functions that choose at their first call
        with FlopCounterMode(display=False, custom_mapping=PRODUCTS) as counter:
            result = function(*read)
        written = [tensor for tensor in pytree.tree_leaves(result) if isinstance(tensor, torch.Tensor)]
    return Work(sum(tensor.nbytes for tensor in [*read, *written]), counter.get_total_flops(), read[0].dtype)


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    ours: Callable[[], Side]  # these two prepare operands, untimed
    peer: Callable[[], Side] | None = None
    operations: int = 1  # of one run: times are reported for each
    peer_name: str = "cpu"
    bar: Bar = dataclasses.field(default_factory=Bar)
    note: str = ""
    work: Callable[[], Work] | None = None  # of one operation
    group: Group | None = None
    most_samples: int | None = None  # for cases that take long
    tolerance: Tolerance | None = None  # None: what torch.testing allows for the dtype


@dataclasses.dataclass(frozen=True)
class Row:
    name: str
    ours_us: float
    ours_iqr: tuple[float, float]  # quartiles, not their difference
    peer: str
    peer_us: float | None
    peer_iqr: tuple[float, float] | None
    ratio: float | None
    note: str
    samples: int
    bar: str
    passed: bool | None
    roof_us: float | None = None  # the least that the machine takes for the work, if a case states that


@dataclasses.dataclass(frozen=True)
class GroupRow:
    name: str
    ratio: float  # the geometric mean
    cases: int
    bar: str
    passed: bool | None  # None: not all of its cases were measured


# One side ------------------------------------------------------------------------------------------------------------


def seconds(side: Side, repetitions: int) -> float:
    """The timing function: how long `repetitions` runs take, each until its work is done."""
    if side.measure is not None:
        return sum(side.measure() for _ in range(repetitions))
    run, synchronize = side.run, side.synchronize
    start = time.perf_counter()
    for _ in range(repetitions):
        run()
        synchronize()
    return time.perf_counter() - start


def sample(side: Side, repetitions: int) -> float:
    """Seconds of one run. In the pause before it, the OpenMP threads of the other side end their spinning (10 ms)."""
    if side.measure is None:
        time.sleep(PAUSE_SECONDS)
        seconds(side, 1)
    return seconds(side, repetitions) / repetitions


def repetitions_for(side: Side) -> int:
    """How many runs make a sample that is long enough to measure."""
    repetitions = 1
    while (elapsed := seconds(side, repetitions)) < MINIMUM_SAMPLE_SECONDS:
        repetitions = max(2 * repetitions, int(repetitions * MINIMUM_SAMPLE_SECONDS / max(elapsed, 1e-9)))
    return repetitions


# Note [Roof]
# The least time for the work of a case on this machine, with as many threads: for the bytes that have to move (operands
# once, results once), what the CPU's own copy of that many takes, so that small work is held against the caches; for
# the operations of matrix products, what the fastest of the CPU's own square products takes for as many. Both are
# measured in the process of the peer, when a case first asks. What reads more than it writes may be above its roof.


def roof_us(work: Work) -> float:
    return max(work.bytes_moved / copy_bandwidth(work.bytes_moved), work.flops and work.flops / flop_rate(work.dtype))


@functools.cache
def copy_bandwidth(moved: int) -> float:
    """Bytes per microsecond, read and written, of the CPU's own copy between warm pages, `moved` bytes in all."""
    source = torch.ones(moved // 2, dtype=torch.uint8)
    destination = torch.zeros_like(source)
    return moved / fastest_us(lambda: destination.copy_(source))


def is_known_to_onednn(dtype: torch.dtype) -> bool:
    """Whether it has instructions for the dtype: without, the CPU takes seven seconds for a product of 2048 x 2048."""
    known = {
        torch.float16: torch.ops.mkldnn._is_mkldnn_fp16_supported,
        torch.bfloat16: torch.ops.mkldnn._is_mkldnn_bf16_supported,
    }
    return dtype not in known or bool(known[dtype]())


@functools.cache
def flop_rate(dtype: torch.dtype) -> float:
    """Operations per microsecond, two for each pair of factors, of the CPU's own products of matrices."""
    if not is_known_to_onednn(dtype):
        return flop_rate(torch.float32)

    def rate(size: int, multiply: Callable[..., object]) -> float:
        a, b = (torch.ones(size, size).to(dtype) for _ in range(2))
        return 2 * size**3 / fastest_us(lambda: multiply(a, b))

    ways: list[Callable[..., object]] = [torch._int_mm if dtype == torch.int8 else torch.mm]
    if dtype in (torch.float32, torch.bfloat16):
        ways.append(
            lambda a, b: torch.ops.mkldnn._linear_pointwise(a, b, None, "none", [], "")
        )  # MKL is not always quick
    return max(rate(size, multiply) for size in (256, 512, 1024, 2048) for multiply in ways)


def fastest_us(run: Callable[[], object]) -> float:
    side = Side(run, lambda: None, lambda: None)
    repetitions = repetitions_for(side)
    return min(seconds(side, repetitions) for _ in range(9)) / repetitions * 1e6


class Worker:
    """The process of one side: prepares cases and takes samples, when asked."""

    def __init__(self, cases: Sequence[Case], side: Literal["ours", "peer"], threads: int | None) -> None:
        context = multiprocessing.get_context("fork")  # nothing has run yet: no thread, no device
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=Worker._serve, args=(theirs, cases, side, threads), daemon=True)
        self._process.start()
        theirs.close()

    def prepare(self, case: int) -> object:
        """Runs the case once and returns its result. Every sample from now on is of this case."""
        return torch.load(io.BytesIO(self._ask("prepare", case)))

    def sample(self) -> float:
        """Seconds of one run."""
        return float(self._ask("sample"))

    def roof_us(self, work: Work) -> float:
        return float(self._ask("roof", work))

    def _ask(self, *question: Any) -> Any:
        self._connection.send(question)
        answer, error = self._connection.recv()
        if error is not None:
            sys.exit(error)
        return answer

    @staticmethod
    def _serve(connection: Connection, cases: Sequence[Case], name: str, threads: int | None) -> None:
        if threads is not None:
            torch.set_num_threads(threads)
        side, repetitions = Side(lambda: None, lambda: None, lambda: None), 1
        while True:
            try:
                question, *arguments = connection.recv()
            except EOFError:
                return
            answer: object = None
            try:
                if question == "prepare":
                    side = getattr(cases[arguments[0]], name)()
                    repetitions = 1
                    if side.measure is None:
                        seconds(side, 1)
                    file = io.BytesIO()
                    torch.save(side.result(), file)
                    answer = file.getvalue()
                    if side.measure is None:
                        repetitions = repetitions_for(side)
                    gc.collect()
                    gc.disable()
                elif question == "sample":
                    answer = sample(side, repetitions)
                else:
                    answer = roof_us(arguments[0])
                connection.send((answer, None))
            except BaseException:
                connection.send((None, traceback.format_exc()))


# Two sides -----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Sides:
    ours: Worker
    peer: Worker

    def measure(self, number: int, case: Case, samples: int) -> Row:
        workers = [self.ours] if case.peer is None else [self.ours, self.peer]
        results = [worker.prepare(number) for worker in workers]
        relative = None if case.tolerance is None else case.tolerance.relative
        absolute = None if case.tolerance is None else case.tolerance.absolute
        torch.testing.assert_close(results, results[:1] * len(results), rtol=relative, atol=absolute)
        times: list[list[float]] = [[] for _ in workers]
        for sample in range(min(samples, case.most_samples or samples)):
            order = range(len(workers)) if sample % 2 == 0 else reversed(range(len(workers)))
            for i in order:
                times[i].append(workers[i].sample() / case.operations * 1e6)
        roof = None if case.work is None else self.peer.roof_us(case.work())
        return describe(case, roof, *times)


def describe(case: Case, roof: float | None, ours: list[float], peer: list[float] | None = None) -> Row:
    ours_low, ours_us, ours_high = statistics.quantiles(ours, n=4)
    if peer is None:
        return Row(case.name, ours_us, (ours_low, ours_high), "", None, None, None, case.note, len(ours), "", None)
    peer_low, peer_us, peer_high = statistics.quantiles(peer, n=4)
    is_at_roof = roof is not None and ours_us <= 1.1 * roof
    return Row(
        name=case.name,
        ours_us=ours_us,
        ours_iqr=(ours_low, ours_high),
        peer=case.peer_name,
        peer_us=peer_us,
        peer_iqr=(peer_low, peer_high),
        ratio=peer_us / ours_us,
        note=", ".join(note for note in (case.note, ROOF * is_at_roof) if note),
        samples=len(ours),
        bar=str(case.bar),
        passed=case.bar.is_met(ours_us, peer_us) if str(case.bar) else None,
        roof_us=roof,
    )


# Reporting -----------------------------------------------------------------------------------------------------------


def environment(threads: int | None) -> dict[str, str]:
    import torch_mtia

    model = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    prefixes = ("TORCH_MTIA_", "MALLOC_", "OMP_", "KMP_", "ATEN_", "ONEDNN_", "MKL_", "TRITON_OVERRIDE_ARCH")
    settings = [name for name in sorted(os.environ) if name.startswith(prefixes)]
    return {
        "date": time.strftime("%Y-%m-%d"),
        "CPU": model[1] if model else platform.machine(),
        "cores": str(len(os.sched_getaffinity(0))),
        "threads": str(threads or torch.get_num_threads()),
        "CPU capability": torch.backends.cpu.get_cpu_capability(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torch_mtia": torch_mtia.__version__,
        "settings": " ".join(f"{name}={os.environ[name]}" for name in settings),
    }


def geometric_mean(rows: Sequence[Row]) -> float | None:
    """Of the ratios, without the rows whose outcome the note explains."""
    ratios = [row.ratio for row in rows if row.ratio is not None and not row.note]
    return statistics.geometric_mean(ratios) if ratios else None


def group_rows(cases: Sequence[Case], rows: Sequence[Row]) -> list[GroupRow]:
    """A row for each group of which cases were measured."""
    measured = {row.name: row.ratio for row in rows if row.ratio is not None}
    result = []
    for group in dict.fromkeys(case.group for case in cases if case.group is not None):
        names = [case.name for case in cases if case.group == group]
        ratios = [measured[name] for name in names if name in measured]
        if ratios:
            mean = statistics.geometric_mean(ratios)
            passed = group.bar.allows(mean) if len(ratios) == len(names) else None
            result.append(GroupRow(group.name, mean, len(ratios), str(group.bar), passed))
    return result


def verdict(passed: bool | None) -> str:
    return "" if passed is None else "pass" if passed else "FAIL"


def microseconds(median: float | None, quartiles: tuple[float, float] | None) -> str:
    if median is None or quartiles is None:
        return ""
    digits = 3 if median < 10 else 1
    return f"{median:.{digits}f} [{quartiles[0]:.{digits}f}, {quartiles[1]:.{digits}f}]"


def of_roof(ours_us: float, roof: float | None) -> str:
    """The share of what the machine can do: 1 is the roof."""
    return "" if roof is None else f"{roof / ours_us:.2f}"


def cells(row: Row) -> tuple[str, ...]:
    return (
        row.name,
        microseconds(row.ours_us, row.ours_iqr),
        row.peer,
        microseconds(row.peer_us, row.peer_iqr),
        "" if row.ratio is None else f"{row.ratio:.3f}",
        of_roof(row.ours_us, row.roof_us),
        row.bar,
        verdict(row.passed),
        row.note,
    )


HEADINGS = ("case", "ours us [quartiles]", "peer", "peer us [quartiles]", "ratio", "of roof", "bar", "", "note")
WIDTHS = (38, 28, 12, 28, 6, 7, 18, 4, 12)


def line(row: Sequence[str]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(row, WIDTHS, strict=True)).rstrip()


def save(
    file: Path, description: str | None, about: dict[str, str], rows: Sequence[Row], groups: Sequence[GroupRow] = ()
) -> None:
    """What report.py reads."""
    content = {
        "about": (description or "").partition("\n")[0],
        "environment": about,
        "rows": [dataclasses.asdict(row) for row in rows],
        "groups": [dataclasses.asdict(group) for group in groups],
        "geometric mean": geometric_mean(rows),
    }
    file.write_text(json.dumps(content, indent=1) + "\n")


def arguments(description: str | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="print the cases and end")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows to a file")
    parser.add_argument("--threads", type=int, metavar="N", help="torch.set_num_threads(N), for both sides")
    parser.add_argument("--cases", metavar="PATTERN", default="", help="only those whose name the pattern is found in")
    parser.add_argument("--group", metavar="PATTERN", default="", help="only those whose group's name it is found in")
    parser.add_argument("--samples", type=int, default=15, metavar="N", help="of each side of each case (default: 15)")
    parser.add_argument(
        "--settings",
        choices=("best", "default"),
        default="best",
        help="glibc's settings: the best for the CPU side, or its own, which return large blocks to the kernel",
    )
    options = parser.parse_args()
    if options.samples < 4:
        parser.error("--samples must be at least 4: quartiles are reported")
    return options


def restart_with_peer_settings() -> None:
    """Runs this script anew, unless the settings of the allocator are the ones that are best for the peer."""
    if any(os.environ.get(name) != value for name, value in PEER_SETTINGS.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | PEER_SETTINGS)


def main(cases: Sequence[Case], description: str | None) -> int:
    """Measures the chosen cases; the exit status is 1 if one misses its bar."""
    options = arguments(description)
    chosen = [
        case
        for case in cases
        if re.search(options.cases, case.name) and re.search(options.group, case.group.name if case.group else "")
    ]
    if options.list:
        print(
            "\n".join(f"{case.name:<40}{case.peer_name if case.peer else '':<12}{case.bar}".rstrip() for case in chosen)
        )
        return 0
    if options.settings == "best":
        restart_with_peer_settings()
    sides = Sides(Worker(chosen, "ours", options.threads), Worker(chosen, "peer", options.threads))
    about = environment(options.threads)
    print("\n".join(f"{name:<16}{value}" for name, value in about.items()))
    print(f"{'samples':<16}{options.samples} of each side, alternating\n\n{line(HEADINGS)}", flush=True)
    rows = []
    for number, case in enumerate(chosen):
        rows.append(sides.measure(number, case, options.samples))
        print(line(cells(rows[-1])), flush=True)
    if (mean := geometric_mean(rows)) is not None:
        print(f"\ngeometric mean of the ratios without a note: {mean:.3f}")
    groups = group_rows(cases, rows)
    for group in groups:
        print(
            f"\ngeometric mean of {group.name}, {group.cases} cases: {group.ratio:.3f}  {group.bar}  "
            f"{verdict(group.passed) or 'not all of them measured'}"
        )
    if options.json is not None:
        save(options.json, description, about, rows, groups)
    return 1 if False in [*(row.passed for row in rows), *(group.passed for group in groups)] else 0
