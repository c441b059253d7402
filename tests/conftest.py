"""What every test may rely on: the device under test, child processes, and an idle device to start from.

`pytest --device cpu` runs the tests that only compare results with the CPU on the CPU itself: a check of the tests.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest
import torch

from tests import interpreter
from tests.interpreter import Finished
from torch_mtia import environment as settings
from torch_mtia.backend import device_module, device_type

pytest_plugins = ["torch_mtia.ranks.pytest_plugin"]
collect_ignore = ["clients"]  # unless it is named: it has an environment of its own


class RunPython(Protocol):
    """Runs `python ARGUMENTS` in the test's folder, with `environment` added to a clean one."""

    def __call__(self, *arguments: str, timeout: float = 600, **environment: str) -> Finished: ...


class RunScript(Protocol):
    """Runs the text of a Python script as RunPython does."""

    def __call__(self, text: str, /, *, timeout: float = 600, **environment: str) -> Finished: ...


# Modules that begin first, so that no worker waits for one of them at the end.
LONGEST = (
    "test_pages",
    "test_new_backend",
    "test_conformance",
    "test_vendor_runtime",
    "test_versions",
    "test_autoload",
    "test_compile_autotuning_processes",
    "test_compile_tools",
    "test_flex_attention",
    "test_conformance_foreign",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", default=device_type(), help="device type under test (default: the device's own)")


def pytest_configure(config: pytest.Config) -> None:
    # As in an environment that is activated: the programs of requirements/test.txt, ninja and cmake among them.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    # There are as many workers as cores. Each process that compiles would start a pool of processes otherwise.
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    interpreter.fork_what_is_spawned()
    config.addinivalue_line("markers", "slow: takes more than ten seconds")
    config.addinivalue_line(
        "markers", "in_tree(reason): about the device type mtia itself; left out under another name"
    )
    config.addinivalue_line(
        "markers", "unwatched(reason): not under torch_mtia's sanitizer, for which kernels are compiled in another way"
    )
    config.addinivalue_line("markers", "time_limit(seconds): of a conformance suite, whose functions tests may call")
    config.addinivalue_line("markers", "wide: one of many like others that run; left out, unless -m asks for it")
    config.addinivalue_line(
        "markers", "sampled(step): of the test's parameters one in `step` runs, the others are wide"
    )


def pytest_sessionstart(session: pytest.Session) -> None:
    if session.config.getoption("--device") != "cpu" and device_module().device_count() == 0:
        pytest.exit("`import torch` offers no device of torch_mtia: install it first (make test does)", returncode=2)


@pytest.fixture(scope="session", autouse=True)
def samples_outside_of_unittest() -> Iterator[None]:
    """No test here is a class of unittest's; see outside_of_unittest."""
    database = sys.modules.get("torch_mtia.conformance.database")  # imported by the tests that have samples
    with database.outside_of_unittest() if database else contextlib.nullcontext():
        yield


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.stem not in LONGEST)
    is_renamed = settings.settings().privateuse1
    is_watched = config.getoption("--sanitize-device", None)
    sampled: Counter[str] = Counter()
    for item in items:
        if mark := item.get_closest_marker("sampled"):
            test = item.nodeid.partition("[")[0]
            if sampled[test] % mark.args[0]:
                item.add_marker(pytest.mark.wide)
            sampled[test] += 1
        if is_renamed and (mark := item.get_closest_marker("in_tree")):
            item.add_marker(pytest.mark.skip(reason=f"about mtia itself: {mark.args[0]}"))
        if is_watched and (mark := item.get_closest_marker("unwatched")):
            item.add_marker(pytest.mark.skip(reason=f"not under the sanitizer: {mark.args[0]}"))


@pytest.fixture(scope="session")
def device(pytestconfig: pytest.Config) -> torch.device:
    """The first device, with its index."""
    kind: str = pytestconfig.getoption("--device")
    return torch.device("cpu") if kind == "cpu" else torch.device(kind, 0)


@pytest.fixture(autouse=True)
def _fresh_state(device: torch.device) -> Iterator[None]:
    """Seeds the generators before a test; waits after it, so that a late error is charged to its own test."""
    torch.manual_seed(0)
    if device.type != "cpu":
        # Upstream's captures go to the stream that was current at the process's first one: of another test, perhaps a
        # stream of the pool, which this test may get for its work beside the capture.
        device_module().graph.default_capture_stream = None
    yield
    if device.type != "cpu" and device_module().is_initialized():
        device_module().synchronize()


@pytest.fixture
def forked() -> bool:
    """Whether processes of a test are forked from one that has imported torch; tests of the import say False."""
    return True


@pytest.fixture
def run_python(forked: bool, tmp_path: Path) -> RunPython:
    def run(*arguments: str, timeout: float = 600, **environment: str) -> Finished:
        return interpreter.run_python(
            arguments,
            cwd=tmp_path,
            environment=interpreter.clean_environment() | environment,
            timeout=timeout,
            forked=forked,
        )

    return run


@pytest.fixture
def run_script(run_python: RunPython, tmp_path: Path) -> RunScript:
    numbers = itertools.count()

    def run(text: str, /, *, timeout: float = 600, **environment: str) -> Finished:
        script = tmp_path / f"script{next(numbers)}.py"
        script.write_text(textwrap.dedent(text))
        return run_python(str(script), timeout=timeout, **environment)

    return run
