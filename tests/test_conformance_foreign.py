"""The conformance suite tests any device: a backend that is not ours, with a fault that it must name, and the CPU.

foreign_backend/ is the backend; its ledger says what it does not have.
"""

from __future__ import annotations

import os
import subprocess
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch.utils.cpp_extension import include_paths

from tests.conformance_command import conformance
from tests.conftest import RunScript
from torch_mtia.conformance import results as r
from torch_mtia.conformance.results import Result, Run

HERE = Path(__file__).parent
BACKEND = HERE / "foreign_backend"
LEDGER = BACKEND / "ledger.yaml"


def by_name(run: Run) -> dict[str, Result]:
    return {result.test: result for result in run.results}


@dataclass(frozen=True)
class Report:
    """The test that names a shortcoming, and what it says."""

    test: str
    kind: str
    message: str


SHORTCOMINGS = {
    "copies that ignore strides": Report("tensor/views/transpose", "wrong", "Tensor-likes are not equal"),
    "copies to the device that ignore strides": Report(
        "tensor/there_and_back/float32", "wrong", "Tensor-likes are not equal"
    ),
    "a fill that loses the last element": Report("tensor/creation/full", "wrong", "Tensor-likes are not close"),
    "a resize that loses data": Report("tensor/assignments/resized", "wrong", "Tensor-likes are not equal"),
    "a seed that is ignored": Report("device/a_seed_repeats_numbers", "wrong", "equal"),
    "a guard that does not restore": Report("device/guards_change_the_device_and_back", "wrong", "== 0"),
    "no complex numbers": Report(
        "tensor/clones_and_fills/complex64", "missing", "\"empty\" not implemented for 'ComplexFloat'"
    ),
    "an operator that is missing": Report("operators/forward/atan/float32", "missing", "Could not run 'aten::atan'"),
    "strides that are always dense": Report(
        "operators/strides/nn.functional.avg_pool2d/float32", "wrong", "strides [("
    ),
    "an error that ends the process": Report("errors/values/gather", "crash", "Aborted"),
}
# The others are for `make test-wide`.
BY_DEFAULT = ("an error that ends the process",)

ALONE = """
import sys

import torch

def test_torch_mtia_is_not_there(device):
    assert "torch_mtia._C" not in sys.modules
    with open("/proc/self/maps") as maps:
        assert not [line for line in maps if "libtorch_mtia" in line or "libmtia" in line]
    assert torch.mtia.__name__ == "torch.mtia"
    assert not torch.mtia.is_available()
    assert torch._C._get_privateuse1_backend_name() == NAME
"""


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = tmp_path_factory.mktemp("foreign") / "libforeign.so"
    folder = Path(torch.__file__).parent / "lib"
    flags = ["-std=c++20", "-O0", "-fPIC", "-shared", "-DAT_PER_OPERATOR_HEADERS"]
    flags += [f"-isystem{path}" for path in (*include_paths(), sysconfig.get_path("include"))]
    libraries = [f"-L{folder}", "-lc10", "-ltorch_cpu", f"-Wl,-rpath,{folder}"]
    subprocess.run(["g++", *flags, str(BACKEND / "foreign.cpp"), "-o", str(built), *libraries], check=True)
    return built


def of_foreign(folder: Path, library: Path, *arguments: str, **environment: str) -> tuple[dict[str, Result], str]:
    foreign = ["--device", "foreign", "--import", "foreign_backend", "--ledger", str(LEDGER)]
    environment |= {"PYTHONPATH": str(HERE), "FOREIGN_LIBRARY": str(library)}
    run, printed = conformance(folder, *foreign, *arguments, **environment)
    return by_name(run), printed


def selection(*tests: str) -> list[str]:
    suites = sorted({test.partition("/")[0] for test in tests})
    return [*(f"--suite={suite}" for suite in suites), *(f"--test={test}" for test in tests)]


@pytest.mark.wide
@pytest.mark.slow
def test_without_a_shortcoming_the_tests_pass(tmp_path: Path, library: Path) -> None:
    tests = {report.test for report in SHORTCOMINGS.values()}
    results, output = of_foreign(tmp_path, library, *selection(*tests))
    assert {test: result.verdict for test, result in results.items()} == dict.fromkeys(tests, r.PASS), output


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in BY_DEFAULT else pytest.mark.wide) for name in SHORTCOMINGS]
)
def test_a_shortcoming_is_named(tmp_path: Path, library: Path, name: str) -> None:
    report = SHORTCOMINGS[name]
    results, output = of_foreign(tmp_path, library, *selection(report.test), FOREIGN_SHORTCOMING=name)
    (result,) = results.values()
    assert (result.test, result.verdict, r.kind_of(result)) == (report.test, r.FAIL, report.kind), output
    assert report.message in result.message


def test_the_documentation_has_the_shortcomings() -> None:
    rows = [f"| {name} | `{report.test}` | *{report.kind}* |" for name, report in SHORTCOMINGS.items()]
    assert "\n".join(rows) in (HERE.parent / "docs" / "conformance.md").read_text()


@pytest.mark.wide
@pytest.mark.parametrize(
    "arguments",
    [
        ["--suite=device", "--suite=tensor", "--suite=accelerator", "--suite=random", "--suite=errors"],
        ["--suite=operators", "--shard=1/40"],
    ],
    ids=["what is short", "operators"],
)
def test_the_backend_is_as_its_ledger_says(tmp_path: Path, library: Path, arguments: list[str]) -> None:
    results, output = of_foreign(tmp_path, library, *arguments)
    assert not [result.test for result in results.values() if result.verdict in r.UNEXPECTED], output


@pytest.mark.wide
@pytest.mark.in_tree("torch.mtia")
def test_the_cpu_is_tested_without_torch_mtia(tmp_path: Path) -> None:
    file = tmp_path / "alone.py"
    file.write_text(ALONE.replace("NAME", "'privateuseone'"))
    run, output = conformance(tmp_path, "--device=cpu", "--file", str(file))
    results = by_name(run)
    assert [result.verdict for result in results.values()] == [r.PASS], output


@pytest.mark.in_tree("torch.mtia")
def test_another_backend_is_tested_without_torch_mtia(tmp_path: Path, library: Path) -> None:
    file = tmp_path / "alone.py"
    file.write_text(ALONE.replace("NAME", "'foreign'"))
    results, output = of_foreign(tmp_path, library, "--file", str(file), "-j", "0")
    assert [result.verdict for result in results.values()] == [r.PASS], output


BESIDE = """
import torch
import foreign_backend
import triton
import triton.language as tl

@triton.jit
def double(x, y, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + offsets, tl.load(x + offsets, offsets < n) * 2, offsets < n)

torch.manual_seed(0)
layer, x = torch.nn.Linear(4, 3), torch.randn(5, 4)
of_foreign = torch.nn.Linear(4, 3)
of_foreign.load_state_dict(layer.state_dict())
of_foreign.to("foreign")
layer(x).sum().backward()
of_foreign(x.to("foreign")).sum().backward()
torch.testing.assert_close(of_foreign.weight.grad.cpu(), layer.weight.grad)

on_mtia = x.to("mtia")
with torch.mtia.graph(graph := torch.mtia.MTIAGraph()):
    captured = on_mtia.sin()
on_mtia.fill_(2)
graph.replay()
assert torch.equal(captured.cpu(), on_mtia.cpu().sin())
doubled = torch.empty_like(on_mtia)
double[(1,)](on_mtia, doubled, 20, BLOCK=32)
print(torch.accelerator.current_accelerator(), doubled.sum().item())
"""


@pytest.mark.in_tree("mtia beside another backend")
def test_another_backend_and_the_device_in_one_process(library: Path, run_script: RunScript) -> None:
    folders = f"{HERE}{os.pathsep}{HERE.parent}"
    finished = run_script(BESIDE, PYTHONPATH=folders, FOREIGN_LIBRARY=str(library))
    assert finished.output().split() == ["foreign", "80.0"]
