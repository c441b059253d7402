"""The conformance suite: what it makes of tests that fail, crash and hang; shards."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from torch_mtia import torch_version
from torch_mtia._versions import SUPPORTED_TORCH
from torch_mtia.conformance import results as r
from torch_mtia.conformance.__main__ import go_on, only_run_in
from torch_mtia.conformance.coverage import Calls, Coverage, coverage
from torch_mtia.conformance.ledger import Ledger, LedgerError
from torch_mtia.conformance.results import Result, Run, changes, read_lines
from torch_mtia.conformance.settings import RESULTS, Settings, UsageError

if TYPE_CHECKING:
    from tests.conftest import RunScript


# What of the suites runs, each in one command; the first by default.
SLICES = [
    pytest.param(("operators", "autograd", "modules", "graphs"), "1/160", id="PyTorch's databases"),
    pytest.param(("device", "tensor", "accumulation", "optimizers", "triton"), "1/1", id="what is short"),
    pytest.param(("compile",), "1/80", id="compile"),
    pytest.param(("distributed",), "1/24", id="distributed"),
]

SUITE = """
import ctypes, os, pytest, torch

def test_passes(device):
    assert device.type in ("mtia", "cpu")

def test_is_wrong():
    assert torch.ones(2).tolist() == [0, 0]

def test_is_another_text():
    assert "not implemented for Half" == "expected a tensor"

def test_is_missing():
    raise NotImplementedError('"nothing" not implemented for Half')

def test_breaks():
    raise ValueError("a value <b>")

def test_does_not_apply():
    pytest.skip("for a reason")

def test_crashes():
    ctypes.string_at(0)

def test_ends_the_process():
    os._exit(7)

def test_hangs():
    while True:
        pass

@pytest.mark.parametrize("number", range(20))
def test_many(number):
    assert number >= 0
"""

OUTCOMES = {
    "toy/passes": (r.PASSED, ""),
    "toy/is_wrong": (r.FAILED, "wrong"),
    "toy/is_another_text": (r.FAILED, "wrong"),
    "toy/is_missing": (r.FAILED, "missing"),
    "toy/breaks": (r.FAILED, "error"),
    "toy/does_not_apply": (r.SKIPPED, ""),
    "toy/crashes": (r.CRASHED, ""),
    "toy/ends_the_process": (r.CRASHED, ""),
    "toy/hangs": (r.HUNG, ""),
    **{f"toy/many/{number}": (r.PASSED, "") for number in range(20)},
}


class Conformance:
    """Runs the command in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def start(self, *arguments: str, ledger: str | None = "") -> subprocess.Popen[str]:
        (self.folder / "toy.py").write_text(SUITE)
        command = [sys.executable, "-m", "torch_mtia.conformance", "--device", "cpu"]
        if ledger is not None:
            (self.folder / "ledger.yaml").write_text(ledger)
            command += ["--ledger", "ledger.yaml"]
        command += ["--folder", "record", "-j", "1", "--time-limit", "4", "--json", "run.json", *arguments]
        return subprocess.Popen(
            command,
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, *arguments: str, ledger: str | None = "") -> tuple[int, str]:
        process = self.start(*arguments, ledger=ledger)
        output, _ = process.communicate(timeout=900)
        return process.returncode, output

    def results(self) -> dict[str, Result]:
        return {result.test: result for result in Run.load(self.folder / "run.json").results}


@pytest.fixture
def conformance(tmp_path: Path) -> Conformance:
    return Conformance(tmp_path)


@pytest.fixture(scope="module")
def toy_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Conformance, int, str]:
    """A run of the suite above, with all kinds of output."""
    made = Conformance(tmp_path_factory.mktemp("conformance"))
    status, output = made.run("--file", "toy.py", "--junit", "run.xml", "--report", "run.html", "--update")
    return made, status, output


@pytest.mark.slow
def test_a_proposal_goes_into_the_project_and_not_into_the_installed_package(conformance: Conformance) -> None:
    """Unless a ledger is named, which it then replaces."""
    _, output = conformance.run("--file", "toy.py", "--test", "toy/passes", "--update", ledger=None)
    assert f"Proposed: {conformance.folder / 'record' / 'ledger.yaml'}" in output
    assert "name it with --ledger" in output
    assert "ledgers" not in output


def test_each_way_to_fail_is_told_apart(toy_run: tuple[Conformance, int, str]) -> None:
    conformance, status, output = toy_run
    assert status == 1, output
    results = conformance.results()
    assert {test: (result.outcome, result.kind) for test, result in results.items()} == OUTCOMES
    assert "Segmentation fault" in results["toy/crashes"].message
    assert "test_crashes" in results["toy/crashes"].detail
    assert "test_hangs" in results["toy/hangs"].detail
    assert results["toy/hangs"].message == "did not end in 4 s"
    assert results["toy/does_not_apply"].verdict == r.FAIL
    assert "FAIL toy/does_not_apply: skips, which no entry of the ledger foresees: for a reason" in toy_run[2]


@pytest.mark.wide
def test_a_run_says_how_to_repeat_one_test(toy_run: tuple[Conformance, int, str]) -> None:
    made, _, _ = toy_run
    command = shlex.split(Run.load(made.folder / "run.json").repeat.format(suite="toy", test="toy/is_wrong"))
    assert command[0] == "python"
    repeated = subprocess.run(
        [sys.executable, *command[1:], "--json", "repeated.json"], cwd=made.folder, capture_output=True, timeout=900
    )
    assert repeated.returncode == 1
    (result,) = Run.load(made.folder / "repeated.json").results
    assert (result.test, result.kind) == ("toy/is_wrong", "wrong")


@pytest.mark.wide
def test_a_worker_that_breaks_when_it_ends_is_seen(conformance: Conformance) -> None:
    suite = "import atexit, os\natexit.register(os.abort)\n\ndef test_passes():\n    assert True\n"
    (conformance.folder / "ends.py").write_text(suite)
    status, output = conformance.run("--file", "ends.py")
    assert status == 1, output
    results = {test: result.outcome for test, result in conformance.results().items()}
    assert results == {"ends/passes": r.PASSED, "run/end_of_gw0/shard_1": r.CRASHED}


@pytest.mark.wide
def test_a_worker_that_does_not_come_to_its_first_test_ends(tmp_path: Path) -> None:
    (tmp_path / "hangs.py").write_text("import time\ntime.sleep(1000)")
    script = (
        "from torch_mtia.conformance import __main__, plugin; plugin.START_LIMIT = 2; "
        "__main__.main('--device cpu --file hangs.py --folder record -j 0'.split())"
    )
    assert subprocess.run([sys.executable, "-c", script], cwd=tmp_path, timeout=300).returncode == 1
    (trace,) = (tmp_path / "record").glob("*.trace")
    assert "Timeout (0:00:02)!" in trace.read_text()


def test_junit(toy_run: tuple[Conformance, int, str]) -> None:
    conformance, _, _ = toy_run
    (suite,) = ElementTree.parse(conformance.folder / "run.xml").getroot()
    assert (suite.get("name"), suite.get("tests"), suite.get("failures")) == ("toy", "29", "8")
    failures = {case.get("name"): failure.get("type") for case in suite for failure in case.iter("failure")}
    assert failures["hangs"] == "hung"


def test_a_proposed_ledger_wants_reasons(toy_run: tuple[Conformance, int, str]) -> None:
    conformance, _, output = toy_run
    proposal = conformance.folder / "record" / "ledger.yaml"
    assert "+- tests: toy/crashes" in output
    with pytest.raises(LedgerError, match=r"toy/crashes.*`reason` is missing"):
        Ledger(proposal)


def test_a_run_with_a_ledger_that_agrees_succeeds(conformance: Conformance) -> None:
    ledger = """
- tests: [toy/is_*, toy/breaks]
  outcome: xfail
  kind: [wrong, missing, error]
  reason: written to fail
- tests: toy/does_not_apply
  outcome: inapplicable
  message: for a reason
  reason: skips
- tests: [toy/crashes, toy/ends_the_process, toy/hangs]
  outcome: skip
  reason: takes the process with it
  decision: the author of the test
"""
    status, output = conformance.run("--file", "toy.py", ledger=ledger)
    assert status == 0, output
    results = conformance.results()
    assert results["toy/breaks"].verdict == r.XFAIL
    assert (results["toy/hangs"].outcome, results["toy/hangs"].verdict) == (r.SKIPPED, r.SKIP)


@pytest.mark.wide
def test_an_unexpected_pass_fails(conformance: Conformance) -> None:
    ledger = "- tests: toy/passes\n  outcome: xfail\n  kind: wrong\n  reason: an old fault\n"
    status, output = conformance.run("--file", "toy.py", "--test", "toy/passes", ledger=ledger)
    assert status == 1
    assert "XPASS toy/passes: passes, and the ledger says: an old fault" in output


@pytest.mark.wide
def test_tests_that_do_not_exist_are_refused(conformance: Conformance) -> None:
    ledger = "- tests: toy/passed\n  outcome: xfail\n  kind: wrong\n  reason: misspelt\n"
    status, output = conformance.run("--file", "toy.py", ledger=ledger)
    assert status == 2
    assert "there is no test of the name, remove or correct it:\n  toy/passed" in output


@pytest.mark.wide
def test_an_interrupted_run_is_resumed(conformance: Conformance) -> None:
    process = conformance.start("--file", "toy.py", "--time-limit", "300")
    record = conformance.folder / "record" / "results.jsonl"
    deadline = time.monotonic() + 120
    while "toy/crashes" not in (record.read_text() if record.exists() else ""):  # toy/hangs is among those to come
        if time.monotonic() > deadline:
            os.killpg(process.pid, signal.SIGKILL)
        assert process.poll() is None
        time.sleep(0.1)
    os.kill(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 3, output
    partial = conformance.results()
    assert "toy/hangs" not in partial
    assert partial["toy/passes"].verdict == r.PASS
    status, output = conformance.run("--file", "toy.py", "--resume")
    assert status == 1, output
    assert {test: (result.outcome, result.kind) for test, result in conformance.results().items()} == OUTCOMES


@pytest.mark.wide
def test_shards_are_a_partition(conformance: Conformance) -> None:
    parts = []
    for part in ("1/2", "2/2"):
        conformance.run("--file", "toy.py", "--test", "toy/many/*", "--shard", part)
        parts.append(set(conformance.results()))
    assert set().union(*parts) == {f"toy/many/{number}" for number in range(20)}
    assert sum(map(len, parts)) == 20


@pytest.mark.wide
def test_shards_are_merged(conformance: Conformance) -> None:
    paths = []
    for part in ("1/2", "2/2"):
        path = conformance.folder / f"{part[0]}.json"
        conformance.run("--file", "toy.py", "--test", "toy/many/*", "--shard", part, "--json", str(path))
        paths.append(str(path))
    merge = [sys.executable, "-m", "torch_mtia.conformance", "--json", "all.json", "--merge"]
    process = subprocess.run([*merge, *paths], cwd=conformance.folder, capture_output=True, text=True, timeout=60)
    assert process.returncode == 0, process.stderr
    merged = Run.load(conformance.folder / "all.json")
    assert {result.test for result in merged.results} == {f"toy/many/{number}" for number in range(20)}
    other = conformance.folder / "other.json"
    conformance.run("--file", "toy.py", "--test", "toy/passes", "--shard", "1/1", "--json", str(other))
    run = Run.load(other)
    dataclasses.replace(run, shard=(1, 2)).save(other)
    process = subprocess.run(
        [*merge, paths[0], str(other)], cwd=conformance.folder, capture_output=True, text=True, timeout=60
    )
    assert process.returncode == 2
    assert "the runs are not of the same selection" in process.stderr
    run = Run.load(Path(paths[1]))
    dataclasses.replace(run, environment=run.environment | {"ledger": "ledger.yaml 0"}).save(
        conformance.folder / "by_another.json"
    )
    dataclasses.replace(run, results=run.results + Run.load(Path(paths[0])).results[:1]).save(other)
    for wrong, message in (
        ([paths[0], "by_another.json"], "the runs are not of the same ledger"),
        ([paths[0], str(other)], "has a result in several of the runs"),
        ([*paths, "--update"], "--merge does not go with --update"),
        ([*paths, "--ledger", "ledger.yaml"], "--merge does not go with --ledger"),
    ):
        process = subprocess.run([*merge, *wrong], cwd=conformance.folder, capture_output=True, text=True, timeout=60)
        assert (process.returncode, message in process.stderr) == (2, True), process.stderr
    for wrong in (paths[:1], [paths[0], *paths]):
        process = subprocess.run([*merge, *wrong], cwd=conformance.folder, capture_output=True, text=True, timeout=60)
        assert process.returncode == 2
        assert "are not all shards of one run, each once" in process.stderr


@pytest.mark.sampled(7)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--device", "nosuch"], "PyTorch knows no such device"),
        (
            ["--file", "toy.py", "--test", "toy/pases"],
            "--test toy/pases: there is no such test; one that there is: toy/",
        ),
        (["--file", "toy.py", "--test", "toy/passes", "--test", "toy/x*"], "--test toy/x*: there is no such test"),
        (["--file", "toy.py", "--test", "toy/passes", "--shard", "1/999"], "none of the tests is in it"),
        (["--file", "empty.py"], "there are no tests in "),
        (["--file", "empty.py", "--file", "toy.py", "--test", "toy/passes"], "/empty.py"),
        (["--suite", "device", "--file", "device.py", "-j", "0"], "two tests have the name device/names"),
        (["--suite", "operator"], "there is no such suite. There are: device, accelerator"),
        (["--file", "nothing.py"], "no such file"),
        (["--shard", "3/2"], "'3/2' is not K/N"),
        (["--import", "no_such_module"], "No module named 'no_such_module'"),
        (["--compare", "toy.py"], "is not a file that --json has written"),
        (["--import", "crashing"], "ended with status -6"),
        (["--file", "ending.py"], "processes that collect the tests end"),
        (["--ledger", "ledger.yml"], "--ledger ledger.yml: no such file; --update proposes one"),
        (["--file", "toy.py", "--folder", "new", "--resume"], "/new: leave --resume out"),
        (["--file", "toy.py", "--folder", "toy.py/record"], "Not a directory"),
        (["--file", "toy.py", "--junit", "."], ". cannot be written"),
        (["--file", "toy.py", "--json", "toy.py/run.json"], "File exists"),
        (["--time-limit", "0"], "0 is not above 0 and at most"),
        (["--time-limit", "nan"], "nan is not above 0 and at most"),
        (["--time-limit", "1e300"], "1e300 is not above 0 and at most"),
        (["--jobs", "-1"], "'-1' is not a number of processes"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_wrong_arguments_are_explained(conformance: Conformance, arguments: list[str], message: str) -> None:
    (conformance.folder / "crashing.py").write_text("import os; os.abort()")
    (conformance.folder / "ending.py").write_text("import os; os._exit(3)")
    (conformance.folder / "empty.py").touch()
    (conformance.folder / "device.py").write_text("def test_names(): pass\n")
    status, output = conformance.run(*arguments)
    assert status == 2
    assert message in output


@pytest.mark.wide
def test_a_run_that_a_test_ends_is_not_complete(conformance: Conformance) -> None:
    """JUnit says so, too."""
    (conformance.folder / "ends.py").write_text(
        "import pytest\ndef test_first(): pytest.exit('enough', returncode=0)\ndef test_second(): assert False\n"
    )
    status, output = conformance.run("--file", "ends.py", "-j", "0", "--junit", "run.xml")
    assert status == 3, output
    (error,) = ElementTree.parse(conformance.folder / "run.xml").getroot().iter("error")
    assert error.get("message") == "interrupted: some of the tests have no result"


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("pattern", "expected"), [("*", 1), ("part*/a", 1), ("toy/passes", 0)])
def test_a_file_that_skips_itself_is_seen(conformance: Conformance, pattern: str, expected: int) -> None:
    (conformance.folder / "parts.py").write_text("import pytest\npytest.importorskip('no_such_module')\n")
    selection = ("--test", pattern, "--test", "toy/passes") if pattern != "*" else ("--test", "*/passes")
    status, output = conformance.run("--file", "parts.py", "--file", "toy.py", *selection)
    assert status == (2 if pattern == "part*/a" else expected), output
    words = "FAIL parts/import: skips, which no entry of the ledger foresees: could not import 'no_such_module'"
    assert (words in output) == bool(expected)


def test_only_one_run_goes_on_in_a_folder(tmp_path: Path) -> None:
    with only_run_in(tmp_path), pytest.raises(UsageError, match="another run is going on there"), only_run_in(tmp_path):
        pass
    with only_run_in(tmp_path):
        assert (tmp_path / "lock").exists()


def test_a_run_that_does_not_resume_leaves_no_older_results(tmp_path: Path) -> None:
    described = {"device": "cpu", "torch": "2.13", "torch_mtia": "1"}
    go_on(tmp_path, [], described, "", resume=False)
    for part in ("first", "second", "another"):
        (tmp_path / part).mkdir()
        (tmp_path / part / RESULTS).touch()
    go_on(tmp_path, ["first", "second"], described, "", resume=True)
    assert len([*tmp_path.glob(f"*/{RESULTS}")]) == 3
    go_on(tmp_path, ["first", "second"], described, "", resume=False)
    assert [*tmp_path.glob(f"*/{RESULTS}")] == [tmp_path / "another" / RESULTS]


@pytest.mark.wide
def test_without_assertions_nothing_runs(conformance: Conformance, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONOPTIMIZE", "1")
    status, output = conformance.run("--file", "toy.py", "--test", "toy/passes")
    assert (status, "which PYTHONOPTIMIZE and python -O take away" in output) == (2, True)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        *[(pattern, True) for pattern in ("*", "*float32", "operators/*", "op*", "*/add/*", "[op]*")],
        *[(pattern, False) for pattern in ("device/*", "op/*", "operatorsx/*", "a*/x")],
    ],
)
def test_a_pattern_may_select_tests_of_a_suite_that_nobody_knows(pattern: str, expected: bool) -> None:
    settings = Settings(device="cpu", folder="", ledger="", tests=(pattern,))
    assert settings.may_select("operators") == expected


@pytest.mark.wide
def test_a_file_that_skips_itself_as_the_ledger_says_is_enough(conformance: Conformance) -> None:
    (conformance.folder / "parts.py").write_text("import pytest\npytest.importorskip('no_such_module')\n")
    ledger = "- tests: parts/import\n  outcome: inapplicable\n  reason: it is not there\n"
    status, output = conformance.run("--file", "parts.py", ledger=ledger)
    assert status == 0, output


@pytest.mark.in_tree("mtia has two devices in the suite")
def test_the_device_of_a_run_is_the_current_one(run_script: RunScript) -> None:
    script = """
        import torch
        from torch_mtia.conformance.settings import open_device

        print(open_device("mtia:1"), torch.accelerator.current_device_index())
    """
    assert run_script(script, TORCH_MTIA_DEVICES="2").output() == "mtia:1 1\n"


@pytest.mark.wide
def test_a_record_of_another_environment_is_not_gone_on_with(conformance: Conformance) -> None:
    arguments = ("--file", "toy.py", "--test", "toy/passes", "-j", "0")
    assert conformance.run(*arguments)[0] == 0
    assert conformance.run(*arguments, "--resume")[0] == 0
    kept = conformance.folder / "record" / "environment.json"
    kept.write_text(json.dumps(json.loads(kept.read_text()) | {"torch": "2.0.0"}))
    status, output = conformance.run(*arguments, "--resume")
    assert status == 2
    assert "is of {'device': 'cpu: the CPU', 'torch': '2.0.0'" in output


@pytest.mark.wide
def test_a_record_of_other_tests_is_not_gone_on_with(conformance: Conformance) -> None:
    arguments = ("--file", "toy.py", "--test", "toy/many/*", "-j", "0")
    assert conformance.run(*arguments, "--shard", "1/2")[0] == 0
    status, output = conformance.run(*arguments, "--shard", "2/2", "--resume")
    assert status == 2
    before, _, now = output.partition("not of")
    assert "--shard=1/2" in before
    assert "--shard=2/2" in now


@pytest.mark.wide
def test_a_message_that_has_no_encoding_is_kept(conformance: Conformance) -> None:
    (conformance.folder / "bytes.py").write_text("def test_it(): raise ValueError('\\udc80 is half a character')\n")
    status, output = conformance.run("--file", "bytes.py", "--junit", "run.xml")
    assert status == 1, output
    assert conformance.results()["bytes/it"].message == r"ValueError: \udc80 is half a character"


@pytest.mark.wide
def test_a_failure_is_not_undone_by_what_skips_behind_it(conformance: Conformance) -> None:
    (conformance.folder / "behind.py").write_text(
        "import pytest, unittest\n"
        "@pytest.fixture\ndef late():\n    yield\n    pytest.skip('late')\n"
        "def test_fixture(late): assert False\n"
        "class TestParts(unittest.TestCase):\n"
        "    def test_parts(self):\n"
        "        with self.subTest(part=0): self.fail()\n"
        "        with self.subTest(part=1): self.skipTest('late')\n"
    )
    ledger = "- tests: behind/*\n  outcome: inapplicable\n  message: late\n  reason: it is late\n"
    status, output = conformance.run("--file", "behind.py", "-j", "0", ledger=ledger)
    assert status == 1, output
    assert {result.kind for result in conformance.results().values()} == {"wrong"}
    assert {result.verdict for result in conformance.results().values()} == {r.FAIL}


@pytest.mark.sampled(4)
@pytest.mark.slow
@pytest.mark.skipif(SUPPORTED_TORCH[0] != torch_version.TORCH, reason="the ledger is of the oldest version of PyTorch")
@pytest.mark.parametrize(("suites", "part"), SLICES)
def test_a_slice_of_the_suites_is_as_the_ledger_says(tmp_path: Path, suites: tuple[str, ...], part: str) -> None:
    command = [sys.executable, "-m", "torch_mtia.conformance", "--device", "mtia", "--shard", part, "-j", "1"]
    command += ["--folder", str(tmp_path), *(word for suite in suites for word in ("--suite", suite))]
    process = subprocess.run(command, capture_output=True, text=True, timeout=1200)
    assert process.returncode == 0, process.stdout + process.stderr[-4000:]


# The ledger ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("node", "test"),
    [
        (
            "suites/operators.py::test_forward[nn.functional.gelu/float32]",
            "operators/forward/nn.functional.gelu/float32",
        ),
        ("suites/device.py::test_names", "device/names"),
        ("test_torch.py::TestTorchMTIA::test_add_mtia", "test_torch/TestTorchMTIA/test_add_mtia"),
    ],
)
def test_ids(node: str, test: str) -> None:
    assert r.test_id(node) == test


def test_changes_between_runs() -> None:
    old = [
        Result("a", r.PASSED),
        Result("b", r.FAILED, kind="wrong"),
        Result("c", r.FAILED, kind="wrong"),
        Result("d", r.PASSED),
    ]
    new = [Result("a", r.CRASHED), Result("b", r.PASSED), Result("c", r.FAILED, kind="missing"), Result("e", r.PASSED)]
    assert changes(old, new) == {"worse": ["a"], "better": ["b"], "changed": ["c"], "new": ["e"], "gone": ["d"]}


def test_what_begins_to_fail_now_and_then_or_stops_to_skip_is_worse() -> None:
    old = [Result("a", r.PASSED), Result("b", r.SKIPPED), Result("c", r.FAILED), Result("d", r.FAILED)]
    new = [
        Result("a", r.PASSED, verdict=r.FLAKY),
        Result("b", r.FAILED),
        Result("c", r.CRASHED),
        Result("d", r.SKIPPED),
    ]
    assert changes(old, new) == {"worse": ["a", "b", "c"], "better": [], "changed": ["d"], "new": [], "gone": []}


def test_half_a_line_is_not_a_result_and_takes_no_other_with_it(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text('{"test": "a", "outcome": "passed"}\n{"test": "b", "outc')
    r.drop_unfinished_line(path)
    with path.open("a") as record:
        record.write(r.as_line(Result("c", r.PASSED)))
    assert [result.test for result in read_lines(path)] == ["a", "c"]


def test_coverage_names_what_never_ran() -> None:
    results = [
        Result("operators/forward/add/float32", r.PASSED),
        Result("operators/forward/mul/float32", r.SKIPPED),
        Result("modules/forward_and_backward/nn.Linear/float32/train", r.FAILED),
        Result("device/names", r.PASSED, functions=["torch.accelerator.device_count"]),
    ]
    found = coverage(results, ["torch.accelerator.device_count", "torch.accelerator.synchronize"])
    assert found["functions for devices"] == Coverage(2, ["torch.accelerator.synchronize"])
    assert "mul" in found["operators"].never
    assert "add" not in found["operators"].never
    assert len(found["modules"].never) == found["modules"].all - 1
    assert {"add/float64", "mul/float32"} <= set(found["operators, in each dtype of the CPU"].never)


@pytest.mark.wide
def test_called_functions_are_noticed(conformance: Conformance) -> None:
    (conformance.folder / "calls.py").write_text("import torch\ndef test_it():\n    torch.accelerator.is_available()\n")
    status, output = conformance.run("--file", "calls.py")
    assert status == 0, output
    (result,) = conformance.results().values()
    assert "torch.accelerator.is_available" in result.functions


def test_calls_are_noted_beside_code_that_cannot_be_hashed() -> None:
    """As Dynamo makes it."""

    def inner() -> int:
        return 1

    def outer() -> int:
        return inner() + len(json.dumps(0))

    code = outer.__code__
    outer.__code__ = code.replace(co_consts=(*code.co_consts, {}))
    with pytest.raises(TypeError, match="unhashable"):
        hash(outer.__code__)
    with Calls({"json.dumps": json.dumps}) as calls:
        outer()
    assert calls.names == {"json.dumps"}
