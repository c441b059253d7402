"""What the layouts of Triton's intermediate representation for GPUs say of the addresses that a warp accesses."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple


class Layout(NamedTuple):
    """How a tensor is divided among threads, as in `#ttg.blocked`."""

    size_per_thread: tuple[int, ...]
    threads_per_warp: tuple[int, ...]
    warps: tuple[int, ...]

    def threads(self) -> int:
        """Returns the number of threads of a program."""
        count = 1
        for each in (*self.threads_per_warp, *self.warps):
            count *= each
        return count


class Placed(NamedTuple):
    """An access to global memory, with the layout of its tensor."""

    file: str
    line: int
    kind: str  # "load" or "store"
    shape: tuple[int, ...]
    layout: Layout


_BLOCKED = re.compile(
    r"^(#\w+) = #ttg\.blocked<\{sizePerThread = \[([\d, ]+)\], threadsPerWarp = \[([\d, ]+)\], "
    r"warpsPerCTA = \[([\d, ]+)\]",
    re.MULTILINE,
)
_LOCATION = re.compile(r"^(#loc\d*) = loc\((.*)\)$", re.MULTILINE)
_ACCESS = re.compile(r"\b(?:tt\.(load|store)|ttg\.async_copy_global_to_local|amdg?\w*\.buffer_(load|store)\w*) .*")
_TENSOR = re.compile(r"tensor<((?:\d+x)+)[^,<>]*(?:<[^<>]*>)?, (#\w+)>")


def placed(ttgir: str) -> Iterator[Placed]:
    """Returns the accesses whose tensors have a blocked layout."""
    layouts = {name: Layout(*(_numbers(part) for part in parts)) for name, *parts in _BLOCKED.findall(ttgir)}
    locations = dict(_LOCATION.findall(ttgir))
    for line in ttgir.splitlines():
        access, tensor = _ACCESS.search(line), _TENSOR.search(line)
        where = re.search(r"loc\((#loc\d*)\)$", line)
        if access is None or tensor is None or where is None or tensor[2] not in layouts:
            continue
        if place := _place(where[1], locations):
            kind = "store" if "store" in (access[1], access[2]) else "load"
            yield Placed(*place, kind, tuple(map(int, tensor[1].split("x")[:-1])), layouts[tensor[2]])


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))


def _place(name: str, locations: dict[str, str]) -> tuple[str, int] | None:
    """The file and the line, of a call's callee."""
    text = locations.get(name, "")
    if match := re.match(r'"([^"]+)":(\d+):\d+', text):
        return match[1], int(match[2])
    inner = re.search(r"#loc\d*", text)
    return _place(inner[0], locations) if inner is not None and inner[0] != name else None


def contiguous_bytes(access: Placed, adjacent: int, size: int) -> int:
    """Returns how many bytes one after the other a warp accesses, of elements that are adjacent along a dimension."""
    layout = access.layout
    along = layout.size_per_thread[adjacent] * layout.threads_per_warp[adjacent]
    return min(along, access.shape[adjacent]) * size
