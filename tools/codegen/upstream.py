"""The operators that an overlay is merged over: of the installed PyTorch, or as recorded of another version."""

from __future__ import annotations

import dataclasses
import functools
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
    path = RECORDED / f"{version}.yaml"
    rows = yaml.load(path.read_text(), Loader=LineLoader)["operators"]
    return Upstream(path, _version(version), {row["func"]: row for row in rows})


def load_rows(path: pathlib.Path) -> list[dict[str, Any]]:
    """The entries of a native_functions.yaml; each has its line number under "__line__"."""
    rows: list[dict[str, Any]] = yaml.load(path.read_text(), Loader=LineLoader)
    return rows


def _version(text: str) -> tuple[int, int]:
    major, minor, *_ = text.split(".")
    return int(major), int(minor)
