"""Reads and writes strips: of buffers, and of device memory."""

from __future__ import annotations

import dataclasses

from torch_mtia.triton.analyses.strips import kind_of
from torch_mtia.triton.emit.environment import Environment, memory_type
from torch_mtia.triton.lanes import Index, Lane, materialize
from torch_mtia.triton.llvm import Builder
from torch_mtia.triton.llvm_value import Value, element_of, integer, iota, suffix, vector_type, zero
from torch_mtia.triton.plan.nests import Buffer


@dataclasses.dataclass
class Pointers:
    """The host addresses of a strip's elements: one and a distance in bytes, or a vector of them (`stride` None)."""

    address: Value
    stride: int | Value | None


def buffer_pointers(b: Builder, address: Value, buffer: Buffer, index: Index, width: int) -> Pointers:
    """The elements at `index` of a buffer at `address`; the index must lie inside."""
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
    memory = memory_type(buffer.element)
    address = b.element_address(address, memory, uniform) if uniform.constant != 0 else address
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
    b: Builder, pointers: Pointers, memory: str, size: int, width: int, mask: Lane | None, other: Lane | None, kind: str
) -> Lane:
    """A strip from memory, accessed as Access.kind says; `other` (0 if None) where `mask` is false."""
    unmasked = is_true(mask)
    if kind == "scalar":
        if unmasked:
            return Lane(b.load(memory, pointers.address, size))
        assert mask is not None
        fallback = other.value if other is not None else zero(memory)
        return Lane(_scalar_read(b, pointers.address, memory, size, mask.value, fallback))
    type = vector_type(width, memory)
    if kind == "vector":
        assert pointers.stride == size, "planned as neighbours"
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


def write(
    b: Builder, pointers: Pointers, memory: str, size: int, width: int, lane: Lane, mask: Lane | None, kind: str
) -> None:
    """A strip to memory, accessed as Access.kind says, where `mask` is true. Of lanes that share an address, the last
    one stays."""
    unmasked = is_true(mask)
    if kind == "scalar":
        if unmasked:
            b.store(lane.value, pointers.address, size)
            return
        assert mask is not None
        with b.when(mask.value):
            b.store(lane.value, pointers.address, size)
        return
    value = materialize(b, lane, width)
    flags = materialize(b, mask, width) if mask is not None else Value("splat (i1 true)", vector_type(width, "i1"))
    if kind == "vector":
        assert pointers.stride == size, "planned as neighbours"
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


def read_buffer(env: Environment, buffer: Buffer, index: Index, width: int, kind: str | None = None) -> Lane:
    return read_table(env.b, env.address_of(buffer), buffer, index, width, kind)


def read_table(b: Builder, address: Value, buffer: Buffer, index: Index, width: int, kind: str | None = None) -> Lane:
    """A strip of a buffer that begins at `address`. `kind`: how the plan accesses it; None where it says nothing, so a
    vector or a scalar."""
    pointers = buffer_pointers(b, address, buffer, index, width)
    if kind is None:
        kind = kind_of(pointers, buffer.size, width)
        assert kind in ("vector", "scalar"), "the plan names all others"
    lane = read(b, pointers, memory_type(buffer.element), buffer.size, width, None, None, kind)
    if buffer.element == "i1":
        return Lane(b.cast("trunc", lane.value, "i1"), lane.stride)
    return lane


def write_buffer(
    env: Environment, buffer: Buffer, index: Index, lane: Lane, width: int, kind: str | None = None
) -> None:
    """`kind`: as of `read_table`."""
    b = env.b
    pointers = buffer_pointers(b, env.address_of(buffer), buffer, index, width)
    if buffer.element == "i1":
        lane = Lane(b.cast("zext", materialize(b, lane, width), "i8"), None if width else 0)
    kind = kind or ("vector" if width else "scalar")
    write(b, pointers, memory_type(buffer.element), buffer.size, width, lane, None, kind)
