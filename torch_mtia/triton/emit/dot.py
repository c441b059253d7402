"""Matrix products: operands packed into buffers, and a kernel whose accumulators stay in registers.

The right operand is read in vectors along its rows, the left one element by element, broadcast. Narrow floating-point
operands are widened to f32 while they are packed, so every product is exact before it is added.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from torch_mtia.triton import floats
from torch_mtia.triton.emit.control import assign
from torch_mtia.triton.emit.kernel import KernelEmitter
from torch_mtia.triton.emit.nest import Buffer, Strip, read_buffer, row_major, write_buffer
from torch_mtia.triton.emit.overlap import is_linear
from torch_mtia.triton.emit.registry import Unsupported, statement
from torch_mtia.triton.lanes import Lane, materialize
from torch_mtia.triton.llvm import Value, integer, vector_type, zero
from torch_mtia.triton.ttir import Bits, Dense, Op
from torch_mtia.triton.ttir import Value as Tensor


@dataclasses.dataclass(frozen=True)
class _Tile:
    rows: int
    vectors: int


def _register_tile(registers: int, m: int, columns: int) -> _Tile:
    """The shape of the accumulators: as square as fits, leaving registers for the operands."""
    vectors = min(4 if registers == 32 else 2, columns)
    rows = min((16 if registers == 32 else 8) // vectors, m)
    return _Tile(max(rows, 1), vectors)


def compute_element(op: Op) -> str:
    """What products are computed and added in."""
    accumulator = op.results[0].type.element
    if accumulator in ("f64", "i32", "i64"):
        return accumulator
    if floats.is_float_element(accumulator):
        return "f32"
    raise Unsupported(f"a dot product with results of type {accumulator}", op.location)


@statement("tt.dot")
def _dot(em: KernelEmitter, op: Op) -> None:
    left, right, initial = op.operands
    element = compute_element(op)
    assert left.type.shape is not None
    one_by_one = left if _reads_directly(em, left, element) else pack(em, op, left, element)
    add_product(em, op, one_by_one, pack(em, op, right, element), initial, left.type.shape[-1], element)


def _reads_directly(em: KernelEmitter, value: Tensor, element: str) -> bool:
    """Whether the elements of the left operand are as easy to read where they are as in a buffer."""
    if value.type.element != element or value in em.buffers or em.check_bounds or len(value.type.shape or ()) > 3:
        return False
    op = value.op
    return op is not None and op.name == "tt.load" and len(op.operands) == 1 and is_linear(op.operands[0])


def add_product(
    em: KernelEmitter, op: Op, left: Buffer | Tensor, right: Buffer, initial: Tensor, inner: int, element: str
) -> None:
    """The result of `op`: initial + left @ right, computed in `element`. A left operand that is not in a buffer is read
    where it is needed."""
    (result,) = op.results
    shape = result.type.shape
    assert shape is not None
    starts_at_zero = _is_zero(initial)
    direct = result.type.element == element
    target = em.destination(result, after_reading=True) if direct else em.new_buffer(shape, element)
    operands = {buffer.root for buffer in (left, right) if isinstance(buffer, Buffer)}
    if not target.row_major() or target.root in operands:
        target = em.destination(result, row_major(shape))
    if not starts_at_zero and em.buffers.get(initial) is not target:
        if direct:
            assign(em, op, [initial], [target])
        else:
            _pack_into(em, op, initial, target)
    multiply(em, left, right, target, inner, starts_at_zero)
    if not direct:
        _convert(em, target, em.destination(result))


def _is_zero(value: Tensor) -> bool:
    op = value.op
    if op is None or op.name != "arith.constant":
        return False
    constant = op.attributes["value"]
    if isinstance(constant, Dense):
        if not constant.splat:
            return False
        constant = constant.values[0]
    return constant in (0, Bits(0))


def pack(em: KernelEmitter, op: Op, value: Tensor, element: str) -> Buffer:
    """The operand in row-major order, as numbers of `element`."""
    shape = value.type.shape
    assert shape is not None
    found = em.buffers.get(value)
    if found is not None and found.element == element and found.row_major():
        return found
    target = em.new_buffer(shape, element)
    if value.type.element == element:
        em.materialize([value], op, [target])
        if found is None and em.needed_from(value, op.block, op.position + 1):
            em.buffers[value] = target
    else:
        _pack_into(em, op, value, target)
    return target


def _pack_into(em: KernelEmitter, op: Op, value: Tensor, target: Buffer) -> None:
    source = value.type.element
    b = em.b

    def body(strip: Strip) -> None:
        lane = strip.vector(value)
        if floats.is_float_element(source):
            wide = floats.convert(b, lane, source, target.element)
        else:
            wide = b.cast("sext", lane, target.element)
        write_buffer(b, target, strip.index, Lane(wide, None if strip.width else 0), strip.width)

    em.run_nest(op, [value], target.shape, body)


def _convert(em: KernelEmitter, source: Buffer, target: Buffer) -> None:
    b = em.b

    def body(strip: Strip) -> None:
        lane = read_buffer(b, source, strip.index, strip.width)
        narrow = floats.convert(b, materialize(b, lane, strip.width), source.element, target.element)
        write_buffer(b, target, strip.index, Lane(narrow, None if strip.width else 0), strip.width)

    em.loop_over(target.shape, len(target.shape) - 1, body)


def multiply(
    em: KernelEmitter, left: Buffer | Tensor, right: Buffer, target: Buffer, inner: int, from_zero: bool
) -> None:
    """target += left @ right (or =, from zero), for every matrix of the batch."""
    b = em.b
    *batch, m, n = target.shape
    memory = target.memory_type
    width = min(em.width if target.size <= 4 else em.width // 2, n)
    columns = n // width
    tile = _register_tile(32 if em.width == 16 else 16, m, columns)
    count = 1
    for size in batch:
        count *= size
    start = len(b.lines)
    with b.loop(0, count, 1) as number:
        matrices = [_matrix(em, buffer, number, rows * n) for buffer, rows in ((right, inner), (target, m))]
        element = _left_element(em, left, batch, number, m * inner, inner)
        with b.loop(0, n, width * tile.vectors) as column, b.loop(0, m, tile.rows) as row:
            _register_kernel(em, element, matrices, (row, column), (n, inner), tile, width, memory, from_zero)
    em.cost += (len(b.lines) - start) * em.trips * count * inner * (m // tile.rows) * (columns // tile.vectors)


def _matrix(em: KernelEmitter, buffer: Buffer, number: Value, elements: int) -> Value:
    offset = em.b.mul(em.b.sext(number, "i64"), integer(elements, "i64"))
    return em.b.element_address(buffer.address, buffer.memory_type, offset)


def _left_element(
    em: KernelEmitter, left: Buffer | Tensor, batch: list[int], number: Value, elements: int, inner: int
) -> Callable[[Value, Value], Value]:
    """What gives the element at (row, column) of one matrix of the left operand."""
    b = em.b
    if isinstance(left, Buffer):
        matrix, memory = _matrix(em, left, number, elements), left.memory_type

        def packed(row: Value, column: Value) -> Value:
            place = b.add(b.mul(b.sext(row, "i64"), integer(inner, "i64")), b.sext(column, "i64"))
            return b.load(memory, b.element_address(matrix, memory, place), left.size)

        return packed
    outer = [] if not batch else [Lane(number)]

    def in_place(row: Value, column: Value) -> Value:
        return Strip(em, (*outer, Lane(row), Lane(column)), 0).value(left).value

    return in_place


def _register_kernel(
    em: KernelEmitter,
    left: Callable[[Value, Value], Value],
    matrices: list[Value],
    corner: tuple[Value, Value],
    sizes: tuple[int, int],
    tile: _Tile,
    width: int,
    memory: str,
    from_zero: bool,
) -> None:
    b = em.b
    right, target = matrices
    row, column = (b.sext(value, "i64") for value in corner)
    n, inner = sizes
    type = vector_type(width, memory) if width > 1 else memory
    size = {"float": 4, "double": 8}.get(memory) or int(memory[1:]) // 8

    def target_address(r: int, v: int) -> Value:
        line = b.mul(b.add(row, integer(r, "i64")), integer(n, "i64"))
        return b.element_address(target, memory, b.add(line, b.add(column, integer(v * width, "i64"))))

    places = [(r, v) for r in range(tile.rows) for v in range(tile.vectors)]
    sums = [zero(type) if from_zero else b.load(type, target_address(r, v), size) for r, v in places]
    loop = b.open_loop(0, inner, 1, sums)
    k = b.sext(loop.counter, "i64")
    line = b.add(b.mul(k, integer(n, "i64")), column)
    vectors = [
        b.load(type, b.element_address(right, memory, b.add(line, integer(v * width, "i64"))), size)
        for v in range(tile.vectors)
    ]
    following = []
    for r in range(tile.rows):
        one = left(b.add(corner[0], integer(r, "i32")), loop.counter)
        factor = b.splat(one, width) if width > 1 else one
        for v in range(tile.vectors):
            held = loop.carried[r * tile.vectors + v]
            if memory in ("float", "double"):
                following.append(b.fma(factor, vectors[v], held))
            else:
                following.append(b.add(held, b.mul(factor, vectors[v])))
    sums = b.close_loop(loop, following)
    for (r, v), value in zip(places, sums, strict=True):
        b.store(value, target_address(r, v), size)
