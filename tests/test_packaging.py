"""What tools/distributions.py makes of the tree: the suite without the device, and the choices of other libraries."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tools import distributions
from torch_mtia import _versions

if TYPE_CHECKING:
    from tests.conftest import RunPython, RunScript

pytestmark = pytest.mark.in_tree("files of the tree, whatever the device is called")


@pytest.fixture
def forked() -> bool:
    return False


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("suite")
    distributions.write("conformance", folder)
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


def test_the_suite_has_the_modules_that_it_imports(suite: Path) -> None:
    package = suite / "torch_mtia"
    tree = Path(distributions.ROOT)
    for path in package.rglob("*.py"):
        if path == package / "__init__.py":  # most of it is for the device
            continue
        for name in imported(path):
            place = Path(*name.split("."))
            is_module = any((tree / place).with_suffix(suffix).exists() for suffix in (".py", ".pyi"))
            if is_module or (tree / place / "__init__.py").exists():
                there = suite / place
                assert there.with_suffix(".py").exists() or (there / "__init__.py").exists(), f"{path}: {name}"


def test_the_suite_has_no_code_for_the_device_and_no_entry_point(suite: Path) -> None:
    assert not list(suite.rglob("*.so"))
    assert sorted(path.name for path in (suite / "torch_mtia").iterdir() if path.is_dir()) == [
        "conformance",
        "include",
        "ranks",
    ]
    described = (suite / "pyproject.toml").read_text()
    assert "entry-points" not in described
    assert f'"torch>={distributions.LEAST_TORCH}"' in described
    assert re.search(r'"\*\*/\*\.yaml"', described)


def test_the_suite_tests_a_device(suite: Path, run_python: RunPython) -> None:
    finished = run_python(
        *("-m", "torch_mtia.conformance", "--device", "cpu", "--suite", "tensor", "--test", "tensor/creation/*"),
        *("-j", "1"),
        PYTHONPATH=str(suite),
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    (counts,) = re.findall(r"^tensor +(\d+) +0 +0 +0 +0 +0$", finished.stdout, re.MULTILINE)
    assert int(counts) > 5


def test_with_the_suite_alone_there_is_no_device(suite: Path, run_python: RunPython) -> None:
    script = """
import sys
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in repr(finder)]  # of this environment
import torch, torch_mtia
"""
    finished = run_python("-c", script, PYTHONPATH=str(suite), TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert finished.returncode == 1
    assert "What torch-mtia-conformance installs has no device" in finished.stderr.splitlines()[-1]


def test_the_clients_add_one_package_to_a_wheel(tmp_path: Path) -> None:
    folder = tmp_path / "clients"
    distributions.write("clients", folder)
    modules = sorted(path.relative_to(folder) for path in folder.rglob("*.py"))
    assert {path.parent for path in modules} == {Path("torch_mtia/clients")}
    assert len(modules) > 3
    assert f'dependencies = ["torch_mtia=={_versions.__version__}"]' in (folder / "pyproject.toml").read_text()


def test_without_the_clients_libraries_are_left_alone(tmp_path: Path, run_script: RunScript) -> None:
    (tmp_path / "safetensors").mkdir()
    (tmp_path / "safetensors" / "__init__.py").write_text("def safe_open(): ...\n")
    script = """
        import sys
        {without}
        import torch, torch_mtia, safetensors
        print(safetensors.safe_open.__code__.co_filename, [each for each in torch_mtia.replacements() if each.skipped])
    """
    for without, file in (
        ("pass", "torch_mtia/clients/replacements.py"),
        ("sys.modules['torch_mtia.clients'] = None", "safetensors/__init__.py"),
    ):
        printed = run_script(script.format(without=without), PYTHONPATH=str(tmp_path)).output()
        assert printed.endswith(f"{file} []\n")
