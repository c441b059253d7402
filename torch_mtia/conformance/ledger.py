"""The ledger: which tests are expected to fail on a device, or are not run, and why. One YAML file for each device.

    - tests: operators/forward/svd_lowrank/*     a pattern of ids (* and ? and [...]), or a list of patterns
      outcome: xfail                             fails, and must: a pass is reported like a failure
      reason: what is wrong, and where
    - tests: distributed/*
      outcome: skip                              is not run
      reason: why not
      decision: who decided it
    - tests: operators/out/angle/complex64
      outcome: pass                              passes, although an entry below, or an included one, says otherwise
      reason: why here and not there
    - include: mtia                              what the package expects of that device, after the entries of the file

The first entry that names a test counts; tests that none names are expected to pass. An entry without a reason and a
pattern that no test has are errors.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import translate
from itertools import chain
from pathlib import Path
from typing import Any

import yaml

from torch_mtia.conformance import results as r
from torch_mtia.conformance.results import Result

FOLDER = Path(__file__).parent / "ledgers"
KNOWN = sorted(path.stem for path in FOLDER.glob("*.yaml"))
OUTCOMES = ("pass", "xfail", "skip")
FIELDS = {"tests", "outcome", "reason", "decision"}


class LedgerError(Exception):
    """The ledger is wrong; the message says where and what to do."""


@dataclasses.dataclass(frozen=True)
class Entry:
    """One row of a ledger."""

    patterns: tuple[str, ...]
    outcome: str
    reason: str
    decision: str = ""

    def fields(self) -> dict[str, Any]:
        tests = self.patterns[0] if len(self.patterns) == 1 else list(self.patterns)
        row = {"tests": tests, "outcome": self.outcome, "reason": self.reason}
        return row | ({"decision": self.decision} if self.decision else {})


class Ledger:
    """The rows of one file; a file that does not exist has none."""

    def __init__(self, path: Path) -> None:
        """Raises LedgerError, with all that is wrong."""
        self.path = path
        self._head, rows = _read(path)
        included = [row["include"] for row in rows if isinstance(row, dict) and row.keys() == {"include"}]
        if unknown := [name for name in included if name not in KNOWN]:
            raise LedgerError(f"{path}: include: {unknown[0]}: there is no such ledger. There are: {', '.join(KNOWN)}")
        self._included = [Ledger(FOLDER / f"{name}.yaml") for name in included]
        rows = [row for row in rows if not (isinstance(row, dict) and row.keys() == {"include"})]
        problems = [problem for number, row in enumerate(rows, 1) for problem in _problems(number, row)]
        if problems:
            raise LedgerError(f"{path}:\n  " + "\n  ".join(problems))
        self.entries = [
            Entry(_patterns(row), row["outcome"], str(row["reason"]).strip(), str(row.get("decision", "")).strip())
            for row in rows
        ]
        self._matchers = [
            (re.compile("|".join(translate(pattern) for pattern in entry.patterns)), entry) for entry in self.entries
        ]

    def find(self, test: str) -> Entry | None:
        """The first entry that names the test."""
        included = (entry for ledger in self._included if (entry := ledger.find(test)) is not None)
        return next(chain(self._own(test), included), None)

    def _own(self, test: str) -> Iterator[Entry]:
        return (entry for matcher, entry in self._matchers if matcher.match(test))

    def check(self, collected: Iterable[str]) -> None:
        """Raises LedgerError for patterns that name no test, of those whose suite was collected."""
        tests = list(collected)
        suites = {test.partition("/")[0] for test in tests}
        unknown = [
            pattern
            for entry in self.entries
            for pattern in entry.patterns
            if pattern.partition("/")[0] in suites and not any(map(re.compile(translate(pattern)).match, tests))
        ]
        if unknown:
            listing = "\n  ".join(unknown)
            raise LedgerError(f"{self.path}: there is no test of the name, remove or correct it:\n  {listing}")

    def judge(self, result: Result) -> None:
        """Sets the verdict of a result and its reason."""
        entry = self.find(result.test)
        if entry is not None and entry.outcome == "skip":
            result.verdict, result.reason = r.SKIP, f"{entry.reason} (decided by {entry.decision})"
        elif result.outcome == r.SKIPPED:
            result.verdict, result.reason = r.NOT_APPLICABLE, result.message
        elif entry is not None and entry.outcome == "xfail":
            result.verdict = r.XPASS if result.outcome == r.PASSED else r.XFAIL
            result.reason = entry.reason
        else:
            result.verdict, result.reason = (r.PASS if result.outcome == r.PASSED else r.FAIL), ""

    def proposal(self, results: Sequence[Result]) -> str:
        """The text of a ledger that agrees with the results. New entries come first, since the first counts, without a
        reason, so that it is not valid before a person has looked at them."""
        passed = {result.test for result in results if result.outcome == r.PASSED}
        judged = {result.test for result in results}
        rows: list[dict[str, Any]] = []
        for result in results:
            if result.verdict == r.FAIL:
                note = f"{result.outcome}: {result.message.splitlines()[0][:120]}" if result.message else result.outcome
                rows.append({"tests": result.test, "outcome": "xfail", "reason": "", "seen": note})
            elif result.verdict == r.XPASS and not any(self._own(result.test)):
                rows.append({"tests": result.test, "outcome": "pass", "reason": ""})
        for entry in self.entries:
            kept = tuple(pattern for pattern in entry.patterns if not _is_refuted(pattern, passed, judged))
            if entry.outcome != "xfail" or kept:
                rows.append(dataclasses.replace(entry, patterns=kept or entry.patterns).fields())
        rows += [{"include": ledger.path.stem} for ledger in self._included]
        return self._head + yaml.safe_dump(rows, sort_keys=False, width=120, allow_unicode=True)

    def difference(self, proposal: str) -> str:
        current = self.path.read_text() if self.path.exists() else ""
        return "".join(
            difflib.unified_diff(
                current.splitlines(keepends=True), proposal.splitlines(keepends=True), str(self.path), "proposed"
            )
        )


def _is_refuted(pattern: str, passed: set[str], judged: set[str]) -> bool:
    """Whether all tests of the pattern that ran have passed."""
    matches = [test for test in judged if re.match(translate(pattern), test)]
    return bool(matches) and all(test in passed for test in matches)


def _read(path: Path) -> tuple[str, list[Any]]:
    """The comment at the file's head, and its rows."""
    text = path.read_text() if path.exists() else ""
    head = re.match(r"(?:#.*\n|\n)*", text)
    try:
        rows = yaml.safe_load(text) or []
    except yaml.YAMLError as error:
        raise LedgerError(f"{path}: not YAML: {error}") from error
    if not isinstance(rows, list):
        raise LedgerError(f"{path}: a ledger is a list of entries, not a {type(rows).__name__}")
    return head[0] if head else "", rows


def _patterns(row: dict[str, Any]) -> tuple[str, ...]:
    tests = row["tests"]
    return tuple(tests) if isinstance(tests, list) else (tests,)


def _problems(number: int, row: Any) -> list[str]:
    if not isinstance(row, dict):
        return [f"entry {number}: not a mapping with the fields {', '.join(sorted(FIELDS))}"]
    place = f"entry {number} ({row.get('tests', 'no tests')})"
    problems = [f"{place}: unknown field {name!r}" for name in row if name not in FIELDS]
    if not row.get("tests"):
        problems.append(f"{place}: `tests` is missing")
    if row.get("outcome") not in OUTCOMES:
        problems.append(f"{place}: `outcome` is {row.get('outcome')!r}; it is one of {', '.join(OUTCOMES)}")
    if not str(row.get("reason") or "").strip():
        problems.append(f"{place}: `reason` is missing: say why the test fails or is not run")
    if row.get("outcome") == "skip" and not str(row.get("decision") or "").strip():
        problems.append(f"{place}: `decision` is missing: say who decided not to run it")
    return problems
