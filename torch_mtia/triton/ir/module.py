"""What a kernel is, as plain Python objects: Module -> Function -> Region -> Block -> Op -> Value."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple

from torch_mtia.triton.ir.attributes import parse_attributes


class Type(NamedTuple):
    """A scalar (`shape` is None) or a tensor of `element`: f64 f32 f16 bf16 f8... i1 ... i64 index ptr."""

    shape: tuple[int, ...] | None
    element: str
    pointee: str = ""  # of an element `ptr`, in MLIR's spelling

    def scalar(self) -> Type:
        return Type(None, self.element, self.pointee)

    @property
    def numel(self) -> int:
        count = 1
        for size in self.shape or ():
            count *= size
        return count


class Location(NamedTuple):
    file: str
    line: int


@dataclasses.dataclass(slots=True, eq=False)
class Value:
    """One SSA value: the result of `op`, or an argument of `block` when `op` is None."""

    name: str
    type: Type
    op: Op | None = None
    block: Block | None = None
    number: int = 0
    users: list[Op] = dataclasses.field(default_factory=list)

    def __repr__(self) -> str:
        return self.name

    def block_of(self) -> Block | None:
        """The block that defines it."""
        return self.block if self.op is None else self.op.block


@dataclasses.dataclass(slots=True, eq=False)
class Op:
    name: str
    operands: list[Value]
    results: list[Value]
    regions: list[Region]
    successors: list[Block]
    block: Block
    position: int  # in the block
    location: Location
    attribute_text: str
    _attributes: dict[str, Any] | None = None

    @property
    def attributes(self) -> dict[str, Any]:
        if self._attributes is None:
            self._attributes = parse_attributes(self.attribute_text)
        return self._attributes

    def segments(self) -> list[list[Value]]:
        """The operands, split as `operandSegmentSizes` says."""
        groups, first = [], 0
        for size in self.attributes["operandSegmentSizes"]:
            groups.append(self.operands[first : first + size])
            first += size
        return groups


@dataclasses.dataclass(slots=True, eq=False)
class Block:
    region: Region
    arguments: list[Value] = dataclasses.field(default_factory=list)
    ops: list[Op] = dataclasses.field(default_factory=list)

    @property
    def terminator(self) -> Op:
        return self.ops[-1]


@dataclasses.dataclass(slots=True, eq=False)
class Region:
    parent: Op | None
    blocks: list[Block] = dataclasses.field(default_factory=list)

    def walk(self) -> Iterator[Op]:
        for block in self.blocks:
            for op in block.ops:
                yield op
                for region in op.regions:
                    yield from region.walk()


@dataclasses.dataclass(slots=True, eq=False)
class Function:
    name: str
    body: Region
    argument_attributes: list[dict[str, Any]]
    public: bool
    location: Location


@dataclasses.dataclass(slots=True, eq=False)
class Module:
    functions: dict[str, Function]

    def blocks(self) -> Iterator[Block]:
        """The blocks of all functions and of the regions in them, always in the same order."""
        for function in self.functions.values():
            yield from function.body.blocks
            for op in function.body.walk():
                for region in op.regions:
                    yield from region.blocks

    @property
    def kernel(self) -> Function:
        return next(function for function in self.functions.values() if function.public)


class Unsupported(Exception):
    """What the compiler cannot do, and where in the kernel."""

    def __init__(self, message: str, location: Location | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.location = location
