"""The conformance suite sees what is wrong with a device: one planted fault at a time, each of which must be reported.

conformance_faults.py has faults of operators and of the device, cpp/driver_with_a_fault.cpp faults of a driver.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import torch_mtia
from tests.conformance_faults import FAULTS
from torch_mtia.conformance import results as r
from torch_mtia.conformance.__main__ import AS_EXPECTED, UNEXPECTED
from torch_mtia.conformance.results import Run

HERE = Path(__file__).parent
HOST_DRIVER = Path(torch_mtia.__file__).parent / "lib" / "libmtia_host.so"
DRIVER_SOURCE = HERE / "cpp" / "driver_with_a_fault.cpp"
DRIVER_FAULTS = re.findall(r'^    \{"(\w+)"', DRIVER_SOURCE.read_text(), flags=re.MULTILINE)

# The others are for `make test-wide`.
BY_DEFAULT = {"a_wrong_value", "a_clobbered_input_of_16_bits", "a_leaked_byte", "a_capability_that_vanishes"}


def conformance(folder: Path, *arguments: str, **environment: str) -> Run:
    """Raises AssertionError if the command does not run."""
    command = [sys.executable, "-m", "torch_mtia.conformance", "--folder", str(folder), "--time-limit", "20"]
    process = subprocess.run(
        [*command, "--json", str(folder / "run.json"), *arguments],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert process.returncode in (AS_EXPECTED, UNEXPECTED), process.stdout + process.stderr[-4000:]
    return Run.load(folder / "run.json")


def some(names: list[str]) -> list[object]:
    return [pytest.param(name, marks=[] if name in BY_DEFAULT else [pytest.mark.wide]) for name in names]


@pytest.mark.parametrize("name", some([*FAULTS]))
def test_a_fault_of_the_device_is_seen(tmp_path: Path, name: str) -> None:
    tests = FAULTS[name][0]
    arguments = ["--suite", tests.partition("/")[0], "--test", tests, "--import", "conformance_faults", "-j", "1"]
    arguments += ["--device", "mtia"]
    run = conformance(tmp_path, *arguments, CONFORMANCE_FAULT=name, PYTHONPATH=str(HERE))
    assert any(result.verdict == r.FAIL for result in run.results)


@pytest.fixture(scope="module")
def faulty_driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("faulty") / "libfaulty.so"
    flags = ["-std=c++20", "-O1", "-fPIC", "-shared", "-fvisibility=hidden", f"-I{HERE.parent / 'csrc'}"]
    subprocess.run(["g++", *flags, "-o", str(library), str(DRIVER_SOURCE), "-ldl"], check=True)
    return library


@pytest.mark.wide
@pytest.mark.parametrize("name", DRIVER_FAULTS)
def test_a_fault_of_a_driver_is_seen(tmp_path: Path, faulty_driver: Path, name: str) -> None:
    planted = {"MTIA_TEST_DRIVER": str(HOST_DRIVER), "MTIA_TEST_FAULT": name}
    run = conformance(tmp_path, "--driver", str(faulty_driver), "-j", "1", **planted)
    assert any(result.verdict == r.FAIL for result in run.results)
