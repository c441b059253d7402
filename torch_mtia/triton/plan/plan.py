"""What is decided about a kernel before any code is written: which loops, along which dimensions, what is kept where.

A plan is a list of steps in program order; those of control flow have lists of their own. Nothing changes once it is
made. text.py prints one; emit/ writes the code for it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from torch_mtia.triton.analyses.few_bits import FewBits
from torch_mtia.triton.analyses.loops import Step as Move
from torch_mtia.triton.analyses.masks import End, ReductionEnd
from torch_mtia.triton.analyses.symbolic import Expression
from torch_mtia.triton.ir.elements import element_size
from torch_mtia.triton.ir.module import Block, Module, Op, Value
from torch_mtia.triton.ir.ops import Dims

Shape = tuple[int, ...]


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
class Sources:
    """Where the tensors come from that are not computed where they are needed."""

    held: Mapping[Value, Buffer]
    moved: Mapping[Value, Value]  # by a loop, from where they were before
    true: frozenset[Value] = frozenset()  # masks, where the program knows that they are


@dataclasses.dataclass(frozen=True, eq=False)
class Nest:
    """Loops over all elements of `shape`, in strips of `lanes` (0: one by one) along `dim`, which is the innermost.

    Note [Nests]
    Tensors are not computed where TTIR defines them. A statement that needs one (a store, a reduction, ...) opens a
    nest of loops over the tensor's elements, and the fused operations that lead to it are evaluated strip by strip
    inside: their cost to LLVM does not depend on the size of the tensor. A value that is dear and is needed again is
    written to a buffer by the first nest that evaluates it.
    """

    shape: Shape
    dim: int
    lanes: int
    roots: tuple[Value, ...]  # what is evaluated
    sources: Sources
    saves: Mapping[Value, Buffer] = dataclasses.field(default_factory=dict)  # written when they are first evaluated
    hoisted: tuple[tuple[Value, Dims], ...] = ()  # evaluated outside of the innermost loop, at these dimensions
    ends: Mapping[int, End] = dataclasses.field(default_factory=dict)  # by dimension
    together: int = 1  # strips in a round of the innermost loop

    @property
    def strips(self) -> int:
        count = 1
        for d, size in enumerate(self.shape):
            count *= size // max(self.lanes, 1) if d == self.dim else size
        return count


# Steps ----------------------------------------------------------------------------------------------------------------


class Step:
    """One thing that a program does."""


Steps = tuple[Step, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Do(Step):
    """An operation as it is, over `nests`, with some operands and results in buffers."""

    op: Op
    nests: tuple[Nest, ...] = ()
    reads: tuple[Buffer, ...] = ()
    writes: tuple[Buffer | None, ...] = ()


@dataclasses.dataclass(frozen=True, eq=False)
class Evaluate(Step):
    """Computes tensors into buffers."""

    nest: Nest
    writes: tuple[tuple[Value, Buffer], ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Transpose(Step):
    """Computes a tensor in strips along `along` and writes it in strips along `across`, turned in registers, in squares
    of `lanes`."""

    value: Value
    target: Buffer
    along: int
    across: int
    lanes: int
    sources: Sources
    ends: Mapping[int, End]  # by dimension


@dataclasses.dataclass(frozen=True, eq=False)
class Copy(Step):
    nest: Nest
    source: Buffer
    target: Buffer


@dataclasses.dataclass(frozen=True, eq=False)
class Store(Step):
    """Stores of one nest. Where `at_once` is false, they write to `staged` buffers, which `afterwards` copies to device
    memory. Where `streams` is true, they pass by the caches."""

    nest: Nest
    stores: tuple[Op, ...]
    at_once: Expression
    staged: tuple[Buffer, ...] = ()
    afterwards: Steps = ()
    streams: Expression | None = None
    whole: Value | None = None  # the mask, if it is true throughout where no loop ends early; not said of every one


@dataclasses.dataclass(frozen=True, eq=False)
class StoreStaged(Step):
    nest: Nest
    store: Op
    source: Buffer


@dataclasses.dataclass(frozen=True, eq=False)
class Reduce(Step):
    """Combines the elements along an axis. Strips lie along `nest.dim`: if that is another dimension, `side` of them
    are reduced side by side; else their lanes are combined at the end."""

    op: Op
    nest: Nest  # its innermost loop is the one along the axis
    axis: int
    targets: tuple[Buffer | None, ...]  # None: a scalar
    any_order: bool
    side: int
    chains: int  # accumulators for each strip
    group: int  # strips that are combined before the next ones, if the order matters
    end: ReductionEnd | None

    @property
    def across(self) -> bool:
        return self.nest.dim != self.axis

    @property
    def step(self) -> int:
        """Indices along the axis from one strip to the next."""
        return 1 if self.across else max(self.nest.lanes, 1)


@dataclasses.dataclass(frozen=True, eq=False)
class Scan(Step):
    op: Op
    nest: Nest
    axis: int
    targets: tuple[Buffer, ...]
    reverse: bool

    @property
    def step(self) -> int:
        return 1 if self.nest.dim != self.axis else max(self.nest.lanes, 1)


# Matrix products ------------------------------------------------------------------------------------------------------


def per_word(element: str) -> int:
    """How many numbers share 32 bits."""
    return 4 // element_size(element)


@dataclasses.dataclass(frozen=True, eq=False)
class Packed:
    value: Value
    target: Buffer
    few_bits: FewBits | None = None  # that words are looked up by


@dataclasses.dataclass(frozen=True, eq=False)
class Pack(Step):
    """Tensors, converted, in row-major order, or in panels: each has so many of their columns, and all of their rows.
    `words`: a format of 8 or 16 bits, of which several rows share 32 bits. Where it is `turned`, words lie side by side
    in memory: strips go along the rows, and are turned in registers."""

    nest: Nest
    tensors: tuple[Packed, ...]
    words: str = ""
    turned: bool = False


@dataclasses.dataclass(frozen=True, eq=False)
class Decode(Step):
    """A microscaled operand as f32: `inner` is the dimension that is summed over, `packed` the one along which numbers
    of four bits share a byte."""

    nest: Nest
    source: Buffer
    scales: Buffer | None
    target: Buffer
    format: str
    inner: int
    packed: int


@dataclasses.dataclass(frozen=True, eq=False)
class Factors:
    """The operands of a product."""

    left: Buffer | Value  # in a buffer in row-major order, or read where it was loaded from
    right: Buffer | Value  # in panels of as many columns as there are accumulators, or evaluated where it is needed
    few_bits: FewBits | None = None  # that the words of `right` are looked up by, if it is evaluated


@dataclasses.dataclass(frozen=True, eq=False)
class Multiply(Step):
    """target += the sum of left @ right (= with `from_zero`; = `initial` +), for every matrix of a batch."""

    op: Op
    products: tuple[Factors, ...]
    target: Buffer
    inner: int  # elements of a row of `left`, rows of `right`
    words: str  # the format of which each element, of 32 bits, holds several; none if empty
    upcoming: Op | None  # a load: behind its rows lies, most likely, the right operand of the next product
    tiles: bool  # whether each 16 vectors of the accumulators, one below the other, are a register of AMX
    rows: int  # of accumulators that stay in registers
    vectors: int  # of each row of them
    lanes: int
    depth: int  # products that are added before the accumulators go to memory
    from_zero: bool
    initial: Value | None  # what the accumulators begin with, evaluated there; None: zeros, or what the target holds
    sources: Sources

    @property
    def roots(self) -> list[Value]:
        """What is evaluated."""
        parts = [each for factors in self.products for each in (factors.left, factors.right)]
        return [each for each in (*parts, self.initial) if isinstance(each, Value)]


@dataclasses.dataclass(frozen=True, eq=False)
class Convert(Step):
    nest: Nest
    source: Buffer
    target: Buffer


@dataclasses.dataclass(frozen=True, eq=False)
class Clear(Step):
    nest: Nest
    target: Buffer


# Control flow ---------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, eq=False)
class Carried:
    """How a value travels around a loop: a scalar by itself, a tensor in a buffer, or as the distance from `initial`
    that `moves` add up to."""

    argument: Value
    initial: Value
    following: Value
    result: Value
    buffer: Buffer | None = None
    moves: tuple[Move, ...] | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class For(Step):
    op: Op
    carried: tuple[Carried, ...]
    body: Steps


@dataclasses.dataclass(frozen=True, eq=False)
class While(Step):
    op: Op
    carried: tuple[Carried, ...]
    head: Steps  # computes the condition
    body: Steps


@dataclasses.dataclass(frozen=True, eq=False)
class If(Step):
    op: Op
    branches: tuple[Steps, ...]
    buffers: Mapping[Value, Buffer]  # of results that are tensors


@dataclasses.dataclass(frozen=True, eq=False)
class PlannedBlock:
    block: Block
    steps: Steps


@dataclasses.dataclass(frozen=True, eq=False)
class Body:
    """Of a function: blocks with branches between them."""

    blocks: tuple[PlannedBlock, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Jump(Step):
    block: Block
    values: tuple[Value, ...]  # for the block's arguments


@dataclasses.dataclass(frozen=True, eq=False)
class Branch(Step):
    condition: Value
    ways: tuple[Steps, Steps]  # where it is true, and where not; each ends in a Jump


@dataclasses.dataclass(frozen=True, eq=False)
class Leave(Step):
    """Leaves a function with scalars; tensors are in the caller's buffers."""

    values: tuple[Value, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Unreachable(Step):
    pass


@dataclasses.dataclass(frozen=True, eq=False)
class Call(Step):
    op: Op
    arguments: tuple[tuple[Value, Value], ...]  # scalars: (the function's, the caller's)
    body: Body


@dataclasses.dataclass(frozen=True, eq=False)
class MapElements(Step):
    """A function of scalars, with any control flow, for `pack` neighbouring elements at a time."""

    op: Op
    pack: int
    sources: tuple[Buffer, ...]
    targets: tuple[Buffer, ...]
    body: Body


@dataclasses.dataclass(frozen=True, eq=False)
class Plan:
    """Of a whole kernel, for strips of `lanes`."""

    module: Module
    name: str
    arguments: tuple[Value, ...]
    divisors: tuple[int, ...]  # a power of two that divides each argument
    body: Body
    lanes: int
    instrumented: bool
    lifetimes: Mapping[Storage, Lifetime]
    offsets: Mapping[Storage, int]  # in scratch memory; those that are not in use at one time may share it
    scratch_size: int  # bytes, of one program
    in_bands: bool  # whether programs run in bands of the grid (_in_bands in emit/program.py), not in rows
