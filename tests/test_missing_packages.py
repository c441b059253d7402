"""Where Triton or llvmlite is not installed, the error names the command that installs them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import RunScript

ADD = """
import torch

x = torch.ones(3, device="mtia")
print(x + 1)
"""
COMPILED = """
import torch

print(torch.compile(lambda x: (x + 1).relu().sum())(torch.ones(3, device="mtia")))
"""


@pytest.fixture
def without(tmp_path: Path) -> Path:
    """A folder in which to put modules that cannot be imported."""
    return tmp_path / "missing"


@pytest.mark.parametrize(
    ("package", "program", "settings"),
    [
        ("triton", ADD, {"TORCH_MTIA_KERNELS": "triton"}),
        ("llvmlite", ADD, {"TORCH_MTIA_KERNELS": "triton"}),
        ("llvmlite", COMPILED, {}),
    ],
    ids=["operators, no triton", "operators, no llvmlite", "torch.compile, no llvmlite"],
)
def test_the_command_that_installs_what_is_missing_is_named(
    package: str, program: str, settings: dict[str, str], without: Path, run_script: RunScript
) -> None:
    (without / package).mkdir(parents=True)
    (without / package / "__init__.py").write_text(f"raise ModuleNotFoundError('no {package}', name={package!r})")
    caches = {name: str(without / name) for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")}
    program = f"import sys; sys.path.insert(0, {str(without)!r})\n{program}"
    finished = run_script(program, timeout=600, **caches, **settings)
    assert finished.returncode != 0
    assert package in finished.stderr
    assert "pip install 'torch_mtia[triton]'" in finished.stderr
