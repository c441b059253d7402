"""Finds work that touches memory at the wrong time: in no order, after it was freed, before it was written.

    python -m torch_mtia.sanitize script.py  # says what is wrong, and where, on stderr
    TORCH_MTIA_SANITIZE=streams,memory python script.py

    with torch_mtia.sanitizer.enabled("streams"):
        step()
    for report in torch_mtia.sanitizer.reports():
        print(report)

Every operator, copy, event and allocation of the process is followed when it is submitted. So a report does not depend
on how quick anything was: what is in no order is found where it went well, too. docs/sanitizer.md explains reports.
"""

from __future__ import annotations

import atexit
import contextlib
import sys
from collections.abc import Collection, Iterator
from typing import TextIO

from torch_mtia.environment import CHECKS
from torch_mtia.sanitizer import host_reads, leaks
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
]

_found: list[Report] = []


def start(*checks: str) -> None:
    """Watches all devices of the process from now on, with nothing known of what was before. `checks`, of CHECKS:
    "streams": work of several streams in no order; "memory": memory that was freed; "init": memory that nothing has
    written. None: all of them. Raises ValueError for another name."""
    from torch_mtia import _C

    unknown = sorted(set(checks) - set(CHECKS))
    if unknown:
        raise ValueError(f"there is no check {', '.join(map(repr, unknown))}; there are {', '.join(CHECKS)}")
    chosen = checks or CHECKS
    if "streams" in chosen:
        host_reads.watch()
    _C._sanitizer_start("streams" in chosen, "memory" in chosen, "init" in chosen)


def stop() -> None:
    """Watches no more. Reports stay."""
    from torch_mtia import _C

    host_reads.leave()
    _C._sanitizer_stop()


@contextlib.contextmanager
def enabled(*checks: str) -> Iterator[None]:
    """start() before and stop() after a `with` statement."""
    start(*checks)
    try:
        yield
    finally:
        stop()


def reports() -> list[Report]:
    """What was found since the list was last cleared. What is found again at the same lines is counted."""
    from torch_mtia import _C

    known = {report.key: report for report in _found}
    for report in reports_of(_C._sanitizer_take()):
        first = known.setdefault(report.key, report)
        if first is report:
            _found.append(report)
        else:
            first.count += 1
    return _found


def find_leaks() -> None:
    """Adds what is a leak now to the reports: see docs/sanitizer.md. At the end of a program, while it is watched."""
    _found.extend(leaks.find())


def print_reports(file: TextIO | None = None) -> None:
    """To stderr, or to `file`."""
    found = reports()
    for report in found:
        print(report, end="\n\n", file=file or sys.stderr)
    print(f"torch_mtia sanitizer: {len(found) or 'no'} report{'s' * (len(found) != 1)}", file=file or sys.stderr)


def watch_process(checks: Collection[str]) -> None:
    """start(), and print_reports() when the process ends. What TORCH_MTIA_SANITIZE does."""
    start(*checks)
    atexit.register(_finish, "memory" in checks)


def _finish(finds_leaks: bool) -> None:
    if finds_leaks:
        find_leaks()
    print_reports()
