"""Loads and stores of device memory, and what a kernel asks about its place in the grid."""

from __future__ import annotations

from torch_mtia.triton.emit import bounds
from torch_mtia.triton.emit.elementwise import pointee_size
from torch_mtia.triton.emit.kernel import KernelEmitter
from torch_mtia.triton.emit.nest import Index, Pointers, Strip, read, write
from torch_mtia.triton.emit.parameters import GRID, HOST_OFFSET, PROGRAM
from torch_mtia.triton.emit.registry import Unsupported, lazy, scalar, statement
from torch_mtia.triton.floats import element_size, llvm_element
from torch_mtia.triton.lanes import AFFINE_RULES, Lane, add_strides, affine_rule, materialize, scale_stride
from torch_mtia.triton.llvm import Builder, integer, vector_type
from torch_mtia.triton.ttir import Op
from torch_mtia.triton.ttir import Value as Tensor


@statement("tt.get_program_id")
def _program_id(em: KernelEmitter, op: Op) -> None:
    em.set_scalar(op.results[0], PROGRAM[op.attributes["axis"]])


@statement("tt.get_num_programs")
def _num_programs(em: KernelEmitter, op: Op) -> None:
    em.set_scalar(op.results[0], GRID[op.attributes["axis"]])


def offset_address(b: Builder, address: Lane, offset: Lane, size: int, width: int) -> Lane:
    """address + offset * size; offsets are signed."""
    if address.uniform and offset.uniform:
        wide = b.sext(offset.value, "i64")
        return Lane(b.add(address.value, b.mul(wide, integer(size, "i64"))))
    if address.affine and offset.affine:
        extended = AFFINE_RULES["arith.extsi"](b, [offset], width) if offset.value.type == "i32" else offset
        if extended is not None and extended.value.type == "i64":
            assert extended.stride is not None
            assert address.stride is not None
            scaled = scale_stride(b, extended.stride, integer(size, "i64"))
            if scaled is not None:
                moved = b.add(address.value, b.mul(extended.value, integer(size, "i64")))
                return Lane(moved, add_strides(b, address.stride, scaled, "i64"))
    vector = b.cast("sext", materialize(b, offset, width), "i64")
    if size != 1:
        vector = b.mul(vector, integer(size, vector.type))
    if address.uniform:
        return Lane(b.add(b.splat(address.value, width), vector), None)
    return Lane(b.add(materialize(b, address, width), vector), None)


@lazy("tt.addptr", cost=1)
def _addptr(strip: Strip, op: Op, number: int, index: Index) -> Lane:
    address, offset = (strip.value(operand, index) for operand in op.operands)
    return offset_address(strip.b, address, offset, pointee_size(op), strip.width)


@affine_rule("tt.bitcast")
def _bitcast_pointer(b: Builder, lanes: list[Lane], width: int) -> Lane | None:
    return lanes[0] if lanes[0].value.type == "i64" else None


def pointers_of(em: KernelEmitter, address: Lane, width: int) -> Pointers:
    """Host addresses of a strip of device addresses."""
    if address.stride is not None:
        return Pointers(em.address(address.value), address.stride)
    moved = em.b.add(address.value, em.b.splat(HOST_OFFSET, width))
    return Pointers(em.b.define(vector_type(width, "ptr"), f"inttoptr {moved} to {vector_type(width, 'ptr')}"), None)


def memory_element(pointer: Tensor) -> tuple[str, int]:
    """LLVM type and size of what a pointer points to."""
    pointee = pointer.type.pointee
    if pointee.startswith("!tt.ptr"):
        return "i64", 8
    if pointee == "i1":
        return "i8", 1
    return llvm_element(pointee), element_size(pointee)


def _from_memory(b: Builder, lane: Lane, pointer: Tensor) -> Lane:
    return Lane(b.cast("trunc", lane.value, "i1"), lane.stride) if pointer.type.pointee == "i1" else lane


def _to_memory(b: Builder, lane: Lane, pointer: Tensor) -> Lane:
    return Lane(b.cast("zext", lane.value, "i8"), lane.stride) if pointer.type.pointee == "i1" else lane


def load_operands(op: Op) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """(pointer, mask, other) of a load."""
    pointer, mask, other = op.segments()
    return pointer[0], mask[0] if mask else None, other[0] if other else None


def load_lane(em: KernelEmitter, op: Op, address: Lane, mask: Lane | None, other: Lane | None, width: int) -> Lane:
    pointer = op.operands[0]
    if pointer.type.pointee.startswith("tensor"):
        raise Unsupported("a load through a block pointer that was not rewritten", op.location)
    memory, size = memory_element(pointer)
    if em.check_bounds:
        mask = bounds.checked(em, op, address, size, mask, width)
    if other is not None:
        other = _to_memory(em.b, other, pointer)
    lane = read(em.b, pointers_of(em, address, width), memory, size, width, mask, other)
    return _from_memory(em.b, lane, pointer)


@lazy("tt.load", cost=24)
def _load(strip: Strip, op: Op, number: int, index: Index) -> Lane:
    pointer, mask, other = load_operands(op)
    return load_lane(
        strip.emitter,
        op,
        strip.value(pointer, index),
        strip.value(mask, index) if mask is not None else None,
        strip.value(other, index) if other is not None else None,
        strip.width,
    )


@scalar("tt.load")
def _scalar_load(em: KernelEmitter, op: Op) -> None:
    pointer, mask, other = load_operands(op)
    lane = load_lane(
        em,
        op,
        em.scalar(pointer),
        em.scalar(mask) if mask is not None else None,
        em.scalar(other) if other is not None else None,
        0,
    )
    em.scalars[op.results[0]] = lane


def store_lane(em: KernelEmitter, op: Op, address: Lane, value: Lane, mask: Lane | None, width: int) -> None:
    pointer = op.operands[0]
    memory, size = memory_element(pointer)
    if em.check_bounds:
        mask = bounds.checked(em, op, address, size, mask, width)
    stored = _to_memory(em.b, value, pointer)
    write(em.b, pointers_of(em, address, width), memory, size, width, stored, mask)


@statement("tt.store", writes=True)
def _store(em: KernelEmitter, op: Op) -> None:
    pointer, value = op.operands[:2]
    mask = op.operands[2] if len(op.operands) > 2 else None
    if pointer.type.pointee.startswith("tensor"):
        raise Unsupported("a store through a block pointer that was not rewritten", op.location)
    shape = pointer.type.shape
    if shape is None:
        store_lane(em, op, em.scalar(pointer), em.scalar(value), em.scalar(mask) if mask is not None else None, 0)
        return
    roots = [pointer, value] + ([mask] if mask is not None else [])
    # Everything is read before anything is written.
    if hazards := em.hazardous(roots):
        em.materialize(hazards, op, dim=em.choose_dim(roots, shape))

    def body(strip: Strip) -> None:
        flags = strip.value(mask) if mask is not None else None
        store_lane(em, op, strip.value(pointer), strip.value(value), flags, strip.width)

    em.run_nest(op, roots, shape, body)
