"""`--upstream`: test files of a checkout, what fails of them again and on the CPU, and what is made of it."""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from torch_mtia import environment
from torch_mtia.conformance import results as r
from torch_mtia.conformance.ledger import FOLDER
from torch_mtia.conformance.results import Result, Run
from torch_mtia.conformance.settings import UsageError
from torch_mtia.conformance.upstream_checkout import Checkout

KIND = environment.device_type()

# What differs between devices is planted by the device's name.
GENERIC = """
import ctypes
from pathlib import Path

import torch
from torch.testing._internal.common_device_type import dtypes, instantiate_device_type_tests, onlyCUDA, ops
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_utils import TestCase, run_tests

FOLDER = Path(__file__).parent

def is_first_time(name):
    seen = (FOLDER / name).exists()
    (FOLDER / name).touch()
    return not seen

class TestThings(TestCase):
    @dtypes(torch.float32, torch.int64)
    def test_sum(self, device, dtype):
        self.assertEqual(torch.ones(3, device=device, dtype=dtype).sum(), 3)

    @ops([info for info in op_db if info.name == "sin"], allowed_dtypes=(torch.float32,))
    def test_samples(self, device, dtype, op):
        for sample in op.sample_inputs(device, dtype):
            self.assertEqual(op(sample.input).device.type, torch.device(device).type)

    @onlyCUDA
    def test_of_another_device(self, device):
        raise AssertionError

    def test_fails_everywhere(self, device):
        self.assertEqual(1, 2)

    def test_fails_here(self, device):
        self.assertEqual(torch.device(device).type, "cpu")

    def test_is_foreseen(self, device):
        self.assertEqual(torch.device(device).type, "cpu")

    def test_fails_once(self, device):
        self.assertFalse(is_first_time("fails_once"))

    def test_crashes_once(self, device):
        if is_first_time("crashes_once"):
            ctypes.string_at(0)

    def test_crashes_here(self, device):
        if torch.device(device).type != "cpu":
            ctypes.string_at(0)

    def test_crashes_everywhere(self, device):
        ctypes.string_at(0)

    def test_needs_the_device(self, device):
        self.assertEqual(torch.accelerator.current_accelerator(check_available=True).type, "nothing")

class TestOfNoDevice(TestCase):
    def test_fails(self):
        self.assertFalse(torch.accelerator.is_available())

instantiate_device_type_tests(TestThings, globals())

if __name__ == "__main__":
    run_tests()
"""
INDUCTOR = """
from torch._inductor.test_case import TestCase
from torch.testing._internal.inductor_utils import GPU_TYPE, HAS_GPU, IS_BIG_GPU
from torch.testing._internal.inductor_utils import requires_gpu, requires_gpu_with_enough_memory
from torch.testing._internal.triton_utils import requires_cuda_and_triton, requires_gpu_and_triton

class TestFlags(TestCase):
    @requires_gpu()
    @requires_gpu_and_triton
    @requires_gpu_with_enough_memory(1)
    def test_runs_here(self):
        self.assertTrue(HAS_GPU and IS_BIG_GPU)
        self.assertEqual(GPU_TYPE, KIND)

    @requires_gpu_with_enough_memory(1 << 60)
    def test_needs_more_memory(self):
        self.fail()

    @requires_cuda_and_triton
    def test_of_cuda(self):
        self.fail()
"""
LEDGER = """
- tests: test_things/*/test_is_foreseen_*
  outcome: xfail
  kind: wrong
  reason: planted
"""


def checkout(folder: Path) -> Path:
    (folder / "test" / "parts").mkdir(parents=True)
    (folder / "version.txt").write_text("2.13.0a0\n")
    (folder / "test" / "test_things.py").write_text(GENERIC)
    (folder / "test" / "parts" / "test_broken.py").write_text("import no_such_module\n")
    (folder / "test" / "parts" / "test_flags.py").write_text(INDUCTOR.replace("KIND", repr(KIND)))
    return folder


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch_mtia.conformance", "--device", KIND, "--upstream", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=900)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    folder = tmp_path_factory.mktemp("upstream")
    checkout(folder / "pytorch")
    (folder / "ledger.yaml").write_text(LEDGER)
    options = ("--ledger", "ledger.yaml", "--json", "run.json", "--junit", "run.xml", "--report", "run.html", "-j", "1")
    return folder, run(folder, "pytorch", "test_things", "test_broken", "test_flags", *options)


def results(folder: Path) -> dict[str, Result]:
    return {result.test.rpartition("/")[2]: result for result in Run.load(folder / "run.json").results}


@pytest.mark.wide
def test_each_file_gives_what_its_tests_give(made: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, finished = made
    assert finished.returncode == 1, finished.stdout + finished.stderr
    assert {name: (result.outcome, result.verdict) for name, result in results(folder).items()} == {
        f"test_sum_{KIND}_float32": (r.PASSED, r.PASS),
        f"test_sum_{KIND}_int64": (r.PASSED, r.PASS),
        f"test_samples_sin_{KIND}_float32": (r.PASSED, r.PASS),
        f"test_of_another_device_{KIND}": (r.SKIPPED, r.NOT_APPLICABLE),
        f"test_fails_everywhere_{KIND}": (r.FAILED, r.ON_CPU),
        f"test_fails_here_{KIND}": (r.FAILED, r.FAIL),
        f"test_is_foreseen_{KIND}": (r.FAILED, r.XFAIL),
        f"test_needs_the_device_{KIND}": (r.FAILED, r.FAIL),
        f"test_fails_once_{KIND}": (r.PASSED, r.FLAKY),
        f"test_crashes_once_{KIND}": (r.PASSED, r.FLAKY),
        f"test_crashes_here_{KIND}": (r.CRASHED, r.FAIL),
        f"test_crashes_everywhere_{KIND}": (r.CRASHED, r.ON_CPU),
        "test_fails": (r.FAILED, r.FAIL),
        "import": (r.FAILED, r.FAIL),
        "test_runs_here": (r.PASSED, r.PASS),
        "test_needs_more_memory": (r.SKIPPED, r.NOT_APPLICABLE),
        "test_of_cuda": (r.SKIPPED, r.NOT_APPLICABLE),
    }


@pytest.mark.wide
def test_a_file_that_cannot_be_imported_says_why(made: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, _ = made
    result = results(folder)["import"]
    assert result.test == "test_broken/import"
    assert result.message == "ModuleNotFoundError: No module named 'no_such_module'"


@pytest.mark.wide
def test_what_differs_is_listed_by_verdict(made: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    _, finished = made
    lists = finished.stdout.partition("suite  ")[0]
    for title in ("fail: 5", "flaky: 2", "fails on cpu: 2"):
        assert f"{title}\n" in lists
    assert "test_is_foreseen" not in lists
    assert f"test_things/TestThings{KIND.upper()}/test_fails_here_{KIND}: AssertionError: " in lists


@pytest.mark.wide
def test_the_reports_have_the_verdicts(made: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, _ = made
    suites = {suite.get("name"): suite for suite in ElementTree.parse(folder / "run.xml").iter("testsuite")}
    suite = suites["test_things"]
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("13", "4", "6")
    assert '"pytorch 2.13.0"' in (folder / "run.html").read_text()
    assert Run.load(folder / "run.json").repeat.endswith("--upstream pytorch {suite} --test {test} -j 0")


def test_the_ledger_is_of_the_release(tmp_path: Path) -> None:
    found = Checkout.at(checkout(tmp_path / "pytorch"))
    assert found.ledger("acme") == FOLDER / "upstream" / "acme-pytorch-2.13.yaml"
    (tmp_path / "triton" / "python" / "triton").mkdir(parents=True)
    (tmp_path / "triton" / "python" / "test" / "unit").mkdir(parents=True)
    (tmp_path / "triton" / "python" / "triton" / "__init__.py").write_text('__version__ = "3.7.1"\n')
    assert Checkout.at(tmp_path / "triton").ledger("mtia") == FOLDER / "upstream" / "mtia-triton-3.7.yaml"


@pytest.mark.wide
def test_files_are_found_below_the_folder_of_tests(tmp_path: Path) -> None:
    found = Checkout.at(checkout(tmp_path))
    broken = tmp_path / "test" / "parts" / "test_broken.py"
    assert found.files(["test_broken", "parts/test_broken"]) == [broken, broken]
    with pytest.raises(UsageError, match=r"there is no test_thing\.py"):
        found.files(["test_thing"])
    (tmp_path / "test" / "other").mkdir()
    (tmp_path / "test" / "other" / "test_broken.py").touch()
    with pytest.raises(UsageError, match="several, say which: other/test_broken, parts/test_broken"):
        found.files(["test_broken"])


# Its first import is of the run itself.
NOT_TWICE = """
import os
import time
from pathlib import Path

from torch.testing._internal.common_device_type import instantiate_device_type_tests
from torch.testing._internal.common_utils import TestCase

def imports():
    with Path(__file__).with_suffix(".imports").open("a+") as seen:
        seen.write(".")
        seen.seek(0)
        return len(seen.read())

if CONDITION:
    ACTION

class TestThings(TestCase):
    def test_fails(self, device):
        self.assertEqual(1, 2)

instantiate_device_type_tests(TestThings, globals(), allow_mps=True)
"""


@pytest.mark.wide
@pytest.mark.parametrize(
    ("condition", "action"),
    [
        ("imports() > 1", "raise ImportError('once is enough')"),
        ("os.environ.get('TORCH_DEVICE_BACKEND_AUTOLOAD') == '0'", "time.sleep(3600)"),
    ],
    ids=["raises in another process", "hangs on the CPU"],
)
def test_a_file_that_does_not_run_twice_keeps_its_failures(tmp_path: Path, condition: str, action: str) -> None:
    checkout(tmp_path / "pytorch")
    text = NOT_TWICE.replace("CONDITION", condition).replace("ACTION", action)
    (tmp_path / "pytorch" / "test" / "test_twice.py").write_text(text)
    finished = run(tmp_path, "pytorch", "test_twice", "-j", "1", "--json", "run.json", "--time-limit", "3")
    assert finished.returncode == 1, finished.stdout + finished.stderr
    (result,) = Run.load(tmp_path / "run.json").results
    assert (result.outcome, result.verdict) == (r.FAILED, r.FAIL)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nothing",), "--upstream nothing: no checkout there"),
        (("pytorch", "test_nothing"), "there is no test_nothing.py in"),
        (("pytorch", "test_things", "--suite", "device"), "--upstream goes with none of --suite"),
    ],
    ids=lambda value: value[-1] if isinstance(value, tuple) else "",
)
def test_wrong_arguments_are_explained(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    checkout(tmp_path / "pytorch")
    finished = run(tmp_path, *arguments)
    assert finished.returncode == 2
    assert message in finished.stderr
