"""pytest -p torch_mtia.sanitizer.pytest_plugin --sanitize-device CHECKS: a test fails if this process, or one that it
has started, reports anything."""

from __future__ import annotations

import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest

from torch_mtia import _C, sanitizer
from torch_mtia.sanitizer import process

_others = pytest.StashKey[process.Others]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--sanitize-device",
        metavar="CHECKS",
        help="fail tests in which torch_mtia's sanitizer reports anything; CHECKS is a comma-separated list of "
        f"{', '.join(sanitizer.CHECKS)}",
    )
    parser.addoption("--sanitize-suppressions", metavar="FILE", type=Path, help="reports to suppress, with reasons")


def pytest_configure(config: pytest.Config) -> None:
    checks, suppressions = config.getoption("--sanitize-device"), config.getoption("--sanitize-suppressions")
    starts_workers = config.getoption("dist", "no") != "no" and not hasattr(config, "workerinput")  # pytest-xdist
    if not checks or starts_workers:
        return
    try:
        sanitizer.start(*checks.split(","))
        if suppressions is not None:
            sanitizer.suppress(suppressions)
    except (OSError, ValueError) as error:
        raise pytest.UsageError(f"--sanitize-device: {error}") from None
    folder = tempfile.TemporaryDirectory()
    config.add_cleanup(folder.cleanup)
    config.stash[_others] = process.Others(checks, Path(folder.name) / "reports", suppressions)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    result = yield
    _fail_for_reports(item)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    result = yield
    _fail_for_reports(item)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """Processes of fixtures end here."""
    result = yield
    try:
        _fail_for_reports(item)
    finally:
        if _others in item.config.stash:
            # A stream that no test waits for would go on reading what this one has freed, and the next one would fail.
            _C._sanitizer_order_all()
    return result


def _fail_for_reports(item: pytest.Item) -> None:
    if _others not in item.config.stash:
        return
    found = [str(report) for report in sanitizer.reports()]
    sanitizer.reports().clear()
    found += [_description(report) for report in item.config.stash[_others].new_reports()]
    if found:
        pytest.fail("\n\n".join(found), pytrace=False)


def _description(report: dict[str, object]) -> str:
    who = f"process {report['process']}" if report["rank"] is None else f"rank {report['rank']}"
    return f"found by {who}:\n{report['text']}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for suppression in sanitizer._suppressions:
        terminalreporter.write_line(f"torch_mtia sanitizer: {suppression}")
