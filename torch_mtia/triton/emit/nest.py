"""Strips, and the values in them: how a nest of loops reads lazy values, buffers and device memory.

Note [Nests]
Tensors are not computed where TTIR defines them. A statement that needs one (a store, a reduction, ...) opens a nest of
loops over the tensor's elements, and the elementwise operations that lead to it are evaluated strip by strip inside:
they fuse, and their cost to LLVM does not depend on the size of the tensor. A value that is dear and is needed again is
written to a buffer by the first nest that evaluates it. `index` says which elements a strip is: one lane structure
(Note [Lanes]) for each dimension.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch_mtia.triton import vecmath
from torch_mtia.triton.emit.registry import ELEMENTWISE, LAZY, Unsupported
from torch_mtia.triton.floats import element_size, llvm_element
from torch_mtia.triton.lanes import AFFINE_RULES, Lane, materialize
from torch_mtia.triton.llvm import (
    Builder,
    Value,
    element_of,
    integer,
    iota,
    suffix,
    undefined,
    vector_type,
    zero,
)
from torch_mtia.triton.ttir import Op
from torch_mtia.triton.ttir import Value as Tensor

if TYPE_CHECKING:
    from torch_mtia.triton.emit.kernel import KernelEmitter

Index = tuple[Lane, ...]


def complete(index: Sequence[Lane | None]) -> Index:
    """An index whose dimensions were filled in one by one."""
    return tuple(lane for lane in index if lane is not None)


@dataclasses.dataclass(eq=False)
class Buffer:
    """A tensor in scratch memory: `address` of element 0 and the distance of neighbours in each dimension, in elements.
    Booleans take a byte."""

    address: Value
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    element: str
    root: str = ""  # the allocation it is part of

    @property
    def memory_type(self) -> str:
        return "i8" if self.element == "i1" else llvm_element(self.element)

    @property
    def size(self) -> int:
        return element_size(self.element)

    def with_view(self, shape: tuple[int, ...], strides: tuple[int, ...]) -> Buffer:
        return Buffer(self.address, shape, strides, self.element, self.root)

    def row_major(self) -> bool:
        return all(
            size == 1 or stride == expected
            for size, stride, expected in zip(self.shape, self.strides, row_major(self.shape), strict=True)
        )


def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, stride = [], 1
    for size in reversed(shape):
        strides.append(stride)
        stride *= size
    return tuple(reversed(strides))


def innermost_first(shape: tuple[int, ...], dim: int) -> tuple[int, ...]:
    """Strides with `dim` innermost and the other dimensions in order."""
    order = [d for d in range(len(shape)) if d != dim] + ([dim] if shape else [])
    strides, stride = [0] * len(shape), 1
    for d in reversed(order):
        strides[d] = stride
        stride *= shape[d]
    return tuple(strides)


class Strip:
    """The elements of a nest's shape at `index`, `width` of them (0: one, as a scalar)."""

    def __init__(
        self,
        emitter: KernelEmitter,
        index: Index,
        width: int,
        saves: dict[Tensor, Buffer] | None = None,
        outer: dict[tuple[object, ...], Lane] | None = None,
    ) -> None:
        self.emitter = emitter
        self.b: Builder = emitter.b
        self.index = index
        self.width = width
        self.saves = saves or {}
        # What was evaluated outside of the innermost loop stays valid inside.
        self.cache: dict[tuple[object, ...], Lane] = dict(outer or {})

    def value(self, value: Tensor, index: Index | None = None) -> Lane:
        """The strip of a tensor at `index`, of a scalar itself."""
        if value.type.shape is None:
            return self.emitter.scalar(value)
        index = self.index if index is None else index
        key = (value, *map(id, index))
        found = self.cache.get(key)
        if found is None:
            found = self.cache[key] = self._evaluate(value, index)
            # `index` must outlive the cache, or its identity could be reused.
            self.cache[(key, "index")] = Lane(undefined("i1")) if index is self.index else _Kept(index)
        return found

    def vector(self, value: Tensor, index: Index | None = None) -> Value:
        return materialize(self.b, self.value(value, index), self.width)

    def _evaluate(self, value: Tensor, index: Index) -> Lane:
        buffer = self.emitter.buffers.get(value)
        if buffer is not None:
            return read_buffer(self.b, buffer, index, self.width)
        advanced = self.emitter.advanced.get(value)
        if advanced is not None:
            start, distance = advanced
            return _advance(self.b, self.value(start, index), distance, self.width)
        op = value.op
        if op is None:
            raise AssertionError(f"{value} was not emitted")
        if rule := LAZY.get(op.name):
            lane = rule(self, op, value.number, index)
        elif op.name in ELEMENTWISE:
            lanes = [self.value(operand, index) for operand in op.operands]
            results = apply(self.b, op, lanes, self.width)
            for result, computed in zip(op.results, results, strict=True):
                if result is not value:
                    place = (result, *map(id, index))
                    self.cache[place] = computed
            lane = results[value.number]
        else:
            raise Unsupported(f"operation {op.name}", op.location)
        if index is self.index and value in self.saves:
            write_buffer(self.b, self.saves[value], index, lane, self.width)
        return lane


ZERO = Lane(integer(0, "i32"))  # the index along a dimension that is broadcast


def _advance(b: Builder, start: Lane, distance: Value, width: int) -> Lane:
    if start.stride is not None:
        exact = start.exact and b.add(start.exact, b.splat(distance, width))
        return Lane(b.add(start.value, distance), start.stride, exact)
    return Lane(b.add(start.value, b.splat(distance, width)), None)


class _Kept(Lane):
    """Keeps an index alive."""

    __slots__ = ("index",)

    def __init__(self, index: Index) -> None:
        super().__init__(undefined("i1"))
        self.index = index


def apply(b: Builder, op: Op, lanes: list[Lane], width: int) -> list[Lane]:
    """An elementwise operation on strips: on scalars or strides where that is enough, else on vectors."""
    if all(lane.uniform for lane in lanes):
        computed = ELEMENTWISE[op.name](b, op, [lane.value for lane in lanes])
        return [Lane(value) for value in (computed if isinstance(computed, list) else [computed])]
    if width and op.name in AFFINE_RULES and all(lane.affine for lane in lanes):
        lane = AFFINE_RULES[op.name](b, lanes, width)
        if lane is not None:
            if any(operand.exact for operand in lanes):
                lane = Lane(lane.value, lane.stride, _computed(b, op, lanes, width)[0])
            return [lane]
    if op.name == "arith.select" and lanes[0].uniform:
        chosen = b.select(lanes[0].value, *(materialize(b, lane, width) for lane in lanes[1:]))
        return [Lane(chosen, None)]
    if op.name == "arith.divf" and lanes[1].uniform and lanes[1].value.type == "float":
        return [Lane(vecmath.divided_by_scalar(b, materialize(b, lanes[0], width), lanes[1].value), None)]
    return [Lane(value, None) for value in _computed(b, op, lanes, width)]


def _computed(b: Builder, op: Op, lanes: list[Lane], width: int) -> list[Value]:
    computed = ELEMENTWISE[op.name](b, op, [materialize(b, lane, width) for lane in lanes])
    return computed if isinstance(computed, list) else [computed]


# Memory ---------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Pointers:
    """The host addresses of a strip's elements: one and a distance in bytes, or a vector of them (`stride` None)."""

    address: Value
    stride: int | Value | None


def buffer_pointers(b: Builder, buffer: Buffer, index: Index, width: int) -> Pointers:
    """The elements at `index`; the index must lie inside."""
    uniform: Value = integer(0, "i64")
    stride: int | Value = 0
    varying: Value | None = None
    for lane, distance in zip(index, buffer.strides, strict=True):
        if distance == 0:
            continue
        if lane.stride is None:
            element = element_of(lane.value)
            wide = b.cast("sext", lane.value, "i64") if element != "i64" else lane.value
            term = b.mul(wide, b.integer_like(distance, wide))
            varying = term if varying is None else b.add(varying, term)
            continue
        uniform = b.add(uniform, b.mul(b.sext(lane.value, "i64"), integer(distance, "i64")))
        if isinstance(lane.stride, int):
            if isinstance(stride, int):
                stride += lane.stride * distance
            else:
                stride = b.add(stride, integer(lane.stride * distance, "i64"))
        else:
            step = b.mul(b.sext(lane.stride, "i64"), integer(distance, "i64"))
            stride = b.add(step, integer(stride, "i64") if isinstance(stride, int) else stride)
    memory = buffer.memory_type
    address = b.element_address(buffer.address, memory, uniform) if uniform.constant != 0 else buffer.address
    size = buffer.size
    if varying is None:
        return Pointers(address, stride * size if isinstance(stride, int) else b.mul(stride, integer(size, "i64")))
    if not (isinstance(stride, int) and stride == 0):
        steps = b.splat(integer(stride, "i64") if isinstance(stride, int) else stride, width)
        varying = b.add(varying, b.binary("mul", steps, iota(width, "i64")))
    return Pointers(b.define(vector_type(width, "ptr"), f"getelementptr {memory}, ptr {address.ref}, {varying}"), None)


def pointer_vector(b: Builder, pointers: Pointers, width: int) -> Value:
    if pointers.stride is None:
        return pointers.address
    if isinstance(pointers.stride, int):
        offsets = Value(
            "<" + ", ".join(f"i64 {pointers.stride * lane}" for lane in range(width)) + ">", vector_type(width, "i64")
        )
    else:
        offsets = b.binary("mul", b.splat(pointers.stride, width), iota(width, "i64"))
    return b.define(vector_type(width, "ptr"), f"getelementptr i8, ptr {pointers.address.ref}, {offsets}")


def is_true(mask: Lane | None) -> bool:
    return mask is None or (mask.uniform and mask.value.constant == 1)


def read(
    b: Builder, pointers: Pointers, memory: str, size: int, width: int, mask: Lane | None, other: Lane | None
) -> Lane:
    """A strip from memory; `other` (0 if None) where `mask` is false."""
    unmasked = is_true(mask)
    uniform_address = isinstance(pointers.stride, int) and pointers.stride == 0
    if not width or (uniform_address and (mask is None or mask.uniform) and (other is None or other.uniform)):
        if unmasked:
            return Lane(b.load(memory, pointers.address, size))
        assert mask is not None
        fallback = other.value if other is not None else zero(memory)
        return Lane(_scalar_read(b, pointers.address, memory, size, mask.value, fallback))
    type = vector_type(width, memory)
    if pointers.stride == size and isinstance(pointers.stride, int):
        if unmasked:
            return Lane(b.load(type, pointers.address, size), None)
        assert mask is not None
        fallback = materialize(b, other, width) if other is not None else zero(type)
        return Lane(
            b.intrinsic(
                f"llvm.masked.load.{suffix(type)}.p0",
                type,
                pointers.address,
                integer(size, "i32"),
                materialize(b, mask, width),
                fallback,
            ),
            None,
        )
    flags = materialize(b, mask, width) if mask is not None else Value("splat (i1 true)", vector_type(width, "i1"))
    fallback = materialize(b, other, width) if other is not None else zero(type)
    return Lane(
        b.intrinsic(
            f"llvm.masked.gather.{suffix(type)}.{suffix(vector_type(width, 'ptr'))}",
            type,
            pointer_vector(b, pointers, width),
            integer(size, "i32"),
            flags,
            fallback,
        ),
        None,
    )


def _scalar_read(b: Builder, address: Value, memory: str, size: int, mask: Value, fallback: Value) -> Value:
    before = b.block
    yes, done = b.label("load"), b.label("loaded")
    b.branch(mask, yes, done)
    b.start(yes)
    loaded = b.load(memory, address, size)
    b.jump(done)
    b.start(done)
    return b.phi(memory, [(loaded, yes), (fallback, before)])


def write(b: Builder, pointers: Pointers, memory: str, size: int, width: int, lane: Lane, mask: Lane | None) -> None:
    """A strip to memory, where `mask` is true. Of lanes that share an address, the last one stays."""
    unmasked = is_true(mask)
    if not width:
        if unmasked:
            b.store(lane.value, pointers.address, size)
            return
        assert mask is not None
        with b.when(mask.value):
            b.store(lane.value, pointers.address, size)
        return
    value = materialize(b, lane, width)
    flags = materialize(b, mask, width) if mask is not None else Value("splat (i1 true)", vector_type(width, "i1"))
    if isinstance(pointers.stride, int) and pointers.stride == size:
        if unmasked:
            b.store(value, pointers.address, size)
        else:
            b.intrinsic(
                f"llvm.masked.store.{suffix(value.type)}.p0",
                "void",
                value,
                pointers.address,
                integer(size, "i32"),
                flags,
            )
        return
    b.intrinsic(
        f"llvm.masked.scatter.{suffix(value.type)}.{suffix(vector_type(width, 'ptr'))}",
        "void",
        value,
        pointer_vector(b, pointers, width),
        integer(size, "i32"),
        flags,
    )


def read_buffer(b: Builder, buffer: Buffer, index: Index, width: int) -> Lane:
    pointers = buffer_pointers(b, buffer, index, width)
    lane = read(b, pointers, buffer.memory_type, buffer.size, width, None, None)
    if buffer.element == "i1":
        return Lane(b.cast("trunc", lane.value, "i1"), lane.stride)
    return lane


def write_buffer(b: Builder, buffer: Buffer, index: Index, lane: Lane, width: int) -> None:
    pointers = buffer_pointers(b, buffer, index, width)
    if buffer.element == "i1":
        lane = Lane(b.cast("zext", materialize(b, lane, width), "i8"), None if width else 0)
    write(b, pointers, buffer.memory_type, buffer.size, width, lane, None)
