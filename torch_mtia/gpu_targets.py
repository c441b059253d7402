"""The GPUs that kernels are compiled for, by the names that Triton gives them: `cuda:90`, `hip:gfx942`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

EXAMPLES = "`cuda:90`, `hip:gfx942`"


class Target(NamedTuple):
    backend: str  # "cuda" or "hip"
    arch: int | str
    warp_size: int

    def __str__(self) -> str:
        return f"{self.backend}:{self.arch}"


def parse(name: str) -> Target:
    """Returns the target. Raises ValueError for what names none."""
    if match := re.fullmatch(r"cuda:(\d{2,3})", name):
        return Target("cuda", int(match[1]), 32)
    if match := re.fullmatch(r"hip:(gfx(\d+)[0-9a-f]{2})", name):
        return Target("hip", match[1], 32 if int(match[2]) >= 10 else 64)
    raise ValueError(f"{name!r} is not a target; targets are cuda:CAPABILITY and hip:ARCHITECTURE, such as {EXAMPLES}")


def parse_all(names: Iterable[str]) -> tuple[Target, ...]:
    """Returns the targets, each once. Raises ValueError for a name that is none."""
    return tuple(dict.fromkeys(map(parse, names)))
