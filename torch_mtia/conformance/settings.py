"""What one run of the suite tests, and how: decided by the command line, read by every worker."""

from __future__ import annotations

import dataclasses
import importlib
import json
import re
import zlib
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch

import torch_mtia
from torch_mtia.environment import device_type

RESULTS = "results.jsonl"  # in the folder of a run


class UsageError(Exception):
    """The caller asked for something that does not exist; the message names what does."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """Passed to the workers as JSON."""

    device: str
    folder: str
    """Where the run leaves its results; one run at a time."""
    ledger: str
    driver: str = ""
    """The library that the suite `driver` tests."""
    imports: tuple[str, ...] = ()
    """Modules that register the device, for one that PyTorch does not load by itself."""
    time_limit: float = 120.0
    """Seconds; a test may ask for more with `pytest.mark.time_limit`."""
    shard: tuple[int, int] = (0, 1)
    """(k, n): the tests whose ids hash to k modulo n."""
    tests: tuple[str, ...] = ()
    """Patterns of ids; empty for all."""
    inductor_tests: bool = False
    """Whether files of Inductor's tests are among those that run."""

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Settings:
        fields: dict[str, Any] = json.loads(text)
        for name in ("imports", "shard", "tests"):
            fields[name] = tuple(fields[name])
        return cls(**fields)

    @property
    def results_file(self) -> Path:
        return Path(self.folder) / RESULTS

    @property
    def collection_file(self) -> Path:
        return Path(self.folder) / "collected.txt"

    def collected(self) -> list[str]:
        """Returns the tests that there are, selected or not."""
        return self.collection_file.read_text().splitlines() if self.collection_file.exists() else []

    @property
    def done_file(self) -> Path:
        """The tests that had a result when the run began: workers that start later choose the same."""
        return Path(self.folder) / "done.txt"

    def trace_file(self, worker: str) -> Path:
        """Returns where a worker that dies leaves its last words."""
        return Path(self.folder) / f"{worker}.trace"

    def selects(self, test: str) -> bool:
        number, count = self.shard
        if zlib.crc32(test.encode()) % count != number:
            return False
        return not self.tests or any(fnmatchcase(test, pattern) for pattern in self.tests)

    def selection(self) -> str:
        """Returns the same for all shards of a run, and another for other tests."""
        chosen = sorted(set(filter(dataclasses.replace(self, shard=Settings.shard).selects, self.collected())))
        return f"{len(chosen)} tests, {zlib.crc32(chr(10).join(chosen).encode()):08x}"

    def may_select(self, suite: str) -> bool:
        """Whether a pattern may name a test of a suite whose tests are not known."""
        beginnings = [re.split(r"[*?\[]", pattern)[0] for pattern in self.tests or ("*",)]
        suite_of = f"{suite}/"
        named = any(suite_of.startswith(beginning) or beginning.startswith(suite_of) for beginning in beginnings)
        return named and dataclasses.replace(self, tests=()).selects(f"{suite}/import")

    def check(self, results: Iterable[str]) -> None:
        """Raises UsageError if a pattern of `tests` names none of the tests there are, or if none is selected.

        `results` names what has one: a file that skips as a whole has no test beside it.
        """
        collected = list(dict.fromkeys([*self.collected(), *results]))
        if not collected:
            raise UsageError("there are no tests in the suites and files that were chosen")
        for pattern in self.tests:
            if not any(fnmatchcase(test, pattern) for test in collected):
                raise UsageError(f"--test {pattern}: there is no such test; one that there is: {collected[0]}")
        if not any(map(self.selects, collected)):
            number, count = self.shard
            raise UsageError(f"--shard {number + 1}/{count}: none of the tests is in it; take fewer shards")


def register_device(name: str, imports: Sequence[str]) -> None:
    """Imports what registers the device. This package's own waits until here, and stays away from every other."""
    if name.partition(":")[0] == device_type():
        torch_mtia._load()
    for module in imports:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise UsageError(f"--import {module}: {error}") from error


def open_device(name: str, imports: Sequence[str] = ()) -> torch.device:
    """Returns the first device of that type, after it has computed something.

    Raises UsageError for a type that PyTorch does not know or that has no device here.
    """
    register_device(name, imports)
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UsageError(
            f"--device {name}: PyTorch knows no such device. A device that a package registers under a name of its "
            f"own needs --import PACKAGE. {error}"
        ) from error
    if device.type == "cpu":
        return torch.device("cpu")
    if device.type == "meta":
        raise UsageError(f"--device {name}: its tensors have no numbers that could be compared with the CPU's.")
    device = torch.device(device.type, device.index or 0)
    try:
        if device.index:
            torch.accelerator.set_device_index(device.index)  # also for tests that name the type alone
        if (torch.ones(2, device=device) + 1).tolist() != [2.0, 2.0]:
            raise UsageError(f"--device {name}: 1 + 1 is not 2 there.")
    except (AssertionError, RuntimeError, NotImplementedError) as error:
        raise UsageError(f"--device {name}: the device does not start: {type(error).__name__}: {error}") from error
    return device
