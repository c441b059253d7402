"""Matrix products (plan/products.py): packs operands, and writes a kernel whose accumulators stay in registers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from torch_mtia.triton import floats
from torch_mtia.triton.emit.access import read_buffer, write_buffer
from torch_mtia.triton.emit.environment import Environment, memory_type
from torch_mtia.triton.emit.loops import loop_over
from torch_mtia.triton.emit.strip import Strip
from torch_mtia.triton.ir.elements import is_float_element
from torch_mtia.triton.ir.module import Value as Tensor
from torch_mtia.triton.ir.ops import pointee_size
from torch_mtia.triton.lanes import Lane, materialize
from torch_mtia.triton.llvm_value import Value, integer, vector_type, zero
from torch_mtia.triton.plan.plan import Buffer, Clear, Convert, Multiply, Pack

CACHE_LINE = 64
CHUNK = 4 * CACHE_LINE  # of rows of the left operand, to fetch at once
MOST_FETCHES = 16  # at once
AT_ONCE = 4  # products in a round of the loop over them


def pack(env: Environment, step: Pack) -> None:
    loop_over(env, step.nest, lambda strip: (_pack_pairs if step.pairs else _pack_one)(env, step, strip))


def _pack_one(env: Environment, step: Pack, strip: Strip) -> None:
    b, source, target = env.b, step.value.type.element, step.target
    lane = strip.vector(step.value)
    if is_float_element(source):
        wide = floats.convert(b, lane, source, target.element)
    else:
        wide = b.cast("sext", lane, target.element)
    write_buffer(env, target, strip.index, Lane(wide, None if strip.width else 0), strip.width)


def _pack_pairs(env: Environment, step: Pack, strip: Strip) -> None:
    """Two rows in one."""
    b, source, element = env.b, step.value.type.element, step.pairs
    *outer, pair, column = strip.index
    halves = []
    for number in range(2):
        line = Lane(b.add(b.mul(pair.value, integer(2, "i32")), integer(number, "i32")))
        lane = materialize(b, strip.value(step.value, (*outer, line, column)), strip.width)
        narrow = floats.convert(b, lane, source, element) if element == "bf16" else b.cast("sext", lane, element)
        halves.append(b.cast("zext", narrow, "i32"))
    high = b.binary("shl", halves[1], b.integer_like(16, halves[1]))
    write_buffer(env, step.target, strip.index, Lane(b.binary("or", halves[0], high), None), strip.width)


def convert(env: Environment, step: Convert) -> None:
    def body(strip: Strip) -> None:
        lane = read_buffer(env, step.source, strip.index, strip.width)
        wide = materialize(env.b, lane, strip.width)
        narrow = floats.convert(env.b, wide, step.source.element, step.target.element)
        write_buffer(env, step.target, strip.index, Lane(narrow, None if strip.width else 0), strip.width)

    loop_over(env, step.nest, body)


def clear(env: Environment, step: Clear) -> None:
    nothing = Lane(zero(memory_type(step.target.element)))
    loop_over(env, step.nest, lambda strip: write_buffer(env, step.target, strip.index, nothing, strip.width))


def multiply(env: Environment, step: Multiply) -> None:
    b, inner, target = env.b, step.inner, step.target
    *batch, m, n = target.shape
    count = 1
    for size in batch:
        count *= size
    with (
        env.counted(count * inner * (m // step.rows) * (n // step.lanes // step.vectors)),
        b.loop(0, count, 1) as number,
    ):
        kernel = _RegisterKernel(
            env,
            step,
            _left_address(env, step, batch, number, m),
            _matrix(env, step.right, number, inner * n),
            _matrix(env, target, number, m * n),
        )
        with (
            b.loop(0, n, step.lanes * step.vectors) as column,
            b.loop(0, inner, step.depth) as first,
            b.loop(0, m, step.rows) as row,
        ):
            kernel.emit(row, column, first)


def _matrix(env: Environment, buffer: Buffer, number: Value, elements: int) -> Value:
    offset = env.b.mul(env.b.sext(number, "i64"), integer(elements, "i64"))
    return env.b.element_address(env.address_of(buffer), memory_type(buffer.element), offset)


def _left_address(
    env: Environment, step: Multiply, batch: list[int], number: Value, rows: int
) -> Callable[[Value, Value], Value]:
    """What gives the address of the element at (row, column) of one matrix of the left operand."""
    b, left, inner = env.b, step.left, step.inner
    if isinstance(left, Buffer):
        matrix, memory = _matrix(env, left, number, rows * inner), memory_type(left.element)

        def packed(row: Value, column: Value) -> Value:
            place = b.add(b.mul(b.sext(row, "i64"), integer(inner, "i64")), b.sext(column, "i64"))
            return b.element_address(matrix, memory, place)

        return packed
    assert left.op is not None
    pointer = left.op.operands[0]
    outer = [] if not batch else [Lane(number)]
    pair = integer(2 if step.pairs else 1, "i32")

    def in_place(row: Value, column: Value) -> Value:
        index = (*outer, Lane(row), Lane(b.mul(column, pair)))
        return env.host_address(Strip(env, step.sources, index, 0).value(pointer).value)

    return in_place


@dataclasses.dataclass
class _RegisterKernel:
    """What computes one tile of accumulators, over `depth` products. It also starts to fetch what is needed next: the
    right operand, and rows of a left operand that is read in place, too far apart for the processor to guess."""

    env: Environment
    step: Multiply
    left: Callable[[Value, Value], Value]  # see _left_address
    right: Value
    target: Value  # the matrix of it

    def emit(self, row: Value, column: Value, first: Value) -> None:
        """The tile at `row` and `column`, with the products from `first` on."""
        b, step, width = self.env.b, self.step, self.step.lanes
        sum_, size = memory_type(step.target.element), step.target.size
        element = "i32" if step.pairs else sum_
        n = integer(step.target.shape[-1], "i64")

        def vector(element: str) -> str:
            return vector_type(width, element) if width > 1 else element

        def vector_address(matrix: Value, line: Value, number: int) -> Value:
            start = b.add(b.mul(b.sext(line, "i64"), n), b.sext(column, "i64"))
            return b.element_address(matrix, sum_, b.add(start, integer(number * width, "i64")))

        places = [(b.add(row, integer(r, "i32")), v) for r in range(step.rows) for v in range(step.vectors)]
        targets = [vector_address(self.target, line, v) for line, v in places]
        zeros = zero(vector(sum_))
        sums = [zeros if step.from_zero else b.load(vector(sum_), address, size) for address in targets]
        self._fetch_upcoming(row, column, first)
        chunk = min(CHUNK // size, step.depth) if isinstance(step.left, Tensor) else step.depth
        chunks = b.open_loop(0, step.depth, chunk, sums)
        start = b.add(first, chunks.counter)
        self._fetch_left(row, start, chunk)
        at_once = min(AT_ONCE, chunk)
        products = b.open_loop(0, chunk, at_once, chunks.carried)
        following = products.carried
        for number in range(at_once):
            k = b.add(b.add(start, products.counter), integer(number, "i32"))
            vectors = [b.load(vector(element), vector_address(self.right, k, v), size) for v in range(step.vectors)]
            held, following = following, []
            for r in range(step.rows):
                one = b.load(element, self.left(b.add(row, integer(r, "i32")), k), 2 if step.pairs else size)
                factor = b.splat(one, width) if width > 1 else one
                for v in range(step.vectors):
                    following.append(self._add_product(held[r * step.vectors + v], factor, vectors[v]))
        sums = b.close_loop(chunks, b.close_loop(products, following))
        for address, value in zip(targets, sums, strict=True):
            b.store(value, address, size)

    def _add_product(self, held: Value, left: Value, right: Value) -> Value:
        b = self.env.b
        if self.step.pairs:
            name, element = _ADD_PAIRS[self.step.pairs]
            halves = [b.define(f"<32 x {element}>", f"bitcast {value} to <32 x {element}>") for value in (left, right)]
            return b.intrinsic(name, held.type, held, *halves)
        if is_float_element(self.step.target.element):
            return b.fma(left, right, held)
        return b.add(held, b.mul(left, right))

    def _fetch_left(self, row: Value, start: Value, count: int) -> None:
        """What the tile below needs of the left operand for `count` products."""
        if isinstance(self.step.left, Buffer):
            return
        b, rows = self.env.b, self.step.rows
        for r in range(rows):
            below = b.add(row, integer(rows + r, "i32"))
            for place in range(0, count, CACHE_LINE // self.step.target.size):
                b.prefetch(self.left(below, b.add(start, integer(place, "i32"))))

    def _fetch_upcoming(self, row: Value, column: Value, first: Value) -> None:
        """The share of one tile in as many rows of the upcoming right operand as all tiles use up of this one."""
        b, step, upcoming = self.env.b, self.step, self.step.upcoming
        if upcoming is None:
            return
        source_rows = 2 if step.pairs else 1
        per_line = CACHE_LINE // pointee_size(upcoming)
        lines_a_row = max(step.vectors * step.lanes // per_line, 1)
        lines, tiles = step.depth * source_rows * lines_a_row, step.target.shape[-2] // step.rows
        share = -(-lines // tiles)
        start = b.mul(b.binary("udiv", row, integer(step.rows, "i32")), integer(share, "i32"))
        behind = b.mul(b.add(first, integer(step.inner, "i32")), integer(source_rows, "i32"))
        for number in range(min(share, MOST_FETCHES)):
            line = b.add(start, integer(number, "i32"))
            k = b.add(behind, b.binary("udiv", line, integer(lines_a_row, "i32")))
            place = b.mul(b.binary("urem", line, integer(lines_a_row, "i32")), integer(per_line, "i32"))
            index = (Lane(k), Lane(b.add(column, place)))
            b.prefetch(self.env.host_address(Strip(self.env, step.sources, index, 0).value(upcoming.operands[0]).value))


# By the format of the pairs: the instruction that adds both products to a lane of 32 bits.
_ADD_PAIRS = {
    "bf16": ("llvm.x86.avx512bf16.dpbf16ps.512", "bfloat"),
    "i16": ("llvm.x86.avx512.vpdpwssd.512", "i16"),
}
