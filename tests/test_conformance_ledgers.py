"""The ledger of the conformance suite: what it foresees, what is wrong in it, and what a run proposes for it."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest
import yaml

from torch_mtia.conformance import results as r
from torch_mtia.conformance.ledger import FOLDER, Ledger, LedgerError
from torch_mtia.conformance.results import Result


@pytest.mark.parametrize("path", sorted(FOLDER.rglob("*.yaml")), ids=lambda path: path.stem)
def test_the_ledgers_of_the_package_are_valid(path: Path) -> None:
    assert Ledger(path).entries is not None


@pytest.mark.in_tree("the package's ledgers are named after devices")
def test_expected_failures_of_the_device_name_their_message() -> None:
    """Otherwise any other error would count as the expected one."""
    failing = [entry for entry in Ledger(FOLDER / "mtia.yaml").entries if entry.outcome == "xfail"]
    assert len(failing) > 10
    assert [entry.patterns for entry in failing if not entry.messages] == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "not YAML"),
        ("tests: a/b", "a ledger is a list"),
        ("- a/b", "entry 1: not a mapping"),
        (
            "- tests: a/b\n  outcome: fails\n  reason: x",
            "`outcome` is 'fails'; it is one of pass, xfail, inapplicable, skip",
        ),
        ("- tests: a/b\n  outcome: xfail\n  kind: wrong\n  reason: ' '", "`reason` is missing"),
        ("- tests: a/b\n  outcome: xfail\n  reason: x", "`kind` says how it fails"),
        ("- tests: a/b\n  outcome: xfail\n  kind: [wrong, bad]\n  reason: x", "`kind` says how it fails"),
        ("- tests: a/b\n  outcome: skip\n  kind: wrong\n  decision: x\n  reason: x", "`kind` is for the outcome xfail"),
        ("- tests: a/b\n  outcome: pass\n  torch: new\n  reason: x", "`torch` is 'new'; it is such as"),
        ("- tests: a/b\n  outcome: skip\n  reason: x", "`decision` is missing"),
        ("- tests: [a/b, 1]\n  outcome: pass\n  reason: x", "`tests` has 1, which is not a text"),
        (
            "- tests: a/b\n  outcome: inapplicable\n  message: no\n  reason: x",
            "`message` is False, which is not a text",
        ),
        ("- tests: a/b\n  outcome: inapplicable\n  message: [x, on]\n  reason: x", "`message` has True"),
        ("- outcome: xfail\n  reason: x", "`tests` is missing"),
        ("- tests: a/b\n  outcome: xfail\n  reason: x\n  why: y", "unknown field 'why'"),
        ("- tests: [null]\n  outcome: pass\n  reason: x", "`tests` has None, which is not a text"),
        ("- tests: a/b\n  outcome: xfail\n  kind: [[x]]\n  reason: x", "`kind` has .*, which is not a text"),
        ("- tests: a/b\n  outcome: inapplicable\n  message: ['', x]\n  reason: x", "`message` has an empty text"),
        ("- tests: a/b\n  tests: a/c\n  outcome: pass\n  reason: x", "a field is there twice"),
        ("- tests: a/b\n  outcome: pass\n  reason: x\n" * 2, "two entries name a/b: only the first would count"),
        ("- include: nothing", "include: nothing: there is no such ledger. There are: "),
    ],
)
def test_a_wrong_ledger_is_explained(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "ledger.yaml"
    path.write_text(text)
    with pytest.raises(LedgerError, match=message):
        Ledger(path)


@pytest.mark.in_tree("the package's ledgers are named after devices")
def test_a_ledger_may_include_one_of_the_package(tmp_path: Path) -> None:
    path = tmp_path / "ledger.yaml"
    of_the_package = FOLDER / "mtia.yaml"
    row = "- tests: operators/bits/H/complex32\n  outcome: xfail\n  kind: wrong\n  reason: mine\n"
    text = f"{row}- include: {of_the_package.stem}\n"
    path.write_text(text)
    ledger = Ledger(path)
    included = Ledger(of_the_package).find("operators/bits/mH/complex32")
    assert ledger.find("operators/bits/H/complex32").reason == "mine"  # type: ignore[union-attr]
    assert ledger.find("operators/bits/mH/complex32") == included is not None
    assert ledger.find("tensor/nothing") is None
    assert ledger.proposal([]) == text


@pytest.mark.in_tree("the package's ledgers are named after devices")
def test_a_ledger_may_except_tests_from_what_it_includes(tmp_path: Path) -> None:
    path = tmp_path / "ledger.yaml"
    of_the_package = FOLDER / "mtia.yaml"
    include = f"- include: {of_the_package.stem}\n"
    excepted = "- tests: operators/bits/H/*\n  outcome: pass\n  reason: mine\n"
    text = excepted + include
    path.write_text(text)
    ledger = Ledger(path)
    results = [
        Result("operators/bits/H/complex32", r.PASSED),
        Result("operators/bits/mH/complex32", r.PASSED),
        Result("operators/bits/H/complex64", r.FAILED),
    ]
    for result in results:
        ledger.judge(result)
    assert [result.verdict for result in results] == [r.PASS, r.XPASS, r.FAIL]
    assert ledger.proposal(results) == (
        "- tests: operators/bits/mH/complex32\n  outcome: pass\n  reason: ''\n"
        "- tests: operators/bits/H/complex64\n  outcome: xfail\n  kind: error\n  reason: ''\n" + text
    )


def judged(ledger: Ledger, *results: Result) -> list[Result]:
    for result in results:
        ledger.judge(result)
    return list(results)


def ledger_of(tmp_path: Path, *rows: str) -> Ledger:
    path = tmp_path / "ledger.yaml"
    path.write_text("".join(f"- {row}\n" for row in rows))
    return Ledger(path)


@pytest.mark.parametrize(
    ("result", "verdict"),
    [
        (Result("a/b", r.FAILED, kind="wrong", message="sizes differ, by 2"), r.XFAIL),
        (Result("a/b", r.FAILED, kind="wrong", message="values differ"), r.FAIL),
        (Result("a/b", r.FAILED, kind="error", message="sizes differ"), r.FAIL),
        (Result("a/b", r.CRASHED, message="sizes differ"), r.FAIL),
        (Result("a/b", r.HUNG, message="sizes differ"), r.FAIL),
        (Result("a/b", r.SKIPPED, message="sizes differ"), r.FAIL),
        (Result("a/b", r.PASSED), r.XPASS),
        (Result("a/c", r.SKIPPED, message="needs a part that is not there"), r.NOT_APPLICABLE),
        (Result("a/c", r.SKIPPED, message="needs another part"), r.FAIL),
        (Result("a/c", r.FAILED, kind="wrong"), r.FAIL),
        (Result("a/c", r.PASSED), r.XPASS),
        (Result("a/f/1", r.PASSED), r.PASS),
        (Result("a/f/2", r.SKIPPED), r.NOT_APPLICABLE),
        (Result("a/d", r.SKIPPED, message="nobody knows of this"), r.FAIL),
        (Result("a/e", r.CRASHED), r.XFAIL),
        (Result("a/e", r.FAILED, kind="error"), r.FAIL),
        (Result("a/old", r.FAILED, kind="error"), r.FAIL),
        (Result("a/new", r.FAILED, kind="error"), r.XFAIL),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{value.test} {value.outcome} {value.message}",
)
def test_a_ledger_foresees_one_way_to_fail(tmp_path: Path, result: Result, verdict: str) -> None:
    ledger = ledger_of(
        tmp_path,
        "{tests: a/b, outcome: xfail, kind: wrong, message: sizes differ, reason: x}",
        "{tests: a/c, outcome: inapplicable, message: not there, reason: x}",
        "{tests: a/f/*, outcome: inapplicable, reason: x}",
        "{tests: a/e, outcome: xfail, kind: [crash, hang], reason: x}",
        "{tests: a/old, outcome: xfail, kind: error, torch: '<2.10', reason: x}",
        "{tests: a/new, outcome: xfail, kind: error, torch: '>=2.10', reason: x}",
    )
    assert judged(ledger, result)[0].verdict == verdict


def test_a_pattern_of_tests_that_may_skip_says_nothing_of_those_that_fail(tmp_path: Path) -> None:
    ledger = ledger_of(tmp_path, "{tests: [a/b, a/*], outcome: inapplicable, message: not here, reason: x}")
    by_name, by_pattern = judged(ledger, Result("a/b", r.FAILED), Result("a/c", r.FAILED))
    assert by_name.reason == "the ledger expects another outcome: inapplicable, 'not here'"
    assert (by_pattern.verdict, by_pattern.reason) == (r.FAIL, "")


def test_a_proposal_says_which_part_of_a_pattern_passes(tmp_path: Path) -> None:
    ledger = ledger_of(tmp_path, "{tests: a/b/*, outcome: xfail, kind: error, reason: x}")
    results = judged(ledger, Result("a/b/1", r.PASSED), Result("a/b/2", r.FAILED, kind="error"))
    assert [result.verdict for result in results] == [r.XPASS, r.XFAIL]
    proposal = ledger.proposal(results)
    assert proposal.startswith("- tests: a/b/1\n  outcome: pass\n  reason: ''\n")
    (tmp_path / "proposed.yaml").write_text(proposal.replace("''", "because"))
    results = judged(Ledger(tmp_path / "proposed.yaml"), *results)
    assert [result.verdict for result in results] == [r.PASS, r.XFAIL]


@pytest.mark.parametrize("name", ["a/b/plain", "a/b/int*", "a/b/x[0]", "a/b/which?"])
def test_a_proposal_holds_once_its_reasons_are_written(tmp_path: Path, name: str) -> None:
    results = [
        Result(name, r.FAILED, kind="wrong", message="sizes differ\nby 2"),
        Result(f"{name}-2", r.SKIPPED, message="no sample"),
        Result("a/c", r.HUNG, message="did not end in 4 s"),
    ]
    proposal = ledger_of(tmp_path).proposal(judged(ledger_of(tmp_path), *results))
    (tmp_path / "proposed.yaml").write_text(proposal.replace("''", "because"))
    proposed = Ledger(tmp_path / "proposed.yaml")
    proposed.check(result.test for result in results)
    results += [Result(name.replace("*", "eger"), r.FAILED, kind="wrong", message="another")]
    verdicts = [result.verdict for result in judged(proposed, *results)]
    assert verdicts == [r.XFAIL, r.NOT_APPLICABLE, r.XFAIL, r.FAIL]
    assert proposed.find("a/c").messages == ()  # type: ignore[union-attr]


def test_a_proposal_collects_what_skips(tmp_path: Path) -> None:
    ledger = ledger_of(tmp_path)
    tests = ["a/b/c/x", "a/b/c/y", "a/b/d/x"]
    results = [Result(test, r.SKIPPED, message="no sample") for test in tests] + [Result("a/b/d/y", r.PASSED)]
    proposal = ledger.proposal(judged(ledger, *results))
    assert (
        proposal == "- tests:\n  - a/b/c/*\n  - a/b/d/x\n  outcome: inapplicable\n  message: no sample\n  reason: ''\n"
    )
    assert "a/b/c/*" not in ledger.proposal(results, collected=[*tests, "a/b/c/z"])  # which has not run


def test_a_proposal_drops_what_passes_and_keeps_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "ledger.yaml"
    path.write_text(
        "# a head\n- tests: [a/b/*, a/c]\n  outcome: xfail\n  kind: error\n  reason: x\n"
        "- tests: a/d\n  outcome: xfail\n  kind: error\n  reason: y\n"
    )
    ledger = Ledger(path)
    tests = [Result("a/b/1", r.PASSED), Result("a/b/2", r.PASSED), Result("a/c", r.FAILED), Result("a/d", r.PASSED)]
    for result in tests:
        ledger.judge(result)
    assert ledger.proposal(tests) == "# a head\n- tests: a/c\n  outcome: xfail\n  kind: error\n  reason: x\n"


@pytest.mark.in_tree("the package's ledgers are named after devices")
def test_a_proposal_excepts_what_passes_from_an_included_ledger_too(tmp_path: Path) -> None:
    test = "operators/bits/H/complex32"
    row = f"{{tests: {test}, outcome: xfail, kind: wrong, reason: x}}"
    ledger = ledger_of(tmp_path, row, f"include: {FOLDER.joinpath('mtia.yaml').stem}")
    proposal = ledger.proposal(judged(ledger, Result(test, r.PASSED)))
    assert proposal == f"- tests: {test}\n  outcome: pass\n  reason: ''\n- include: mtia\n"


def test_a_proposal_of_a_part_keeps_what_the_rest_may_need(tmp_path: Path) -> None:
    rows = (
        "{tests: '*/x/*', outcome: xfail, kind: wrong, reason: x}",
        "{tests: a/*, outcome: inapplicable, reason: x}",
    )
    ledger = ledger_of(tmp_path, *rows)
    results = judged(ledger, Result("a/x/1", r.PASSED), Result("a/y/1", r.PASSED))
    patterns = [row["tests"] for row in yaml.safe_load(ledger.proposal(results, collected=["a/x/1", "b/x/1", "a/y/1"]))]
    assert patterns == ["a/x/1", "*/x/*", "a/*"]
    assert [row["tests"] for row in yaml.safe_load(ledger.proposal(results))] == ["a/*"]


def test_a_proposal_replaces_what_fails_in_another_way(tmp_path: Path) -> None:
    ledger = ledger_of(tmp_path, "{tests: [a/b, a/c], outcome: xfail, kind: crash, reason: x}")
    results = judged(ledger, Result("a/b", r.FAILED, kind="wrong", message="no"), Result("a/c", r.CRASHED))
    (tmp_path / "proposed.yaml").write_text(ledger.proposal(results).replace("''", "because"))
    assert [result.verdict for result in judged(Ledger(tmp_path / "proposed.yaml"), *results)] == [r.XFAIL, r.XFAIL]


@pytest.mark.parametrize(
    ("pattern", "known", "is_refused"),
    [
        ("a/none", None, True),
        ("b/none", None, False),  # of a file that did not run
        ("b/none", ["a", "b"], False),  # of a suite that did not run
        ("c/none", ["a", "b"], True),
        ("*/none", ["a", "b"], False),
        ("*/none", ["a"], True),
        ("*/none", None, False),
        ("a/*", ["a"], False),
    ],
)
def test_a_pattern_that_no_test_has_is_refused(
    tmp_path: Path, pattern: str, known: list[str] | None, is_refused: bool
) -> None:
    ledger = ledger_of(tmp_path, f"{{tests: '{pattern}', outcome: pass, reason: x}}")
    with pytest.raises(LedgerError, match="there is no test of the name") if is_refused else nullcontext():
        ledger.check(["a/some"], known)


def test_no_ledger_foresees_a_process_that_does_not_end_well(tmp_path: Path) -> None:
    ledger = ledger_of(tmp_path, "{tests: 'run/*', outcome: xfail, kind: [crash, hang], reason: x}")
    results = judged(ledger, Result("run/end_of_gw0/shard_1", r.HUNG))
    assert results[0].verdict == r.FAIL
    assert "end_of_gw0" not in ledger.proposal(results)


def test_ledgers_that_say_something_else_have_another_digest(tmp_path: Path) -> None:
    row = "{{tests: a/b, outcome: pass, reason: {}}}"
    digests = [ledger_of(tmp_path, row.format(reason)).digest() for reason in "xyx"]
    assert digests[0] == digests[2] != digests[1]


# Results -------------------------------------------------------------------------------------------------------------
