"""Runs the Python tests under each setting that changes what a processor or a machine offers: no verdict may change.

    python -m tools.test_matrix [SETTING ...] [--jobs N] [--pytest ARGUMENTS]

`SETTINGS` has one row each. Results are in build/test-matrix: NAME.xml (JUnit), NAME.log, and summary.md, a table of
counts. The exit status is 1 if a test failed under any setting.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "build" / "test-matrix"
NOBODY = 65534
FOUR_GIB = 4 << 30


@dataclass(frozen=True)
class Setting:
    """One way to run the tests."""

    why: str
    environment: dict[str, str] = field(default_factory=dict)
    prefix: tuple[str, ...] = ()  # of the command
    arguments: tuple[str, ...] = ()  # of pytest
    around: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext
    jobs: int | None = None


@contextlib.contextmanager
def four_gib() -> Iterator[None]:
    """A control group of 4 GiB for this process and its children; needs root."""
    v1, v2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
    parent, limit = (v1, "memory.limit_in_bytes") if v1.is_dir() else (v2, "memory.max")
    group = parent / f"torch_mtia_{os.getpid()}"
    group.mkdir()
    (group / limit).write_text(str(FOUR_GIB))
    (group / "cgroup.procs").write_text(str(os.getpid()))
    try:
        yield
    finally:
        (parent / "cgroup.procs").write_text(str(os.getpid()))
        group.rmdir()


@contextlib.contextmanager
def load() -> Iterator[None]:
    """A busy process for each core."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


AVX2 = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "TRITON_OVERRIDE_ARCH": "x86-64-v3",
}
SETTINGS = {
    "plain": Setting("the processor as it is"),
    "avx2": Setting("no AVX-512, no AMX: ATen, oneDNN, MKL and Triton's kernels", AVX2),
    "baseline": Setting("ATen's loops without AVX2", {"ATEN_CPU_CAPABILITY": "default"}),
    "mkl-sse": Setting("MKL without AVX", {"MKL_ENABLE_INSTRUCTIONS": "SSE4_2"}),
    "mkl-cbwr": Setting("MKL's results are the same on all processors", {"MKL_CBWR": "COMPATIBLE"}),
    "onednn-sse": Setting("oneDNN without AVX", {"ONEDNN_MAX_CPU_ISA": "SSE41"}),
    "one-core": Setting("one core", prefix=("taskset", "-c", "0"), jobs=1),
    "threads-1": Setting("one thread in parallel regions", {"OMP_NUM_THREADS": "1"}),
    "threads-2": Setting("two threads in parallel regions", {"OMP_NUM_THREADS": "2"}),
    "threads-4": Setting("four threads in parallel regions", {"OMP_NUM_THREADS": "4"}),
    "user": Setting(
        "an unprivileged user",
        prefix=("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"),
    ),
    "home": Setting("a home folder that cannot be written", {"HOME": "/proc/self"}),
    "memory": Setting("4 GiB of memory", around=four_gib, jobs=1),
    "poison": Setting("fresh and freed memory is filled", {"TORCH_MTIA_POISON": "1"}),
    "order": Setting("tests and hashes in random order", {"PYTHONHASHSEED": "random"}, arguments=("--random-order",)),
    "load": Setting("beside a busy process on each core", around=load),
}


def processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return f"{next(names, platform.machine())}, {os.cpu_count()} cores"


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A folder that every user may write, for caches and temporary files: none of an earlier run is used."""
    folder = Path(tempfile.mkdtemp(prefix="test-matrix-"))
    folder.chmod(0o777)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run(name: str, jobs: int, arguments: list[str]) -> str:
    """Returns a row of the summary."""
    setting = SETTINGS[name]
    report = RESULTS / f"{name}.xml"
    report.unlink(missing_ok=True)
    started = time.monotonic()
    with scratch() as folder, setting.around(), (RESULTS / f"{name}.log").open("w") as log:
        environment = {**os.environ, "TMPDIR": str(folder), "HOME": str(folder), **setting.environment}
        written = folder / "report.xml"
        command = [*setting.prefix, sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--junitxml={written}"]
        command += ["-n", str(setting.jobs or jobs), "--dist", "loadfile", *setting.arguments, *arguments]
        subprocess.run(command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT, check=False)
        if written.exists():
            shutil.copyfile(written, report)
    minutes = (time.monotonic() - started) / 60
    if not report.exists():
        return f"| {name} | {setting.why} | | did not end: see {name}.log | | {minutes:.0f} |"
    suite = next(ET.parse(report).getroot().iter("testsuite"))
    tests, failed, skipped = (
        sum(int(suite.get(kind, 0)) for kind in kinds) for kinds in (("tests",), ("failures", "errors"), ("skipped",))
    )
    return f"| {name} | {setting.why} | {tests - failed - skipped} | {failed} | {skipped} | {minutes:.0f} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", nargs="*", help=f"of {', '.join(SETTINGS)}; default: all")
    parser.add_argument("--jobs", type=int, default=2, help="test modules that run at a time (default: 2)")
    parser.add_argument("--environment", choices=SETTINGS, help="print the variables of a setting, and run nothing")
    parser.add_argument("--pytest", default="tests", help="arguments of pytest (default: tests)")
    given = parser.parse_args()
    if given.environment:
        print(*(f"{name}={value}" for name, value in SETTINGS[given.environment].environment.items()))
        return 0
    if unknown := set(given.settings) - set(SETTINGS):
        parser.error(f"no such setting: {', '.join(sorted(unknown))}. There are {', '.join(SETTINGS)}")
    RESULTS.mkdir(parents=True, exist_ok=True)
    lines = [
        f"{processor()}",
        "",
        "| setting | what it is | passed | failed | skipped | minutes |",
        "|---|---|---|---|---|---|",
    ]
    for name in given.settings or SETTINGS:
        lines.append(run(name, given.jobs, given.pytest.split()))
        print(lines[-1], flush=True)
        (RESULTS / "summary.md").write_text("\n".join(lines) + "\n")
    return int(not all(line.split("|")[4].strip() == "0" for line in lines[4:]))


if __name__ == "__main__":
    sys.exit(main())
