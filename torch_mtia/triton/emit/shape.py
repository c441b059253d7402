"""Operations that only say where an element is found: splat, broadcast, expand_dims, trans, make_range; and those that
rearrange a buffer: reshape, join, split, cat, gather."""

from __future__ import annotations

from torch_mtia.triton.emit.elementwise import constant_value
from torch_mtia.triton.emit.kernel import KernelEmitter
from torch_mtia.triton.emit.nest import ZERO, Buffer, Index, Strip, read_buffer, row_major, write_buffer
from torch_mtia.triton.emit.registry import lazy, scalar, statement
from torch_mtia.triton.floats import llvm_element
from torch_mtia.triton.lanes import Lane
from torch_mtia.triton.llvm import bits_of, element_of, integer, zero
from torch_mtia.triton.ttir import Dense, Op


@scalar("tt.unsplat")
def _unsplat(em: KernelEmitter, op: Op) -> None:
    rank = len(op.operands[0].type.shape or ())
    strip = Strip(em, (ZERO,) * rank, 0)
    em.set_scalar(op.results[0], strip.value(op.operands[0]).value)


@lazy("tt.splat")
def _splat(strip: Strip, op: Op, number: int, index: Index) -> Lane:
    return strip.value(op.operands[0], index)


@lazy("arith.constant")
def _constant(strip: Strip, op: Op, number: int, index: Index) -> Lane:
    constant = op.attributes["value"]
    if not isinstance(constant, Dense) or constant.splat:
        return Lane(constant_value(op, 0))
    shape = op.results[0].type.shape
    assert shape is not None
    element = llvm_element(op.results[0].type.element)
    table = strip.b.constant_array(
        [int(constant_value(op, 0, position).ref) for position in range(len(constant.values))], element
    )
    buffer = Buffer(table, shape, row_major(shape), op.results[0].type.element)
    return read_buffer(strip.b, buffer, index, strip.width)


@lazy("ub.poison")
def _poison(strip: Strip, op: Op, number: int, index: Index) -> Lane:
    return Lane(zero(llvm_element(op.results[0].type.element)))


@lazy("tt.make_range")
def _make_range(strip: Strip, op: Op, number: int, index: Index) -> Lane:
    (lane,) = index
    start = op.attributes["start"]
    if start == 0 or lane.stride is None:
        if start == 0:
            return lane
        return Lane(strip.b.add(lane.value, strip.b.integer_like(start, lane.value)), None)
    return Lane(strip.b.add(lane.value, integer(start, "i32")), lane.stride)


@lazy("tt.expand_dims")
def _expand_dims(strip: Strip, op: Op, number: int, index: Index) -> Lane:
    axis = op.attributes["axis"]
    return strip.value(op.operands[0], index[:axis] + index[axis + 1 :])


@lazy("tt.broadcast")
def _broadcast(strip: Strip, op: Op, number: int, index: Index) -> Lane:
    source, target = op.operands[0].type.shape, op.results[0].type.shape
    assert source is not None
    assert target is not None
    if source == target:
        return strip.value(op.operands[0], index)
    inner = tuple(
        ZERO if size == 1 and wanted != 1 else lane for size, wanted, lane in zip(source, target, index, strict=True)
    )
    return strip.value(op.operands[0], inner)


@lazy("tt.trans")
def _trans(strip: Strip, op: Op, number: int, index: Index) -> Lane:
    inner: list[Lane] = [ZERO] * len(index)
    for position, source in enumerate(op.attributes["order"]):
        inner[source] = index[position]
    return strip.value(op.operands[0], tuple(inner))


@statement("tt.reshape")
def _reshape(em: KernelEmitter, op: Op) -> None:
    """The buffer under another shape: the order of elements stays, also where `allow_reorder` would let it change."""
    (source,), (result,) = op.operands, op.results
    assert source.type.shape is not None
    assert result.type.shape is not None
    buffer = em.row_major_buffer(source, op)
    em.buffers[result] = buffer.with_view(result.type.shape, row_major(result.type.shape))


@statement("tt.join")
def _join(em: KernelEmitter, op: Op) -> None:
    (result,) = op.results
    shape = op.operands[0].type.shape
    assert shape is not None
    whole = em.destination(result)
    for number, operand in enumerate(op.operands):
        part = _part(em, whole, shape, whole.strides[:-1], number)
        em.materialize([operand], op, [part])


@statement("tt.split")
def _split(em: KernelEmitter, op: Op) -> None:
    (source,) = op.operands
    if source not in em.buffers:
        em.materialize([source], op)
    whole = em.buffers[source]
    for number, result in enumerate(op.results):
        assert result.type.shape is not None
        em.buffers[result] = _part(em, whole, result.type.shape, whole.strides[:-1], number * whole.strides[-1])


@statement("tt.cat")
def _cat(em: KernelEmitter, op: Op) -> None:
    (result,) = op.results
    whole = em.destination(result)
    first = 0
    for operand in op.operands:
        assert operand.type.shape is not None
        em.materialize([operand], op, [_part(em, whole, operand.type.shape, whole.strides, first * whole.strides[0])])
        first += operand.type.shape[0]


def _part(em: KernelEmitter, whole: Buffer, shape: tuple[int, ...], strides: tuple[int, ...], offset: int) -> Buffer:
    address = em.b.offset(whole.address, offset * whole.size)
    return Buffer(address, shape, strides, whole.element, whole.root)


@statement("tt.gather")
def _gather(em: KernelEmitter, op: Op) -> None:
    """result[..., i, ...] = source[..., indices[..., i, ...], ...] along one axis."""
    source, indices = op.operands
    (result,) = op.results
    axis = op.attributes["axis"]
    if source not in em.buffers:
        em.materialize([source], op)
    table = em.buffers[source]
    shape = indices.type.shape
    assert shape is not None
    target = em.destination(result)

    def body(strip: Strip) -> None:
        # An index outside has no defined result, but must not read other memory.
        position = strip.vector(indices)
        if bits_of(element_of(position)) < 32:
            position = em.b.zext(position, "i32")  # uint8 has places that int8 does not reach
        limit = em.b.integer_like(table.shape[axis] - 1, position)
        inside = Lane(em.b.binary("and", position, limit), None if strip.width else 0)
        index = (*strip.index[:axis], inside, *strip.index[axis + 1 :])
        write_buffer(em.b, target, strip.index, read_buffer(em.b, table, index, strip.width), strip.width)

    em.run_nest(op, [indices], shape, body)


@statement("tt.histogram")
def _histogram(em: KernelEmitter, op: Op) -> None:
    """How often each number below the result's size occurs, where the mask is true."""
    source = op.operands[0]
    mask = op.operands[1] if len(op.operands) > 1 else None
    (result,) = op.results
    assert source.type.shape is not None
    assert result.type.shape is not None
    (bins,) = result.type.shape
    b = em.b
    roots = [source] + ([mask] if mask is not None else [])
    buffers = em.materialize(roots, op)
    counts = em.destination(result)

    def clear(strip: Strip) -> None:
        write_buffer(b, counts, strip.index, Lane(integer(0, llvm_element(counts.element))), strip.width)

    def count(strip: Strip) -> None:
        values = [read_buffer(b, buffer, strip.index, 0).value for buffer in buffers]
        number = values[0]
        inside = b.icmp("ult", b.zext(number, "i64"), integer(bins, "i64"))
        if mask is not None:
            inside = b.binary("and", inside, values[1])
        with b.when(inside):
            place = (Lane(b.zext(number, "i64")),)
            old = read_buffer(b, counts, place, 0).value
            write_buffer(b, counts, place, Lane(b.add(old, b.integer_like(1, old))), 0)

    em.loop_over((bins,), 0, clear)
    em.loop_over(source.type.shape, 0, count, width=1)
