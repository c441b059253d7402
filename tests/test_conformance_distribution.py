"""The suite without the device, as the distribution torch-mtia-conformance has it."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tools import conformance_distribution

if TYPE_CHECKING:
    from tests.conftest import RunPython

pytestmark = pytest.mark.in_tree("the suite's modules, whatever the device is called")


@pytest.fixture
def forked() -> bool:
    return False


@pytest.fixture(scope="module")
def distribution(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("distribution")
    conformance_distribution.write(folder)
    return folder


def imported(path: Path) -> set[str]:
    """The modules of torch_mtia that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
    return {name for name in found if name.partition(".")[0] == "torch_mtia"}


def test_it_has_the_modules_that_it_imports(distribution: Path) -> None:
    package = distribution / "torch_mtia"
    tree = Path(conformance_distribution.ROOT)
    for path in package.rglob("*.py"):
        if path == package / "__init__.py":  # most of it is for the device
            continue
        for name in imported(path):
            place = Path(*name.split("."))
            is_module = any((tree / place).with_suffix(suffix).exists() for suffix in (".py", ".pyi"))
            if is_module or (tree / place / "__init__.py").exists():
                there = distribution / place
                assert there.with_suffix(".py").exists() or (there / "__init__.py").exists(), f"{path}: {name}"


def test_it_has_no_code_for_the_device_and_no_entry_point(distribution: Path) -> None:
    assert not list(distribution.rglob("*.so"))
    assert sorted(path.name for path in (distribution / "torch_mtia").iterdir() if path.is_dir()) == [
        "conformance",
        "include",
        "ranks",
    ]
    described = (distribution / "pyproject.toml").read_text()
    assert "entry-points" not in described
    assert f'"torch>={conformance_distribution.LEAST_TORCH}"' in described
    assert re.search(r'"\*\*/\*\.yaml"', described)


def test_it_tests_a_device(distribution: Path, run_python: RunPython) -> None:
    finished = run_python(
        *("-m", "torch_mtia.conformance", "--device", "cpu", "--suite", "tensor", "--test", "tensor/creation/*"),
        *("-j", "1"),
        PYTHONPATH=str(distribution),
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    (counts,) = re.findall(r"^tensor +(\d+) +0 +0 +0 +0 +0$", finished.stdout, re.MULTILINE)
    assert int(counts) > 5


def test_the_device_is_not_there(distribution: Path, run_python: RunPython) -> None:
    script = """
import sys
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in repr(finder)]  # of this environment
import torch, torch_mtia
"""
    finished = run_python("-c", script, PYTHONPATH=str(distribution), TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert finished.returncode == 1
    assert "What torch-mtia-conformance installs has no device" in finished.stderr.splitlines()[-1]
