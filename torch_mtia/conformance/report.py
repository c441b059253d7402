"""The report: one page of HTML that needs nothing else. report.html has the page, this file the data in it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from torch_mtia.conformance import results as r
from torch_mtia.conformance.coverage import coverage
from torch_mtia.conformance.results import Result, Run, changes

PAGE = Path(__file__).with_name("report.html")
PLACE = "null /* the data */"


def save_html(run: Run, path: Path, old: Run | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # Tags and the beginnings of comments mean something inside of a script, whatever the string that contains them.
    data = json.dumps(page_data(run, old), separators=(",", ":")).replace("<", "\\u003c")
    path.write_text(PAGE.read_text().replace(PLACE, data))


def page_data(run: Run, old: Run | None) -> dict[str, Any]:
    return {
        "environment": run.environment,
        "complete": run.complete,
        "tests": [_row(result) for result in run.results],
        "details": {result.test: _details(result) for result in run.results if result.verdict != r.PASS},
        "repeat": run.repeat,
        "fallbacks": _fallbacks(run),
        "coverage": {what: dataclasses.asdict(each) for what, each in coverage(run.results, run.functions).items()},
        "changes": changes(old.results, run.results) if old is not None else None,
        "old": old.environment if old is not None else None,
    }


def status(result: Result) -> str:
    """Returns the colour of a test."""
    if result.outcome == r.FAILED:
        return result.kind or "error"
    if result.outcome == r.PASSED:
        return "falls back" if result.fallbacks else "pass"
    return result.outcome


def _row(result: Result) -> list[Any]:
    return [result.test, status(result), result.verdict, round(result.seconds, 3), result.operator, result.dtype]


def _details(result: Result) -> dict[str, str]:
    fields = {
        "reason": result.reason,
        "message": result.message,
        "sample": result.sample,
        "detail": result.detail,
    }
    return {name: value for name, value in fields.items() if value}


def _fallbacks(run: Run) -> list[tuple[str, int, int]]:
    """Operator, calls, tests; most tests first."""
    calls: dict[str, int] = {}
    tests: dict[str, int] = {}
    for result in run.results:
        for operator, count in result.fallbacks.items():
            calls[operator] = calls.get(operator, 0) + count
            tests[operator] = tests.get(operator, 0) + 1
    return sorted(((name, calls[name], tests[name]) for name in calls), key=lambda row: (-row[2], row[0]))
