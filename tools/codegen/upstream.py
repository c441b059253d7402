"""The operators that an overlay is merged over: of the installed PyTorch, or as recorded of another version."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import pathlib
import re
from typing import Any

import torch
import torchgen
import yaml
from torchgen.gen import LineLoader

PACKAGED_NATIVE = pathlib.Path(torchgen.__file__).parent / "packaged" / "ATen" / "native"
RECORDED = pathlib.Path(__file__).resolve().parents[2] / "tests" / "recorded"


@dataclasses.dataclass(frozen=True)
class Upstream:
    """The operators of one version of PyTorch."""

    path: pathlib.Path
    version: tuple[int, int]
    rows: dict[str, dict[str, Any]]
    """By schema. What is merged changes them."""

    def __str__(self) -> str:
        return ".".join(map(str, self.version))

    @functools.cached_property
    def schemas(self) -> dict[str, str]:
        """By operator name."""
        return {func.partition("(")[0]: func for func in self.rows}

    def matches(self, condition: str) -> bool:
        """Whether the version is among those that a row says that it is for, as `>=2.14` or `<2.14`.

        Raises ValueError for other words.
        """
        found = re.fullmatch(r"(>=|<)\s*(\d+)\.(\d+)", condition)
        if found is None:
            raise ValueError(condition)
        is_newer = self.version >= (int(found[2]), int(found[3]))
        return is_newer == (found[1] == ">=")


def installed() -> Upstream:
    """Of the file packaged with the installed torchgen."""
    path = PACKAGED_NATIVE / "native_functions.yaml"
    return Upstream(path, _version(torch.__version__), {row["func"]: row for row in load_rows(path)})


def recorded(version: str) -> Upstream:
    """Of tests/recorded, which has what the overlay uses; `make record` writes it."""
    rows = record(version)["operators"]
    return Upstream(RECORDED / f"{version}.yaml", _version(version), {row["func"]: row for row in rows})


def record(version: str) -> dict[str, Any]:
    """The operators, and the kinds of names, of a version in tests/recorded.

    Raises ValueError if the oldest version was recorded again since, of other operators or names.
    """
    found: dict[str, Any] = yaml.load((RECORDED / f"{version}.yaml").read_text(), Loader=LineLoader)
    del found["__line__"], found["names"]["__line__"]
    if "differs_from" not in found:
        return found
    oldest = record(oldest_recorded())
    if found["differs_from"] != digest(oldest):
        raise ValueError(
            f"{version}.yaml is older than {oldest_recorded()}.yaml: make record TORCH={version}.0, or its newest"
        )
    rows = {row["func"]: row for row in oldest["operators"]} | {row["func"]: row for row in found["operators"]}
    operators = [row for func, row in rows.items() if func not in found["without"]]
    return {"operators": operators, "names": oldest["names"] | found["names"], "cuda": found["cuda"]}


def oldest_recorded() -> str:
    """The version that is recorded in full: the record of a later one has what differs."""
    return min((path.stem for path in RECORDED.glob("*.yaml")), key=_version)


def digest(record: dict[str, Any]) -> str:
    """Of which operators and names a record has."""
    words = [*(row["func"] for row in record["operators"]), *record["names"]]
    return hashlib.sha256("\n".join(words).encode()).hexdigest()[:16]


def load_rows(path: pathlib.Path) -> list[dict[str, Any]]:
    """The entries of a native_functions.yaml; each has its line number under "__line__"."""
    rows: list[dict[str, Any]] = yaml.load(path.read_text(), Loader=LineLoader)
    return rows


def _version(text: str) -> tuple[int, int]:
    major, minor, *_ = text.split(".")
    return int(major), int(minor)
