"""Runs suites: starts the workers, survives them, and keeps what each test gave.

The workers are pytest-xdist's. It hands out tests, notices when a worker dies, names the test that ran, and starts
another; what a dying worker wrote (plugin.py) tells a hang from a crash.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import tqdm
from xdist.workermanage import NodeManager  # type: ignore[import-untyped]

from torch_mtia.conformance import results as r
from torch_mtia.conformance import upstream
from torch_mtia.conformance.ledger import Ledger, LedgerError
from torch_mtia.conformance.results import Result, as_line, drop_unfinished_line, read_lines, test_id
from torch_mtia.conformance.settings import Settings, UsageError

CONFIGURATION = Path(__file__).with_name("pytest.ini")
SUITES_FOLDER = Path(__file__).parent / "suites"
MOST_CRASHES = 100_000  # of one run: all there are
MOST_IN_VAIN = 4  # workers in a row that die without a test to blame
ENDED = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)


class CollectionError(UsageError):
    """A file cannot be imported, has no tests, or has two of the same name."""


def run(
    settings: Settings, files: Sequence[Path], jobs: int, ledger: Ledger, *, resume: bool
) -> tuple[list[Result], bool]:
    """Returns the results, those of earlier parts of a resumed run included, and whether the run came to its end.

    Raises LedgerError if the ledger names tests that are not there, CollectionError for a file that cannot run.
    """
    Path(settings.folder).mkdir(parents=True, exist_ok=True)
    for leftover in Path(settings.folder).glob("*.trace"):
        leftover.unlink()
    settings.collection_file.unlink(missing_ok=True)
    if not resume:
        settings.results_file.unlink(missing_ok=True)
    drop_unfinished_line(settings.results_file)
    settings.done_file.write_text("\n".join(result.test for result in read_lines(settings.results_file)))
    device_type = settings.device.partition(":")[0]
    are_ours = all(file.parent == SUITES_FOLDER for file in files)
    known = [file.stem for file in SUITES_FOLDER.glob("*.py")] if are_ours else None
    controller = Controller(settings, ledger, known)
    arguments = [
        *("-c", str(CONFIGURATION), "-p", "torch_mtia.conformance.plugin"),
        *("-p", "no:terminal", "-p", "no:cacheprovider", "-p", "no:faulthandler", "-p", "no:warnings"),
        *("--conformance", settings.to_json()),
        *(["-n", str(jobs), f"--max-worker-restart={MOST_CRASHES}", "--maxschedchunk=16"] if jobs else []),
        f"--rootdir={os.path.commonpath([file.parent for file in files])}",
        *upstream.arguments(files, device_type),
        *map(str, files),
    ]
    upstream.set_environment(device_type)
    NodeManager.EXIT_TIMEOUT = settings.time_limit  # seconds, for a worker without more tests to end
    try:
        status = pytest.main(arguments, plugins=[controller])
        if status in ENDED:
            controller.look_at_ends()
    finally:
        controller.close()
    if controller.ledger_error is not None:
        raise controller.ledger_error
    if controller.collection_errors:
        raise CollectionError("\n".join(controller.collection_errors))
    recorded = {result.test: result for result in read_lines(settings.results_file)}
    for result in recorded.values():
        ledger.judge(result)
    collected = settings.collected()
    ended = status in ENDED and all(test in recorded for test in collected if settings.selects(test))
    suites = {test.partition("/")[0] for test in collected} | controller.skipped_suites
    if ended and (without := [file for file in files if file.stem not in suites]):
        raise CollectionError(f"there are no tests in {without[0]}")
    return list(recorded.values()), ended


class Controller:
    """Listens to the workers: the plugin of the process that starts them."""

    def __init__(self, settings: Settings, ledger: Ledger, known: Sequence[str] | None) -> None:
        self.ledger_error: LedgerError | None = None
        self.collection_errors: list[str] = []
        self.skipped_suites: set[str] = set()
        self._settings = settings
        self._ledger = ledger
        self._known = known
        self._open: dict[str, Result] = {}
        self._unexpected = 0
        self._in_vain = 0
        self._ended: list[Any] = []  # the gateways of workers that had no more tests
        self._record = settings.results_file.open("a")
        self._bar = tqdm.tqdm(unit="test", smoothing=0.05, mininterval=0.5 if sys.stderr.isatty() else 30)

    def close(self) -> None:
        self._bar.close()
        self._record.close()

    def look_at_ends(self) -> None:
        """Records processes that a device breaks at their end, after the last test: no ledger agrees with that."""
        for gateway in self._ended:
            # execnet has waited for the process, and has killed one that did not end in time.
            status = gateway._io.popen.poll()
            if status not in (0, None):
                outcome = r.HUNG if status == -signal.SIGKILL else r.CRASHED
                words = self._settings.trace_file(gateway.id).read_text()
                message = f"a worker without more tests ended with status {status}"
                name = f"{r.RUN}/end_of_{gateway.id}/shard_{self._settings.shard[0] + 1}"  # shards may be merged
                self._end(Result(name, outcome, message=message, detail=words))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.collection_errors.append(f"{report.nodeid} cannot be collected:\n{report.longreprtext}")
        elif report.skipped:
            suite = Path(report.nodeid.partition("::")[0]).stem
            self.skipped_suites.add(suite)
            if self._settings.may_select(suite):
                self._end(Result(f"{suite}/import", r.SKIPPED, message=_reason(report)))

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        if session.items:
            self._begin(len(session.items), lambda why: setattr(session, "shouldstop", why))

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: Sequence[str]) -> None:
        if self._bar.total is None:
            scheduler = node.config.pluginmanager.getplugin("dsession")
            self._begin(len(ids), lambda why: setattr(scheduler, "shouldstop", why))

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        self._in_vain += bool(error)
        if not error:
            self._ended.append(node.gateway)
        if self._in_vain == MOST_IN_VAIN:
            if self._bar.total is None:
                self.collection_errors.append("processes that collect the tests end; -j 0 shows where")
            # Not by shouldstop, for which the worker that takes this one's place would have to end by itself.
            raise pytest.Session.Interrupted(f"{node} ends before it runs a test")

    def _begin(self, count: int, stop: Callable[[str], None]) -> None:
        self._bar.reset(total=count)
        collected = self._settings.collected()
        if twice := [test for test, times in Counter(collected).items() if times > 1]:
            self.collection_errors.append(f"two tests have the name {twice[0]}")
            stop("a name is there twice")
        try:
            self._ledger.check(collected, self._known)
        except LedgerError as error:
            self.ledger_error = error
            stop("the ledger is wrong")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        test = test_id(report.nodeid)
        result = self._open.setdefault(test, Result(test, r.PASSED))
        result.seconds += report.duration
        properties: dict[str, Any] = dict(report.user_properties)
        result.fallbacks |= properties.get("fallbacks", {})
        result.functions += properties.get("functions", [])
        if report.when not in ("setup", "call", "teardown"):
            self._end(self._of_dead_worker(test, report))
        elif result.outcome == r.FAILED:
            pass  # whatever else has happened in the test, or after it
        elif report.skipped:
            result.outcome, result.message = r.SKIPPED, _reason(report)
        elif report.failed:
            result.outcome = r.FAILED
            for name in ("kind", "message", "sample", "detail"):
                setattr(result, name, properties.get(name, ""))
        if report.when == "teardown":
            self._end(result)

    def _of_dead_worker(self, test: str, report: Any) -> Result:
        words = self._settings.trace_file(report.node.gateway.id).read_text()
        if hung := re.search(r"Timeout \((\d+):(\d+):([\d.]+)\)!\n", words):
            hours, minutes, seconds = map(float, hung.groups())
            limit = 3600 * hours + 60 * minutes + seconds  # the test's own, which may be longer than the run's
            return Result(test, r.HUNG, limit, message=f"did not end in {limit:g} s", detail=words[hung.end() :])
        first = words.strip().partition("\n")[0]
        return Result(test, r.CRASHED, message=first or "the process ended", detail=words)

    def _end(self, result: Result) -> None:
        self._open.pop(result.test, None)
        self._in_vain = 0
        self._ledger.judge(result)
        self._record.write(as_line(result))
        self._record.flush()
        if result.verdict in r.UNEXPECTED:
            self._unexpected += 1
            self._bar.write(f"{result.verdict.upper()} {result.test}: {r.in_a_line(result)[:240]}", file=sys.stderr)
        self._bar.set_postfix(unexpected=self._unexpected, refresh=False)
        self._bar.update()


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    words = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
    return words.removeprefix("Skipped: ")
