"""What tests gave: the record of a run, as JSON lines while it runs, as JSON and JUnit XML when it has ended."""

from __future__ import annotations

import dataclasses
import json
import re
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

# How a test ended.
PASSED, FAILED, SKIPPED, CRASHED, HUNG = "passed", "failed", "skipped", "crashed", "hung"
# What the ledger makes of it.
PASS, FAIL, XFAIL, XPASS, SKIP, NOT_APPLICABLE = "pass", "fail", "xfail", "xpass", "skip", "not applicable"
# Of tests of upstream's that the ledger does not name: they pass the second time; they fail on the CPU, too.
FLAKY, ON_CPU = "flaky", "fails on cpu"
UNEXPECTED = frozenset({FAIL, XPASS})

# How a test fails that is expected to.
KINDS = ("wrong", "missing", "error", "crash", "hang")

# What of the environment is the same in all parts of a run.
OF_ONE_RUN = ("device", "torch", "torch_mtia")

# Suites whose tests are named suite/check/operator[/dtype].
BY_OPERATOR = frozenset({"operators", "autograd", "graphs", "compile"})


@dataclasses.dataclass
class Result:
    """One test. `kind` says how it failed: wrong (another result than the CPU's), missing (no kernel), error."""

    test: str
    outcome: str
    seconds: float = 0.0
    kind: str = ""
    message: str = ""
    sample: str = ""
    detail: str = ""
    fallbacks: dict[str, int] = dataclasses.field(default_factory=dict)
    functions: list[str] = dataclasses.field(default_factory=list)
    """Those of devices' modules that it has called, in the suites that are not about operators."""
    verdict: str = ""
    reason: str = ""

    @property
    def suite(self) -> str:
        return self.test.partition("/")[0]

    @property
    def operator(self) -> str:
        parts = self.test.split("/")
        return parts[2] if parts[0] in BY_OPERATOR and len(parts) > 2 else ""

    @property
    def dtype(self) -> str:
        parts = self.test.split("/")
        return parts[3] if parts[0] in BY_OPERATOR and len(parts) > 3 else ""


RUN = "run"  # the suite of what is no test's: a process that did not end well


def kind_of(result: Result) -> str:
    """Returns how a test that did not pass has ended: one of KINDS, or "skip"."""
    return {CRASHED: "crash", HUNG: "hang", SKIPPED: "skip"}.get(result.outcome) or result.kind or "error"


def in_a_line(result: Result) -> str:
    """Returns what is wrong with a result that is not as expected."""
    if result.verdict == XPASS:
        return f"passes, and the ledger says: {result.reason}"
    message = result.message.strip().partition("\n")[0]
    skipped = "skips, which no entry of the ledger foresees: " if result.outcome == SKIPPED else ""
    return "; ".join(filter(None, [skipped + message, result.reason]))


def test_id(node: str) -> str:
    """Returns the test's name in ledgers and reports, from pytest's: suites/operators.py::test_forward[add/float32] is
    operators/forward/add/float32. Files of PyTorch keep their functions' names whole."""
    path, _, rest = node.partition("::")
    stem = Path(path).stem
    name, bracket, parameters = rest.partition("[")
    name = name.replace("::", "/")
    if not stem.startswith("test_"):
        name = name.removeprefix("test_")
    return f"{stem}/{name}" + (f"/{parameters.removesuffix(']')}" if bracket else "")


@dataclasses.dataclass
class Run:
    """A run that has ended, or was interrupted."""

    environment: dict[str, str]
    results: list[Result]
    complete: bool = True
    shard: tuple[int, int] = (0, 1)
    functions: list[str] = dataclasses.field(default_factory=list)
    """All that devices' modules have."""
    repeat: str = ""
    """The command that repeats one test, with {test} in the place of its name and perhaps {suite}."""

    def verdicts(self) -> dict[str, Counter[str]]:
        """Returns how many tests of each suite had each verdict."""
        counts: dict[str, Counter[str]] = {}
        for result in self.results:
            counts.setdefault(result.suite, Counter())[result.verdict] += 1
        return counts

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(dataclasses.asdict(self), indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> Run:
        """Raises ValueError for a file that is not a run's."""
        try:
            fields = json.loads(path.read_text())
            results = [Result(**row) for row in fields["results"]]
            more = {name: fields[name] for name in ("functions", "repeat") if name in fields}
            return cls(fields["environment"], results, fields["complete"], tuple(fields.get("shard", (0, 1))), **more)
        except (OSError, json.JSONDecodeError, KeyError, TypeError) as error:
            raise ValueError(f"{path} is not a file that --json has written: {error}") from error

    @classmethod
    def merged(cls, runs: Sequence[Run]) -> Run:
        """Returns all shards of a run as one. Raises ValueError if one is missing, is there twice, or is of something
        else."""
        shards = sorted(run.shard for run in runs)
        number = shards[0][1]
        if shards != [(shard, number) for shard in range(number)]:
            given = ", ".join(f"{shard + 1}/{of}" for shard, of in shards)
            raise ValueError(f"the shards {given} are not all shards of one run, each once")
        for what in (*OF_ONE_RUN, "selection", "ledger"):
            if len(values := {run.environment.get(what, "") for run in runs}) > 1:
                raise ValueError(f"the runs are not of the same {what}: {', '.join(sorted(values))}")
        results = [result for run in runs for result in run.results]
        if twice := [test for test, times in Counter(result.test for result in results).items() if times > 1]:
            raise ValueError(f"{twice[0]} has a result in several of the runs, which therefore are not shards of one")
        first, complete = runs[0], all(run.complete for run in runs)
        return cls(first.environment, results, complete, functions=first.functions, repeat=first.repeat)

    def save_junit(self, path: Path) -> None:
        root = ElementTree.Element("testsuites")
        for suite, counts in sorted(self.verdicts().items()):
            results = [result for result in self.results if result.suite == suite]
            element = ElementTree.SubElement(
                root,
                "testsuite",
                name=suite,
                tests=str(len(results)),
                failures=str(sum(counts[verdict] for verdict in UNEXPECTED)),
                skipped=str(sum(counts.values()) - counts[PASS] - sum(counts[verdict] for verdict in UNEXPECTED)),
                time=f"{sum(result.seconds for result in results):.3f}",
            )
            for result in results:
                _junit_case(element, result)
        if not self.complete:  # what is missing is in no suite
            message = "interrupted: some of the tests have no result"
            end = ElementTree.SubElement(root, "testsuite", name=RUN, tests="1", errors="1")
            case = ElementTree.SubElement(end, "testcase", classname=RUN, name="complete")
            ElementTree.SubElement(case, "error", message=message, type="interrupted")
        path.parent.mkdir(parents=True, exist_ok=True)
        ElementTree.ElementTree(root).write(path, encoding="utf-8", xml_declaration=True)


# XML cannot contain these, escaped or not.
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def _junit_case(suite: ElementTree.Element, result: Result) -> None:
    group, _, name = result.test.rpartition("/")
    case = ElementTree.SubElement(
        suite, "testcase", classname=group.replace("/", "."), name=name, time=f"{result.seconds:.3f}"
    )
    if result.verdict in UNEXPECTED:
        message = _NOT_XML.sub("?", in_a_line(result))
        failure = ElementTree.SubElement(case, "failure", message=message, type=result.outcome)
        failure.text = _NOT_XML.sub("?", result.detail)
    elif result.verdict != PASS:
        ElementTree.SubElement(case, "skipped", message=_NOT_XML.sub("?", f"{result.verdict}: {result.reason}"))


def drop_unfinished_line(path: Path) -> None:
    """A line that was cut off would take the next one with it."""
    text = path.read_bytes() if path.exists() else b""
    if not text.endswith(b"\n"):
        path.write_bytes(text[: text.rfind(b"\n") + 1])


def read_lines(path: Path) -> list[Result]:
    """Returns the results of a run so far; a last line that was cut off counts for nothing."""
    results = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            results.append(Result(**json.loads(line)))
        except json.JSONDecodeError:
            continue
    return results


def changes(old: Iterable[Result], new: Iterable[Result]) -> dict[str, list[str]]:
    """Tests by what has become of them: "worse", "better", "changed", "new", "gone"."""
    before: Mapping[str, Result] = {result.test: result for result in old}
    after: Mapping[str, Result] = {result.test: result for result in new}
    found: dict[str, list[str]] = {"worse": [], "better": [], "changed": [], "new": [], "gone": []}
    for test, result in after.items():
        previous = before.get(test)
        if previous is None:
            found["new"].append(test)
        elif _how(previous) != _how(result):
            found[_direction(previous, result)].append(test)
    found["gone"] = [test for test in before if test not in after]
    return found


def _how(result: Result) -> tuple[str, str]:
    return (FLAKY if result.verdict == FLAKY else result.outcome), result.kind


# From the best to the worst.
_RANKS = {PASSED: 0, FLAKY: 1, SKIPPED: 2, FAILED: 3, CRASHED: 4, HUNG: 4}


def _direction(old: Result, new: Result) -> str:
    before, after = (_RANKS[_how(result)[0]] for result in (old, new))
    if after > before:
        return "worse"
    return "better" if after == _RANKS[PASSED] and after < before else "changed"


def as_line(result: Result) -> str:
    fields: dict[str, Any] = {name: value for name, value in dataclasses.asdict(result).items() if value}
    return json.dumps(fields) + "\n"
