"""The part of the suite that lives in the worker processes: a plugin of pytest.

It selects the tests, watches the time of each, waits for the device after each, and says how it failed.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
import torch

from torch_mtia import environment
from torch_mtia.conformance.coverage import Calls, functions_for
from torch_mtia.conformance.ledger import Ledger
from torch_mtia.conformance.results import BY_OPERATOR, test_id
from torch_mtia.conformance.settings import Settings, open_device
from torch_mtia.conformance.upstream import open_inductor_tests

# What PyTorch says where an operator has no kernel for a device or a dtype.
MISSING = ("not implemented for", "Could not run", "not currently implemented", "not supported on", "no kernel for")
MOST_DETAIL = 6000
START_LIMIT = 300  # seconds, in which a worker has to import the device and the tests

pytest_plugins = [
    "torch_mtia.conformance.device_fixtures",
    "torch_mtia.conformance.driver_fixtures",
    "torch_mtia.ranks.pytest_plugin",
]

DEVICE = pytest.StashKey[torch.device]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--conformance", help="the settings of the run, as JSON")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "time_limit(seconds): how long the test may take")
    config.addinivalue_line("markers", "without_onednn: the CPU computes without oneDNN")
    if hasattr(config, "workerinput") or not config.getoption("numprocesses"):
        config.pluginmanager.register(Worker(config))


@pytest.fixture(scope="session")
def device(pytestconfig: pytest.Config) -> torch.device:
    """The device under test."""
    return pytestconfig.stash[DEVICE]


@pytest.fixture(scope="session")
def driver_library(pytestconfig: pytest.Config) -> str:
    """The driver under test: the path of a library."""
    return Settings.from_json(pytestconfig.getoption("--conformance")).driver


class Worker:
    """Runs tests, in a process that may die of them."""

    def __init__(self, config: pytest.Config) -> None:
        self._settings = settings = Settings.from_json(config.getoption("--conformance"))
        self._trace = settings.trace_file(os.environ.get("PYTEST_XDIST_WORKER", "main")).open("w")
        faulthandler.enable(self._trace)
        faulthandler.dump_traceback_later(START_LIMIT, exit=True, file=self._trace)
        workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
        torch.set_num_threads(max(1, torch.get_num_threads() // workers))
        config.stash[DEVICE] = self._device = open_device(settings.device, settings.imports)
        # Only of this package's device is it known which operators fall back.
        is_ours = self._device.type == environment.device_type()
        self._fallback = importlib.import_module("torch_mtia.fallback") if is_ours else None
        self._functions = functions_for(self._device)
        self._calls = Calls({})
        if settings.inductor_tests:
            open_inductor_tests(self._device)

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        faulthandler.cancel_dump_traceback_later()
        tests = [test_id(item.nodeid) for item in items]
        # All workers write the same; the one that reads must not see half of it.
        unfinished = self._settings.collection_file.with_suffix(f".{os.getpid()}")
        unfinished.write_text("\n".join(tests))
        unfinished.replace(self._settings.collection_file)

        done = set(self._settings.done_file.read_text().splitlines())
        ledger = Ledger(Path(self._settings.ledger))
        chosen, rest = [], []
        for test, item in zip(tests, items, strict=True):
            if test in done or not self._settings.selects(test):
                rest.append(item)
                continue
            entry = ledger.find(test)
            if entry is not None and entry.outcome == "skip":
                item.add_marker(pytest.mark.skip(reason=entry.reason))
            chosen.append(item)
        config.hook.pytest_deselected(items=rest)
        items[:] = chosen

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        mark = item.get_closest_marker("time_limit")
        limit = max(self._settings.time_limit, mark.args[0] if mark else 0)
        # A thread of faulthandler's ends the process, whoever holds the interpreter's lock.
        faulthandler.dump_traceback_later(limit, exit=True, file=self._trace)
        if self._fallback:
            self._fallback.reset()
        try:
            return (yield)
        finally:
            faulthandler.cancel_dump_traceback_later()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        unmarked = item.get_closest_marker("without_onednn") is None
        suite = test_id(item.nodeid).partition("/")[0]
        self._calls = Calls({} if suite in BY_OPERATOR else self._functions)
        with (
            contextlib.nullcontext() if unmarked else torch.backends.mkldnn.flags(enabled=False),
            contextlib.nullcontext() if suite in BY_OPERATOR else self._calls,
        ):
            result = yield
        if self._device.type != "cpu":
            torch.accelerator.synchronize()  # a late error is the test's own
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        properties: dict[str, Any] = {}
        if report.when == "call":
            properties["fallbacks"] = self._fallback.stats() if self._fallback else {}
            properties["functions"] = sorted(self._calls.names)
        if report.failed and call.excinfo is not None:
            error = call.excinfo.value
            properties |= {
                "kind": kind_of(error),
                "message": in_utf8(f"{type(error).__name__}: {error}"[:MOST_DETAIL]),
                "sample": in_utf8(getattr(error, "conformance_sample", "")),
                "detail": in_utf8(report.longreprtext[-MOST_DETAIL:]),
            }
            report.longrepr = properties["detail"]
        report.user_properties = list(properties.items())
        return report


def in_utf8(text: str) -> str:
    """Half a character, as Python has for bytes that are none, ends the connection to the process that listens."""
    return text.encode(errors="backslashreplace").decode()


def kind_of(error: BaseException) -> str:
    """Returns how a test failed: "wrong", "missing" or "error"."""
    if isinstance(error, AssertionError):
        return "wrong"  # whatever it quotes
    if isinstance(error, NotImplementedError) or any(words in str(error) for words in MISSING):
        return "missing"
    return "error"
