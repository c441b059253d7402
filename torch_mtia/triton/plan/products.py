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
from torch_mtia.triton.analyses.strips import Lanes, Scalar, power_of_two_divisor
from torch_mtia.triton.analyses.walk import own_dims
from torch_mtia.triton.ir.attributes import Bits
from torch_mtia.triton.ir.elements import element_size, is_float_element
from torch_mtia.triton.ir.module import Op, Unsupported, Value
from torch_mtia.triton.ir.ops import is_fused, is_load, splat_constant
from torch_mtia.triton.plan.control import assign
from torch_mtia.triton.plan.plan import (
    Access,
    Accesses,
    Buffer,
    Clear,
    Convert,
    Decode,
    Factors,
    Multiply,
    Pack,
    Packed,
    Shape,
    innermost_first,
    per_word,
    row_major,
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
    ops = [*planner.joined.pop(op, []), op]
    (left, right), element, words = op.operands[:2], _compute_element(op), _words(planner, op)
    inner = shape_of(left)[-1] // (per_word(words) if words else 1)
    evaluated = _is_evaluated(planner, op, [each.operands[1] for each in ops])
    operands = _Operands(
        tuple(_factors(planner, op, ops, evaluated)), inner, words, _upcoming(planner, op, right, evaluated)
    )
    _add_products(planner, op, operands, ops[0].operands[2], element)


def _following(planner: Planner, op: Op) -> Op | None:
    """The product that alone adds to this one, if one loop can do both, and reads once what their right operands have
    in common: the two halves of bytes that hold two numbers."""
    (result,) = op.results
    user = next(iter(result.users), None)
    if user is None or user.name != "tt.dot" or len(result.users) > 1 or user.block is not op.block:
        return None
    if user.operands[2] is not result or result in user.operands[:2] or result.type.element != _compute_element(op):
        return None
    words = _words(planner, op)
    if shape_of(user.operands[0]) != shape_of(op.operands[0]) or _words(planner, user) != words:
        return None
    if words == "i8" or (words and _in_tiles(planner, op, words)):
        return None
    if any(not is_fused(between) for between in op.block.ops[op.position + 1 : user.position]):
        return None
    rights = [op.operands[1], user.operands[1]]
    if not all(_is_evaluated_by_rows(planner, user, right) for right in rights):
        return None
    if not words and not _is_evaluated(planner, user, rights):
        return None
    first, second = ({value for value in planner.available.reach([right], ()) if is_load(value.op)} for right in rights)
    return user if first & second else None


def _factors(planner: Planner, op: Op, ops: list[Op], evaluated: bool) -> list[Factors]:
    """The operands of products of which `op` is the last one, as the loop over them wants them."""
    element, words = _compute_element(op), _words(planner, op)
    rights = [each.operands[1] for each in ops]
    again = evaluated and _accumulators_of_all_rows(planner, op, element).columns < shape_of(rights[0])[-1]
    lefts = [_left(planner, op, each.operands[0], words or element, bool(words), again) for each in ops]
    if evaluated:
        looked_up = [_few_bits(planner, right, words) for right in rights]
        return [Factors(*each) for each in zip(lefts, rights, looked_up, strict=True)]
    if words:
        packed = _pack_words(planner, op, rights, words)
    else:
        packed = [_pack_panels(planner, op, right, element) for right in rights]
    return [Factors(*each) for each in zip(lefts, packed, strict=True)]


def _left(planner: Planner, op: Op, left: Value, element: str, in_words: bool, again: bool) -> Buffer | Value:
    """`again`: whether it is read several times."""
    in_tiles = in_words and _in_tiles(planner, op, element)
    if not again and _reads_directly(planner, left, element, in_words, in_tiles):
        return left
    packed = _pack(planner, op, left, element)
    if not in_words:
        return packed
    shape = (*packed.shape[:-1], packed.shape[-1] // per_word(element))
    return dataclasses.replace(packed, shape=shape, strides=(), element="i32")


def _is_evaluated(planner: Planner, op: Op, rights: list[Value]) -> bool:
    """Whether to evaluate right operands where they are multiplied: of few rows, each element is needed once."""
    shape, rows, words = shape_of(rights[0]), shape_of(op.results[0])[-2], _words(planner, op)
    return (
        rows * LEAST_VECTORS <= _registers(planner)
        and shape[-1] >= planner.lanes
        and len(shape) <= 3
        and words != "i8"  # which needs the sums of its columns first
        and not (words and _in_tiles(planner, op, words))
        and sum(planner.available.cost(right, planner.affine) for right in rights) <= MOST_COST
        and (len(rights) > 1 or _is_evaluated_by_rows(planner, op, rights[0]))
    )


def _few_bits(planner: Planner, right: Value, words: str) -> FewBits | None:
    """What the words of a right operand can be looked up by, in a vector with all of them."""
    if words != "bf16":
        return None
    return few_bits(right, planner.available, INDEX_BITS)


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
    if columns < planner.lanes:
        return ""
    elements = {left.element, right.element}
    if elements == {"i8"} and result.element == "i32":
        if "sse" not in planner.features:
            return ""
        format_ = "i8" if "vnni" in planner.features and inner >= per_word("i8") else "i16"
    elif "bf16" in planner.features and elements <= BF16_HOLDS and is_float_element(result.element):
        format_ = "bf16"
        if "amx" in planner.features and not _in_tiles(planner, op, format_):
            return ""  # processors with AMX multiply bf16 without it slower than they multiply f32
    else:
        return ""
    return format_ if inner >= per_word(format_) else ""


def _in_tiles(planner: Planner, op: Op, words: str) -> bool:
    """Whether the product is made of whole tiles of AMX."""
    m, n = shape_of(op.results[0])[-2:]
    return (
        "amx" in planner.features
        and words in ("bf16", "i8")
        and min(m, n, shape_of(op.operands[0])[-1] // per_word(words)) >= TILE
    )


def _upcoming(planner: Planner, op: Op, right: Value, evaluated: bool) -> Op | None:
    """The load of the right operand, if it is in a loop: mostly the next round reads the rows after it."""
    parent = op.block.region.parent
    if parent is None or parent.name != "scf.for" or len(shape_of(right)) != 2 or right in planner.materialized:
        return None
    loads = list(planner.available.reach([right], shape_of(right))) if evaluated else [right]
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


def _reads_directly(planner: Planner, value: Value, element: str, in_words: bool, in_tiles: bool) -> bool:
    """Whether the elements of the left operand are as easy to read where they are as in a buffer."""
    if (
        value.type.element != element
        or value in planner.materialized
        or planner.instrumented
        or len(shape_of(value)) > 3
    ):
        return False
    op = value.op
    if op is None or not is_load(op) or len(op.operands) != 1:
        return False
    along = None if in_tiles else len(shape_of(value)) - 1  # a tile has its rows at one distance
    if not planner.affine.has_pattern(op.operands[0], along):
        return False
    return not in_words or planner.affine.strides(op.operands[0])[-1] == element_size(element)


@dataclasses.dataclass(frozen=True)
class _Operands:
    products: tuple[Factors, ...]
    inner: int
    words: str = ""
    upcoming: Op | None = None

    @property
    def evaluated(self) -> list[Value]:
        return [each.right for each in self.products if isinstance(each.right, Value)]


def _add_products(planner: Planner, op: Op, operands: _Operands, initial: Value, element: str) -> None:
    """The result of `op`: initial + the sum of left @ right, computed in `element`."""
    (result,) = op.results
    shape = shape_of(result)
    starts_at_zero = initial.op is not None and _is_zero(initial.op)
    direct = result.type.element == element
    tile, depth = _block(planner, op, operands, element)
    in_registers = direct and depth == operands.inner and _is_read_by_rows(planner, initial, tile)
    target = planner.destination(result) if direct else planner.new_buffer(shape, element)
    read = [*planner.sources(operands.evaluated).materialized.values()]
    read += [each for of in operands.products for each in (of.left, of.right) if isinstance(each, Buffer)]
    storages = {buffer.storage for buffer in read}
    if not target.row_major() or target.storage in storages:
        target = planner.destination(result, row_major(shape))
    if not starts_at_zero and not in_registers and planner.materialized.get(initial) is not target:
        if direct:
            assign(planner, op, [(initial, target)])
        else:
            _pack_into(planner, op, initial, target)
    if starts_at_zero and depth < operands.inner:
        planner.add(Clear(planner.plain_nest(target.shape, len(target.shape) - 1), target))
        starts_at_zero = False
    _multiply(planner, op, operands, target, tile, depth, starts_at_zero, initial if in_registers else None)
    if not direct:
        nest = planner.plain_nest(shape, len(shape) - 1)
        planner.add(Convert(nest, target, planner.destination(result)))


def _is_read_by_rows(planner: Planner, initial: Value, tile: _Accumulators) -> bool:
    """Whether what products are added to is as easy to evaluate in the accumulators as to read there: a bias."""
    shape = shape_of(initial)
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


def _is_zero(op: Op) -> bool:
    constant = splat_constant(op) if op.name == "arith.constant" else None
    if isinstance(constant, float):
        return constant == 0 and math.copysign(1, constant) > 0  # -0 + 0 * x is not -0
    return constant in (0, Bits(0))


def _pack(planner: Planner, op: Op, value: Value, element: str) -> Buffer:
    """The operand in row-major order, as numbers of `element`."""
    found = planner.materialized.get(value)
    if found is not None and found.element == element and found.row_major():
        return found
    target = planner.new_buffer(shape_of(value), element)
    if value.type.element == element:
        planner.materialize([value], op, [target])
        if found is None and planner.is_needed_from(value, op.block, op.position + 1):
            planner.materialized[value] = target
    else:
        _pack_into(planner, op, value, target)
    return target


def _pack_into(planner: Planner, op: Op, value: Value, target: Buffer) -> None:
    planner.add(Pack((Packed(value, target),), planner.nest(op, [value], shape_of(value))))


def _pack_panels(planner: Planner, op: Op, value: Value, element: str) -> Buffer:
    """The right operand as numbers of `element`."""
    shape = shape_of(value)
    panels = _panels(shape, _accumulators(planner, op, element))
    if panels == shape:
        return _pack(planner, op, value, element)
    target = planner.new_buffer(panels, element)
    if _is_transposed(planner, value, shape):
        accesses = _accesses_of_columns(planner, value, 1)
        nest = planner.plain_nest(shape, len(shape) - 1, roots=[value], accesses=accesses)
        planner.add(Pack((Packed(value, target),), nest, transposed=True, has_pattern=_has_pattern(planner, value)))
    else:
        _pack_into(planner, op, value, target)
    return target


def _pack_words(planner: Planner, op: Op, values: list[Value], element: str) -> list[Buffer]:
    """Right operands with several of their rows in one, as numbers of `element`."""
    *batch, inner, n = shape = shape_of(values[0])
    words = (*batch, inner // per_word(element), n)
    panels = _panels(words, _accumulators(planner, op, "i32", element))
    last = len(shape) - 1
    transposed = len(values) == 1 and _is_transposed(planner, values[0], words)
    if not transposed and not (len(values) > 1 or _is_evaluated_by_rows(planner, op, values[0])):
        planner.row_major_buffer(values[0], op)
    packed = tuple(
        Packed(value, planner.new_buffer(panels, "i32"), None if transposed else _few_bits(planner, value, element))
        for value in values
    )
    light = all(each.few_bits is not None for each in packed)
    unroll = min(LIGHT_UNROLL, n // planner.lanes) if light else 1
    if transposed:
        accesses = _accesses_of_columns(planner, values[0], per_word(element))
    else:
        index = planner.index(words, last, planner.lanes_along(words, last))
        index[-2] = Lanes(Scalar(nonnegative=True), 0)  # one of the rows that share words
        accesses = planner.accesses(values, shape, index, planner.lanes_along(words, last))
    nest = planner.plain_nest(words, last, roots=values, unroll=unroll, accesses=accesses)
    planner.add(Pack(packed, nest, element, transposed, transposed and _has_pattern(planner, values[0])))
    return [each.target for each in packed]


def _has_pattern(planner: Planner, value: Value) -> bool:
    """Whether a right operand is loaded without a mask from columns whose elements are at equal distances."""
    op = value.op
    if op is None or not is_load(op) or len(op.operands) != 1 or value in planner.materialized:
        return False
    return planner.affine.has_pattern(op.operands[0], len(shape_of(value)) - 2)


def _accesses_of_columns(planner: Planner, value: Value, count: int) -> Accesses:
    """How strips of a right operand's columns, of `count` rows for each lane, are loaded."""
    shape = shape_of(value)
    lanes = planner.lanes_along(shape, len(shape) - 1) * count
    index = planner.index(shape, len(shape) - 2, lanes)
    index[-2:] = Lanes(Scalar(None, power_of_two_divisor(lanes), True), 1), Lanes(Scalar(nonnegative=True), 0)
    return planner.accesses([value], shape, index, lanes)


def _is_transposed(planner: Planner, value: Value, shape: Shape) -> bool:
    """Whether evaluating a right operand is nothing but reading it, by columns; `shape` is that of its words."""
    columns = planner.best_dimension([value], shape_of(value)) == len(shape) - 2
    if not columns or min(shape[-2:]) < planner.lanes:
        return False
    while value not in planner.materialized and value.op is not None and value.op.name == "tt.trans":
        (value,) = value.op.operands
    return value in planner.materialized or planner.affine.is_plain_load(value)


def _is_evaluated_by_rows(planner: Planner, op: Op, value: Value) -> bool:
    shape = shape_of(value)
    return planner.best_dimension([value], shape) == len(shape) - 1 and _is_evaluated_once(planner, op, value)


def _is_evaluated_once(planner: Planner, op: Op, value: Value) -> bool:
    """Whether nobody else needs what leads to the tensor, and its rows are rows in memory."""
    if planner.affine.is_plain_load(value) or value in planner.materialized:
        return True
    if planner.is_needed_after(value, op) or planner.prepare(op, [value], shape_of(value)):
        return False
    order = planner.available.reach([value], shape_of(value))
    return all(each.op is None or each.op.name != "tt.trans" for each in order) and all(
        planner.affine.strides(load.op.operands[0])[-1] in (0, element_size(load.type.element))
        for load in order
        if load.op is not None and is_load(load.op) and shape_of(load)[-1] > 1
    )


@dataclasses.dataclass(frozen=True)
class _Accumulators:
    """What stays in registers."""

    tiles: bool
    rows: int
    vectors: int  # of each row
    lanes: int

    @property
    def columns(self) -> int:
        return self.vectors * self.lanes


def _accumulators(planner: Planner, op: Op, element: str, words: str = "") -> _Accumulators:
    """As square as fits, leaving registers for the operands."""
    m, n = shape_of(op.results[0])[-2:]
    if words and _in_tiles(planner, op, words):
        return _Accumulators(True, min(2 * TILE, m), min(2, n // TILE), TILE)
    lanes = min(planner.lanes if element_size(element) <= 4 else planner.lanes // 2, n)
    registers = _registers(planner)
    vectors = min((4 if m > 2 else 8) if registers == 16 else 2, n // lanes)
    return _Accumulators(False, max(min(registers // vectors, m), 1), vectors, lanes)


def _accumulators_of_all_rows(planner: Planner, op: Op, element: str) -> _Accumulators:
    """For a right operand that is evaluated where it is needed: once, if no other rows need it."""
    m, n = shape_of(op.results[0])[-2:]
    lanes = planner.lanes if element_size(element) <= 4 else planner.lanes // 2
    return _Accumulators(False, m, min(_registers(planner) // m, MOST_VECTORS, n // lanes), lanes)


def _registers(planner: Planner) -> int:
    """For accumulators; as many remain for the operands."""
    return 16 if planner.lanes == 16 else 8


def _panels(shape: Shape, accumulators: _Accumulators) -> Shape:
    """Of a right operand of that shape, if it has more columns than the accumulators."""
    *batch, inner, n = shape
    width = accumulators.columns
    return (*batch, n // width, inner, width) if n > width else shape


def _block(planner: Planner, op: Op, operands: _Operands, element: str) -> tuple[_Accumulators, int]:
    """What stays in registers, and how many products are added before it goes to memory."""
    if operands.evaluated:
        return _accumulators_of_all_rows(planner, op, element), operands.inner
    tile = _accumulators(planner, op, element, operands.words)
    bytes_ = tile.columns * element_size(element) * len(operands.products)
    return tile, min(operands.inner, max(RIGHT_BYTES // bytes_, LEAST_DEPTH))


def _multiply(
    planner: Planner,
    op: Op,
    operands: _Operands,
    target: Buffer,
    tile: _Accumulators,
    depth: int,
    from_zero: bool,
    initial: Value | None,
) -> None:
    in_place = [each.left.op.operands[0] for each in operands.products if isinstance(each.left, Value) and each.left.op]
    after = [operands.upcoming.operands[0]] if operands.upcoming is not None else []
    read = [*in_place, *after, *operands.evaluated, *([] if initial is None else [initial])]
    chunk = min(CHUNK_BYTES // element_size(target.element), depth) if in_place else depth
    planner.add(
        Multiply(
            op,
            target,
            operands.inner,
            operands.words,
            tile.tiles,
            tile.rows,
            operands.upcoming,
            operands.products,
            tile.vectors,
            tile.lanes,
            depth,
            chunk,
            1 if operands.evaluated else min(UNROLL, chunk),
            from_zero,
            initial,
            _accesses_of_operands(planner, operands, tile, initial),
            planner.sources(read),
        )
    )


def _accesses_of_operands(
    planner: Planner, operands: _Operands, tile: _Accumulators, initial: Value | None
) -> Accesses:
    """How what is not in buffers is read: the left operand element by element, the others in strips of columns."""
    found: Accesses = {}
    for each in operands.products:
        if isinstance(each.left, Value) and each.left.op is not None:
            found[each.left.op, own_dims(each.left)] = Access("vector" if tile.tiles else "scalar")
    for value in [*operands.evaluated, *([] if initial is None else [initial])]:
        shape = shape_of(value)
        lanes = tile.lanes if tile.lanes > 1 else 0
        index = [Lanes(Scalar(nonnegative=True), 0)] * len(shape)
        index[-1] = Lanes(Scalar(None, power_of_two_divisor(tile.lanes), True), int(lanes > 0))
        found.update(planner.accesses([value], shape, index, lanes))
    return found


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
    decoded = _decode(planner, op, left, left_scale, (*batch, m, inner), left_format, rank - 1, along)
    along = rank - 2 if packed_right else rank - 1
    right_decoded = _decode(planner, op, right, right_scale, (*batch, inner, n), right_format, rank - 2, along)
    _add_products(planner, op, _Operands((Factors(decoded, right_decoded),), inner), initial, "f32")


def _format(op: Op, number: int) -> str:
    found = _FORMATS.get(number)
    if found is None:
        raise Unsupported(f"operands of dot_scaled in the format {number}", op.location)
    return found


def _decode(
    planner: Planner,
    op: Op,
    value: Value,
    scale: Value | None,
    shape: tuple[int, ...],
    format_: str,
    inner: int,
    packed: int,
) -> Buffer:
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
    target = planner.new_buffer(_panels(shape, _accumulators(planner, op, "f32")) if is_right else shape, "f32")
    nest = planner.plain_nest(shape, len(shape) - 1, one_by_one=one_by_one)
    planner.add(Decode(nest, source, scales, target, format_, inner, packed))
    return target
