"""Matrix products: operands packed into buffers, and accumulators that stay in registers.

The right operand is read in vectors along its rows, the left one element by element, broadcast. What the accumulators
need of the right operand at a time, a panel of its columns, lies in one piece: it stays in the first-level cache.
Narrow floating-point operands are widened to f32 while they are packed, so every product is exact before it is added.
Where the processor has instructions that add two products of 16-bit numbers, or four of 8-bit numbers, to one of 32
bits, the operands are packed as words of such numbers, neighbours along the inner dimension, instead.

Where the left operand has few rows, packing would take longer than multiplying: the right operand is evaluated where it
is multiplied. Decoded weights depend on few bits of what was loaded (analyses/few_bits.py): their words are looked up.
"""

from __future__ import annotations

import dataclasses
import math

from torch_mtia.triton.analyses.few_bits import FewBits, few_bits
from torch_mtia.triton.analyses.strips import ZERO, Lanes, Scalar, power_of_two_divisor
from torch_mtia.triton.analyses.walk import own_dims
from torch_mtia.triton.ir.attributes import Bits
from torch_mtia.triton.ir.elements import element_size, is_float_element
from torch_mtia.triton.ir.emulation import INSTRUCTION
from torch_mtia.triton.ir.module import Op, Unsupported, Value
from torch_mtia.triton.ir.ops import is_fused, is_load, pointee_size, splat_constant
from torch_mtia.triton.plan.control import assign
from torch_mtia.triton.plan.nests import Access, Accesses, Buffer, Shape, innermost_first, row_major
from torch_mtia.triton.plan.plan import (
    ANYWHERE,
    AT_ONE_DISTANCE,
    Accumulators,
    Clear,
    Convert,
    Decode,
    Factors,
    Multiply,
    Operand,
    Pack,
    Upcoming,
    per_word,
)
from torch_mtia.triton.plan.planner import Planner, plans, shape_of

LEAST_VECTORS = 4  # of accumulators in a row, where the right operand is not packed: what is read at once
MOST_COST_OF_SUM = 40  # of evaluating an element of what products are added to in the accumulators: a masked bias
MOST_COST = 80  # of evaluating an element of the right operand again and again in the code
INDEX_BITS = 5  # of the instruction that looks up numbers of 16 bits in a vector
LIGHT_UNROLL = 4  # strips of what is looked up: what they load is next to each other
MOST_VECTORS = 8  # of a row of accumulators
RIGHT_BYTES = 32 << 10  # of the right operand to keep in the first-level cache
CHUNK_BYTES = 256  # of rows of the left operand, to prefetch at once
CACHE_LINE = 64
MOST_LINES = 16  # to prefetch with a tile of accumulators
FETCH_BYTES = 8 << 10  # of the right operand, before what is fetched is needed
UNROLL = 4  # products in a round of the loop over them
LEAST_DEPTH = 64  # products to add before the accumulators go to memory
TILE = 16  # rows of a tile of AMX, and words of each
BF16_HOLDS = frozenset({"bf16", "f8E5M2", "f8E4M3FN", "f8E5M2FNUZ", "f8E4M3FNUZ"})

# triton::ScaleDotElemType
_FORMATS = {0: "f8E4M3FN", 1: "f8E5M2", 4: "e2m1", 5: "bf16", 6: "f16"}


@plans("tt.dot")
def _dot(planner: Planner, op: Op) -> None:
    following = _following(planner, op)
    if following is not None:
        planner.joined[following] = [*planner.joined.pop(op, []), op]
        return
    product = _Product(planner, [*planner.joined.pop(op, []), op], _words(planner, op))
    product.operands()
    product.add(product.ops[0].operands[2])


def _following(planner: Planner, op: Op) -> Op | None:
    """The product that alone adds to this one, if one loop can do both, and reads once what their right operands have
    in common: the two halves of bytes that hold two numbers."""
    (result,) = op.results
    user = next(iter(result.users), None)
    if INSTRUCTION in op.attributes or user is None or user.name != "tt.dot":
        return None
    if len(result.users) > 1 or user.block is not op.block:
        return None
    if user.operands[2] is not result or result in user.operands[:2] or result.type.element != _compute_element(op):
        return None
    words = _words(planner, op)
    if shape_of(user.operands[0]) != shape_of(op.operands[0]) or _words(planner, user) != words:
        return None
    both = _Product(planner, [op, user], words)
    if words == "i8" or both.in_tiles:
        return None
    if any(not is_fused(between) for between in op.block.ops[op.position + 1 : user.position]):
        return None
    if not all(both.is_evaluated_by_rows(right) for right in both.rights):
        return None
    if not words and not both.is_evaluated():
        return None
    first, second = (
        {value for value in planner.available.reach([right], ()) if is_load(value.op)} for right in both.rights
    )
    return user if first & second else None


def _compute_element(op: Op) -> str:
    """What products are computed and added in."""
    accumulator = op.results[0].type.element
    if accumulator in ("f64", "i32", "i64"):
        return accumulator
    if is_float_element(accumulator):
        return "f32"
    raise Unsupported(f"a dot product with results of type {accumulator}", op.location)


def _words(planner: Planner, op: Op) -> str:
    """The format that the operands are packed in words of, if there is an instruction for them."""
    (left, right), result = (operand.type for operand in op.operands[:2]), op.results[0].type
    inner, columns = shape_of(op.operands[1])[-2:]
    if columns < planner.lanes or INSTRUCTION in op.attributes:
        return ""
    elements = {left.element, right.element}
    if elements == {"i8"} and result.element == "i32":
        if "sse" not in planner.features:
            return ""
        format_ = "i8" if "vnni" in planner.features and inner >= per_word("i8") else "i16"
    elif "bf16" in planner.features and elements <= BF16_HOLDS and is_float_element(result.element):
        format_ = "bf16"
        if "amx" in planner.features and not _Product(planner, [op], format_).in_tiles:
            return ""  # processors with AMX multiply bf16 without it slower than they multiply f32
    else:
        return ""
    return format_ if inner >= per_word(format_) else ""


class _Product:
    """A product, or several whose sums are added: `op` is the last one."""

    def __init__(self, planner: Planner, ops: list[Op], words: str = "", inner: int = 0) -> None:
        self.planner, self.ops, self.op, self.words = planner, ops, ops[-1], words
        self.shape = shape_of(self.op.results[0])
        self.element = _compute_element(self.op)
        self.rights = [each.operands[1] for each in ops]
        inner = inner or shape_of(self.op.operands[0])[-1]
        # Whether it is made of whole tiles of AMX.
        self.in_tiles = (
            "amx" in planner.features
            and words in ("bf16", "i8")
            and min(*self.shape[-2:], inner // per_word(words)) >= TILE
        )
        self.inner = inner // per_word(words)  # of the words
        # Filled by `operands`.
        self.factors: tuple[Factors, ...] = ()
        self.evaluated: list[Value] = []  # right operands that are evaluated where they are multiplied
        self.following_rows: Op | None = None

    # Accumulators -----------------------------------------------------------------------------------------------------

    def accumulators(self) -> Accumulators:
        m, n = self.shape[-2:]
        registers = _registers(self.planner)
        if self.in_tiles:
            return Accumulators(min(2 * TILE, m), min(2, n // TILE), TILE, True)
        lanes = min(self.planner.lanes if element_size(self.element) <= 4 else self.planner.lanes // 2, n)
        if self.evaluated:  # once, if no other rows need it
            return Accumulators(m, min(registers // m, MOST_VECTORS, n // lanes), lanes, False)
        # As square as fits, leaving registers for the operands.
        vectors = min((4 if m > 2 else 8) if registers == 16 else 2, n // lanes)
        return Accumulators(max(min(registers // vectors, m), 1), vectors, lanes, False)

    def panels(self, shape: Shape) -> Shape:
        """Of a right operand of that shape, if it has more columns than the accumulators."""
        *batch, inner, n = shape
        width = self.accumulators().columns
        return (*batch, n // width, inner, width) if n > width else shape

    # Operands ---------------------------------------------------------------------------------------------------------

    def operands(self) -> None:
        """Packs what is not read or evaluated where it is multiplied."""
        evaluated = self.is_evaluated()
        if evaluated:
            self.evaluated = self.rights
        again = evaluated and self.accumulators().columns < self.shape[-1]
        lefts = [self._left(each.operands[0], again) for each in self.ops]
        if evaluated:
            rights = [Operand(right, None, self._few_bits(right)) for right in self.rights]
        else:
            packed = self._pack_words() if self.words else map(self._pack_panels, self.rights)
            rights = [Operand(right, buffer) for right, buffer in zip(self.rights, packed, strict=True)]
        self.factors = tuple(Factors(*each) for each in zip(lefts, rights, strict=True))
        self.following_rows = self._following_rows()

    def is_evaluated(self) -> bool:
        """Whether to evaluate right operands where they are multiplied: of few rows, each element is needed once."""
        planner, shape = self.planner, shape_of(self.rights[0])
        return (
            self.shape[-2] * LEAST_VECTORS <= _registers(planner)
            and shape[-1] >= planner.lanes
            and len(shape) <= 3
            and self.words != "i8"  # which needs the sums of its columns first
            and not self.in_tiles
            and sum(planner.available.cost(right, planner.affine) for right in self.rights) <= MOST_COST
            and (len(self.rights) > 1 or self.is_evaluated_by_rows(self.rights[0]))
        )

    def is_evaluated_by_rows(self, value: Value) -> bool:
        """Whether nobody else needs what leads to the right operand, and its rows are rows in memory."""
        planner, shape = self.planner, shape_of(value)
        if planner.best_dimension([value], shape) != len(shape) - 1:
            return False
        if planner.affine.is_plain_load(value) or value in planner.materialized:
            return True
        if planner.is_needed_after(value, self.op) or planner.prepare(self.op, [value], shape):
            return False
        order = planner.available.reach([value], shape)
        return all(each.op is None or each.op.name != "tt.trans" for each in order) and all(
            planner.affine.strides(load.op.operands[0])[-1] in (0, element_size(load.type.element))
            for load in order
            if load.op is not None and is_load(load.op) and shape_of(load)[-1] > 1
        )

    def _few_bits(self, right: Value) -> FewBits | None:
        """What the words of a right operand can be looked up by, in a vector with all of them."""
        return few_bits(right, self.planner.available, INDEX_BITS) if self.words == "bf16" else None

    def _left(self, left: Value, again: bool) -> Operand:
        """`again`: whether it is read several times."""
        if not again and self._is_read_in_place(left):
            return Operand(left)
        packed = self._pack(left, self.words or self.element)
        if self.words:
            packed = dataclasses.replace(packed, shape=(*packed.shape[:-1], self.inner), strides=(), element="i32")
        return Operand(left, packed)

    def _is_read_in_place(self, value: Value) -> bool:
        """Whether the elements of the left operand are as easy to read where they are as in a buffer."""
        planner, op, element = self.planner, value.op, self.words or self.element
        if value.type.element != element or value in planner.materialized or planner.instrumented:
            return False
        if len(shape_of(value)) > 3 or op is None or not is_load(op) or len(op.operands) != 1:
            return False
        along = None if self.in_tiles else len(shape_of(value)) - 1  # a tile has its rows at one distance
        if not planner.affine.has_pattern(op.operands[0], along):
            return False
        return not self.words or planner.affine.strides(op.operands[0])[-1] == element_size(element)

    def _following_rows(self) -> Op | None:
        """The load of the right operand, if it is in a loop: mostly the next round reads the rows after it."""
        planner, right, parent = self.planner, self.rights[-1], self.op.block.region.parent
        if parent is None or parent.name != "scf.for" or len(shape_of(right)) != 2 or right in planner.materialized:
            return None
        loads = list(planner.available.reach([right], shape_of(right))) if self.evaluated else [right]
        for load in loads:
            if is_load(load.op) and load.type.shape == right.type.shape:
                assert load.op is not None
                pointer = load.op.operands[0]
                by_columns = planner.affine.strides(pointer)[0] == element_size(load.type.element)
                if (
                    not by_columns
                    and planner.affine.has_pattern(pointer, 0)
                    and not planner.available.reads_buffers(pointer)
                ):
                    return load.op
        return None

    # Packing ----------------------------------------------------------------------------------------------------------

    def _pack(self, value: Value, element: str) -> Buffer:
        """The operand in row-major order, as numbers of `element`."""
        planner, op = self.planner, self.op
        found = planner.materialized.get(value)
        if found is not None and found.element == element and found.row_major():
            return found
        target = planner.new_buffer(shape_of(value), element)
        if value.type.element == element:
            planner.materialize([value], op, [target])
            if found is None and planner.is_needed_from(value, op.block, op.position + 1):
                planner.materialized[value] = target
        else:
            self._pack_into(value, target)
        return target

    def _pack_into(self, value: Value, target: Buffer) -> None:
        nest = self.planner.nest(self.op, [value], shape_of(value))
        self.planner.add(Pack((Operand(value, target),), nest))

    def _pack_panels(self, value: Value) -> Buffer:
        planner, shape = self.planner, shape_of(value)
        panels = self.panels(shape)
        if panels == shape:
            return self._pack(value, self.element)
        target = planner.new_buffer(panels, self.element)
        if self._is_transposed(value, shape):
            self._pack_transposed(value, shape, target)
        else:
            self._pack_into(value, target)
        return target

    def _pack_words(self) -> list[Buffer]:
        """Right operands with several of their rows in one."""
        planner, words = self.planner, self.words
        *batch, inner, n = shape = shape_of(self.rights[0])
        in_words = (*batch, inner // per_word(words), n)
        panels, last = self.panels(in_words), len(shape) - 1
        if len(self.rights) == 1:
            (right,) = self.rights
            if self._is_transposed(right, in_words):
                target = planner.new_buffer(panels, "i32")
                self._pack_transposed(right, in_words, target)
                return [target]
            if not self.is_evaluated_by_rows(right):
                planner.row_major_buffer(right, self.op)
        targets = [planner.new_buffer(panels, "i32") for _ in self.rights]
        packed = tuple(map(Operand, self.rights, targets, map(self._few_bits, self.rights)))
        light = all(each.few_bits is not None for each in packed)
        unroll = min(LIGHT_UNROLL, n // planner.lanes) if light else 1
        index = planner.index(in_words, last, planner.lanes_along(in_words, last))
        index[-2] = Lanes(Scalar(nonnegative=True), 0)  # one of the rows that share words
        accesses = planner.accesses(self.rights, shape, index, planner.lanes_along(in_words, last))
        nest = planner.plain_nest(in_words, last, roots=self.rights, unroll=unroll, accesses=accesses)
        planner.add(Pack(packed, nest, words))
        return targets

    def _is_transposed(self, value: Value, shape: Shape) -> bool:
        """Whether evaluating a right operand is nothing but reading it, by columns; `shape` is that of its words."""
        planner = self.planner
        columns = planner.best_dimension([value], shape_of(value)) == len(shape) - 2
        if not columns or min(shape[-2:]) < planner.lanes:
            return False
        while value not in planner.materialized and value.op is not None and value.op.name == "tt.trans":
            (value,) = value.op.operands
        return value in planner.materialized or planner.affine.is_plain_load(value)

    def _pack_transposed(self, value: Value, words: Shape, target: Buffer) -> None:
        """In strips of its columns."""
        planner, shape, op = self.planner, shape_of(value), value.op
        last = len(shape) - 1
        lanes = planner.lanes_along(shape, last) * per_word(self.words)
        index = planner.index(shape, last - 1, lanes)
        index[-2:] = Lanes(Scalar(None, power_of_two_divisor(lanes), True), 1), Lanes(Scalar(nonnegative=True), 0)
        accesses = planner.accesses([value], shape, index, lanes)
        columns = ANYWHERE
        if op is not None and is_load(op) and len(op.operands) == 1 and value not in planner.materialized:
            pointer = op.operands[0]
            at = planner.strips.lanes([(pointer, own_dims(pointer))], index, lanes, planner.available)
            if planner.affine.has_pattern(pointer, last - 1) and isinstance(at[pointer, own_dims(pointer)].stride, int):
                columns = AT_ONE_DISTANCE
        nest = planner.plain_nest(words, last, roots=[value], accesses=accesses)
        planner.add(Pack((Operand(value, target),), nest, self.words, columns))

    # Multiplication ---------------------------------------------------------------------------------------------------

    def add(self, initial: Value) -> None:
        """The result of `op`: initial + the sum of left @ right."""
        planner, op, element, inner = self.planner, self.op, self.element, self.inner
        (result,), tile = op.results, self.accumulators()
        starts_at_zero = initial.op is not None and _is_zero(initial.op)
        direct = result.type.element == element
        depth = inner  # of products, before the accumulators go to memory
        if not self.evaluated:
            bytes_ = tile.columns * element_size(element) * len(self.factors)
            depth = min(inner, max(RIGHT_BYTES // bytes_, LEAST_DEPTH))
        in_registers = direct and depth == inner and self._is_read_by_rows(initial, tile)
        target = planner.destination(result) if direct else planner.new_buffer(self.shape, element)
        read = [*planner.sources(self.evaluated).materialized.values()]
        read += [each.buffer for of in self.factors for each in (of.left, of.right) if each.buffer is not None]
        if not target.row_major() or target.storage in {buffer.storage for buffer in read}:
            target = planner.destination(result, row_major(self.shape))
        if not starts_at_zero and not in_registers and planner.materialized.get(initial) is not target:
            if direct:
                assign(planner, op, [(initial, target)])
            else:
                self._pack_into(initial, target)
        if starts_at_zero and depth < inner:
            planner.add(Clear(planner.plain_nest(target.shape, len(target.shape) - 1), target))
            starts_at_zero = False
        self._multiply(target, tile, depth, initial if in_registers else None if starts_at_zero else target)
        if not direct:
            nest = planner.plain_nest(self.shape, len(self.shape) - 1)
            planner.add(Convert(nest, target, planner.destination(result)))

    def _is_read_by_rows(self, initial: Value, tile: Accumulators) -> bool:
        """Whether what products are added to is as easy to evaluate in the accumulators as to read there: a bias."""
        planner, shape = self.planner, shape_of(initial)
        return (
            not tile.tiles
            and tile.lanes == planner.lanes
            and len(shape) <= 3
            and initial not in planner.materialized
            and planner.available.is_fused(initial)
            and not planner.available.reads_buffers(initial)
            and planner.best_dimension([initial], shape) == len(shape) - 1
            and planner.available.cost(initial, planner.affine) <= MOST_COST_OF_SUM
        )

    def _multiply(self, target: Buffer, tile: Accumulators, depth: int, initial: Value | Buffer | None) -> None:
        planner, lanes = self.planner, tile.lanes if tile.lanes > 1 else 0
        in_place = [each.left.value for each in self.factors if each.left.buffer is None]
        accesses: Accesses = {}
        for left in in_place:
            accesses[left.op or left, own_dims(left)] = self._access_in_place(left, tile)
        evaluated = [*self.evaluated, *([initial] if isinstance(initial, Value) else [])]
        for value in evaluated:
            index = [Lanes(Scalar(nonnegative=True), 0)] * len(shape_of(value))
            index[-1] = Lanes(Scalar(None, power_of_two_divisor(tile.lanes), True), int(lanes > 0))
            accesses.update(planner.accesses([value], shape_of(value), index, lanes))
        upcoming = self._upcoming(tile, depth)
        instruction = min(self.op.attributes.get(INSTRUCTION, 0), depth)
        chunk = min(CHUNK_BYTES // element_size(target.element), depth) if in_place else depth
        pointers = [left.op.operands[0] for left in in_place if left.op is not None]
        pointers += [] if upcoming is None else upcoming.load.operands[:1]
        planner.add(
            Multiply(
                self.op,
                target,
                self.inner,
                self.words,
                tile,
                self.factors,
                upcoming,
                depth,
                chunk if chunk < depth else 0,
                instruction or (1 if self.evaluated else min(UNROLL, chunk)),
                instruction,
                initial,
                accesses,
                planner.sources([*pointers, *evaluated]),
            )
        )

    def _access_in_place(self, left: Value, tile: Accumulators) -> Access:
        """How a left operand is read element by element, or by tiles; with the rows for the accumulators below."""
        if tile.tiles:
            return Access("vector")
        is_last, rows = tile.rows == self.shape[-2], len(shape_of(left)) - 2
        kind = "gather" if self._stride_in_place(left, tile.lanes) is None else "strided"
        return Access(kind) if is_last else Access(kind, ahead=tile.rows, rows=rows)

    def _stride_in_place(self, left: Value, lanes: int) -> object:
        """From one element of a row of a left operand to the next; None if its index is computed for each."""
        assert left.op is not None
        pointer = left.op.operands[0]
        index = [Lanes(Scalar(nonnegative=True), 0)] * len(shape_of(left))
        index[-1] = Lanes(ZERO.value, 1)
        place = pointer, own_dims(pointer)
        return self.planner.strips.lanes([place], index, lanes, self.planner.available)[place].stride

    def _upcoming(self, tile: Accumulators, depth: int) -> Upcoming | None:
        load = self.following_rows
        if load is None:
            return None
        size, numbers = pointee_size(load), per_word(self.words)
        row = numbers * max(tile.columns * size // CACHE_LINE, 1)  # lines that a row, of numbers or words, takes
        if self.evaluated:
            ahead = max(self.inner, FETCH_BYTES // (numbers * self.shape[-1] * size))
            return Upcoming(load, ahead, 2, row, row)
        share = -(-depth * row // (self.shape[-2] // tile.rows))
        return Upcoming(load, self.inner, 1, share, min(share, MOST_LINES))


def _registers(planner: Planner) -> int:
    """For accumulators; as many remain for the operands."""
    return 16 if planner.lanes == 16 else 8


def _is_zero(op: Op) -> bool:
    constant = splat_constant(op) if op.name == "arith.constant" else None
    if isinstance(constant, float):
        return constant == 0 and math.copysign(1, constant) > 0  # -0 + 0 * x is not -0
    return constant in (0, Bits(0))


# Microscaled operands -------------------------------------------------------------------------------------------------


@plans("tt.dot_scaled")
def _dot_scaled(planner: Planner, op: Op) -> None:
    """Operands are decoded to f32, and multiplied as any others."""
    left, right, initial, left_scale, right_scale = (group[0] if group else None for group in op.segments())
    assert left is not None
    assert right is not None
    assert initial is not None
    *batch, m, n = shape_of(op.results[0])
    rank = len(batch) + 2
    packed_left = op.attributes.get("lhs_k_pack", True)
    packed_right = op.attributes.get("rhs_k_pack", True)
    left_format, right_format = (_format(op, op.attributes[name]) for name in ("a_elem_type", "b_elem_type"))
    inner = shape_of(left)[-1] * (2 if left_format == "e2m1" and packed_left else 1)
    along = rank - 1 if packed_left else rank - 2
    product = _Product(planner, [op], inner=inner)
    decoded = _decode(product, left, left_scale, (*batch, m, inner), left_format, rank - 1, along)
    along = rank - 2 if packed_right else rank - 1
    right_decoded = _decode(product, right, right_scale, (*batch, inner, n), right_format, rank - 2, along)
    product.factors = (Factors(Operand(left, decoded), Operand(right, right_decoded)),)
    product.add(initial)


def _format(op: Op, number: int) -> str:
    found = _FORMATS.get(number)
    if found is None:
        raise Unsupported(f"operands of dot_scaled in the format {number}", op.location)
    return found


def _decode(
    product: _Product,
    value: Value,
    scale: Value | None,
    shape: tuple[int, ...],
    format_: str,
    inner: int,
    packed: int,
) -> Buffer:
    planner, op = product.planner, product.op
    source, is_right = planner.row_major_buffer(value, op), inner == len(shape) - 2
    scales = None
    one_by_one = False
    if scale is not None and is_right:  # a strip goes along the columns, each of which has a row of scales
        rows = shape_of(scale)
        scales = planner.new_buffer(rows, scale.type.element, innermost_first(rows, len(rows) - 2))
        planner.materialize([scale], op, [scales])
    elif scale is not None:
        scales = planner.row_major_buffer(scale, op)
        one_by_one = shape[inner] // scales.shape[-1] < planner.lanes_along(shape, inner)
    target = planner.new_buffer(product.panels(shape) if is_right else shape, "f32")
    nest = planner.plain_nest(shape, len(shape) - 1, one_by_one=one_by_one)
    planner.add(Decode(nest, source, scales, target, format_, inner, packed))
    return target
