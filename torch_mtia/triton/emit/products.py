"""Matrix products (plan/products.py): packs operands, and writes a kernel whose accumulators stay in registers."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable

from torch_mtia.triton import floats
from torch_mtia.triton.emit.access import read_buffer, write_buffer
from torch_mtia.triton.emit.environment import Environment, memory_type
from torch_mtia.triton.emit.loops import loop_over
from torch_mtia.triton.emit.strip import Strip
from torch_mtia.triton.ir.elements import element_size, is_float_element
from torch_mtia.triton.ir.module import Value as Tensor
from torch_mtia.triton.ir.ops import pointee_size
from torch_mtia.triton.lanes import Index, Lane, materialize
from torch_mtia.triton.llvm_value import Value, integer, vector_type, zero
from torch_mtia.triton.plan.plan import Buffer, Clear, Convert, Multiply, Pack, per_word

CACHE_LINE = 64
CHUNK = 4 * CACHE_LINE  # of rows of the left operand, to fetch at once
MOST_FETCHES = 16  # at once
AT_ONCE = 4  # products in a round of the loop over them


def pack(env: Environment, step: Pack) -> None:
    if step.turned:
        _pack_turned(env, step)
        return
    loop_over(env, step.nest, lambda strip: (_pack_words if step.words else _pack_one)(env, step, strip))


def _pack_one(env: Environment, step: Pack, strip: Strip) -> None:
    number = _number(env, step, strip.vector(step.value))
    write_packed(env, step.target, strip.index, Lane(number, None if strip.width else 0), strip.width)


def _number(env: Environment, step: Pack, value: Value) -> Value:
    """Elements in the format that they are packed in."""
    source, target = step.value.type.element, step.words or step.target.element
    if is_float_element(source):
        return floats.convert(env.b, value, source, target)
    return env.b.cast("sext", value, target)


def write_packed(env: Environment, target: Buffer, index: Index, lane: Lane, width: int) -> None:
    """To a buffer, which may be one of panels: strips lie inside of one."""
    if len(target.shape) > len(index):
        *outer, row, column = index
        bits = integer(target.shape[-1].bit_length() - 1, "i32")
        panel = Lane(env.b.binary("lshr", column.value, bits))
        inside = Lane(env.b.binary("and", column.value, integer(target.shape[-1] - 1, "i32")), column.stride)
        index = (*outer, panel, row, inside)
    write_buffer(env, target, index, lane, width)


def _pack_words(env: Environment, step: Pack, strip: Strip) -> None:
    """Several rows in one."""
    b, count = env.b, per_word(step.words)
    *outer, word, column = strip.index
    whole = None
    for number in range(count):
        line = Lane(b.add(b.mul(word.value, integer(count, "i32")), integer(number, "i32")))
        lane = materialize(b, strip.value(step.value, (*outer, line, column)), strip.width)
        part = b.cast("zext", _number(env, step, lane), "i32")
        if whole is not None:
            part = b.binary("or", whole, b.binary("shl", part, b.integer_like(number * 32 // count, part)))
        whole = part
    assert whole is not None
    write_packed(env, step.target, strip.index, Lane(whole, None), strip.width)


def _pack_turned(env: Environment, step: Pack) -> None:
    b, lanes, count = env.b, step.nest.lanes, per_word(step.words) if step.words else 1
    row = vector_type(lanes, memory_type(step.target.element))
    *batch, words, columns = step.nest.shape
    with contextlib.ExitStack() as stack, env.counted(step.nest.strips // lanes):
        outer = [Lane(stack.enter_context(b.loop(0, size, 1))) for size in batch]
        column = stack.enter_context(b.loop(0, columns, lanes))
        word = stack.enter_context(b.loop(0, words, lanes))
        along = Lane(b.mul(word, integer(count, "i32")), 1)
        rows = []
        for number in range(lanes):
            index = (*outer, along, Lane(b.add(column, integer(number, "i32"))))
            numbers = _number(env, step, Strip(env, step.nest.sources, index, lanes * count).vector(step.value))
            rows.append(b.define(row, f"bitcast {numbers} to {row}"))
        for number, vector in enumerate(b.transpose(rows)):
            index = (*outer, Lane(b.add(word, integer(number, "i32"))), Lane(column, 1))
            write_packed(env, step.target, index, Lane(vector, None), lanes)


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
        kernel = (_TileKernel if step.tiles else _RegisterKernel)(
            env,
            step,
            _left_address(env, step, batch, number, m),
            _matrix(env, step.right, number, inner * n),
            _matrix(env, target, number, m * n),
        )
        with (
            b.loop(0, n, step.lanes * step.vectors) as column,
            b.loop(0, inner, step.depth) as first,
        ):
            kernel.prepare(column, first)
            with b.loop(0, m, step.rows) as row:
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
    count = integer(per_word(step.words) if step.words else 1, "i32")

    def in_place(row: Value, column: Value) -> Value:
        index = (*outer, Lane(row), Lane(b.mul(column, count)))
        return env.host_address(Strip(env, step.sources, index, 0).value(pointer).value)

    return in_place


@dataclasses.dataclass
class _Kernel:
    """What computes one tile of accumulators, over `depth` products. It also starts to fetch what is needed next."""

    env: Environment
    step: Multiply
    left: Callable[[Value, Value], Value]  # see _left_address
    right: Value
    target: Value  # the matrix of it

    def prepare(self, column: Value, first: Value) -> None:
        """What the tiles of a column share."""

    def emit(self, row: Value, column: Value, first: Value) -> None:
        """The tile at `row` and `column`, with the products from `first` on."""
        raise NotImplementedError

    def _right_address(self, column: Value, line: Value, number: int) -> Value:
        b, step = self.env.b, self.step
        panel = b.mul(b.sext(column, "i64"), integer(step.inner, "i64"))
        start = b.add(panel, b.mul(b.sext(line, "i64"), integer(step.lanes * step.vectors, "i64")))
        start = b.add(start, integer(number * step.lanes, "i64"))
        return b.element_address(self.right, memory_type(step.target.element), start)

    def _target_address(self, line: Value, column: Value, number: int) -> Value:
        b, target = self.env.b, self.step.target
        start = b.add(b.mul(b.sext(line, "i64"), integer(target.shape[-1], "i64")), b.sext(column, "i64"))
        start = b.add(start, integer(number * self.step.lanes, "i64"))
        return b.element_address(self.target, memory_type(target.element), start)

    def _fetch_upcoming(self, row: Value, column: Value, first: Value) -> None:
        """The share of one tile in as many rows of the upcoming right operand as all tiles use up of this one."""
        b, step, upcoming = self.env.b, self.step, self.step.upcoming
        if upcoming is None:
            return
        source_rows = per_word(step.words) if step.words else 1
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


class _TileKernel(_Kernel):
    """In AMX's registers of 16 rows of 16 words: four of accumulators, two of each operand."""

    def emit(self, row: Value, column: Value, first: Value) -> None:
        b, step = self.env.b, self.step
        self.env.tiles = True
        size = integer(step.target.size, "i64")
        target_stride = b.mul(integer(step.target.shape[-1], "i64"), size)
        right_stride = b.mul(integer(step.lanes * step.vectors, "i64"), size)
        rows = [b.add(row, integer(r * step.lanes, "i32")) for r in range(step.rows // step.lanes)]
        sums = [(r, v) for r in range(len(rows)) for v in range(step.vectors)]
        for r, v in sums:
            if step.from_zero:
                self._tile("tilezero", _sum(r, v))
            else:
                self._tile("tileloadd64", _sum(r, v), self._target_address(rows[r], column, v), target_stride)
        self._fetch_upcoming(row, column, first)
        with b.loop(0, step.depth, step.lanes) as counter:
            k = b.add(first, counter)
            for r, line in enumerate(rows):
                start = self.left(line, k)
                self._tile("tileloadd64", _LEFT + r, start, self._distance(start, line, k))
            for v in range(step.vectors):
                self._tile("tileloadd64", _RIGHT + v, self._right_address(column, k, v), right_stride)
            for r, v in sums:
                self._tile(_ADD_TILES[step.words], _sum(r, v), integer(_LEFT + r, "i8"), integer(_RIGHT + v, "i8"))
        for r, v in sums:
            self._tile("tilestored64", _sum(r, v), self._target_address(rows[r], column, v), target_stride)

    def _tile(self, name: str, number: int, *operands: Value) -> None:
        self.env.b.intrinsic(f"llvm.x86.{name}", "void", integer(number, "i8"), *operands)

    def _distance(self, start: Value, line: Value, k: Value) -> Value:
        """Bytes from one row of the left operand to the next."""
        b = self.env.b
        below = self.left(b.add(line, integer(1, "i32")), k)
        addresses = [b.define("i64", f"ptrtoint {address} to i64") for address in (below, start)]
        return b.sub(*addresses)


def _sum(row: int, column: int) -> int:
    """The tile of accumulators."""
    return 2 * row + column


@dataclasses.dataclass
class _RegisterKernel(_Kernel):
    """In vectors. Rows of a left operand that is read in place are too far apart for the processor to guess: they are
    fetched too."""

    offset: Value | None = None  # what `prepare` has added to the left operand
    excess: list[Value] = dataclasses.field(default_factory=list)  # and to the sums of each column

    def prepare(self, column: Value, first: Value) -> None:
        """The instruction for words of i8 takes the left operand for unsigned: it gets each number with 128 added, and
        the sums are too large by 128 times those of the right one's columns."""
        if self.step.words != "i8":
            return
        b, step = self.env.b, self.step
        # Opaque, or LLVM would add to the one number before it is in all lanes, which is an instruction more.
        self.offset = b.opaque(integer(_OFFSET, self._vector("i32")))
        summed = b.open_loop(0, step.depth, 1, [zero(self._vector("i32"))] * step.vectors)
        k = b.add(first, summed.counter)
        vectors = [self._right_vector(column, k, v) for v in range(step.vectors)]
        self.excess = b.close_loop(
            summed,
            [self._add_words(held, self.offset, right) for held, right in zip(summed.carried, vectors, strict=True)],
        )

    def _vector(self, element: str) -> str:
        return vector_type(self.step.lanes, element) if self.step.lanes > 1 else element

    def _right_vector(self, column: Value, line: Value, number: int) -> Value:
        element = "i32" if self.step.words else memory_type(self.step.target.element)
        return self.env.b.load(self._vector(element), self._right_address(column, line, number), self.step.target.size)

    def emit(self, row: Value, column: Value, first: Value) -> None:
        b, step, width, size = self.env.b, self.step, self.step.lanes, self.step.target.size
        sum_ = memory_type(step.target.element)
        element, alignment = ("i32", element_size(step.words)) if step.words else (sum_, size)
        places = [(b.add(row, integer(r, "i32")), v) for r in range(step.rows) for v in range(step.vectors)]
        targets = [self._target_address(line, column, v) for line, v in places]
        zeros = zero(self._vector(sum_))
        sums = [zeros if step.from_zero else b.load(self._vector(sum_), address, size) for address in targets]
        if self.excess:
            sums = [b.sub(value, self.excess[v]) for value, (_, v) in zip(sums, places, strict=True)]
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
            vectors = [self._right_vector(column, k, v) for v in range(step.vectors)]
            held, following = following, []
            for r in range(step.rows):
                one = b.load(element, self.left(b.add(row, integer(r, "i32")), k), alignment)
                factor = b.splat(one, width) if width > 1 else one
                if self.offset is not None:
                    factor = b.binary("xor", factor, self.offset)
                for v in range(step.vectors):
                    following.append(self._add_product(held[r * step.vectors + v], factor, vectors[v]))
        sums = b.close_loop(chunks, b.close_loop(products, following))
        for address, value in zip(targets, sums, strict=True):
            b.store(value, address, size)

    def _add_product(self, held: Value, left: Value, right: Value) -> Value:
        b = self.env.b
        if self.step.words:
            return self._add_words(held, left, right)
        if is_float_element(self.step.target.element):
            return b.fma(left, right, held)
        return b.add(held, b.mul(left, right))

    def _add_words(self, held: Value, left: Value, right: Value) -> Value:
        b, words, lanes = self.env.b, self.step.words, self.step.lanes
        parts = vector_type(lanes * per_word(words), "bfloat" if words == "bf16" else words)
        left, right = (b.define(parts, f"bitcast {value} to {parts}") for value in (left, right))
        if words == "i16":
            return b.add(held, b.intrinsic(_ADD_PAIRS[lanes], held.type, left, right))
        return b.intrinsic(_ADD_TO_SUM[words], held.type, held, left, right)

    def _fetch_left(self, row: Value, start: Value, count: int) -> None:
        """What the tile below needs of the left operand for `count` products."""
        if isinstance(self.step.left, Buffer):
            return
        b, rows = self.env.b, self.step.rows
        for r in range(rows):
            below = b.add(row, integer(rows + r, "i32"))
            for place in range(0, count, CACHE_LINE // self.step.target.size):
                b.prefetch(self.left(below, b.add(start, integer(place, "i32"))))


_LEFT, _RIGHT = 4, 6  # tiles of the operands
_ADD_TILES = {"bf16": "tdpbf16ps", "i8": "tdpbssd"}
_OFFSET = -0x7F7F7F80  # 128 in each byte
# By the format of the words: the instruction that adds the products to a lane of 32 bits.
_ADD_TO_SUM = {
    "bf16": "llvm.x86.avx512bf16.dpbf16ps.512",
    "i8": "llvm.x86.avx512.vpdpbusd.512",
}
# By the lanes: the instruction that adds the products of both numbers of 16 bits in a word.
_ADD_PAIRS = {16: "llvm.x86.avx512.pmaddw.d.512", 8: "llvm.x86.avx2.pmadd.wd", 4: "llvm.x86.sse2.pmadd.wd"}
