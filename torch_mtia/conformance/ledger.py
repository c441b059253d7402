"""The ledger: which tests are expected not to pass on a device, how, and why. One YAML file for each device.

    - tests: operators/forward/svd_lowrank/*     a pattern of ids (* and ? and [...]), or a list of patterns
      outcome: xfail                             fails, and must: a pass is reported like a failure
      kind: wrong                                how: wrong, missing, error, crash or hang, or a list of these
      message: not close                         what the failure says, among other words, or a list of such; optional
      reason: what is wrong, and where
    - tests: operators/forward/zeta/complex64
      outcome: inapplicable                      finds itself that it does not apply, and skips; of a pattern, some do
      message: no sample to compare              what it says then; optional
      reason: why it does not apply
    - tests: distributed/*
      outcome: skip                              is not run
      reason: why not
      decision: who decided it
    - tests: operators/out/angle/complex64
      outcome: pass                              passes, although an entry below, or an included one, says otherwise
      reason: why here and not there
      torch: ">=2.14"                            only with these versions of PyTorch; any entry may have it
    - include: mtia                              what the package expects of that device, after the entries of the file

The first entry that names a test counts; tests that none names are expected to pass. An entry without a reason, a
pattern that no test has and a name that an earlier entry has are errors. Every ledger ends with `any.yaml`: the tests
that apply to no device.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import glob
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import translate
from pathlib import Path
from typing import Any

import torch
import yaml
from packaging.specifiers import InvalidSpecifier, SpecifierSet

from torch_mtia.conformance import results as r
from torch_mtia.conformance.results import Result

FOLDER = Path(__file__).parent / "ledgers"
KNOWN = sorted(path.stem for path in FOLDER.glob("*.yaml"))
ANY = FOLDER / "any.yaml"
OUTCOMES = ("pass", "xfail", "inapplicable", "skip")
_WILD = re.compile(r"[*?\[]")
_OUTCOME_OF = {r.SKIPPED: "inapplicable"}  # of the ledger
FIELDS = ("tests", "outcome", "kind", "message", "torch", "reason", "decision")


class LedgerError(Exception):
    """The ledger is wrong; the message says where and what to do."""


@dataclasses.dataclass(frozen=True)
class Entry:
    """One row of a ledger."""

    patterns: tuple[str, ...]
    outcome: str
    reason: str
    kinds: tuple[str, ...] = ()
    messages: tuple[str, ...] = ()
    torch: str = ""
    decision: str = ""

    @classmethod
    def of(cls, row: dict[str, Any]) -> Entry:
        def word(name: str) -> str:
            return str(row.get(name) or "").strip()

        return cls(
            patterns=_listed(row["tests"]),
            outcome=row["outcome"],
            kinds=_listed(row.get("kind") or ()),
            messages=_listed(row.get("message") or ()),
            torch=word("torch"),
            reason=word("reason"),
            decision=word("decision"),
        )

    def fields(self) -> dict[str, Any]:
        row = {"tests": _unlisted(self.patterns), "outcome": self.outcome, "kind": _unlisted(self.kinds)}
        row |= {"message": _unlisted(self.messages)}
        row |= {name: getattr(self, name) for name in ("torch", "reason", "decision")}
        return {name: value for name, value in row.items() if value or name == "reason"}

    def holds(self) -> bool:
        """Whether it is about the installed PyTorch."""
        return SpecifierSet(self.torch).contains(torch.__version__.partition("+")[0], prereleases=True)

    def is_about(self, test: str) -> bool:
        """Whether it names this test, and not a pattern of which some may apply."""
        return test in self.patterns or glob.escape(test) in self.patterns

    def refuses_pass_of(self, test: str) -> bool:
        return self.outcome == "xfail" or (self.outcome == "inapplicable" and self.is_about(test))

    def is_refuted(self, pattern: str, passed: set[str], known: set[str]) -> bool:
        """Whether the tests that pass leave nothing of what it says of one of its patterns."""
        matches = _matching(pattern, known)
        return bool(matches) and all(test in passed and self.refuses_pass_of(test) for test in matches)

    def foresees(self, result: Result) -> bool:
        """Whether a test that failed or skipped did so as the entry says."""
        is_of_kind = not self.kinds or r.kind_of(result) in self.kinds
        return is_of_kind and (not self.messages or any(words in result.message for words in self.messages))


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
        self.entries = [Entry.of(row) for row in rows]
        names = [name for entry in self.entries if entry.holds() for name in entry.patterns if not _WILD.search(name)]
        if twice := [name for name, times in Counter(names).items() if times > 1]:
            raise LedgerError(f"{path}: two entries name {twice[0]}: only the first would count")
        self._by_name: dict[str, list[int]] = {}
        self._by_pattern: list[tuple[re.Pattern[str], int]] = []
        for number, entry in enumerate(self.entries):
            for pattern in entry.patterns if entry.holds() else ():
                if _WILD.search(pattern):
                    self._by_pattern.append((re.compile(translate(pattern)), number))
                else:
                    self._by_name.setdefault(pattern, []).append(number)

    def digest(self) -> str:
        """Returns the same for ledgers that say the same, and another for others."""
        texts = [ledger.path.read_text() for ledger in (self, *self._behind()) if ledger.path.exists()]
        return f"{zlib.crc32(chr(0).join(texts).encode()):08x}"

    def find(self, test: str) -> Entry | None:
        """Returns the first entry that names the test."""
        return next(self._own(test), None) or self._find_behind(test)

    def _find_behind(self, test: str) -> Entry | None:
        return next((entry for ledger in self._behind() if (entry := ledger.find(test)) is not None), None)

    def _behind(self) -> Iterator[Ledger]:
        yield from self._included
        if self.path.resolve() != ANY:
            yield Ledger.of_no_device()

    @classmethod
    @functools.cache
    def of_no_device(cls) -> Ledger:
        """Of the tests that apply to no device."""
        return cls(ANY)

    def _own(self, test: str) -> Iterator[Entry]:
        named = self._by_name.get(test, [])
        numbers = sorted({*named, *(number for pattern, number in self._by_pattern if pattern.match(test))})
        return (self.entries[number] for number in numbers)

    def check(self, collected: Iterable[str], known: Iterable[str] | None = None) -> None:
        """Raises LedgerError for patterns that name no test, of those whose suite was collected, and, where all suites
        are known, for those whose suite is none of them."""
        tests = set(collected)
        suites = {test.partition("/")[0] for test in tests}
        others = None if known is None else {*known} - suites

        def is_of_another(pattern: str) -> bool:
            suite = pattern.partition("/")[0]
            if others is None:  # of files that nobody lists
                return suite not in suites
            return any(map(re.compile(translate(suite)).match, others))

        unknown = [
            pattern
            for entry in self.entries
            for pattern in (entry.patterns if entry.holds() else ())
            if not is_of_another(pattern) and not _matching(pattern, tests)
        ]
        if unknown:
            listing = "\n  ".join(unknown)
            raise LedgerError(f"{self.path}: there is no test of the name, remove or correct it:\n  {listing}")

    def judge(self, result: Result) -> None:
        """Sets the verdict of a result and its reason."""
        entry = None if result.suite == r.RUN else self.find(result.test)
        expected = entry.outcome if entry is not None else "pass"
        result.reason = entry.reason if entry is not None else ""
        is_named = entry is not None and entry.is_about(result.test)
        if result.outcome == r.PASSED:
            result.verdict = r.XPASS if entry is not None and entry.refuses_pass_of(result.test) else r.PASS
        elif entry is not None and expected == "skip" and result.outcome == r.SKIPPED:
            result.verdict, result.reason = r.SKIP, f"{entry.reason} (decided by {entry.decision})"
        elif entry is not None and expected == _OUTCOME_OF.get(result.outcome, "xfail") and entry.foresees(result):
            result.verdict = r.NOT_APPLICABLE if result.outcome == r.SKIPPED else r.XFAIL
        else:
            result.verdict = r.FAIL
            if expected == "inapplicable" and result.outcome != r.SKIPPED and not is_named:
                result.reason = ""
            elif expected != "pass":
                result.reason = f"the ledger expects another outcome: {_expectation(entry)}"

    def proposal(self, results: Sequence[Result], collected: Iterable[str] = ()) -> str:
        """Returns the text of a ledger that agrees with the results. New entries come first, since the first counts,
        without a reason, so that it is not valid before a person has looked at them. `collected` names the tests that
        there are, if not all have run."""
        results = [result for result in results if result.suite != r.RUN]
        passed = {result.test for result in results if result.outcome == r.PASSED}
        known = {result.test for result in results}.union(collected)
        rows: list[dict[str, Any]] = []
        skipped: dict[str, list[str]] = {}
        for result in results:
            if result.verdict == r.FAIL and result.outcome == r.SKIPPED:
                skipped.setdefault(result.message, []).append(result.test)
            elif result.verdict == r.FAIL:
                row = {"tests": glob.escape(result.test), "outcome": "xfail", "kind": r.kind_of(result)}
                # How long a test may take is not the test's to say.
                words = result.message.splitlines()[:1] if result.outcome != r.HUNG else []
                rows.append(row | ({"message": words[0][:120]} if words else {}) | {"reason": ""})
            elif result.verdict == r.XPASS and not self._drops(result.test, passed, known):
                rows.append({"tests": glob.escape(result.test), "outcome": "pass", "reason": ""})
        for message, tests in skipped.items():
            row = {"tests": _unlisted(folded(tests, known)), "outcome": "inapplicable"}
            rows.append(row | {"message": message.strip().partition("\n")[0], "reason": ""})
        new = {pattern for row in rows for pattern in _listed(row["tests"])}
        for entry in self.entries:
            replaced = new if entry.holds() else ()
            if kept := tuple(
                pattern
                for pattern in entry.patterns
                if pattern not in replaced and not entry.is_refuted(pattern, passed, known)
            ):
                rows.append(dataclasses.replace(entry, patterns=kept).fields())
        rows += [{"include": ledger.path.stem} for ledger in self._included]
        return self._head + yaml.safe_dump(rows, sort_keys=False, width=120, allow_unicode=True)

    def _drops(self, test: str, passed: set[str], known: set[str]) -> bool:
        """Whether no entry expects anything but a pass any more, once the patterns that are refuted are gone."""
        named = [
            (entry, pattern) for entry in self._own(test) for pattern in entry.patterns if _matching(pattern, {test})
        ]
        behind = self._find_behind(test)
        return (behind is None or not behind.refuses_pass_of(test)) and all(
            entry.is_refuted(pattern, passed, known) or not entry.refuses_pass_of(test) for entry, pattern in named
        )

    def difference(self, proposal: str) -> str:
        current = self.path.read_text() if self.path.exists() else ""
        return "".join(
            difflib.unified_diff(
                current.splitlines(keepends=True), proposal.splitlines(keepends=True), str(self.path), "proposed"
            )
        )


def folded(tests: Iterable[str], judged: Iterable[str]) -> tuple[str, ...]:
    """Returns patterns of these tests and no others: one for all of an operator, where all of its dtypes are among
    them."""
    chosen = set(tests)
    groups: dict[str, list[str]] = {}
    for test in judged:
        groups.setdefault(test.rpartition("/")[0], []).append(test)
    patterns: list[str] = []
    for group, members in groups.items():
        inside = sorted(chosen.intersection(members))
        is_whole = len(inside) == len(members) > 1 and group.count("/") >= 2 and not _WILD.search(group)
        patterns += [f"{group}/*"] if is_whole else map(glob.escape, inside)
    return tuple(sorted(patterns))


def _expectation(entry: Entry | None) -> str:
    assert entry is not None
    return ", ".join(filter(None, [entry.outcome, " or ".join(entry.kinds), " or ".join(map(repr, entry.messages))]))


def _matching(pattern: str, tests: set[str]) -> set[str]:
    if not _WILD.search(pattern):
        return tests & {pattern}
    return set(filter(re.compile(translate(pattern)).match, tests))


def _read(path: Path) -> tuple[str, list[Any]]:
    """Returns the comment at the file's head, and its rows."""
    text = path.read_text() if path.exists() else ""
    head = re.match(r"(?:#.*\n|\n)*", text)
    try:
        rows = yaml.load(text, _Loader) or []
    except yaml.YAMLError as error:
        raise LedgerError(f"{path}: not YAML: {error}") from error
    if not isinstance(rows, list):
        raise LedgerError(f"{path}: a ledger is a list of entries, not a {type(rows).__name__}")
    return head[0] if head else "", rows


class _Loader(yaml.SafeLoader):
    """Of a key that is there twice, the last value would count."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        mapping = super().construct_mapping(node, deep)
        if len(mapping) < len(node.value):
            raise yaml.constructor.ConstructorError(None, None, "a field is there twice", node.start_mark)
        return mapping


def _listed(value: Any) -> tuple[str, ...]:
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def _unlisted(values: Sequence[str]) -> Any:
    return values[0] if len(values) == 1 else list(values)


def _problems(number: int, row: Any) -> list[str]:
    if not isinstance(row, dict):
        return [f"entry {number}: not a mapping with the fields {', '.join(sorted(FIELDS))}"]
    tests = _listed(row.get("tests") or "no tests")
    place = f"entry {number} ({tests[0]}{f' and {len(tests) - 1} more' if len(tests) > 1 else ''})"
    problems = [f"{place}: unknown field {name!r}" for name in row if name not in FIELDS]
    if not row.get("tests"):
        problems.append(f"{place}: `tests` is missing")
    for name in ("tests", "kind", "message"):
        values = () if row.get(name) is None else _listed(row[name])
        if others := [value for value in values if not isinstance(value, str)]:
            verb = "has" if isinstance(row[name], list) else "is"
            problems.append(f"{place}: `{name}` {verb} {others[0]!r}, which is not a text in YAML: put it in quotes")
        elif "" in values:
            problems.append(f"{place}: `{name}` has an empty text")
    if row.get("outcome") not in OUTCOMES:
        problems.append(f"{place}: `outcome` is {row.get('outcome')!r}; it is one of {', '.join(OUTCOMES)}")
    if not str(row.get("reason") or "").strip():
        problems.append(f"{place}: `reason` is missing: say why the test fails or is not run")
    if row.get("outcome") == "skip" and not str(row.get("decision") or "").strip():
        problems.append(f"{place}: `decision` is missing: say who decided it")
    kinds = _listed(row.get("kind") or ())
    if row.get("outcome") == "xfail" and not (kinds and all(kind in r.KINDS for kind in kinds)):
        problems.append(
            f"{place}: `kind` says how it fails, one or some of {', '.join(r.KINDS)}, not {row.get('kind')!r}"
        )
    if row.get("outcome") != "xfail" and kinds:
        problems.append(f"{place}: `kind` is for the outcome xfail")
    try:
        SpecifierSet(str(row.get("torch") or ""))
    except InvalidSpecifier:
        problems.append(f"{place}: `torch` is {row['torch']!r}; it is such as '>=2.14'")
    return problems
