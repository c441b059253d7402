"""How every benchmark measures, compares, prints and saves. A benchmark script is a table CASES and a call of main().

The rules: both sides go through one timing function, which waits for the device inside the timed region; their results
are compared before anything is timed; samples of the two sides are interleaved; medians and quartiles are reported.

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
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils.flop_counter import FlopCounterMode

from torch_mtia.backend import device_type

DEVICE = device_type()
"""The device that is measured, by its name in this process."""

CPU = "eager PyTorch on the CPU device"  # the baseline of most groups
INDUCTOR = "Inductor on the CPU device"

# glibc returns large blocks to the kernel and gets fresh pages each time. The CPU's best settings reuse them.
BASELINE_SETTINGS = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "-1"}
MINIMUM_SAMPLE_SECONDS = 0.01
PAUSE_SECONDS = 0.02  # between samples
SEED = 0
MEBIBYTE = 2**20


@dataclasses.dataclass(frozen=True)
class Side:
    """One of two ways to do the same thing, with its operands."""

    run: Callable[[], object]  # may return before the work is done
    synchronize: Callable[[], None]  # returns when it is
    result: Callable[[], object]  # after a run: what it computed, in CPU tensors or Python values
    measure: Callable[[], float] | None = None  # takes a sample itself, in seconds, in place of `run`


def on(device: str, run: Callable[[], object], result: Callable[[], object]) -> Side:
    """A side whose work is done on a device."""
    return Side(run, torch.accelerator.synchronize if device == DEVICE else lambda: None, result)


def calling(
    device: str, function: Callable[[], Any], compared: Callable[[Any], object] = lambda result: result, calls: int = 1
) -> Side:
    """A side that calls a function. `compared` selects from the last result what is compared."""
    last: list[Any] = [None]

    def run() -> None:
        for _ in range(calls):
            last[0] = function()

    def result() -> object:
        return pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.detach().cpu(), compared(last[0]))

    return on(device, run, result)


def sampled_by(measure: Callable[[], float]) -> Side:
    """A side that takes its samples itself, in seconds, and has no result to compare."""
    return Side(lambda: None, lambda: None, lambda: None, measure)


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape).to(dtype)


def wait_for_compile_workers() -> None:
    """They take the cores while they start, which is after the first compilation."""
    from torch._inductor.async_compile import AsyncCompile

    torch.compile(lambda x: x + 1)(torch.ones(3, device=DEVICE))
    AsyncCompile.wait_pool_ready()


@dataclasses.dataclass(frozen=True)
class Target:
    """What a case or a group should reach. All that are given must hold."""

    ratio: float | None = None  # at least: the baseline's value over mtia's
    excess_us: float | None = None  # at most: mtia's time minus the baseline's
    most_us: float | None = None  # at most: mtia's time

    def is_met(self, mtia: float, baseline: float | None) -> bool | None:
        """None: there is no target."""
        if self == Target():
            return None
        if self.most_us is not None and mtia > self.most_us:
            return False
        if baseline is None:
            return True
        return self.allows(baseline / mtia) and (self.excess_us is None or mtia - baseline <= self.excess_us)

    def allows(self, ratio: float) -> bool:
        return self.ratio is None or ratio >= self.ratio

    def __str__(self) -> str:
        ratio = [] if self.ratio is None else [f">= {self.ratio:.2f}"]
        excess = [] if self.excess_us is None else [f"<= +{self.excess_us:,.10g} us"]
        most = [] if self.most_us is None else [f"<= {self.most_us:,.10g} us"]
        return ", ".join(ratio + excess + most)


AS_FAST = Target(ratio=0.97)  # less is noise


@dataclasses.dataclass(frozen=True)
class Group:
    """Cases with one baseline and one unit, which makes the geometric mean of their ratios meaningful."""

    name: str  # a heading of the page: letters, digits, spaces and hyphens
    baseline: str  # what the other side runs; empty: there is no other side
    target: Target = dataclasses.field(default_factory=Target)  # for the geometric mean
    unit: str = "us"
    about: str = ""  # a sentence for the page


@dataclasses.dataclass(frozen=True)
class Tolerance:
    """Of the difference between the two results."""

    relative: float
    absolute: float


@dataclasses.dataclass(frozen=True)
class Work:
    """The least that a case has to do: see Note [Bounds]."""

    bytes_moved: int
    flops: int = 0
    dtype: torch.dtype = torch.float32  # of the operands of matmuls


def attention_flops(
    q: Sequence[int], k: Sequence[int], _v: object, _dropout: float = 0.0, causal: bool = False, **_: object
) -> int:
    return 4 * math.prod(q) * k[-2] // (2 if causal else 1)


# Matmuls that upstream does not count.
FLOPS: dict[Any, Callable[..., int]] = {
    torch.ops.aten._int_mm: lambda a, b, **_: 2 * a[0] * a[1] * b[1],
    torch.ops.aten._weight_int4pack_mm_for_cpu: lambda a, b, *_, **__: 2 * a[0] * a[1] * b[0],
    torch.ops.mkldnn._linear_pointwise: lambda a, b, *_, **__: 2 * a[0] * a[1] * b[0],
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: attention_flops,
}


def work_of(function: Callable[..., Any], operands: Callable[[], Sequence[torch.Tensor]]) -> Work:
    """The work of a function that reads its operands and writes its results once, from shapes: nothing is computed."""
    with FakeTensorMode():
        read = list(operands())
        function(*read)  # for functions that choose at their first call
        with FlopCounterMode(display=False, custom_mapping=FLOPS) as counter:
            result = function(*read)
        written = [tensor for tensor in pytree.tree_leaves(result) if isinstance(tensor, torch.Tensor)]
    return Work(sum(tensor.nbytes for tensor in [*read, *written]), counter.get_total_flops(), read[0].dtype)


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    group: Group
    mtia: Callable[[], Side]  # these two prepare operands, untimed
    baseline: Callable[[], Side] | None = None
    operations: int = 1  # in one run: values are per operation
    target: Target = dataclasses.field(default_factory=Target)
    work: Callable[[], Work] | None = None  # of one operation
    most_samples: int | None = None  # for cases that take long
    tolerance: Tolerance | None = None  # None: what torch.testing allows for the dtype

    def __post_init__(self) -> None:
        assert (self.baseline is not None) == bool(self.group.baseline), f"{self.name}: baseline and group disagree"


@dataclasses.dataclass(frozen=True)
class Row:
    """The result of a case: medians and quartiles, in the unit of its group."""

    name: str
    mtia: float
    mtia_quartiles: tuple[float, float]
    baseline: float | None
    baseline_quartiles: tuple[float, float] | None
    ratio: float | None
    samples: int
    target: str
    passed: bool | None  # None: no target
    bound: str = ""  # which one is the higher for the work of the case, "copy" or "matmul"
    of_bound: float | None = None  # its time over mtia's
    rate: str = ""  # of mtia: in GB/s if the bound is "copy", in GFLOP/s if it is "matmul"


@dataclasses.dataclass(frozen=True)
class GroupResult:
    name: str
    baseline: str
    unit: str
    about: str
    rows: list[Row]
    ratio: float | None  # the geometric mean
    target: str
    passed: bool | None  # None: no target, or not all cases were measured


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


# Note [Bounds]
# What library code on this machine takes for the work of a case, with as many threads: for the bytes that have to move
# (operands once, results once), the CPU's own copy of that many, so that small work is compared with the caches; for
# the operations of matmuls, the fastest of the CPU's own square matmuls in that dtype. The higher of the two is the
# bound of the case. Both are measured in the process of the baseline, when a case first needs them. They are not limits
# of the hardware: a case that reads more than it writes, or whose matmul is better than the library's, exceeds 1.


def bound_of(work: Work) -> tuple[str, float]:
    """Which bound, and its microseconds."""
    copy = work.bytes_moved / copy_bandwidth(work.bytes_moved)
    matmul = work.flops / flop_rate(work.dtype) if work.flops else 0.0
    return ("copy", copy) if copy >= matmul else ("matmul", matmul)


@functools.cache
def copy_bandwidth(moved: int) -> float:
    """Bytes per microsecond, read and written, of the CPU's own copy between warm pages, `moved` bytes in all."""
    source = torch.ones(moved // 2, dtype=torch.uint8)
    destination = torch.zeros_like(source)
    return moved / fastest_us(lambda: destination.copy_(source))


def is_known_to_onednn(dtype: torch.dtype) -> bool:
    """Whether the processor has instructions for the dtype: without, a matmul of 2048 x 2048 takes seconds."""
    known = {
        torch.float16: torch.ops.mkldnn._is_mkldnn_fp16_supported,
        torch.bfloat16: torch.ops.mkldnn._is_mkldnn_bf16_supported,
    }
    return dtype not in known or bool(known[dtype]())


@functools.cache
def flop_rate(dtype: torch.dtype) -> float:
    """Operations per microsecond, two for each multiply-add, of the CPU's own matmuls."""
    if not is_known_to_onednn(dtype):
        return flop_rate(torch.float32)

    def rate(size: int, multiply: Callable[..., object]) -> float:
        a, b = (torch.ones(size, size).to(dtype) for _ in range(2))
        return 2 * size**3 / fastest_us(lambda: multiply(a, b))

    ways: list[Callable[..., object]] = [torch._int_mm if dtype == torch.int8 else torch.mm]
    if dtype in (torch.float32, torch.bfloat16):
        # MKL is slow on some processors.
        ways.append(lambda a, b: torch.ops.mkldnn._linear_pointwise(a, b, None, "none", [], ""))
    return max(rate(size, multiply) for size in (256, 512, 1024, 2048) for multiply in ways)


def fastest_us(run: Callable[[], object]) -> float:
    side = Side(run, lambda: None, lambda: None)
    repetitions = repetitions_for(side)
    return min(seconds(side, repetitions) for _ in range(9)) / repetitions * 1e6


class Worker:
    """The process of one side: prepares cases and takes samples, when asked."""

    def __init__(self, cases: Sequence[Case], side: Literal["mtia", "baseline"], threads: int | None) -> None:
        context = multiprocessing.get_context("fork")  # nothing has run yet: no thread, no device
        self._connection, far_end = context.Pipe()
        self._process = context.Process(target=Worker._serve, args=(far_end, cases, side, threads), daemon=True)
        self._process.start()
        far_end.close()

    def prepare(self, case: int) -> object:
        """Runs the case once and returns its result. Every sample from now on is of this case."""
        return torch.load(io.BytesIO(self._ask("prepare", case)))

    def sample(self) -> float:
        """Seconds of one run."""
        return float(self._ask("sample"))

    def bound_of(self, work: Work) -> tuple[str, float]:
        name, microseconds = self._ask("bound", work)
        return str(name), float(microseconds)

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
        side, repetitions = sampled_by(lambda: 0.0), 1
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
                    answer = bound_of(arguments[0])
                connection.send((answer, None))
            except BaseException:
                connection.send((None, traceback.format_exc()))


# Two sides -----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Sides:
    mtia: Worker
    baseline: Worker

    def measure(self, number: int, case: Case, samples: int) -> Row:
        workers = [self.mtia] if case.baseline is None else [self.mtia, self.baseline]
        results = [worker.prepare(number) for worker in workers]
        relative = None if case.tolerance is None else case.tolerance.relative
        absolute = None if case.tolerance is None else case.tolerance.absolute
        torch.testing.assert_close(results, results[:1] * len(results), rtol=relative, atol=absolute)
        times: list[list[float]] = [[] for _ in workers]
        for sample in range(min(samples, case.most_samples or samples)):
            order = range(len(workers)) if sample % 2 == 0 else reversed(range(len(workers)))
            for i in order:
                times[i].append(workers[i].sample() / case.operations * 1e6)
        row = describe(case, times[0], times[1] if len(times) > 1 else None)
        return row if case.work is None else with_bound(row, case.work(), *self.baseline.bound_of(case.work()))


def describe(case: Case, mtia: list[float], baseline: list[float] | None = None) -> Row:
    """The row of a case, from its samples."""
    low, median, high = statistics.quantiles(mtia, n=4)
    of_baseline = None if baseline is None else statistics.quantiles(baseline, n=4)
    return Row(
        name=case.name,
        mtia=median,
        mtia_quartiles=(low, high),
        baseline=None if of_baseline is None else of_baseline[1],
        baseline_quartiles=None if of_baseline is None else (of_baseline[0], of_baseline[2]),
        ratio=None if of_baseline is None else of_baseline[1] / median,
        samples=len(mtia),
        target=str(case.target),
        passed=case.target.is_met(median, None if of_baseline is None else of_baseline[1]),
    )


def with_bound(row: Row, work: Work, bound: str, microseconds: float) -> Row:
    done, unit = (work.bytes_moved, "GB/s") if bound == "copy" else (work.flops, "GFLOP/s")
    rate = f"{done / row.mtia / 1000:.1f} {unit}"
    return dataclasses.replace(row, bound=bound, of_bound=microseconds / row.mtia, rate=rate)


def group_results(cases: Sequence[Case], rows: Mapping[Group, list[Row]]) -> list[GroupResult]:
    """A result for each group of which cases were measured; `cases` are all that there are."""
    results = []
    for group, measured in rows.items():
        ratios = [row.ratio for row in measured if row.ratio is not None]
        mean = statistics.geometric_mean(ratios) if ratios else None
        is_complete = len(measured) == sum(case.group == group for case in cases)
        is_judged = mean is not None and is_complete and group.target.ratio is not None
        passed = group.target.allows(mean) if is_judged and mean is not None else None
        results.append(
            GroupResult(group.name, group.baseline, group.unit, group.about, measured, mean, str(group.target), passed)
        )
    return results


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


def verdict(passed: bool | None) -> str:
    return "" if passed is None else "pass" if passed else "FAIL"


def value(median: float | None, quartiles: tuple[float, float] | None) -> str:
    if median is None or quartiles is None:
        return "-"
    digits = 3 if median < 10 else 1
    return f"{median:.{digits}f} [{quartiles[0]:.{digits}f}, {quartiles[1]:.{digits}f}]"


def cells(row: Row) -> tuple[str, ...]:
    return (
        row.name,
        value(row.mtia, row.mtia_quartiles),
        value(row.baseline, row.baseline_quartiles),
        "-" if row.ratio is None else f"{row.ratio:.3f}",
        row.target or "-",
        verdict(row.passed),
        "-" if row.of_bound is None else f"{row.of_bound:.2f} {row.bound}",
        row.rate or "-",
    )


HEADINGS = ("case", "mtia [quartiles]", "baseline [quartiles]", "ratio", "target", "", "of bound", "rate")
WIDTHS = (38, 28, 28, 6, 18, 4, 11, 14)


def line(row: Sequence[str]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(row, WIDTHS, strict=True)).rstrip()


def print_about(about: dict[str, str], samples: int) -> None:
    print("\n".join(f"{name:<16}{text}" for name, text in about.items()))
    print(f"{'samples':<16}{samples} of each side, interleaved\n\n{line(HEADINGS)}", flush=True)


def add_row(rows: dict[Group, list[Row]], group: Group, row: Row) -> None:
    """Adds a row to those of its group, and prints it."""
    if group not in rows:
        print(f"\n{group.name}, in {group.unit}; baseline: {group.baseline or 'none'}")
    rows.setdefault(group, []).append(row)
    print(line(cells(row)), flush=True)


def finish(file: Path | None, description: str | None, about: dict[str, str], groups: Sequence[GroupResult]) -> int:
    """Prints the groups, saves what report.py reads, and returns the exit status: 1 if a target is missed."""
    print()
    for group in groups:
        if group.ratio is not None:
            mean = f"{group.name}: geometric mean {group.ratio:.3f} of {len(group.rows)} against {group.baseline}"
            print(f"{mean}  {group.target}  {verdict(group.passed)}".rstrip())
    if file is not None:
        content = {
            "about": (description or "").partition("\n")[0],
            "environment": about,
            "groups": [dataclasses.asdict(group) for group in groups],
        }
        file.write_text(json.dumps(content, indent=1) + "\n")
    return 1 if False in [*(group.passed for group in groups), *(row.passed for g in groups for row in g.rows)] else 0


def arguments(description: str | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="print the cases and end")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows to a file")
    parser.add_argument("--threads", type=int, metavar="N", help="torch.set_num_threads(N), for both sides")
    parser.add_argument("--cases", metavar="PATTERN", default="", help="only those whose name matches")
    parser.add_argument("--group", metavar="PATTERN", default="", help="only those whose group's name matches")
    parser.add_argument("--samples", type=int, default=15, metavar="N", help="of each side of each case (default: 15)")
    parser.add_argument(
        "--settings",
        choices=("best", "default"),
        default="best",
        help="glibc's settings: the best for the CPU, or glibc's own, which return large blocks to the kernel",
    )
    options = parser.parse_args()
    if options.samples < 4:
        parser.error("--samples must be at least 4: quartiles are reported")
    return options


def restart_with_baseline_settings() -> None:
    """Restarts this script, unless the settings of the allocator are the ones that are best for the CPU."""
    if any(os.environ.get(name) != setting for name, setting in BASELINE_SETTINGS.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | BASELINE_SETTINGS)


def chosen(cases: Sequence[Case], options: argparse.Namespace) -> list[Case]:
    return [c for c in cases if re.search(options.cases, c.name) and re.search(options.group, c.group.name)]


def print_list(cases: Sequence[Case]) -> None:
    for case in cases:
        print(
            f"{case.name:<40}{str(case.target) or '-':<22}{case.group.name}; baseline: {case.group.baseline or 'none'}"
        )


def main(cases: Sequence[Case], description: str | None) -> int:
    """Measures the chosen cases; the exit status is 1 if one misses its target."""
    options = arguments(description)
    selected = chosen(cases, options)
    if options.list:
        print_list(selected)
        return 0
    if options.settings == "best":
        restart_with_baseline_settings()
    sides = Sides(Worker(selected, "mtia", options.threads), Worker(selected, "baseline", options.threads))
    about = environment(options.threads)
    print_about(about, options.samples)
    rows: dict[Group, list[Row]] = {}
    for number, case in enumerate(selected):
        add_row(rows, case.group, sides.measure(number, case, options.samples))
    return finish(options.json, description, about, group_results(cases, rows))
