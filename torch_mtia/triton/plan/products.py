"""Matrix products: operands packed into buffers, and accumulators that stay in registers.

The right operand is read in vectors along its rows, the left one element by element, broadcast. What the accumulators
need of the right operand at a time, a panel of its columns, lies in one piece: it stays in the first-level cache.
Narrow floating-point operands are widened to f32 while they are packed, so every product is exact before it is added.
Where the processor has instructions that add two products of 16-bit numbers, or four of 8-bit numbers, to one of 32
bits, the operands are packed as words of such numbers, neighbours along the inner dimension, instead.
"""

from __future__ import annotations

import dataclasses
import math

from torch_mtia.triton.analyses.strides import is_linear
from torch_mtia.triton.ir.attributes import Bits
from torch_mtia.triton.ir.elements import element_size, is_float_element
from torch_mtia.triton.ir.module import Op, Value
from torch_mtia.triton.ir.ops import is_load, splat_constant
from torch_mtia.triton.ir.unsupported import Unsupported
from torch_mtia.triton.plan.control import assign
from torch_mtia.triton.plan.plan import (
    Buffer,
    Clear,
    Convert,
    Decode,
    Multiply,
    Pack,
    Shape,
    innermost_first,
    per_word,
    row_major,
)
from torch_mtia.triton.plan.planner import Planner, plans, shape_of

RIGHT_BYTES = 32 << 10  # of the right operand to keep in the first-level cache
LEAST_DEPTH = 64  # products to add before the accumulators go to memory
TILE = 16  # rows of a tile of AMX, and words of each
BF16_HOLDS = frozenset({"bf16", "f8E5M2", "f8E4M3FN", "f8E5M2FNUZ", "f8E4M3FNUZ"})

# triton::ScaleDotElemType
_FORMATS = {0: "f8E4M3FN", 1: "f8E5M2", 4: "e2m1", 5: "bf16", 6: "f16"}


@dataclasses.dataclass(frozen=True)
class _Operands:
    left: Buffer | Value
    right: Buffer  # in panels
    inner: int
    words: str = ""
    upcoming: Op | None = None


@plans("tt.dot")
def _dot(planner: Planner, op: Op) -> None:
    left, right, initial = op.operands
    element = _compute_element(op)
    inner, words = shape_of(left)[-1], _words(planner, op)
    packed = words or element
    one_by_one: Buffer | Value
    one_by_one = left if _reads_directly(planner, left, packed, bool(words)) else _pack(planner, op, left, packed)
    upcoming = _upcoming(planner, op, right)
    if words:
        inner //= per_word(words)
        if isinstance(one_by_one, Buffer):
            one_by_one = dataclasses.replace(
                one_by_one, shape=(*one_by_one.shape[:-1], inner), strides=(), element="i32"
            )
        packed_right = _pack_words(planner, op, right, words)
    else:
        packed_right = _pack_panels(planner, op, right, element)
    operands = _Operands(one_by_one, packed_right, inner, words, upcoming)
    _add_product(planner, op, operands, initial, element)


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


def _upcoming(planner: Planner, op: Op, right: Value) -> Op | None:
    """The load of the right operand, if it is in a loop: mostly the next round reads the rows behind it."""
    parent = op.block.region.parent
    if parent is None or parent.name != "scf.for" or len(shape_of(right)) != 2 or right in planner.held:
        return None
    if right.op is None or not is_load(right.op):
        return None
    pointer = right.op.operands[0]
    return right.op if _is_linear(planner, pointer) and not planner.available.reads_buffers(pointer) else None


def _is_linear(planner: Planner, pointer: Value) -> bool:
    return is_linear(planner.moved.get(pointer, pointer))


def _reads_directly(planner: Planner, value: Value, element: str, in_words: bool) -> bool:
    """Whether the elements of the left operand are as easy to read where they are as in a buffer."""
    if value.type.element != element or value in planner.held or planner.checks_bounds or len(shape_of(value)) > 3:
        return False
    op = value.op
    if op is None or not is_load(op) or len(op.operands) != 1 or not _is_linear(planner, op.operands[0]):
        return False
    return not in_words or planner.strides.strides(op.operands[0])[-1] == element_size(element)


def _add_product(planner: Planner, op: Op, operands: _Operands, initial: Value, element: str) -> None:
    """The result of `op`: initial + left @ right, computed in `element`."""
    (result,) = op.results
    shape = shape_of(result)
    starts_at_zero = initial.op is not None and _is_zero(initial.op)
    direct = result.type.element == element
    target = planner.destination(result) if direct else planner.new_buffer(shape, element)
    storages = {buffer.storage for buffer in (operands.left, operands.right) if isinstance(buffer, Buffer)}
    if not target.row_major() or target.storage in storages:
        target = planner.destination(result, row_major(shape))
    if not starts_at_zero and planner.held.get(initial) is not target:
        if direct:
            assign(planner, op, [(initial, target)])
        else:
            _pack_into(planner, op, initial, target)
    _multiply(planner, op, operands, target, starts_at_zero)
    if not direct:
        nest = planner.plain_nest(shape, len(shape) - 1)
        planner.add(Convert(nest, target, planner.destination(result)))


def _is_zero(op: Op) -> bool:
    constant = splat_constant(op) if op.name == "arith.constant" else None
    if isinstance(constant, float):
        return constant == 0 and math.copysign(1, constant) > 0  # -0 + 0 * x is not -0
    return constant in (0, Bits(0))


def _pack(planner: Planner, op: Op, value: Value, element: str) -> Buffer:
    """The operand in row-major order, as numbers of `element`."""
    found = planner.held.get(value)
    if found is not None and found.element == element and found.row_major():
        return found
    target = planner.new_buffer(shape_of(value), element)
    if value.type.element == element:
        planner.materialize([value], op, [target])
        if found is None and planner.is_needed_from(value, op.block, op.position + 1):
            planner.held[value] = target
    else:
        _pack_into(planner, op, value, target)
    return target


def _pack_into(planner: Planner, op: Op, value: Value, target: Buffer) -> None:
    planner.add(Pack(planner.nest(op, [value], shape_of(value)), value, target))


def _pack_panels(planner: Planner, op: Op, value: Value, element: str) -> Buffer:
    """The right operand as numbers of `element`."""
    shape = shape_of(value)
    panels = _panels(shape, _accumulators(planner, op, element))
    if panels == shape:
        return _pack(planner, op, value, element)
    target = planner.new_buffer(panels, element)
    if _is_turned(planner, value, shape):
        planner.add(Pack(planner.plain_nest(shape, len(shape) - 1, roots=[value]), value, target, turned=True))
    else:
        _pack_into(planner, op, value, target)
    return target


def _pack_words(planner: Planner, op: Op, value: Value, element: str) -> Buffer:
    """The right operand with several of its rows in one, as numbers of `element`."""
    *batch, inner, n = shape = shape_of(value)
    words = (*batch, inner // per_word(element), n)
    target = planner.new_buffer(_panels(words, _accumulators(planner, op, "i32", element)), "i32")
    last = len(shape) - 1
    turned = _is_turned(planner, value, words)
    by_rows = planner.best_dimension([value], shape) == last
    if not turned and not (by_rows and _is_evaluated_once(planner, op, value)):
        planner.row_major_buffer(value, op)
    planner.add(Pack(planner.plain_nest(words, last, roots=[value]), value, target, element, turned))
    return target


def _is_turned(planner: Planner, value: Value, shape: Shape) -> bool:
    """Whether evaluating a right operand is nothing but reading it, by columns; `shape` is that of its words."""
    columns = planner.best_dimension([value], shape_of(value)) == len(shape) - 2
    if not columns or min(shape[-2:]) < planner.lanes:
        return False
    while value not in planner.held and value.op is not None and value.op.name == "tt.trans":
        (value,) = value.op.operands
    return value in planner.held or planner.strides.is_plain_load(value)


def _is_evaluated_once(planner: Planner, op: Op, value: Value) -> bool:
    """Whether nobody else needs what leads to the tensor, and its rows are rows in memory."""
    if planner.strides.is_plain_load(value) or value in planner.held:
        return True
    if planner.is_needed_behind(value, op) or planner.prepare(op, [value], shape_of(value)):
        return False
    order, _ = planner.available.reach([value], shape_of(value))
    return all(each.op is None or each.op.name != "tt.trans" for each in order) and all(
        planner.strides.strides(load.op.operands[0])[-1] in (0, element_size(load.type.element))
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
    registers = 32 if planner.lanes == 16 else 16
    vectors = min((4 if m > 2 else 8) if registers == 32 else 2, n // lanes)
    return _Accumulators(False, max(min((16 if registers == 32 else 8) // vectors, m), 1), vectors, lanes)


def _panels(shape: Shape, accumulators: _Accumulators) -> Shape:
    """Of a right operand of that shape, if it has more columns than the accumulators."""
    *batch, inner, n = shape
    width = accumulators.columns
    return (*batch, n // width, inner, width) if n > width else shape


def _multiply(planner: Planner, op: Op, operands: _Operands, target: Buffer, from_zero: bool) -> None:
    inner = operands.inner
    tile = _accumulators(planner, op, target.element, operands.words)
    depth = min(inner, max(RIGHT_BYTES // (tile.columns * target.size), LEAST_DEPTH))
    if from_zero and depth < inner:
        planner.add(Clear(planner.plain_nest(target.shape, len(target.shape) - 1), target))
        from_zero = False
    in_place = [operands.left.op.operands[0]] if isinstance(operands.left, Value) and operands.left.op else []
    behind = [operands.upcoming.operands[0]] if operands.upcoming is not None else []
    planner.add(
        Multiply(
            operands.left,
            operands.right,
            target,
            inner,
            operands.words,
            operands.upcoming,
            tile.tiles,
            tile.rows,
            tile.vectors,
            tile.lanes,
            depth,
            from_zero,
            planner.sources([*in_place, *behind]),
        )
    )


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
    _add_product(planner, op, _Operands(decoded, right_decoded, inner), initial, "f32")


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
