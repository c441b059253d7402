"""Writes the package of a vendor: a device with a name and a driver of its own. See docs/vendor_guide.md.

The files are in package-template/, as they are written but for the name, which is NAME in their paths and @NAME@ in
their text, and the version of Python, @PYTHON@.
Some have other names there, for tools that would take them for what they say.
"""

from __future__ import annotations

import keyword
import platform
from pathlib import Path

import torch

from torch_mtia import environment

__all__ = ["check_name", "write"]

TEMPLATE = Path(__file__).resolve().parent / "package-template"
NAMES = {
    "github": ".github",
    "gitignore": ".gitignore",
    "gitlab-ci.yml": ".gitlab-ci.yml",
    "pyproject.toml.in": "pyproject.toml",
}


def check_name(name: str) -> None:
    """Raises ValueError for a name that no device of PyTorch's can have."""
    environment.check_device_name(name)
    if keyword.iskeyword(name):
        raise ValueError(f"name must be an identifier, and '{name}' is a keyword of Python")
    try:
        torch.device(name)
    except RuntimeError:
        return
    raise ValueError(f"name must not be a device type of PyTorch's or one that is installed, as '{name}' is")


def write(name: str, output: Path) -> list[Path]:
    """Writes the package for the device `name` into the folder `output`, which it makes. Returns the files.

    Raises ValueError for a bad name and FileExistsError if there is something of that name.
    """
    check_name(name)
    if output.exists():
        raise FileExistsError(f"{output} exists: name a folder that does not, or remove it")
    python = ".".join(platform.python_version_tuple()[:2])
    written = []
    # pip compiles what it installs, the template's modules, too.
    files = (path for path in TEMPLATE.rglob("*") if path.is_file() and path.parent.name != "__pycache__")
    for source in sorted(files):
        parts = [NAMES.get(part, part.replace("NAME", name)) for part in source.relative_to(TEMPLATE).parts]
        target = output.joinpath(*parts)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(source.read_text().replace("@NAME@", name).replace("@PYTHON@", python))
        if target.suffix == ".sh":
            target.chmod(0o755)
        written.append(target)
    return written
