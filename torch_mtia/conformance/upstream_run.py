"""Runs test files of a checkout, file by file, and finds out of what fails whether it is the device's.

A test that fails though the ledger does not say so runs again, in another process: one that passes then is flaky. What
has failed twice runs without the device, on the CPU: what fails there with the same error is not the device's.
"""

from __future__ import annotations

import contextlib
import dataclasses
import glob
import os
import re
import signal
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path

from torch_mtia.conformance import results as r
from torch_mtia.conformance.ledger import Ledger
from torch_mtia.conformance.results import Result
from torch_mtia.conformance.runner import CONFIGURATION, MOST_CRASHES, CollectionError, run
from torch_mtia.conformance.settings import Settings
from torch_mtia.conformance.upstream import asks_for_inductor, is_of_triton

MOST_CHARACTERS = 100_000  # of one argument of a command
PATIENCE = 4  # A test that needs longer than the limit on the CPU, but ends, does not fail there.


def run_files(
    settings: Settings, files: Sequence[Path], jobs: int, ledger: Ledger, *, resume: bool
) -> tuple[list[Result], bool]:
    """As runner.run, with a part of the folder for each file."""
    results: list[Result] = []
    collected: list[str] = []
    for file in files:
        folder = Path(settings.folder) / file.stem
        part = dataclasses.replace(settings, folder=str(folder), inductor_tests=asks_for_inductor(file))
        print(f"{file.stem}:", file=sys.stderr, flush=True)
        try:
            found, complete = run(part, [file], jobs, ledger, resume=resume)
        except CollectionError as error:
            found, complete = [_not_imported(file, error, ledger)], True
            collected.append(found[0].test)
            found = found if settings.may_select(file.stem) else []
        else:
            collected += part.collected()
            _look_again(file, found, part, ledger)
        results += found
        if not complete:
            return results, False
    Path(settings.folder, settings.collection_file.name).write_text("\n".join(collected))
    return results, True


def _not_imported(file: Path, error: CollectionError, ledger: Ledger) -> Result:
    """Stands for the tests of a file that cannot be imported."""
    lines = [line.removeprefix("E").strip() for line in str(error).splitlines() if line.startswith("E ")]
    message = lines[-1] if lines else str(error)
    result = Result(f"{file.stem}/import", r.FAILED, kind="error", message=message, detail=str(error))
    ledger.judge(result)
    return result


def _look_again(file: Path, results: Sequence[Result], settings: Settings, ledger: Ledger) -> None:
    """Changes the verdicts of tests that are flaky, and of those that fail on the CPU, too."""
    failed = {result.test: result for result in results if result.verdict == r.FAIL and result.outcome != r.SKIPPED}
    if not failed:
        return
    again = dataclasses.replace(
        settings,
        folder=str(Path(settings.folder) / "again"),
        tests=tuple(map(glob.escape, failed)),
        shard=Settings.shard,
    )
    try:
        seconds, _ = run(again, [file], 1, ledger, resume=False)
    except CollectionError as error:
        print(f"{file.stem}: what fails does not run again: {error}", file=sys.stderr)
        seconds = []
    for second in seconds:
        if second.outcome == r.PASSED and (first := failed.pop(second.test, None)) is not None:
            first.outcome, first.verdict, first.reason = r.PASSED, r.FLAKY, "passes in another process"
    errors = _errors_on_cpu(file, list(failed), settings)
    for test in [test for test, error in errors.items() if error == _error_of(failed[test])]:
        failed[test].verdict, failed[test].reason = r.ON_CPU, "fails without the device, too"


def _on_cpu(test: str, device_type: str) -> tuple[str, str]:
    """Returns the class and the function on the CPU of a test on a device: both names have the device's in them if the
    test is generic. That of a device of PrivateUse1 is not always its own."""
    class_name, function = test.split("/")[-2:]
    for name in (device_type, "privateuse1"):
        class_name = re.sub(f"{name.upper()}$", "CPU", class_name)
        function = re.sub(rf"_{name}(?=_|$)", "_cpu", function)
    return class_name, function


def _error_of(result: Result) -> str:
    """Returns the class of the exception; of a process that has ended, none. A test that misses the device itself on
    the CPU fails with another than one that the device fails."""
    return result.message.partition(":")[0] if result.outcome == r.FAILED else ""


def _errors_on_cpu(file: Path, tests: Sequence[str], settings: Settings) -> dict[str, str]:
    """Of those of the tests that fail in a process that has no device, with what. Of Triton's none could pass there."""
    device_type = settings.device.partition(":")[0]
    if not tests or device_type == "cpu" or is_of_triton(file):
        return {}
    names = {test: _on_cpu(test, device_type) for test in tests}
    chosen = " or ".join(sorted({function for _, function in names.values()}))
    record = Path(settings.folder) / "on_cpu.xml"
    record.unlink(missing_ok=True)
    command = [
        *(sys.executable, "-m", "pytest", "-c", str(CONFIGURATION), f"--rootdir={file.parent}", "--noconftest"),
        *("-p", "no:cacheprovider", "-n", "1", f"--max-worker-restart={MOST_CRASHES}", f"--junit-xml={record}"),
        *("-o", f"faulthandler_timeout={PATIENCE * settings.time_limit}", "-o", "faulthandler_exit_on_timeout=true"),
        *(("-k", chosen) if len(chosen) < MOST_CHARACTERS else ()),
        str(file),
    ]
    hidden = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "CUDA_VISIBLE_DEVICES": ""}
    environment = os.environ | hidden | {"PYTORCH_TESTING_DEVICE_ONLY_FOR": "cpu"}
    environment.pop("TORCH_TEST_DEVICES", None)
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(command, env=environment, stdout=quiet, stderr=quiet, start_new_session=True)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(PATIENCE * settings.time_limit * (len(tests) + 1))  # one more, for the import
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # its workers, too, which do not end by themselves while they hang
    process.wait()
    if not record.exists():
        print(f"{file.stem}: its tests do not run on the CPU, or do not end", file=sys.stderr)
        return {}
    failing = {
        (case.get("classname", "").rpartition(".")[2], case.get("name", "")): error.get("message", "")
        for case in ElementTree.parse(record).iter("testcase")
        for error in (*case.findall("failure"), *case.findall("error"))
    }
    return {test: _exception(failing[name]) for test, name in names.items() if name in failing}


def _exception(message: str) -> str:
    """Returns the class in a message of pytest's."""
    if message.startswith("assert "):
        return "AssertionError"
    found = re.match(r"(?:\w+\.)*(\w+)(?::|\n|$)", message)
    return found[1] if found else ""


def differences(results: Sequence[Result]) -> str:
    """Returns what is not as expected, and what is not the device's, by verdict."""
    lines = []
    for verdict in (r.FAIL, r.XPASS, r.FLAKY, r.ON_CPU):
        found = [result for result in results if result.verdict == verdict]
        lines += [f"{verdict}: {len(found)}"] if found else []
        for result in found:
            message = result.message.strip().partition("\n")[0]
            lines.append(f"  {result.test}: {message[:160]}")
    return "\n".join(lines)
