"""Matrix products: operands packed into buffers, and a kernel whose accumulators stay in registers.

The right operand is read in vectors along its rows, the left one element by element, broadcast. Narrow floating-point
operands are widened to f32 while they are packed, so every product is exact before it is added. Where the processor
has instructions that add two products of 16-bit numbers to one of 32 bits, the operands are packed as pairs of such
numbers, neighbours along the inner dimension, instead.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from torch_mtia.triton import floats
from torch_mtia.triton.emit.control import assign
from torch_mtia.triton.emit.elementwise import pointee_size
from torch_mtia.triton.emit.kernel import KernelEmitter
from torch_mtia.triton.emit.nest import Buffer, Strip, read_buffer, row_major, write_buffer
from torch_mtia.triton.emit.overlap import is_linear
from torch_mtia.triton.emit.registry import Unsupported, statement
from torch_mtia.triton.lanes import Lane, materialize
from torch_mtia.triton.llvm import Value, integer, vector_type, zero
from torch_mtia.triton.ttir import Bits, Dense, Op
from torch_mtia.triton.ttir import Value as Tensor

RIGHT_BYTES = 32 << 10  # of the right operand to keep in the first-level cache
CACHE_LINE = 64
CHUNK = 4 * CACHE_LINE  # of rows of the left operand, to fetch at once
MOST_FETCHES = 16  # at once
BF16_HOLDS = frozenset({"bf16", "f8E5M2", "f8E4M3FN", "f8E5M2FNUZ", "f8E4M3FNUZ"})
AT_ONCE = 4  # products in a round of the loop over them
LEAST_DEPTH = 64  # products to add before the accumulators go to memory


@dataclasses.dataclass(frozen=True)
class _Tile:
    rows: int
    vectors: int


@dataclasses.dataclass(frozen=True)
class Operands:
    left: Buffer | Tensor  # in a buffer in row-major order, or to be read where it was loaded from
    right: Buffer  # in row-major order
    inner: int  # elements of a row of `left`, rows of `right`
    pairs: str = ""  # the 16-bit format of which each element, of 32 bits, holds two; none if empty
    upcoming: Op | None = None  # a load: behind its rows lies, most likely, the right operand of the next product


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
    inner, pairs = left.type.shape[-1], _pairs(em, op)
    packed = pairs or element
    one_by_one = left if _reads_directly(em, left, packed) else pack(em, op, left, packed)
    upcoming = _upcoming(em, op, right)
    if pairs:
        if isinstance(one_by_one, Buffer):
            one_by_one = Buffer(one_by_one.address, (*left.type.shape[:-1], inner // 2), (), "i32", one_by_one.root)
        operands = Operands(one_by_one, _pack_pairs(em, op, right, pairs), inner // 2, pairs, upcoming)
    else:
        operands = Operands(one_by_one, pack(em, op, right, element), inner, upcoming=upcoming)
    add_product(em, op, operands, initial, element)


def _pairs(em: KernelEmitter, op: Op) -> str:
    """The 16-bit format that the operands are packed in pairs of, if there is an instruction for them."""
    (left, right), result = (operand.type for operand in op.operands[:2]), op.results[0].type
    assert right.shape is not None
    inner, columns = right.shape[-2:]
    if inner < 2 or columns < em.width:
        return ""
    elements = {left.element, right.element}
    if "bf16" in em.b.features and elements <= BF16_HOLDS and floats.is_float_element(result.element):
        return "bf16"
    return "i16" if "vnni" in em.b.features and elements == {"i8"} and result.element == "i32" else ""


def _upcoming(em: KernelEmitter, op: Op, right: Tensor) -> Op | None:
    """The load of the right operand, if it is in a loop: mostly the next round reads the rows behind it."""
    parent = op.block.region.parent
    if parent is None or parent.name != "scf.for" or len(right.type.shape or ()) != 2 or right in em.buffers:
        return None
    if right.op is None or right.op.name != "tt.load" or not _is_linear(em, right.op.operands[0]):
        return None
    return right.op


def _is_linear(em: KernelEmitter, pointer: Tensor) -> bool:
    start, _ = em.advanced.get(pointer, (pointer, None))
    return is_linear(start)


def _reads_directly(em: KernelEmitter, value: Tensor, element: str) -> bool:
    """Whether the elements of the left operand are as easy to read where they are as in a buffer."""
    if value.type.element != element or value in em.buffers or em.check_bounds or len(value.type.shape or ()) > 3:
        return False
    op = value.op
    return op is not None and op.name == "tt.load" and len(op.operands) == 1 and _is_linear(em, op.operands[0])


def add_product(em: KernelEmitter, op: Op, operands: Operands, initial: Tensor, element: str) -> None:
    """The result of `op`: initial + left @ right, computed in `element`."""
    (result,) = op.results
    shape = result.type.shape
    assert shape is not None
    starts_at_zero = _is_zero(initial)
    direct = result.type.element == element
    target = em.destination(result, after_reading=True) if direct else em.new_buffer(shape, element)
    roots = {buffer.root for buffer in (operands.left, operands.right) if isinstance(buffer, Buffer)}
    if not target.row_major() or target.root in roots:
        target = em.destination(result, row_major(shape))
    if not starts_at_zero and em.buffers.get(initial) is not target:
        if direct:
            assign(em, op, [initial], [target])
        else:
            _pack_into(em, op, initial, target)
    multiply(em, operands, target, starts_at_zero)
    if not direct:
        _convert(em, target, em.destination(result, after_reading=True))


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


def _pack_pairs(em: KernelEmitter, op: Op, value: Tensor, element: str) -> Buffer:
    """The right operand with two of its rows in one, as numbers of `element`."""
    assert value.type.shape is not None
    *batch, inner, n = value.type.shape
    target = em.new_buffer((*batch, inner // 2, n), "i32")
    last = len(target.shape) - 1
    b, source = em.b, value.type.element
    if not em.is_plain_load(value) or em.choose_dim([value], value.type.shape) != last:
        em.row_major_buffer(value, op)

    def body(strip: Strip) -> None:
        *outer, pair, column = strip.index
        halves = []
        for number in range(2):
            line = Lane(b.add(b.mul(pair.value, integer(2, "i32")), integer(number, "i32")))
            lane = materialize(b, strip.value(value, (*outer, line, column)), strip.width)
            narrow = floats.convert(b, lane, source, element) if element == "bf16" else b.cast("sext", lane, element)
            halves.append(b.cast("zext", narrow, "i32"))
        high = b.binary("shl", halves[1], b.integer_like(16, halves[1]))
        write_buffer(b, target, strip.index, Lane(b.binary("or", halves[0], high), None), strip.width)

    em.loop_over(target.shape, last, body)
    return target


def _convert(em: KernelEmitter, source: Buffer, target: Buffer) -> None:
    b = em.b

    def body(strip: Strip) -> None:
        lane = read_buffer(b, source, strip.index, strip.width)
        narrow = floats.convert(b, materialize(b, lane, strip.width), source.element, target.element)
        write_buffer(b, target, strip.index, Lane(narrow, None if strip.width else 0), strip.width)

    em.loop_over(target.shape, len(target.shape) - 1, body)


def multiply(em: KernelEmitter, operands: Operands, target: Buffer, from_zero: bool) -> None:
    """target += left @ right (or =, from zero), for every matrix of the batch."""
    b, inner = em.b, operands.inner
    *batch, m, n = target.shape
    width = min(em.width if target.size <= 4 else em.width // 2, n)
    columns = n // width
    tile = _register_tile(32 if em.width == 16 else 16, m, columns)
    count = 1
    for size in batch:
        count *= size
    depth = min(inner, max(RIGHT_BYTES // (n * target.size), LEAST_DEPTH))
    if from_zero and depth < inner:
        _clear(em, target)
        from_zero = False
    start = len(b.lines)
    with b.loop(0, count, 1) as number:
        kernel = _RegisterKernel(
            em,
            operands,
            _left_address(em, operands, batch, number, m),
            _matrix(em, operands.right, number, inner * n),
            _matrix(em, target, number, m * n),
            target,
            tile,
            width,
            depth,
            from_zero,
        )
        with (
            b.loop(0, n, width * tile.vectors) as column,
            b.loop(0, inner, depth) as first,
            b.loop(0, m, tile.rows) as row,
        ):
            kernel.emit(row, column, first)
    em.cost += (len(b.lines) - start) * em.trips * count * inner * (m // tile.rows) * (columns // tile.vectors)


def _clear(em: KernelEmitter, target: Buffer) -> None:
    memory = target.memory_type
    em.loop_over(
        target.shape,
        len(target.shape) - 1,
        lambda strip: write_buffer(em.b, target, strip.index, Lane(zero(memory)), strip.width),
    )


def _matrix(em: KernelEmitter, buffer: Buffer, number: Value, elements: int) -> Value:
    offset = em.b.mul(em.b.sext(number, "i64"), integer(elements, "i64"))
    return em.b.element_address(buffer.address, buffer.memory_type, offset)


def _left_address(
    em: KernelEmitter, operands: Operands, batch: list[int], number: Value, rows: int
) -> Callable[[Value, Value], Value]:
    """What gives the address of the element at (row, column) of one matrix of the left operand."""
    b, left, inner = em.b, operands.left, operands.inner
    if isinstance(left, Buffer):
        matrix, memory = _matrix(em, left, number, rows * inner), left.memory_type

        def packed(row: Value, column: Value) -> Value:
            place = b.add(b.mul(b.sext(row, "i64"), integer(inner, "i64")), b.sext(column, "i64"))
            return b.element_address(matrix, memory, place)

        return packed
    assert left.op is not None
    pointer = left.op.operands[0]
    outer = [] if not batch else [Lane(number)]
    step = integer(2 if operands.pairs else 1, "i32")

    def in_place(row: Value, column: Value) -> Value:
        index = (*outer, Lane(row), Lane(b.mul(column, step)))
        return em.address(Strip(em, index, 0).value(pointer).value)

    return in_place


@dataclasses.dataclass
class _RegisterKernel:
    """What computes one tile of accumulators, over `depth` products. It also starts to fetch what is needed next: the
    right operand, and rows of a left operand that is read in place, too far apart for the processor to guess."""

    em: KernelEmitter
    operands: Operands
    left: Callable[[Value, Value], Value]  # see _left_address
    right: Value
    target: Value
    whole: Buffer  # that `target` is a matrix of
    tile: _Tile
    width: int
    depth: int
    from_zero: bool

    def emit(self, row: Value, column: Value, first: Value) -> None:
        """The tile at `row` and `column`, with the products from `first` on."""
        b, tile, width = self.em.b, self.tile, self.width
        sum_, size = self.whole.memory_type, self.whole.size
        element = "i32" if self.operands.pairs else sum_
        n = integer(self.whole.shape[-1], "i64")

        def vector(element: str) -> str:
            return vector_type(width, element) if width > 1 else element

        def vector_address(matrix: Value, line: Value, number: int) -> Value:
            start = b.add(b.mul(b.sext(line, "i64"), n), b.sext(column, "i64"))
            return b.element_address(matrix, sum_, b.add(start, integer(number * width, "i64")))

        places = [(b.add(row, integer(r, "i32")), v) for r in range(tile.rows) for v in range(tile.vectors)]
        targets = [vector_address(self.target, line, v) for line, v in places]
        zeros = zero(vector(sum_))
        sums = [zeros if self.from_zero else b.load(vector(sum_), address, size) for address in targets]
        self._fetch_upcoming(row, column, first)
        chunk = min(CHUNK // size, self.depth) if isinstance(self.operands.left, Tensor) else self.depth
        chunks = b.open_loop(0, self.depth, chunk, sums)
        start = b.add(first, chunks.counter)
        self._fetch_left(row, start, chunk)
        at_once = min(AT_ONCE, chunk)
        products = b.open_loop(0, chunk, at_once, chunks.carried)
        following = products.carried
        for number in range(at_once):
            k = b.add(b.add(start, products.counter), integer(number, "i32"))
            vectors = [b.load(vector(element), vector_address(self.right, k, v), size) for v in range(tile.vectors)]
            held, following = following, []
            for r in range(tile.rows):
                one = b.load(element, self.left(b.add(row, integer(r, "i32")), k), 2 if self.operands.pairs else size)
                factor = b.splat(one, width) if width > 1 else one
                for v in range(tile.vectors):
                    following.append(self._add_product(held[r * tile.vectors + v], factor, vectors[v]))
        sums = b.close_loop(chunks, b.close_loop(products, following))
        for address, value in zip(targets, sums, strict=True):
            b.store(value, address, size)

    def _add_product(self, held: Value, left: Value, right: Value) -> Value:
        b = self.em.b
        if self.operands.pairs:
            name, element = _ADD_PAIRS[self.operands.pairs]
            halves = [b.define(f"<32 x {element}>", f"bitcast {value} to <32 x {element}>") for value in (left, right)]
            return b.intrinsic(name, held.type, held, *halves)
        if self.whole.memory_type in ("float", "double"):
            return b.fma(left, right, held)
        return b.add(held, b.mul(left, right))

    def _fetch_left(self, row: Value, start: Value, count: int) -> None:
        """What the tile below needs of the left operand for `count` products."""
        if isinstance(self.operands.left, Buffer):
            return
        b, rows = self.em.b, self.tile.rows
        for r in range(rows):
            below = b.add(row, integer(rows + r, "i32"))
            for place in range(0, count, CACHE_LINE // self.whole.size):
                b.prefetch(self.left(below, b.add(start, integer(place, "i32"))))

    def _fetch_upcoming(self, row: Value, column: Value, first: Value) -> None:
        """The share of one tile in as many rows of the upcoming right operand as all tiles use up of this one."""
        b, tile, upcoming = self.em.b, self.tile, self.operands.upcoming
        if upcoming is None:
            return
        source_rows = 2 if self.operands.pairs else 1
        per_line = CACHE_LINE // pointee_size(upcoming)
        lines_a_row = max(tile.vectors * self.width // per_line, 1)
        lines, tiles = self.depth * source_rows * lines_a_row, self.whole.shape[-2] // tile.rows
        share = -(-lines // tiles)
        start = b.mul(b.binary("udiv", row, integer(tile.rows, "i32")), integer(share, "i32"))
        behind = b.mul(b.add(first, integer(self.operands.inner, "i32")), integer(source_rows, "i32"))
        for number in range(min(share, MOST_FETCHES)):
            line = b.add(start, integer(number, "i32"))
            k = b.add(behind, b.binary("udiv", line, integer(lines_a_row, "i32")))
            place = b.mul(b.binary("urem", line, integer(lines_a_row, "i32")), integer(per_line, "i32"))
            index = (Lane(k), Lane(b.add(column, place)))
            b.prefetch(self.em.address(Strip(self.em, index, 0).value(upcoming.operands[0]).value))


# By the format of the pairs: the instruction that adds both products to a lane of 32 bits.
_ADD_PAIRS = {
    "bf16": ("llvm.x86.avx512bf16.dpbf16ps.512", "bfloat"),
    "i16": ("llvm.x86.avx512.vpdpwssd.512", "i16"),
}
