"""Finds unordered accesses, use after free, uninitialized reads and leaks; races and out-of-bounds accesses of Triton
kernels; and the first NaN or infinity.

    python -m torch_mtia.sanitize script.py  # prints reports on stderr
    TORCH_MTIA_SANITIZE=streams,memory python script.py

    with torch_mtia.sanitizer.enabled("streams"):
        step()
    for report in torch_mtia.sanitizer.reports():
        print(report)

Every operator, copy, event and allocation of the process is recorded when it is submitted, and every access of Triton
kernels that are compiled meanwhile when they run. Reports therefore do not depend on timing: a race is reported even if
the result was right. docs/sanitizer.md explains the reports.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import TextIO

from torch_mtia.environment import CHECKS, settings, watch_kernels
from torch_mtia.sanitizer import host_reads, leaks, process, replaced_numbers, scaled_losses, suppressions
from torch_mtia.sanitizer.report import Access, Frame, Report, reports_of

__all__ = [
    "CHECKS",
    "Access",
    "Frame",
    "Report",
    "enabled",
    "find_leaks",
    "print_reports",
    "reports",
    "start",
    "stop",
    "suppress",
    "unchecked",
]

HOST_FUNCTION = "mtia::host_function"  # what it submits, and what it touches of the host, is known by itself
MOST_NAMES = 5  # in one line

_found: list[Report] = []
_built_in = suppressions.built_in()
_suppressions: list[suppressions.Suppression] = []  # of files
_asked: set[str] = set()  # checks, by the last start()


def start(*checks: str) -> None:
    """Starts checking all devices of the process; earlier work is unknown.

    Args:
        checks: names of CHECKS; all if there are none. "streams": unordered accesses of several streams. "memory": use
            after free, leaks, and kernels that leave a tensor. "init": reads of uninitialized memory. "kernels": races
            between the programs of a kernel, and lanes of a store that write different values to one address.
            "numbers": operations that make NaN or infinity.

    Raises:
        ValueError: there is no check of that name.
    """
    start_process(checks)
    _compile_here(True)


def start_process(checks: Collection[str]) -> None:
    """start() in a process whose environment asks for it: Inductor's processes know it, too."""
    from torch_mtia import _C

    unknown = sorted(set(checks) - set(CHECKS))
    if unknown:
        raise ValueError(f"there is no check {', '.join(map(repr, unknown))}; there are {', '.join(CHECKS)}")
    chosen = frozenset(checks or CHECKS)
    watch_kernels(True, numbers="numbers" in chosen)
    if "streams" in chosen:
        host_reads.watch()
    if "numbers" in chosen:
        scaled_losses.watch()
    # The sanitizer takes the place of who else checks bounds.
    checks_bounds = "memory" in chosen or settings().check_bounds
    order, freed, initialized, kernels, numbers = (check in chosen for check in CHECKS)
    _C._sanitizer_start(order, freed, initialized, kernels, numbers, checks_bounds, replaced_numbers.composites())
    _asked.clear()
    _asked.update(chosen)
    for suppression in _built_in:
        suppression.count = 0


def stop() -> None:
    """Waits for the kernels that were launched, and stops checking. Reports stay.

    Raises:
        RuntimeError: it is called in a host function, which must not wait; checking continues.
    """
    from torch_mtia import _C

    _C._sanitizer_wait()
    watch_kernels(False)
    host_reads.leave()
    scaled_losses.leave()
    _compile_here(False)
    _C._sanitizer_stop()


_compile_threads: list[int | None] = []  # Inductor's, while kernels are watched


def _compile_here(wanted: bool) -> None:
    """Whether Inductor compiles kernels in this process: its others do not know that they are watched."""
    if wanted == bool(_compile_threads):
        return
    from torch._inductor import config

    if wanted:
        _compile_threads.append(config.compile_threads)
        config.compile_threads = 1
    else:
        config.compile_threads = _compile_threads.pop()


@contextlib.contextmanager
def enabled(*checks: str) -> Iterator[None]:
    """Returns a context that calls start() and stop(). The checks that ran before it start anew after it.

    Of several contexts, nested or in several threads, the youngest one that has not ended decides what is checked, for
    the whole process.

    Args:
        checks: as for start().

    Raises:
        ValueError: there is no check of that name.
        RuntimeError: it is entered or left in a host function, which must not wait.
    """
    mine = _Statement()
    _in_turn(lambda: _enter(mine, checks))
    try:
        yield
    finally:
        _in_turn(lambda: _leave(mine))


def _in_turn(change: Callable[[], None]) -> None:
    """Makes one change at a time. One that begins during another of the same thread follows it: the garbage collector
    may end a statement at any time, as that of a generator."""
    from torch_mtia import _C

    global _later
    _C._sanitizer_wait()  # raises in a host function: whoever has the lock may wait for it
    with _statements_lock:
        if _later is not None:
            _later.callback(change)
            return
        try:
            with contextlib.ExitStack() as _later:
                change()
        finally:
            _later = None


def _enter(statement: _Statement, checks: Collection[str]) -> None:
    from torch_mtia import _C

    statement.before = tuple(_asked) if _C._sanitizer_is_running() else ()
    start(*checks)
    _statements.append(statement)


def _leave(statement: _Statement) -> None:
    position = _statements.index(statement)
    _statements.remove(statement)
    if position < len(_statements):
        _statements[position].before = statement.before
        return
    stop()
    if statement.before:
        start(*statement.before)


@dataclasses.dataclass(eq=False)
class _Statement:
    """A `with` statement of enabled() that has not ended."""

    before: tuple[str, ...] = ()
    """What is to be watched when it ends as the youngest."""


_statements: list[_Statement] = []  # the youngest last
_later: contextlib.ExitStack | None = None  # what follows the change that is under way
_statements_lock = threading.RLock()


def unchecked() -> list[str]:
    """Returns what the checks of start() cannot see, with the reasons, as lines of text."""
    from torch_mtia import _C

    found = []
    if "numbers" in _asked and "host_view" not in _C._driver_info()["capabilities"]:
        found.append("numbers, because the driver gives the host no view of the device's memory")
    counts = {name: count for name, count in _C._sanitizer_unlisted().items() if name != HOST_FUNCTION}
    if counts:
        names = sorted(counts, key=lambda name: -counts[name])
        listed = ", ".join(f"{name} ({_times(counts[name])})" for name in names[:MOST_NAMES])
        more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
        found.append(
            f"{listed}{more}, compiled or captured before the sanitizer began, or of a driver or an extension that "
            "does not list its accesses"
        )
    if forgotten := _C._sanitizer_num_forgotten():
        found.append(f"races with {forgotten} of the work items that accessed the same bytes in more than 4096 shapes")
    return found


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def reports() -> list[Report]:
    """Returns the list of reports, which the caller may clear. Findings at the same lines are one report, with a count.

    Waits for the kernels that were launched, whose accesses are known when they have run.

    Raises:
        RuntimeError: it is called in a host function, which must not wait.
    """
    from torch_mtia import _C

    _C._sanitizer_wait()
    known = {report.key: report for report in _found}
    for report in reports_of(_C._sanitizer_take()):
        if _is_suppressed(report):
            continue
        first = known.setdefault(report.key, report)
        if first is report:
            _found.append(report)
        else:
            first.count += report.count
    return _found


def find_leaks() -> None:
    """Adds a report for each leak. Call it at the end of a program, before stop(). See docs/sanitizer.md."""
    _found.extend(leak for leak in leaks.find() if not _is_suppressed(leak))


def suppress(file: Path) -> None:
    """Suppresses later reports that the file names, and counts them.

    Args:
        file: a line for each rule: kind, operator, file:function and, after a #, the reason. See docs/sanitizer.md.

    Raises:
        ValueError: a line is not a rule, or has no reason.
        OSError: the file cannot be read.
    """
    _suppressions.extend(suppressions.read(file))


def print_reports(file: TextIO | None = None) -> None:
    """Prints the reports, the suppressions used, what was not checked, and the number of reports.

    Args:
        file: stderr if None.
    """
    found = reports()
    for report in found:
        print(report, end="\n\n", file=file or sys.stderr)
    used = [each for each in _built_in if each.count]
    for line in [*map(str, used), *map(str, _suppressions), *(f"not checked: {each}" for each in unchecked())]:
        print(f"torch_mtia sanitizer: {line}", file=file or sys.stderr)
    number = f"{len(found) or 'no'} report{'s' * (len(found) != 1)}"
    print(f"torch_mtia sanitizer{_who()}: {number}", file=file or sys.stderr)


def _is_suppressed(report: Report) -> bool:
    for suppression in (*_built_in, *_suppressions):
        if suppression.suppresses(report):
            suppression.count += report.count
            return True
    return False


def _who() -> str:
    rank = process.rank()
    return "" if rank is None else f", rank {rank}"
