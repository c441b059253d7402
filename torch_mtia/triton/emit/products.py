"""Matrix products (plan/products.py): packs operands, and writes a kernel whose accumulators stay in registers."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable

from torch_mtia.triton import floats
from torch_mtia.triton.analyses.few_bits import FewBits
from torch_mtia.triton.analyses.walk import own_dims
from torch_mtia.triton.emit import watching
from torch_mtia.triton.emit.access import write_buffer
from torch_mtia.triton.emit.environment import Environment, memory_type
from torch_mtia.triton.emit.loops import loop_over
from torch_mtia.triton.emit.memory import CACHE_LINE, load_lane
from torch_mtia.triton.emit.strip import Strip
from torch_mtia.triton.ir.elements import element_size, is_float_element
from torch_mtia.triton.ir.module import Value as Tensor
from torch_mtia.triton.ir.ops import pointee_size
from torch_mtia.triton.lanes import Index, Lane, materialize
from torch_mtia.triton.llvm_value import Value, bits_of, constant_vector, element_of, integer, vector_type, zero
from torch_mtia.triton.plan.nests import Buffer, Sources
from torch_mtia.triton.plan.plan import (
    AT_ONE_DISTANCE,
    Accumulators,
    Clear,
    Convert,
    Multiply,
    Operand,
    Pack,
    Upcoming,
    per_word,
)

LOOKED_UP = 16  # bits of a number in a word that is looked up


def pack(env: Environment, step: Pack) -> None:
    if step.columns:
        _pack_transposed(env, step)
        return
    operands = [(_Evaluated(env, each, step.words, target), target) for each, target in _targets(step)]

    def body(strip: Strip) -> None:
        rows = [strip.index]
        if step.words:
            rows = [(*row, strip.index[-1]) for row in _of_words(env, strip.index[:-1], step.words)]
        numbers = [operand.vector(strip, rows) for operand, _ in operands]
        for number, (_, target) in zip(numbers, operands, strict=True):
            write_packed(strip, target, Lane(number, None if strip.width else 0))

    loop_over(env, step.nest, body)


def _targets(step: Pack) -> list[tuple[Operand, Buffer]]:
    return [(each, each.buffer) for each in step.operands if each.buffer is not None]


def _number(env: Environment, value: Value, source: str, target: str) -> Value:
    """Elements of a type in the format that they are packed in."""
    if is_float_element(source):
        return floats.convert(env.b, value, source, target)
    return env.b.cast("sext", value, target)


def write_packed(strip: Strip, target: Buffer, lane: Lane) -> None:
    """To a buffer, which may be one of panels: strips lie inside of one."""
    index, b = strip.index, strip.b
    if len(target.shape) > len(index):
        *outer, row, column = index
        bits = integer(target.shape[-1].bit_length() - 1, "i32")
        panel = Lane(b.binary("lshr", column.value, bits))
        inside = Lane(b.binary("and", column.value, integer(target.shape[-1] - 1, "i32")), column.stride)
        index = (*outer, panel, row, inside)
    write_buffer(strip.env, target, index, lane, strip.width, strip.kind(target))


class _Evaluated:
    """What evaluates strips of an operand in the format that it is multiplied in: that of a buffer's elements, or words
    of several of its rows."""

    def __init__(self, env: Environment, operand: Operand, words: str, target: Buffer) -> None:
        self.env, self.value, self.few_bits = env, operand.value, operand.few_bits
        self.words, self.element = words, target.element
        self.table = None if self.few_bits is None else self._table(self.few_bits)

    def vector(self, strip: Strip, rows: list[Index]) -> Value:
        """What is in one row, or the words that several share."""
        if not self.words:
            return _number(self.env, strip.at(rows[0]).vector(self.value), self.value.type.element, self.element)
        b, count = self.env.b, len(rows)
        whole = None
        for number, index in enumerate(rows):
            part = self._part(strip.at(index))
            if whole is not None:
                part = b.binary("or", whole, b.binary("shl", part, b.integer_like(number * 32 // count, part)))
            whole = part
        assert whole is not None
        return self._look_up(whole)

    def _part(self, strip: Strip) -> Value:
        """The numbers of one row, or what they are looked up by."""
        b, few_bits = self.env.b, self.few_bits
        if few_bits is None:
            number = _number(self.env, strip.vector(self.value), self.value.type.element, self.words)
            return b.cast("zext", number, "i32")
        value = strip.vector(few_bits.source)
        if bits_of(element_of(value)) <= LOOKED_UP:
            return b.cast("zext", value, "i32")
        value = b.cast("trunc", b.binary("lshr", value, b.integer_like(few_bits.first, value)), "i32")
        return b.binary("and", value, b.integer_like((1 << LOOKED_UP) - 1, value))

    def _look_up(self, words: Value) -> Value:
        b = self.env.b
        if self.few_bits is None or self.table is None:
            return words
        if element_size(self.few_bits.source.type.element) * 8 <= LOOKED_UP:
            words = b.binary("lshr", words, b.integer_like(self.few_bits.first, words))
        indices = b.define(self.table.type, f"bitcast {words} to {self.table.type}")
        found = b.intrinsic("llvm.x86.avx512.permvar.hi.512", self.table.type, self.table, indices)
        return b.define(words.type, f"bitcast {found} to {words.type}")

    def _table(self, few_bits: FewBits) -> Value:
        """The numbers by the five lowest bits of an index, of which those above the few do not matter."""
        source = few_bits.source.type.element
        halves = []
        for first in (0, 16):
            strip = Strip(self.env, Sources({}, {}), (), 16)
            numbers = [(first + lane) % (1 << few_bits.count) << few_bits.first for lane in range(16)]
            strip.cache[few_bits.source,] = Lane(constant_vector(numbers, source), None)
            halves.append(_number(self.env, strip.vector(self.value), self.value.type.element, self.words))
        low, high = halves
        return self.env.b.shuffle(low, high, range(32))


def _of_words(env: Environment, index: Index, words: str) -> list[Index]:
    """The rows that share words; `index` ends with that of the words."""
    b, count = env.b, per_word(words)
    *outer, word = index
    first = b.mul(word.value, integer(count, "i32"))
    return [(*outer, Lane(b.add(first, integer(number, "i32")))) for number in range(count)]


def _pack_transposed(env: Environment, step: Pack) -> None:
    b, lanes, count = env.b, step.nest.lanes, per_word(step.words)
    ((operand, target),) = _targets(step)
    value, row = operand.value, vector_type(lanes, memory_type(target.element))
    *batch, words, columns = step.nest.shape
    with contextlib.ExitStack() as stack:
        outer = [Lane(stack.enter_context(b.loop(0, size, 1))) for size in batch]
        column = stack.enter_context(b.loop(0, columns, lanes))
        lines = [
            _column(env, step, value, (*outer, Lane(b.add(column, integer(number, "i32")))), lanes * count)
            for number in range(lanes)
        ]
        word = stack.enter_context(b.loop(0, words, lanes))
        along = b.mul(word, integer(count, "i32"))
        rows = []
        for line in lines:
            numbers = _number(env, line(along), value.type.element, step.words or target.element)
            rows.append(b.define(row, f"bitcast {numbers} to {row}"))
        for number, vector in enumerate(b.transpose(rows)):
            index = (*outer, Lane(b.add(word, integer(number, "i32"))), Lane(column, 1))
            write_packed(Strip(env, step.nest.sources, index, lanes), target, Lane(vector, None))


def _column(env: Environment, step: Pack, value: Tensor, column: Index, width: int) -> Callable[[Value], Value]:
    """What reads strips of a column of a right operand, by their first row. Where the elements of a column are at one
    distance in memory, the index arithmetic is that of its beginning."""
    b, sources, op, accesses = env.b, step.nest.sources, value.op, step.nest.accesses

    def at(row: Value, of: Tensor) -> Lane:
        index = (*column[:-1], Lane(row, 1), column[-1])
        return Strip(env, sources, index, width, accesses=accesses).value(of)

    if step.columns != AT_ONE_DISTANCE:
        return lambda row: materialize(b, at(row, value), width)
    assert op is not None
    first, kind = at(integer(0, "i32"), op.operands[0]), accesses[op, own_dims(value)].kind
    assert isinstance(first.stride, int), "planned at one distance"
    size = integer(first.stride, "i64")

    def read(row: Value) -> Value:
        address = b.add(first.value, b.mul(b.sext(row, "i64"), size))
        return materialize(b, load_lane(env, op, Lane(address, first.stride), None, None, width, kind), width)

    return read


def convert(env: Environment, step: Convert) -> None:
    def body(strip: Strip) -> None:
        wide = materialize(env.b, strip.read(step.source), strip.width)
        narrow = floats.convert(env.b, wide, step.source.element, step.target.element)
        strip.write(step.target, Lane(narrow, None if strip.width else 0))

    loop_over(env, step.nest, body)


def clear(env: Environment, step: Clear) -> None:
    nothing = Lane(zero(memory_type(step.target.element)))
    loop_over(env, step.nest, lambda strip: strip.write(step.target, nothing))


def multiply(env: Environment, step: Multiply) -> None:
    b, inner, target, tile = env.b, step.inner, step.target, step.accumulators
    *batch, m, n = target.shape
    count = 1
    for size in batch:
        count *= size
    with b.loop(0, count, 1) as number:
        index = tuple(Lane(number) for _ in batch)  # at most one, where it is used
        kernel = (_TileKernel if tile.tiles else _RegisterKernel)(
            env,
            step,
            tile,
            index,
            [_left_address(env, step, each.left, index, number) for each in step.products],
            [_right(env, step, each.right, number) for each in step.products],
            _matrix(env, target, number, m * n),
        )
        with (
            b.loop(0, n, tile.columns) as column,
            b.loop(0, inner, step.depth) as first,
        ):
            kernel.prepare(column, first)
            with b.loop(0, m, tile.rows) as row:
                kernel.emit(row, column, first)


def _matrix(env: Environment, buffer: Buffer, number: Value, elements: int) -> Value:
    offset = env.b.mul(env.b.sext(number, "i64"), integer(elements, "i64"))
    return env.b.element_address(env.address_of(buffer), memory_type(buffer.element), offset)


LeftRow = Callable[[Value], Value]  # the address of the element in a column
LeftAddress = Callable[[Value], LeftRow]  # of a row of one matrix of the left operand
RightAddress = Callable[[Value, Value, int], Value]  # of a vector of a panel: (its first column, row, which one)


def _left_address(env: Environment, step: Multiply, left: Operand, batch: Index, number: Value) -> LeftAddress:
    b, inner, buffer, value = env.b, step.inner, left.buffer, left.value
    if buffer is not None:
        matrix, memory = _matrix(env, buffer, number, step.target.shape[-2] * inner), memory_type(buffer.element)

        def packed(row: Value) -> LeftRow:
            start = b.mul(b.sext(row, "i64"), integer(inner, "i64"))
            return lambda column: b.element_address(matrix, memory, b.add(start, b.sext(column, "i64")))

        return packed
    assert value.op is not None
    pointer, access = value.op.operands[0], step.accesses[value.op, own_dims(value)]
    count = integer(per_word(step.words), "i32")

    def in_place(row: Value) -> LeftRow:
        """Where its elements are at one distance, the index arithmetic is that of the first one."""

        def at(column: Lane, width: int) -> Lane:
            return Strip(env, step.sources, (*batch, Lane(row), column), width).value(pointer)

        if access.kind == "gather":
            return lambda column: env.host_address(at(Lane(b.mul(column, count)), 0).value)
        first = at(Lane(integer(0, "i32"), 1), step.accumulators.lanes)
        assert first.stride is not None, "planned at one distance"
        start = env.host_address(first.value)
        distance = integer(first.stride, "i64") if isinstance(first.stride, int) else first.stride
        return lambda column: b.element_address(start, "i8", b.mul(b.sext(b.mul(column, count), "i64"), distance))

    return in_place


def _right(env: Environment, step: Multiply, right: Operand, number: Value) -> RightAddress | _Evaluated:
    b, target, tile = env.b, step.target, step.accumulators
    if right.buffer is None:
        return _Evaluated(env, right, step.words, target)
    matrix = _matrix(env, right.buffer, number, step.inner * target.shape[-1])

    def packed(column: Value, line: Value, vector: int) -> Value:
        panel = b.mul(b.sext(column, "i64"), integer(step.inner, "i64"))
        start = b.add(panel, b.mul(b.sext(line, "i64"), integer(tile.columns, "i64")))
        start = b.add(start, integer(vector * tile.lanes, "i64"))
        return b.element_address(matrix, memory_type(target.element), start)

    return packed


@dataclasses.dataclass
class _Kernel:
    """What computes one tile of accumulators, over `depth` products. It also starts to fetch what is needed next."""

    env: Environment
    step: Multiply
    tile: Accumulators
    batch: Index  # of the matrix, in a batch
    left: list[LeftAddress]
    right: list[RightAddress | _Evaluated]
    target: Value  # the matrix of it

    def prepare(self, column: Value, first: Value) -> None:
        """What the tiles of a column share."""

    def emit(self, row: Value, column: Value, first: Value) -> None:
        """The tile at `row` and `column`, with the products from `first` on."""
        raise NotImplementedError

    def _target_address(self, line: Value, column: Value, number: int) -> Value:
        b, target = self.env.b, self.step.target
        start = b.add(b.mul(b.sext(line, "i64"), integer(target.shape[-1], "i64")), b.sext(column, "i64"))
        start = b.add(start, integer(number * self.tile.lanes, "i64"))
        return b.element_address(self.target, memory_type(target.element), start)

    def _fetch_with_tile(self, row: Value, column: Value, first: Value) -> None:
        b, upcoming = self.env.b, self.step.upcoming
        if upcoming is not None and upcoming.lines:
            number = b.binary("udiv", row, integer(self.tile.rows, "i32"))
            self._fetch(upcoming, column, first, b.mul(number, integer(upcoming.share, "i32")))

    def _fetch(self, upcoming: Upcoming, column: Value, row: Value, begin: Value) -> None:
        """Of what lies after a row of the right operand, the lines from `begin` on."""
        b, load, numbers = self.env.b, upcoming.load, per_word(self.step.words)
        first = b.add(row, integer(upcoming.ahead, "i32"))
        lines_a_row = integer(max(self.tile.columns * pointee_size(load) // CACHE_LINE, 1), "i32")
        for number in range(upcoming.lines):
            line = b.add(begin, integer(number, "i32"))
            k = b.add(b.mul(first, integer(numbers, "i32")), b.binary("udiv", line, lines_a_row))
            place = b.mul(b.binary("urem", line, lines_a_row), integer(CACHE_LINE // pointee_size(load), "i32"))
            index = (Lane(k), Lane(b.add(column, place)))
            address = Strip(self.env, self.step.sources, index, 0).value(load.operands[0]).value
            b.prefetch(self.env.host_address(address), upcoming.level)


class _TileKernel(_Kernel):
    """In AMX's registers of 16 rows of 16 words: four of accumulators, two of each operand."""

    def emit(self, row: Value, column: Value, first: Value) -> None:
        b, step = self.env.b, self.step
        self.env.tiles = True
        size = integer(step.target.size, "i64")
        target_stride = b.mul(integer(step.target.shape[-1], "i64"), size)
        right_stride = b.mul(integer(self.tile.columns, "i64"), size)
        rows = [b.add(row, integer(r * self.tile.lanes, "i32")) for r in range(self.tile.rows // self.tile.lanes)]
        sums = [(r, v) for r in range(len(rows)) for v in range(self.tile.vectors)]
        for r, v in sums:
            if step.initial is None:
                self._tile("tilezero", _sum(r, v))
            else:
                self._tile("tileloadd64", _sum(r, v), self._target_address(rows[r], column, v), target_stride)
        self._fetch_with_tile(row, column, first)
        (right,) = self.right
        assert not isinstance(right, _Evaluated)
        with b.loop(0, step.depth, self.tile.lanes) as counter:
            k = b.add(first, counter)
            for r, line in enumerate(rows):
                start = self.left[0](line)(k)
                self._tile("tileloadd64", _LEFT + r, start, self._distance(start, line, k))
            for v in range(self.tile.vectors):
                self._tile("tileloadd64", _RIGHT + v, right(column, k, v), right_stride)
            for r, v in sums:
                self._tile(_ADD_TILES[step.words], _sum(r, v), integer(_LEFT + r, "i8"), integer(_RIGHT + v, "i8"))
        for r, v in sums:
            self._tile("tilestored64", _sum(r, v), self._target_address(rows[r], column, v), target_stride)

    def _tile(self, name: str, number: int, *operands: Value) -> None:
        self.env.b.intrinsic(f"llvm.x86.{name}", "void", integer(number, "i8"), *operands)

    def _distance(self, start: Value, line: Value, k: Value) -> Value:
        """Bytes from one row of the left operand to the next."""
        b = self.env.b
        below = self.left[0](b.add(line, integer(1, "i32")))(k)
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
        summed = b.open_loop(0, step.depth, 1, [zero(self._vector("i32"))] * self.tile.vectors)
        k = b.add(first, summed.counter)
        (vectors,) = self._right_vectors(column, k)
        self.excess = b.close_loop(
            summed,
            [
                self._add_words(partial, self.offset, right)
                for partial, right in zip(summed.carried, vectors, strict=True)
            ],
        )

    def _vector(self, element: str) -> str:
        return vector_type(self.tile.lanes, element) if self.tile.lanes > 1 else element

    def _right_vectors(self, column: Value, line: Value) -> list[list[Value]]:
        """Of each product, what the accumulators need of a row of the right operand."""
        b, step = self.env.b, self.step
        element = "i32" if step.words else memory_type(step.target.element)
        # One strip, and the same indices for all: what they have in common is evaluated once.
        strip = Strip(self.env, step.sources, (), self.tile.lanes, accesses=step.accesses)
        vectors = range(self.tile.vectors)
        places = [Lane(b.add(column, integer(v * self.tile.lanes, "i32")), 1) for v in vectors]
        index = (*self.batch, Lane(line))
        lines = _of_words(self.env, index, step.words) if step.words else [index]
        return [
            [right.vector(strip, [(*of, place) for of in lines]) for place in places]
            if isinstance(right, _Evaluated)
            else [b.load(self._vector(element), right(column, line, v), step.target.size) for v in vectors]
            for right in self.right
        ]

    def emit(self, row: Value, column: Value, first: Value) -> None:
        b, step, width, size = self.env.b, self.step, self.tile.lanes, self.step.target.size
        sum_ = memory_type(step.target.element)
        element, alignment = ("i32", element_size(step.words)) if step.words else (sum_, size)
        places = [(b.add(row, integer(r, "i32")), v) for r in range(self.tile.rows) for v in range(self.tile.vectors)]
        targets = [self._target_address(line, column, v) for line, v in places]
        sums = [self._initial(*place, column, address) for place, address in zip(places, targets, strict=True)]
        if self.excess:
            sums = [b.sub(value, self.excess[v]) for value, (_, v) in zip(sums, places, strict=True)]
        evaluated = any(isinstance(each, _Evaluated) for each in self.right)
        if not evaluated:
            self._fetch_with_tile(row, column, first)
        lines = [[left(b.add(row, integer(r, "i32"))) for r in range(self.tile.rows)] for left in self.left]
        chunk = step.chunk or step.depth
        chunks = b.open_loop(0, step.depth, chunk, sums)
        start = b.add(first, chunks.counter)
        self._fetch_left(row, start, chunk)
        products = b.open_loop(0, chunk, step.unroll, chunks.carried)
        following = products.carried
        if step.instruction:
            following = [b.cast("fpext", value, "double") for value in following]
        for number in range(step.unroll):
            k = b.add(b.add(start, products.counter), integer(number, "i32"))
            if evaluated and step.upcoming is not None:
                self._fetch(step.upcoming, column, k, integer(0, "i32"))
            for left, vectors in zip(lines, self._right_vectors(column, k), strict=True):
                partial, following = following, []
                for r in range(self.tile.rows):
                    one = b.load(element, left[r](k), alignment)
                    factor = b.splat(one, width) if width > 1 else one
                    if self.offset is not None:
                        factor = b.binary("xor", factor, self.offset)
                    for v in range(self.tile.vectors):
                        following.append(self._add_product(partial[r * self.tile.vectors + v], factor, vectors[v]))
        if step.instruction:
            following = [b.cast("fptrunc", value, "float") for value in following]
        before, sums = sums, b.close_loop(chunks, b.close_loop(products, following))
        if watching.is_followed(self.env, step.target.element):
            zeros = functools.partial(self._zeros, lines, column, first)
            watching.summed(self.env, step.op, step.target.element, before, sums, zeros)
        for address, value in zip(targets, sums, strict=True):
            b.store(value, address, size)

    def _zeros(self, lines: list[list[LeftRow]], column: Value, first: Value) -> list[Value]:
        """For each accumulator the sum of its factors, all times zero."""
        b, step = self.env.b, self.step
        nothing = zero(self._vector(memory_type(step.target.element)))
        loop = b.open_loop(0, step.depth, 1, [nothing] * (self.tile.rows * self.tile.vectors))
        k, following = b.add(first, loop.counter), loop.carried
        for left, vectors in zip(lines, self._right_vectors(column, k), strict=True):
            partial, following = following, []
            for r in range(self.tile.rows):
                size = element_size(step.words) if step.words else step.target.size
                one = b.load(element_of(vectors[0]), left[r](k), size)
                factor = b.splat(one, self.tile.lanes) if self.tile.lanes > 1 else one
                for v in range(self.tile.vectors):
                    total = partial[r * self.tile.vectors + v]
                    for each in (*self._numbers(factor), *self._numbers(vectors[v])):
                        total = b.fma(each, nothing, total)
                    following.append(total)
        return b.close_loop(loop, following)

    def _numbers(self, value: Value) -> list[Value]:
        """Those of a word of bf16, or the number itself."""
        b = self.env.b
        if not self.step.words:
            return [value]
        halves = (
            b.binary("shl", value, b.integer_like(16, value)),
            b.binary("and", value, b.integer_like(-1 << 16, value)),
        )
        return [b.bitcast(half, "float") for half in halves]

    def _initial(self, line: Value, number: int, column: Value, address: Value) -> Value:
        """What products are added to."""
        b, step = self.env.b, self.step
        vector = self._vector(memory_type(step.target.element))
        if step.initial is None:
            return zero(vector)
        if isinstance(step.initial, Buffer):
            return b.load(vector, address, step.target.size)
        index = (*self.batch, Lane(line), Lane(b.add(column, integer(number * self.tile.lanes, "i32")), 1))
        strip = Strip(self.env, step.sources, index, self.tile.lanes, accesses=step.accesses)
        return strip.vector(step.initial)

    def _add_product(self, partial: Value, left: Value, right: Value) -> Value:
        b = self.env.b
        if self.step.words:
            return self._add_words(partial, left, right)
        if self.step.instruction:
            left, right = (b.cast("fpext", value, "double") for value in (left, right))
        if is_float_element(self.step.target.element):
            return b.fma(left, right, partial)
        return b.add(partial, b.mul(left, right))

    def _add_words(self, partial: Value, left: Value, right: Value) -> Value:
        b, words, lanes = self.env.b, self.step.words, self.tile.lanes
        parts = vector_type(lanes * per_word(words), "bfloat" if words == "bf16" else words)
        left, right = (b.define(parts, f"bitcast {value} to {parts}") for value in (left, right))
        if words == "i16":
            return b.add(partial, b.intrinsic(_ADD_PAIRS[lanes], partial.type, left, right))
        return b.intrinsic(_ADD_TO_SUM[words], partial.type, partial, left, right)

    def _fetch_left(self, row: Value, start: Value, count: int) -> None:
        """What the tile below needs of the left operand for `count` products."""
        b, step = self.env.b, self.step
        for factors, left in zip(step.products, self.left, strict=True):
            value = factors.left.value
            if factors.left.buffer is None and value.op and (ahead := step.accesses[value.op, own_dims(value)].ahead):
                for r in range(self.tile.rows):
                    below = left(b.add(row, integer(ahead + r, "i32")))
                    for place in range(0, count, CACHE_LINE // step.target.size):
                        b.prefetch(below(b.add(start, integer(place, "i32"))))


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
