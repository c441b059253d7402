"""Writes the sources of the distribution torch-mtia-conformance: python -m tools.conformance_distribution FOLDER

It has the conformance suite without the device: Python only, for any device and more versions of PyTorch. Its modules
are those of torch_mtia, under the same names, and the two are not installed together. make wheels builds it.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from torch_mtia import _versions

ROOT = Path(__file__).resolve().parent.parent
HEADER = "include/torch_mtia/runtime/mtia_runtime.h"  # the suite of drivers reads it
MODULES = ("__init__.py", "_versions.py", "environment.py", "torch_version.py", "py.typed")
PACKAGES = ("conformance", "ranks")
LEAST_TORCH = "2.10"

PYPROJECT = """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "torch-mtia-conformance"
version = "{version}"
description = "Tests a PyTorch device against the CPU device"
readme = "README.md"
license = "BSD-3-Clause"
license-files = ["LICENSE", "AUTHORS"]
requires-python = ">=3.10"
dependencies = {dependencies}

[tool.setuptools.packages.find]
include = ["torch_mtia*"]

[tool.setuptools.package-data]
"*" = {data}
"""


def files() -> Iterator[Path]:
    """The files of the distribution's package, below torch_mtia/."""
    package = ROOT / "torch_mtia"
    yield from (Path(name) for name in MODULES)
    for name in PACKAGES:
        for path in sorted((package / name).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path.relative_to(package)


def write(folder: Path) -> None:
    """Writes the sources to the folder, in place of what is there."""
    shutil.rmtree(folder, ignore_errors=True)
    for path in files():
        (folder / "torch_mtia" / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / "torch_mtia" / path, folder / "torch_mtia" / path)
    header = folder / "torch_mtia" / HEADER
    header.parent.mkdir(parents=True)
    shutil.copy2(ROOT / "csrc" / "runtime" / header.name, header)
    for name in ("LICENSE", "AUTHORS"):
        shutil.copy2(ROOT / name, folder / name)
    shutil.copy2(ROOT / "docs" / "conformance.md", folder / "README.md")
    data = sorted({f"**/*{path.suffix}" for path in files() if path.suffix not in (".py", "")} | {"**/*.h"})
    (folder / "pyproject.toml").write_text(
        PYPROJECT.format(
            version=_versions.__version__,
            dependencies=json.dumps([f"torch>={LEAST_TORCH}", *_versions.CONFORMANCE]),
            data=json.dumps(data),
        )
    )


if __name__ == "__main__":
    write(Path(sys.argv[1]))
