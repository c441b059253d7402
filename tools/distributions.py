"""Writes the sources of a distribution that is part of this tree: python -m tools.distributions NAME FOLDER

`conformance` is torch-mtia-conformance: the suite without the device, for more versions of PyTorch. It is not installed
together with torch_mtia, whose modules it has under the same names. `clients` is torch-mtia-clients, which
torch_mtia[clients] installs: what a wheel of torch_mtia leaves out. make wheels builds both.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from torch_mtia import _versions

ROOT = Path(__file__).resolve().parent.parent
LEAST_TORCH = "2.10"  # for the suite

PYPROJECT = """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "torch-mtia-{name}"
version = "{version}"
description = "{description}"
readme = "README.md"
license = "BSD-3-Clause"
license-files = ["LICENSE", "AUTHORS"]
requires-python = ">=3.10"
dependencies = {dependencies}

[tool.setuptools.packages.find]
namespaces = true
include = ["torch_mtia*"]

[tool.setuptools.package-data]
"*" = {data}
"""


@dataclass(frozen=True)
class Distribution:
    description: str
    page: str
    """The page of docs/ that is its README."""
    dependencies: tuple[str, ...]
    packages: tuple[str, ...]
    """Folders of torch_mtia/."""
    modules: tuple[str, ...] = ()
    """Files of torch_mtia/."""
    headers: tuple[str, ...] = ()
    """Files of csrc/ that are installed under torch_mtia/include/torch_mtia/."""

    def files(self) -> Iterator[Path]:
        """The files in torch_mtia/."""
        package = ROOT / "torch_mtia"
        yield from map(Path, self.modules)
        for name in self.packages:
            for path in sorted((package / name).rglob("*")):
                if path.is_file() and "__pycache__" not in path.parts:
                    yield path.relative_to(package)


DISTRIBUTIONS = {
    "conformance": Distribution(
        description="Tests a PyTorch device against the CPU device",
        page="conformance.md",
        dependencies=(f"torch>={LEAST_TORCH}", *_versions.CONFORMANCE),
        packages=("conformance", "ranks"),
        modules=("__init__.py", "_versions.py", "environment.py", "gpu_targets.py", "torch_version.py", "py.typed"),
        headers=("runtime/mtia_runtime.h",),  # the suite of drivers reads it
    ),
    "clients": Distribution(
        description="Lets accelerate, transformers, Lightning and others choose the devices of torch_mtia",
        page="clients.md",
        dependencies=(f"torch_mtia=={_versions.__version__}",),
        packages=("clients",),
    ),
}


def write(name: str, folder: Path) -> None:
    """Writes the sources to the folder, in place of what is there."""
    made = DISTRIBUTIONS[name]
    shutil.rmtree(folder, ignore_errors=True)
    package = folder / "torch_mtia"
    copies = {path: ROOT / "torch_mtia" / path for path in made.files()}
    copies |= {Path("include", "torch_mtia", header): ROOT / "csrc" / header for header in made.headers}
    for path, source in copies.items():
        (package / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, package / path)
    for file in ("LICENSE", "AUTHORS"):
        shutil.copy2(ROOT / file, folder / file)
    shutil.copy2(ROOT / "docs" / made.page, folder / "README.md")
    (folder / "pyproject.toml").write_text(
        PYPROJECT.format(
            name=name,
            version=_versions.__version__,
            description=made.description,
            dependencies=json.dumps(made.dependencies),
            data=json.dumps(sorted({f"**/*{path.suffix}" for path in copies if path.suffix not in (".py", "")})),
        )
    )


if __name__ == "__main__":
    write(sys.argv[1], Path(sys.argv[2]))
