"""Checkouts of PyTorch and of Triton: which of their test files are for any device, and what is expected of them.

What is expected of a device is in ledgers/upstream/DEVICE-KIND-VERSION.yaml, since the tests change with every release.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path

from torch_mtia.conformance.ledger import FOLDER
from torch_mtia.conformance.settings import UsageError


@dataclasses.dataclass(frozen=True)
class Kind:
    """A project whose tests run on devices of others."""

    name: str
    version: str
    """The file that has it."""
    tests: str
    """The folder of the test files."""
    files: tuple[str, ...]
    """Those that are generic in the device, or have parts that are."""


KINDS = (
    Kind(
        "pytorch",
        version="version.txt",
        tests="test",
        files=(
            *("test_accelerator", "test_scatter_gather_ops", "test_shape_ops", "test_type_promotion"),
            *("test_sort_and_select", "test_indexing", "test_view_ops", "test_serialization", "test_optim"),
            *("test_tensor_creation_ops", "test_foreach", "test_torch", "test_linalg", "test_nn", "test_autograd"),
            *("test_modules", "test_reductions", "test_binary_ufuncs", "test_unary_ufuncs", "test_ops"),
            *("test_ops_gradients", "test_ops_fwd_gradients"),
        ),
    ),
    Kind(
        "triton",
        version="python/triton/__init__.py",
        tests="python/test/unit",
        files=("test_core", "test_standard", "test_random", "test_conversions"),
    ),
)


@dataclasses.dataclass(frozen=True)
class Checkout:
    """A folder with the sources of one release."""

    path: Path
    kind: Kind
    version: str

    @classmethod
    def at(cls, path: Path) -> Checkout:
        """Raises UsageError for a folder that is none."""
        for kind in KINDS:
            file = path / kind.version
            if (path / kind.tests).is_dir() and file.is_file():
                found = re.search(r"\d+\.\d+\.\d+", file.read_text())
                return cls(path.resolve(), kind, found[0] if found else "unknown")
        needed = " or ".join(f"{kind.name}'s ({kind.tests}/ and {kind.version})" for kind in KINDS)
        raise UsageError(f"--upstream {path}: no checkout there, {needed}")

    def files(self, names: Sequence[str]) -> list[Path]:
        """Returns the files of these names, or all that are generic. Raises UsageError for one that is not there."""
        return [self._file(name) for name in names or self.kind.files]

    def _file(self, name: str) -> Path:
        """Returns a path without its end, from the folder of the tests or below."""
        folder = self.path / self.kind.tests
        direct = folder / f"{name}.py"
        found = [direct] if direct.is_file() else sorted(folder.rglob(f"{name}.py"))
        if not found:
            raise UsageError(f"--upstream: there is no {name}.py in {folder}")
        if len(found) > 1:
            names = ", ".join(str(file.relative_to(folder).with_suffix("")) for file in found)
            raise UsageError(f"--upstream {name}: there are several, say which: {names}")
        return found[0]

    def ledger(self, device_type: str) -> Path:
        """Returns what is expected of a device there; the file need not exist."""
        release = ".".join(self.version.split(".")[:2])
        return FOLDER / "upstream" / f"{device_type}-{self.kind.name}-{release}.yaml"
