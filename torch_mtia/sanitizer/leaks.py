"""Memory that a program goes on allocating, and neither uses nor frees.

Note [Leaks]
What is alive when a process ends is mostly what it has worked with all the time: parameters, the state of an
optimizer, the last batch. A leak is what becomes more with time, and time passes where the program frees something:
what a site (the same lines, within the same modules) allocates until then is one execution of it. Ten executions must
have left memory that was not used any more once the site had been executed twice again, and the site must still be
growing when it is executed last: it had more alive than ever before in at least ten executions, and since the last of
them it has not been executed much more often than there were executions between two of them.

So copies of all parameters, a data set that is sent to the device, the state of an optimizer and the activations of a
deep network are one execution, or one for each module. A ring of the last results grows until it is full. Parameters
and buffers of modules are no leaks, whatever they are used for, nor is what a collection has that has a bound.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import gc
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch

from torch_mtia.backend import device_type
from torch_mtia.sanitizer.report import Access, Frame, Report, frames_of, own_lines

REPEATS = 10  # executions, from which on it is one
LOOKS_BACK = 2  # a step may use what the one before it has left
PATIENCE = 3  # times the executions that there are for each in which it grew


@dataclasses.dataclass
class Leak(Report):
    """`count` blocks, of `size` bytes in all, allocated at the same lines."""

    size: int = 0
    in_python: bool = True  # tensors of Python have the memory

    @property
    def remedy(self) -> str:
        if self.in_python:
            return (
                "remove unused tensors from the list, dict or exception that refers to them; "
                "a tensor with an autograd graph keeps that alive too: store `x.detach()`"
            )
        return (
            "an autograd graph or an extension holds the memory, no Python tensor does: "
            "accumulate `loss.item()` or `loss.detach()`"
        )

    def __str__(self) -> str:
        return "\n".join(
            [
                "Leak: the same lines keep allocating memory that is neither freed nor used",
                f"  {self.count} blocks, {self.size} bytes in total, allocated at",
                *(f"    {frame}" for frame in own_lines(self.access.frames)),
                f"  Fix: {self.remedy}.",
            ]
        )


class _Block(NamedTuple):
    address: int
    size: int
    execution: int  # of its site
    allocated: int  # the number of the last item of work before
    used: int  # of the last one that has touched it


def find() -> list[Leak]:
    """Returns what is a leak now, largest first."""
    from torch_mtia import _C

    gc.collect()
    lines: dict[tuple[Frame, ...], list[_Block]] = defaultdict(list)
    for site in _C._sanitizer_live_blocks():
        if _is_growing(site) and (frames := frames_of(site)):
            lines[frames] += _unused([_Block(*block) for block in site["blocks"]])
    if not any(lines.values()):
        return []
    held, kept = _memory_of_python()
    leaks = []
    for frames, unused in lines.items():
        left = [block for block in unused if not _lies_in(block, kept)]
        if len({block.execution for block in left}) < REPEATS:
            continue
        size = sum(block.size for block in left)
        access = Access("allocation", None, None, f"{size} bytes", left[0].address, left[0].size, False, frames=frames)
        in_python = any(_lies_in(block, held) for block in left)
        leaks.append(Leak("leak", access, None, (), count=len(left), size=size, in_python=in_python))
    return sorted(leaks, key=lambda leak: -leak.size)


def _is_growing(site: Mapping[str, Any]) -> bool:
    rises, last_rise = int(site["rises"]), int(site["last_rise"])
    return rises >= REPEATS and int(site["executions"] - last_rise) * rises <= PATIENCE * last_rise


def _unused(blocks: list[_Block]) -> list[_Block]:
    """Returns those that were not used once two further executions had begun; none, if those are of few executions."""
    blocks.sort(key=lambda block: block.allocated)
    begins: dict[int, int] = {}
    for block in blocks:
        begins.setdefault(block.execution, block.allocated)
    executions = list(begins)
    until = dict(zip(executions, (begins[later] for later in executions[LOOKS_BACK:]), strict=False))
    unused = [block for block in blocks if block.used <= until.get(block.execution, -1)]
    return unused if len({block.execution for block in unused}) >= REPEATS else []


def _memory_of_python() -> tuple[list[int], list[int]]:
    """Returns addresses of the storages of all tensors; and of those among them that are no leaks. In order."""
    held: set[int] = set()
    kept: set[int] = set()
    with torch._C.DisableTorchFunctionSubclass():
        for each in gc.get_objects():
            if issubclass(type(each), torch.nn.Module):
                buffers = object.__getattribute__(each, "__dict__").get("_buffers") or {}
                kept.update(_address(tensor) for tensor in buffers.values())
            elif issubclass(type(each), torch.Tensor):
                held.add(_address(each))
                if issubclass(type(each), torch.nn.Parameter):
                    kept.add(_address(each))
            elif _has_a_bound(each):
                kept.update(_address(tensor) for tensor in _tensors_in(each))
    return sorted(held), sorted(kept)


def _has_a_bound(each: Any) -> bool:
    if type(each) is deque:
        return each.maxlen is not None
    return type(each) is functools._lru_cache_wrapper and each.cache_parameters()["maxsize"] is not None


def _tensors_in(collection: object) -> Iterator[Any]:
    """Also those in tuples, lists and dicts of it."""
    seen: set[int] = set()
    ahead = gc.get_referents(collection)
    while ahead:
        each = ahead.pop()
        if issubclass(type(each), torch.Tensor):
            yield each
        elif type(each) in (tuple, list, dict) and id(each) not in seen:
            seen.add(id(each))
            ahead += gc.get_referents(each)


def _address(tensor: Any) -> int:
    """Returns 0 if it has no memory of a device. No class of the program is asked, and no lazy clone becomes a copy."""
    try:
        device = torch._C.TensorBase.device.__get__(tensor) if tensor is not None else None
        if device is None or device.type != device_type():
            return 0
        address: int = torch._C._data_address(tensor)  # type: ignore[attr-defined] # the stubs have it not
        return address
    except Exception:  # a tensor without memory, or of a class that is asked all the same
        return 0


def _lies_in(block: _Block, addresses: list[int]) -> bool:
    first = bisect.bisect_left(addresses, block.address)
    return first < len(addresses) and addresses[first] < block.address + block.size
