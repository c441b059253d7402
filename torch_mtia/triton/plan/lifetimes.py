"""When the memory of a plan is in use, and which scratch memory tensors may share."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

from torch_mtia.triton.plan.nests import Buffer, Lifetime, Part, Storage
from torch_mtia.triton.plan.plan import Body, For, MapElements, Step, Steps, While

ALIGNMENT = 64


def lifetimes(body: Body) -> dict[Storage, Lifetime]:
    """By storage, the first and the last step that use it, counted as plan/text.py prints them."""
    walk = _Walk()
    walk.body(body)
    return {storage: Lifetime(first, last) for storage, (first, last) in walk.uses.items()}


class _Walk:
    def __init__(self) -> None:
        self.step = 0
        self.uses: dict[Storage, tuple[int, int]] = {}

    def body(self, body: Body) -> None:
        start = self.step + 1
        for block in body.blocks:
            self.steps(block.steps)
        if len(body.blocks) > 1:  # in which order they run is not looked at
            for storage, (first, last) in self.uses.items():
                if last >= start:
                    self.uses[storage] = min(first, start), self.step

    def steps(self, steps: Steps) -> None:
        for step in steps:
            self.step += 1
            start = self.step
            for buffer in _buffers(step):
                self._use(buffer.storage)
            for inner in _inside(step):
                if isinstance(inner, Body):
                    self.body(inner)
                else:
                    self.steps(inner)
            if isinstance(step, (For, While, MapElements)):
                self._repeat(start)

    def _use(self, storage: Storage) -> None:
        first, _ = self.uses.get(storage, (self.step, 0))
        self.uses[storage] = first, self.step

    def _repeat(self, start: int) -> None:
        """What runs again from `start` on finds what was there before."""
        for storage, (first, last) in self.uses.items():
            if first <= start <= last:
                self.uses[storage] = first, self.step


def _inside(step: Step) -> Iterator[Steps | Body]:
    for field in dataclasses.fields(step):  # type: ignore[arg-type]
        value, title = getattr(step, field.name), field.metadata.get("steps")
        if isinstance(value, Body):
            yield value
        elif title is not None:
            yield from value if "|" in title else (value,)


def _buffers(part: object) -> Iterator[Buffer]:
    """What a step itself uses, without the steps inside it."""
    if isinstance(part, Buffer):
        yield part
    elif isinstance(part, (tuple, Mapping)):
        for item in part.values() if isinstance(part, Mapping) else part:
            if not isinstance(item, (Step, Body)):
                yield from _buffers(item)
    elif isinstance(part, Part):
        yield from _buffers(vars(part))


def offsets(used: Mapping[Storage, Lifetime]) -> dict[Storage, int]:
    """Where in scratch memory each storage is that is not on the stack: two that are in use at one time are apart."""
    placed: dict[Storage, int] = {}
    for storage in sorted(used, key=lambda storage: (used[storage].first, storage.number)):
        if storage.on_stack:
            continue
        offset = 0
        for other in sorted(placed, key=placed.__getitem__):
            if used[other].overlaps(used[storage]) and offset < placed[other] + aligned(other.bytes):
                if offset + aligned(storage.bytes) <= placed[other]:
                    break
                offset = placed[other] + aligned(other.bytes)
        placed[storage] = offset
    return placed


def aligned(bytes_: int) -> int:
    return -(-bytes_ // ALIGNMENT) * ALIGNMENT
