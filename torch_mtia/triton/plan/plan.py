"""What is decided about a kernel before any code is written: which loops, along which dimensions, what is kept where.

A plan is a list of steps in program order; those of control flow have lists of their own. Nothing changes once it is
made. Passes over it (passes.py, instrumentation.py, cost.py) return a new one. text.py prints one, as `title` and
`shown` say; emit/ writes the code for it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import field
from typing import ClassVar

from torch_mtia.triton import abi
from torch_mtia.triton.analyses.few_bits import FewBits
from torch_mtia.triton.analyses.masks import End, ReductionEnd
from torch_mtia.triton.analyses.provenance import Step as Move
from torch_mtia.triton.analyses.symbolic import Expression
from torch_mtia.triton.ir.elements import element_size
from torch_mtia.triton.ir.module import Block, Module, Op, Value
from torch_mtia.triton.plan.nests import Accesses, Buffer, Lifetime, Nest, Part, Shape, Sources, Storage, shown, steps

# Steps ----------------------------------------------------------------------------------------------------------------


class Step(Part):
    """One thing that a program does."""

    title: ClassVar[str]


Steps = tuple[Step, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Do(Step):
    """An operation as it is, over `nests`, with some operands and results in buffers."""

    title = "{op}[ with {buffers}]"
    op: Op
    nests: tuple[Nest, ...] = ()
    reads: tuple[Buffer, ...] = ()
    writes: tuple[Buffer | None, ...] = ()

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        return (*self.reads, *filter(None, self.writes))


@dataclasses.dataclass(frozen=True, eq=False)
class Evaluate(Step):
    """Computes tensors into buffers."""

    title = "evaluate {writes}"
    nest: Nest
    writes: tuple[tuple[Value, Buffer], ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Transpose(Step):
    """Computes a tensor in strips along `along` and writes it in strips along `across`, transposed in registers, in
    squares of `lanes`."""

    title = "evaluate {value} -> {target}, in squares transposed in registers"
    value: Value
    target: Buffer
    along: int
    across: int
    shape: Shape = field(
        metadata=shown("over {shape}, {lanes} at a time along dimension {along}, written along {across}")
    )
    lanes: int
    accesses: Accesses = field(metadata=shown("{}: {}"))
    sources: Sources
    ends: Mapping[int, End] = field(metadata=shown("ends along dimension {} {}", optional=True))


@dataclasses.dataclass(frozen=True, eq=False)
class Copy(Step):
    title = "copy {source} -> {target}"
    nest: Nest
    source: Buffer
    target: Buffer


@dataclasses.dataclass(frozen=True, eq=False)
class Store(Step):
    """Stores of one nest. Where `unstaged` is false, they write to `staged` buffers, which `afterwards` copies to
    device memory. Where `nontemporal` is true, they pass by the caches."""

    title = "store {stored}"
    nest: Nest
    stores: tuple[Op, ...]
    # A mask that is true throughout where no loop ends early, if code without it is worth it.
    unmasked: Value | None = field(metadata=shown("without {unmasked} where no loop ends early", optional=True))
    unstaged: Expression = field(metadata=shown("unstaged"))
    nontemporal: Expression | None = field(metadata=shown("past the caches", optional=True))
    staged: tuple[Buffer, ...] = ()
    afterwards: Steps = field(default=(), metadata=steps("  otherwise by way of {staged}"))

    @property
    def stored(self) -> str:
        return ", ".join(f"{store.operands[1]} to {store.operands[0]}" for store in self.stores)


@dataclasses.dataclass(frozen=True, eq=False)
class AddNeighbours(Step):
    """An atomic sum of elements that are neighbours in memory. Those that fill one piece there are swapped at once if
    none of their strip is masked off."""

    title = "add {op.operands[1]} to {op.operands[0]}, {piece} neighbours at once"
    op: Op
    nest: Nest
    piece: int  # 1: each element by itself


@dataclasses.dataclass(frozen=True, eq=False)
class StoreStaged(Step):
    title = "store {source} to {store.operands[0]}"
    nest: Nest
    store: Op
    source: Buffer


@dataclasses.dataclass(frozen=True, eq=False)
class Reduce(Step):
    """Combines the elements along an axis. Strips lie along `nest.dim`: if that is another dimension, `side` of them
    are reduced side by side; else their lanes are combined at the end."""

    title = "reduce {op.operands} along dimension {axis} to {op.results}[ -> {written}]"
    op: Op
    nest: Nest  # its innermost loop is the one along the axis
    axis: int
    targets: tuple[Buffer | None, ...]  # None: a scalar
    any_order: bool
    side: int
    chains: int  # accumulators for each strip
    # Strips that are combined before the next ones, if the order matters.
    group: int = field(metadata=shown("in {order}"))
    end: ReductionEnd | None = field(
        metadata=shown("ends before {end.end.size} {end}, if the rest changes nothing", optional=True)
    )

    @property
    def written(self) -> tuple[Buffer, ...]:
        return tuple(filter(None, self.targets))

    @property
    def order(self) -> str:
        order = "any order" if self.any_order else "order of the indices"
        if self.across:
            return f"{order}, {self.side} strips side by side"
        if self.any_order:
            return f"{order}, {self.chains} accumulators of {max(self.nest.lanes, 1)} lanes"
        return f"{order}, {self.group} strips at a time"

    @property
    def across(self) -> bool:
        return self.nest.dim != self.axis

    @property
    def step(self) -> int:
        """Indices along the axis from one strip to the next."""
        return 1 if self.across else max(self.nest.lanes, 1)


@dataclasses.dataclass(frozen=True, eq=False)
class Scan(Step):
    title = "scan {op.operands} along dimension {axis}, {direction}, to {op.results} -> {targets}"
    op: Op
    nest: Nest
    axis: int
    targets: tuple[Buffer, ...]
    reverse: bool

    @property
    def direction(self) -> str:
        return "backward" if self.reverse else "forward"

    @property
    def step(self) -> int:
        return 1 if self.nest.dim != self.axis else max(self.nest.lanes, 1)


# Matrix products ------------------------------------------------------------------------------------------------------


def per_word(element: str) -> int:
    """How many numbers of a format share a word of 32 bits; 1 if there are no words."""
    return 4 // element_size(element) if element else 1


@dataclasses.dataclass(frozen=True, eq=False)
class Operand(Part):
    """How a product reads a matrix. Packed: from `buffer`, where a left operand is in row-major order, a right one in
    panels of as many columns as there are accumulators. Without a buffer, a left operand is read in place, where it is
    loaded from, and a right one is evaluated in the strips that are multiplied."""

    value: Value
    buffer: Buffer | None = None
    # Bits that the words of what is evaluated are looked up by.
    few_bits: FewBits | None = field(default=None, metadata=shown("looks {value} up by {few_bits}"))


@dataclasses.dataclass(frozen=True, eq=False)
class Pack(Step):
    """Evaluates operands into their buffers, converted. `words`: a format of 8 or 16 bits, of which several rows share
    32 bits. Words of `columns` lie side by side in memory: strips go along these, and are transposed in registers."""

    title = "pack {packed}, {form}[, transposed from columns {columns}]"
    operands: tuple[Operand, ...]
    nest: Nest
    words: str = ""
    columns: str = ""  # AT_ONE_DISTANCE, if the elements of a column are that in memory, or ANYWHERE

    @property
    def packed(self) -> tuple[tuple[Value, Buffer | None], ...]:
        return tuple((operand.value, operand.buffer) for operand in self.operands)

    @property
    def form(self) -> str:
        (_, target), *_ = self.packed
        return f"in words of {self.words}" if self.words or target is None else f"as {target.element}"


AT_ONE_DISTANCE, ANYWHERE = "at one distance", "anywhere"


@dataclasses.dataclass(frozen=True, eq=False)
class Decode(Step):
    """A microscaled operand as f32: `inner` is the dimension that is summed over, `packed` the one along which numbers
    of four bits share a byte."""

    title = "decode {source}[ times {scales}] -> {target}, from {format}"
    nest: Nest
    source: Buffer
    scales: Buffer | None
    target: Buffer
    format: str
    inner: int
    packed: int


@dataclasses.dataclass(frozen=True, eq=False)
class Factors(Part):
    """The operands of a product."""

    left: Operand
    right: Operand


@dataclasses.dataclass(frozen=True)
class Accumulators:
    """What stays in registers."""

    rows: int
    vectors: int  # of each row
    lanes: int
    tiles: bool  # whether each 16 vectors, one below the other, are a register of AMX

    @property
    def columns(self) -> int:
        return self.vectors * self.lanes

    def __str__(self) -> str:
        if self.tiles:
            return f"{self.rows // self.lanes} x {self.vectors} tiles of {self.lanes} x {self.lanes}"
        return f"{self.rows} x {self.vectors} vectors of {self.lanes} lanes"


@dataclasses.dataclass(frozen=True, eq=False)
class Upcoming(Part):
    """What is fetched of the right operand of the next product, which most likely lies after the rows that `load` reads
    for this one: `lines` of the cache of each `share` of them. A share is one of each tile of accumulators, or, where
    the operand is evaluated, that of each of its rows."""

    load: Op
    ahead: int  # rows
    level: int  # of the caches
    share: int
    lines: int = field(
        metadata=shown(
            "prefetches what follows {load.results}, {=ahead} rows ahead: {=lines} of {share} lines with each {unit}",
            optional=True,
        )
    )

    @property
    def unit(self) -> str:
        return "tile" if self.level == 1 else "row, to level 2"


_SIZES = "{sizes}, {depth} products at a time[, in chunks of {chunk}], {=unroll} in a round"


@dataclasses.dataclass(frozen=True, eq=False)
class Multiply(Step):
    """target = `initial` + the sum of left @ right, for every matrix of a batch."""

    title = "multiply {target} {sums} {products}"
    op: Op
    target: Buffer
    inner: int = field(metadata=shown(_SIZES))  # elements of a row of the left operand, rows of the right one
    words: str  # the format of which each element, of 32 bits, holds several; none if empty
    accumulators: Accumulators = field(metadata=shown("accumulators: {accumulators}"))
    products: tuple[Factors, ...]
    upcoming: Upcoming | None
    depth: int  # products that are added before the accumulators go to memory
    chunk: int  # of them, for which rows of a left operand that is read in place are fetched at once; 0: all
    unroll: int  # of them, in a round of the innermost loop
    # Products of f32 that are added in f64, and rounded once, as by an instruction of a GPU; 0: each is rounded.
    instruction: int = field(metadata=shown("rounds after each {instruction} products", optional=True))
    # What the accumulators begin with, evaluated there; the target, for what that holds; None: zeros.
    initial: Value | Buffer | None
    accesses: Accesses = field(metadata=shown("{}: {}"))
    sources: Sources

    @property
    def sums(self) -> str:
        if self.initial is None or self.initial is self.target:
            return "=" if self.initial is None else "+="
        return f"= {self.initial} +"

    @property
    def sizes(self) -> str:
        rows, columns = self.target.shape[-2:]
        return f"{rows} x {self.inner} @ {self.inner} x {columns}"


@dataclasses.dataclass(frozen=True, eq=False)
class Convert(Step):
    title = "convert {source} -> {target}, to {target.element}"
    nest: Nest
    source: Buffer
    target: Buffer


@dataclasses.dataclass(frozen=True, eq=False)
class Clear(Step):
    title = "clear {target}"
    nest: Nest
    target: Buffer


# Control flow ---------------------------------------------------------------------------------------------------------


_CARRIED = "carries {argument}[ in {buffer},][ {verb}] from {initial}[ by {distances}], then {following}"


@dataclasses.dataclass(frozen=True, eq=False)
class Carried(Part):
    """How a value travels around a loop: a scalar by itself, a tensor in a buffer, or as the distance from `initial`
    that `moves` add up to."""

    argument: Value = field(metadata=shown(_CARRIED))
    initial: Value
    following: Value
    result: Value
    buffer: Buffer | None = None
    moves: tuple[Move, ...] | None = None

    @property
    def verb(self) -> str:
        return "advanced" if self.moves else ""

    @property
    def distances(self) -> tuple[Value, ...]:
        return tuple(distance for _, distance in self.moves or ())


@dataclasses.dataclass(frozen=True, eq=False)
class For(Step):
    title = "for {counter} from {op.operands[0]} to {op.operands[1]} by {op.operands[2]}"
    op: Op
    carried: tuple[Carried, ...]
    body: Steps = field(metadata=steps("do"))

    @property
    def counter(self) -> Value:
        return self.op.regions[0].blocks[0].arguments[0]


@dataclasses.dataclass(frozen=True, eq=False)
class While(Step):
    title = "while"
    op: Op
    carried: tuple[Carried, ...]
    head: Steps = field(metadata=steps("check"))  # computes the condition
    body: Steps = field(metadata=steps("do, if {condition}"))

    @property
    def condition(self) -> Value:
        return self.op.regions[0].blocks[0].terminator.operands[0]


@dataclasses.dataclass(frozen=True, eq=False)
class If(Step):
    title = "if {op.operands[0]}[, for {buffers}]"
    op: Op
    branches: tuple[Steps, ...] = field(metadata=steps("then|else"))
    buffers: Mapping[Value, Buffer]  # of results that are tensors


@dataclasses.dataclass(frozen=True, eq=False)
class PlannedBlock(Part):
    block: Block
    steps: Steps


@dataclasses.dataclass(frozen=True, eq=False)
class Body(Part):
    """Of a function: blocks with branches between them."""

    blocks: tuple[PlannedBlock, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Jump(Step):
    title = "go to {block}({values})"
    block: Block
    values: tuple[Value, ...]  # for the block's arguments


@dataclasses.dataclass(frozen=True, eq=False)
class Branch(Step):
    title = "if {condition}"
    condition: Value
    ways: tuple[Steps, Steps] = field(metadata=steps("then|else"))  # each ends in a Jump


@dataclasses.dataclass(frozen=True, eq=False)
class Leave(Step):
    """Leaves a function with scalars; tensors are in the caller's buffers."""

    title = "return[ {values}]"
    values: tuple[Value, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Unreachable(Step):
    title = "unreachable"


@dataclasses.dataclass(frozen=True, eq=False)
class Call(Step):
    title = "call {op.attributes[callee]} for {op.results}"
    op: Op
    arguments: tuple[tuple[Value, Value], ...]  # scalars: (the function's, the caller's)
    body: Body


@dataclasses.dataclass(frozen=True, eq=False)
class MapElements(Step):
    """A function of scalars, with any control flow, for `pack` neighbouring elements at a time."""

    title = "for each element of {sources} -> {targets}, {pack} at a time"
    op: Op
    pack: int
    sources: tuple[Buffer, ...]
    targets: tuple[Buffer, ...]
    body: Body


@dataclasses.dataclass(frozen=True)
class Site:
    """What an instrumented kernel reports of an access: Note [Watched kernels] in mtia_runtime.h."""

    title: ClassVar[str] = "{kinds}[, of {argument}]"
    kind: int  # abi.SITE_...
    argument: Value | None  # of the kernel, that its pointer is computed from

    @property
    def kinds(self) -> str:
        names = ("reads", "writes", "atomic", "acquires", "releases")
        return " ".join(name for bit, name in enumerate(names) if self.kind >> bit & 1) + (
            ", chosen" if self.kind & abi.SITE_CHOOSES else ""
        )


@dataclasses.dataclass(frozen=True, eq=False)
class Plan(Part):
    """Of a whole kernel, for strips of `lanes`."""

    title: ClassVar[str] = "kernel {name}({parameters})"
    module: Module
    name: str
    arguments: tuple[Value, ...]
    divisors: tuple[int, ...]  # a power of two that divides each argument
    body: Body
    lanes: int = field(metadata=shown("strips of {lanes} lanes, {scratch_size} bytes of scratch memory"))
    lifetimes: Mapping[Storage, Lifetime]
    offsets: Mapping[Storage, int]  # in scratch memory; those that are not in use at one time may share it
    scratch_size: int  # bytes, of one program
    # Programs in x of the bands that they run in; 0: in rows of the grid
    band: int = field(metadata=shown("programs run in bands of the grid, {=band} wide in x", optional=True))
    order: int = field(default=0, metadata=shown("programs run in a random order, in turns, of seed {order}"))
    may_wait: bool = False  # a program for another one, which then has to run, too
    cost: int = field(default=0, metadata=shown("about {=cost} ns for each program"))
    # Of integer divisions: the divisors that they look for, which would stop the process.
    guards: Mapping[Op, str] = field(default_factory=dict, metadata=shown("{}, checked for {}"))
    # Of accesses, if the kernel is instrumented.
    sites: Mapping[Op, Site] | None = field(default=None, metadata=shown("watches what {}: {}"))
    # "NaN" or "NaN or infinity", if what makes them is watched too.
    follows: str = field(default="", metadata=shown("watches what makes {follows}"))
    counts: str = field(default="", metadata=shown("counts {counts}"))  # "entered blocks", if these are counted, too

    @property
    def parameters(self) -> str:
        return ", ".join(f"{value}: {value.type.element}" for value in self.arguments)
