"""Memory that a program goes on allocating, and neither uses nor frees.

Note [Leaks]
What is alive when a process ends is mostly what it has worked with all the time: parameters, the state of an
optimizer, the last batch. A leak is what becomes more: blocks that the same lines have allocated time after time, and
none of which was used once these lines had allocated two more. Parameters and buffers of modules are none, whatever
they are used for.
"""

from __future__ import annotations

import bisect
import dataclasses
import gc
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import torch

from torch_mtia.door import device_type
from torch_mtia.sanitizer.report import Access, Frame, Report, frames_of, own_lines

REPEATS = 10  # blocks, from which on it is one
LOOKS_BACK = 2  # a step may use what the one before it has left


@dataclasses.dataclass
class Leak(Report):
    """`count` blocks, of `size` bytes in all, allocated at the same lines."""

    size: int = 0
    in_python: bool = True  # tensors of Python have the memory

    @property
    def remedy(self) -> str:
        if self.in_python:
            return (
                "remove what is not used any more from the list, dict or exception that refers to the tensors; "
                "what has a graph keeps that, too, unless it is detached"
            )
        return (
            "no tensor of Python has the memory, so graphs of autograd or an extension do: "
            "add up loss.item() or loss.detach() in place of losses"
        )

    def __str__(self) -> str:
        return "\n".join(
            [
                "Leak: the same lines allocate more and more, and what they have allocated is neither freed nor used",
                f"  {self.count} blocks of {self.size} bytes in all are left of",
                *(f"    {frame}" for frame in own_lines(self.access.frames)),
                f"  To mend it: {self.remedy}.",
            ]
        )


def find() -> list[Leak]:
    """What is a leak now, largest first."""
    from torch_mtia import _C

    gc.collect()
    groups: dict[tuple[Frame, ...], list[Mapping[str, Any]]] = defaultdict(list)
    for block in _C._sanitizer_live_blocks():
        if frames := frames_of(block):
            groups[frames].append(block)
    repeated = {frames: unused for frames, group in groups.items() if len(unused := _unused(group)) >= REPEATS}
    if not repeated:
        return []
    held, kept = _memory_of_python()
    leaks = []
    for frames, unused in repeated.items():
        left = [block for block in unused if not _lies_in(block, kept)]
        if len(left) < REPEATS:
            continue
        size = sum(block["size"] for block in left)
        access = Access(
            "allocation", None, None, f"{size} bytes", left[0]["address"], left[0]["size"], False, frames=frames
        )
        in_python = any(_lies_in(block, held) for block in left)
        leaks.append(Leak("leak", access, None, (), count=len(left), size=size, in_python=in_python))
    return sorted(leaks, key=lambda leak: -leak.size)


def _unused(group: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    group.sort(key=lambda block: block["allocated"])
    later = group[LOOKS_BACK:]
    return [block for block, next_one in zip(group, later, strict=False) if block["used"] <= next_one["allocated"]]


def _memory_of_python() -> tuple[list[int], list[int]]:
    """Addresses of the storages of all tensors, and of the parameters and buffers among them, in order."""
    held: set[int] = set()
    kept: set[int] = set()
    for each in gc.get_objects():
        if issubclass(type(each), torch.nn.Module):
            kept.update(_address(tensor) for tensor in vars(each).get("_buffers", {}).values())
        elif issubclass(type(each), torch.Tensor):
            held.add(_address(each))
            if issubclass(type(each), torch.nn.Parameter):
                kept.add(_address(each))
    return sorted(held), sorted(kept)


def _address(tensor: torch.Tensor | None) -> int:
    try:
        return tensor.untyped_storage().data_ptr() if tensor is not None and tensor.device.type == device_type() else 0
    except (RuntimeError, NotImplementedError):  # a tensor without memory
        return 0


def _lies_in(block: Mapping[str, Any], addresses: list[int]) -> bool:
    first = bisect.bisect_left(addresses, block["address"])
    return first < len(addresses) and addresses[first] < block["address"] + block["size"]
