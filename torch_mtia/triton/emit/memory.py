"""Loads and stores of device memory, and what a kernel asks about its place in the grid."""

from __future__ import annotations

from collections.abc import Sequence

from torch_mtia.triton.emit import bounds
from torch_mtia.triton.emit.elementwise import pointee_size
from torch_mtia.triton.emit.kernel import KernelEmitter
from torch_mtia.triton.emit.nest import Buffer, Index, Pointers, Strip, is_true, read, read_buffer, write, write_buffer
from torch_mtia.triton.emit.overlap import TRUE, has_read, is_linear, may_write_at_once
from torch_mtia.triton.emit.parameters import GRID, HOST_OFFSET, PROGRAM
from torch_mtia.triton.emit.registry import Unsupported, lazy, scalar, statement
from torch_mtia.triton.floats import element_size, llvm_element
from torch_mtia.triton.lanes import Lane, add_strides, affine_rule, materialize, scale_stride, widened
from torch_mtia.triton.llvm import Builder, Value, integer, vector_type
from torch_mtia.triton.ttir import Op
from torch_mtia.triton.ttir import Value as Tensor

STREAMING_BYTES = 2 << 20  # more than the caches of a core keep for whoever reads the result
PREFETCH_BYTES = 2 << 10
# Keeps LLVM from taking what is loaded for what was there before; the processor keeps loads in order by itself.
COMPILER_FENCE = 'fence syncscope("singlethread") acq_rel'
STREAM_OF_BYTES = 1 << 10  # neighbours, at least: short pieces here and there take longer


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
        extended = widened(b, offset) if offset.value.type == "i32" else offset
        if extended.value.type == "i64":
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
    pointers = pointers_of(em, address, width)
    if not op.attributes.get("isVolatile"):
        return _from_memory(em.b, read(em.b, pointers, memory, size, width, mask, other), pointer)
    em.b.emit(COMPILER_FENCE)
    lane = read(em.b, pointers, memory, size, width, mask, other)
    em.b.emit(COMPILER_FENCE)
    return _from_memory(em.b, lane, pointer)


@lazy("tt.load", cost=24)
def _load(strip: Strip, op: Op, number: int, index: Index) -> Lane:
    pointer, mask, other = load_operands(op)
    address = strip.value(pointer, index)
    _fetch_ahead(strip, pointer, address, index)
    return load_lane(
        strip.emitter,
        op,
        address,
        strip.value(mask, index) if mask is not None else None,
        strip.value(other, index) if other is not None else None,
        strip.width,
    )


def _fetch_ahead(strip: Strip, pointer: Tensor, address: Lane, index: Index) -> None:
    """Starts to fetch what the nest reads some strips later: the long chains of a strip's instructions leave the
    processor no room to get there by itself. Behind the last row lies what the next program or round reads."""
    em, shape = strip.emitter, pointer.type.shape
    _, size = memory_element(pointer)
    if not strip.width or address.stride != size or shape is None:
        return
    along = next((d for d, lane in enumerate(index) if lane.stride == 1), None)
    if along is None:
        return
    outer = max((d for d, extent in enumerate(shape) if d != along and extent > 1), default=None)
    if outer is None:
        em.b.prefetch(em.b.offset(em.address(address.value), PREFETCH_BYTES))
    elif is_linear(em.advanced.get(pointer, (pointer,))[0]):
        rows = max(PREFETCH_BYTES // (shape[along] * size), 1)
        below = Lane(em.b.add(index[outer].value, integer(rows, "i32")))
        later = (*index[:outer], below, *index[outer + 1 :])
        em.b.prefetch(em.address(Strip(em, later, strip.width).value(pointer).value))


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
    stores = [*em.put_off.pop(op, []), op]
    at_once = _may_share_a_nest(em, stores) if len(stores) > 1 else None
    if at_once is not None:
        _store_strips(em, stores, at_once)
        return
    for store in stores:
        if store is not op:
            em.order_memory(store)
        _store_alone(em, store)


def _may_share_a_nest(em: KernelEmitter, stores: Sequence[Op]) -> Value | None:
    """Whether stores may all write strip by strip, as may_write_at_once says; None also where their dimensions differ
    along which neighbours lie, or where it takes a load to know what is written."""
    shape = stores[0].operands[0].type.shape
    assert shape is not None
    dims = {em.choose_dim(store.operands, shape) for store in stores}
    places = [place for store in stores for place in (store.operands[0], *store.operands[2:])]
    if len(dims) > 1 or em.hazardous(places):
        return None
    return may_write_at_once(em, stores)


def _store_alone(em: KernelEmitter, op: Op) -> None:
    pointer, value, *mask = op.operands
    if pointer.type.pointee.startswith("tensor"):
        raise Unsupported("a store through a block pointer that was not rewritten", op.location)
    shape = pointer.type.shape
    if shape is None:
        store_lane(em, op, em.scalar(pointer), em.scalar(value), em.scalar(mask[0]) if mask else None, 0)
        return
    at_once = may_write_at_once(em, [op])
    # What reads memory is read now; but the value, if it is only the program that can tell whether that is needed.
    early = [] if at_once is TRUE else em.hazardous([pointer, *mask, *([value] if at_once is None else [])])
    if early:
        em.materialize(early, op, dim=em.choose_dim(op.operands, shape))
    _store_strips(em, [op], TRUE if at_once is None else at_once)


def _store_strips(em: KernelEmitter, stores: Sequence[Op], at_once: Value) -> None:
    """Reads and writes in one nest; where `at_once` is false, it writes to buffers that are copied afterwards."""
    b, op = em.b, stores[-1]
    roots = [root for store in stores for root in store.operands]
    shape = op.operands[0].type.shape
    assert shape is not None
    dim = em.choose_dim(roots, shape)
    masks = {_mask(store) for store in stores}
    staged = [em.save_buffer(store.operands[1], dim) for store in stores] if at_once is not TRUE else []
    streaming = _write_much(em, stores, dim)

    def body(strip: Strip) -> None:
        lanes = [[strip.value(root) for root in store.operands] for store in stores]
        if staged:
            direct, delayed, done = b.label("direct"), b.label("delayed"), b.label("stored")
            b.branch(at_once, direct, delayed)
            b.start(delayed)
            for buffer, (_, value, *_) in zip(staged, lanes, strict=True):
                write_buffer(b, buffer, strip.index, value, strip.width)
            b.jump(done)
            b.start(direct)
        for store, (address, value, *flags) in zip(stores, lanes, strict=True):
            _store_or_stream(em, store, address, value, flags[0] if flags else None, strip.width, streaming)
        if staged:
            b.jump(done)
            b.start(done)

    em.run_nest(op, roots, shape, body, dim=dim, mask=masks.pop() if len(masks) == 1 else None)
    if not staged:
        return
    with b.when(b.binary("xor", at_once, TRUE)):
        for store, buffer in zip(stores, staged, strict=True):
            _copy_to_memory(em, store, buffer, dim)


def _copy_to_memory(em: KernelEmitter, op: Op, values: Buffer, dim: int) -> None:
    shape = op.operands[0].type.shape
    assert shape is not None
    roots = [op.operands[0], *op.operands[2:]]

    def body(strip: Strip) -> None:
        address, *flags = (strip.value(root) for root in roots)
        value = read_buffer(em.b, values, strip.index, strip.width)
        store_lane(em, op, address, value, flags[0] if flags else None, strip.width)

    em.run_nest(op, roots, shape, body, dim=dim, mask=_mask(op))


def _mask(store: Op) -> Tensor | None:
    return store.operands[2] if len(store.operands) > 2 else None


def _write_much(em: KernelEmitter, stores: Sequence[Op], dim: int) -> Value | None:
    """_writes_much of every one of `stores`."""
    result: Value | None = TRUE
    for store in stores:
        is_much = _writes_much(em, store, dim)
        result = None if result is None or is_much is None else em.b.binary("and", result, is_much)
    return result


def _writes_much(em: KernelEmitter, op: Op, dim: int) -> Value | None:
    """An i1: whether the whole grid writes more than caches hold, so that what is written should not displace what
    they have, nor be read into them first: they have what a load has just read (an update of 4 x 4 MB in place takes
    2.0 ms past them, 1.2 through them). None where the store is not of that kind."""
    pointer = op.operands[0]
    size = memory_element(pointer)[1]
    bytes_ = pointer.type.numel * size
    if pointer.type.shape is None or pointer.type.shape[dim] * size < STREAM_OF_BYTES:
        return None
    x, y, z = (em.b.zext(size, "i64") for size in GRID)
    programs = em.b.mul(em.b.mul(x, y), z)
    is_much = em.b.icmp("sge", programs, integer(-(-STREAMING_BYTES // bytes_), "i64"))
    cached = has_read(em, op)
    return is_much if cached is None else em.b.binary("and", is_much, em.b.binary("xor", cached, TRUE))


def _store_or_stream(
    em: KernelEmitter, op: Op, address: Lane, value: Lane, mask: Lane | None, width: int, streaming: Value | None
) -> None:
    b = em.b
    size = memory_element(op.operands[0])[1]
    if streaming is None or not width or address.stride != size or width * size not in (16, 32, 64):
        store_lane(em, op, address, value, mask, width)
        return
    aim, stream, plain, done = (b.label(stem) for stem in ("aim", "stream", "plain", "written"))
    b.branch(streaming, aim, plain)
    b.start(aim)  # such a store needs an aligned address, and has no mask
    host = em.address(address.value)
    misaligned = b.binary("and", b.define("i64", f"ptrtoint {host} to i64"), integer(width * size - 1, "i64"))
    fits = b.icmp("eq", misaligned, integer(0, "i64"))
    if not is_true(mask):
        assert mask is not None
        flags = materialize(b, mask, width)
        fits = b.binary("and", fits, b.intrinsic(f"llvm.vector.reduce.and.v{width}i1", "i1", flags))
    b.branch(fits, stream, plain)
    b.start(stream)
    stored = materialize(b, _to_memory(b, value, op.operands[0]), width)
    b.emit(f"store {stored}, ptr {host.ref}, align {width * size}, !nontemporal !0")
    b.jump(done)
    b.start(plain)
    store_lane(em, op, address, value, mask, width)
    b.jump(done)
    b.start(done)
    em.streams = True
