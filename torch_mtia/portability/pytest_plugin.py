"""pytest -p torch_mtia.portability.pytest_plugin --kernel-targets NAMES: says at the end what the Triton kernels that
tests have launched are on GPUs."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import pytest

from torch_mtia.gpu_targets import Target, parse_all
from torch_mtia.portability import strict
from torch_mtia.portability.launches import Recording
from torch_mtia.portability.report import Report

_recording = pytest.StashKey[Recording]()
_targets = pytest.StashKey[Sequence[Target]]()
_reports = pytest.StashKey[list[tuple[str, list[str]]]]()  # text, and what the strict check refuses
_OUTPUT = "torch_mtia_kernel_targets"  # what a worker of pytest-xdist sends


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--kernel-targets",
        metavar="NAMES",
        help="print what the Triton kernels that tests launch are on GPUs; NAMES is a comma-separated list such as "
        "cuda:90,hip:gfx942",
    )
    parser.addoption(
        "--kernel-targets-strict",
        action="store_true",
        help="fail the session for a kernel that does not compile, does not fit, spills, or uses no tensor core for "
        "tl.dot",
    )


def pytest_configure(config: pytest.Config) -> None:
    names = config.getoption("--kernel-targets")
    if not names:
        return
    try:
        config.stash[_targets] = parse_all(names.split(","))
    except ValueError as error:
        raise pytest.UsageError(f"--kernel-targets: {error}") from None
    config.stash[_reports] = []
    config.stash[_recording] = recording = Recording()
    recording.start()


@pytest.hookimpl(wrapper=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None, object, object]:
    result = yield
    config = session.config
    if _recording not in config.stash:
        return result
    config.stash[_recording].stop()
    if config.stash[_recording].specializations:
        report = Report(config.stash[_recording], config.stash[_targets])
        refused = strict.failures(report.rows) if config.getoption("--kernel-targets-strict") else []
        if hasattr(config, "workeroutput"):
            config.workeroutput[_OUTPUT] = (str(report), refused)
        else:
            config.stash[_reports].append((str(report), refused))
    if any(refused for _, refused in config.stash[_reports]) and not session.exitstatus:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    return result


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """A worker of pytest-xdist has ended."""
    if _OUTPUT in getattr(node, "workeroutput", {}):
        text, refused = node.workeroutput[_OUTPUT]
        node.config.stash[_reports].append((text, refused))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for text, refused in config.stash.get(_reports, []):
        for line in (text, *(f"torch_mtia: {each}" for each in refused)):
            terminalreporter.write_line(line)
