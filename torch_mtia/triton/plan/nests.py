"""Nests of loops over tensors, the buffers that they read and write, and how they access memory; and the parts that a
plan is made of, with what its text shows of them."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any, ClassVar

from torch_mtia.triton.analyses.masks import End
from torch_mtia.triton.ir.elements import element_size
from torch_mtia.triton.ir.module import Op, Value
from torch_mtia.triton.ir.ops import Dims

Shape = tuple[int, ...]


def shown(text: str, *, optional: bool = False) -> dict[str, object]:
    """The metadata of a field that is a line of the plan's text, or of a mapping a line for each entry: text.py.
    `optional`: whether the line may be taken out of the text, since the code is right without it."""
    return {"text": text, "optional": optional}


def steps(title: str) -> dict[str, str]:
    """The metadata of a field of steps, under a title, or of several, with as many titles between bars."""
    return {"steps": title}


class Part:
    """Of a plan: has fields that its text shows."""


def transformed(part: Any, change: Callable[[Any], Any]) -> Any:
    """A part of a plan, or a tuple of them, with each part inside, and then itself, as `change` returns it."""
    if isinstance(part, tuple):
        if not part or not isinstance(part[0], (Part, tuple)):
            return part
        inside = tuple([transformed(each, change) for each in part])
        return part if all(map(operator.is_, inside, part)) else inside
    if not isinstance(part, Part):
        return part
    changes = {}
    for name, old in vars(part).items():
        if isinstance(old, (Part, tuple)) and (new := transformed(old, change)) is not old:
            changes[name] = new
    return change(dataclasses.replace(part, **changes) if changes else part)  # type: ignore[type-var]


def row_major(shape: Shape) -> Shape:
    strides, stride = [], 1
    for size in reversed(shape):
        strides.append(stride)
        stride *= size
    return tuple(reversed(strides))


def innermost_first(shape: Shape, dim: int) -> Shape:
    """Strides with `dim` innermost and the other dimensions in order."""
    order = [d for d in range(len(shape)) if d != dim] + ([dim] if shape else [])
    strides, stride = [0] * len(shape), 1
    for d in reversed(order):
        strides[d] = stride
        stride *= shape[d]
    return tuple(strides)


@dataclasses.dataclass(frozen=True, eq=False)
class Storage:
    """Memory for a tensor, and for those that take its place: on the stack, or in the program's scratch memory."""

    number: int
    elements: int
    element: str
    on_stack: bool

    @property
    def bytes(self) -> int:
        return self.elements * element_size(self.element)


@dataclasses.dataclass(frozen=True)
class Lifetime:
    """From one step to another, both included."""

    first: int
    last: int

    def overlaps(self, other: Lifetime) -> bool:
        return self.first <= other.last and other.first <= self.last


@dataclasses.dataclass(frozen=True, eq=False)
class Buffer:
    """A tensor in scratch memory, from `offset` (bytes) of its storage on; `strides` are the distances of neighbours in
    each dimension, in elements. Booleans take a byte."""

    storage: Storage
    shape: Shape
    strides: Shape
    element: str
    offset: int = 0

    @property
    def size(self) -> int:
        return element_size(self.element)

    def with_view(self, shape: Shape, strides: Shape) -> Buffer:
        return dataclasses.replace(self, shape=shape, strides=strides)

    def row_major(self) -> bool:
        return all(
            size == 1 or stride == expected
            for size, stride, expected in zip(self.shape, self.strides, row_major(self.shape), strict=True)
        )

    def is_at(self, other: Buffer) -> bool:
        """Whether elements with the same index are in the same place."""
        return (self.storage, self.offset, self.strides) == (other.storage, other.offset, other.strides)


@dataclasses.dataclass(frozen=True, eq=False)
class Sources(Part):
    """Where the tensors come from that are not computed where they are needed."""

    materialized: Mapping[Value, Buffer] = field(metadata=shown("reads {} from {}"))
    advanced: Mapping[Value, Value] = field(
        metadata=shown("advances {} from {}")
    )  # by a loop, from where they were before
    true: frozenset[Value] = frozenset()  # masks, where the program knows that they are


@dataclasses.dataclass(frozen=True)
class Access:
    """How a nest accesses the strips of a load or a store: "vector" (neighbours), "strided" (at one distance), "gather"
    or "scatter" (lane by lane), or "scalar". A buffer without a kind is a vector or a scalar. A division of a
    strip by one number is by its "reciprocal", which takes less time and gives the same, or "exact"; one of integers is
    one "scalar" for the strip, or a "vector"."""

    title: ClassVar[str] = "{=kind}[, prefetches {=ahead} {unit} ahead][, {=nontemporal:past the caches}]"
    kind: str
    ahead: int = 0  # of a load of neighbours: so many bytes after the strip, or rows below it, are fetched; 0: nothing
    rows: int | None = None  # the dimension of these rows, which is the pointer's own
    nontemporal: bool = False  # a store that passes by the caches where the step's condition holds

    @property
    def unit(self) -> str:
        return "bytes" if self.rows is None else "rows"


# By operation, or by the tensor in a buffer, and by the dimensions of the nest that its own are; or, with none, by a
# buffer that the step names.
Accesses = dict[tuple["Op | Value | Buffer", Dims], Access]


@dataclasses.dataclass(frozen=True, eq=False)
class Nest(Part):
    """Loops over all elements of `shape`, in strips of `lanes` (0: one by one) along `dim`, which is the innermost.

    Note [Nests]
    Tensors are not computed where TTIR defines them. A statement that needs one (a store, a reduction, ...) opens a
    nest of loops over the tensor's elements, and the fused operations that lead to it are evaluated strip by strip
    inside: their cost to LLVM does not depend on the size of the tensor. A value that is expensive and is needed again
    is written to a buffer by the first nest that evaluates it.
    """

    shape: Shape = field(metadata=shown("over {shape}, {strip}[, {=unroll} strips in a round]"))
    dim: int
    lanes: int
    roots: tuple[Value, ...]  # what is evaluated
    accesses: Accesses = field(metadata=shown("{}: {}"))
    sources: Sources
    saves: Mapping[Value, Buffer] = field(default_factory=dict, metadata=shown("keeps {} in {}"))
    # Evaluated outside of the innermost loop, at these dimensions.
    hoisted: tuple[tuple[Value, Dims], ...] = field(
        default=(), metadata=shown("outside of the innermost loop: {hoisted}", optional=True)
    )
    ends: Mapping[int, End] = field(default_factory=dict, metadata=shown("ends along dimension {} {}", optional=True))
    unroll: int = 1  # strips in a round of the innermost loop

    @property
    def strip(self) -> str:
        along = f" along dimension {self.dim}" if len(self.shape) > 1 else ""
        return f"{self.lanes} at a time{along}" if self.lanes else "one by one"

    @property
    def strips(self) -> int:
        count = 1
        for d, size in enumerate(self.shape):
            count *= size // max(self.lanes, 1) if d == self.dim else size
        return count
