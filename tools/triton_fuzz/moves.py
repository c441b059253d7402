"""Statements that move elements between lanes."""

from __future__ import annotations

from tools.triton_fuzz.builder import Builder, shape_text, tile_value
from tools.triton_fuzz.table import statement
from tools.triton_fuzz.values import BF16, FP16, FP32, INT32, INT64, UINT32, DType, numel

SORTED = 128  # elements, at most, of what is sorted: the interpreter is slow at it


def moved(b: Builder, name: str, dtype: DType) -> str:
    """An expression for the elements of a tensor of the shape of the tile, each at another place, or some of them."""
    rows, last = b.tile[:-1], b.tile[-1]
    axis = b.random.randrange(len(b.tile))
    gathered = f"tl.gather({name}, {index(b, axis)}, {axis})"
    shape = shape_text(b.tile)
    if numel(b.tile) < 4 or last < 2:
        b.features.add("moves: gather")
        return gathered
    halves = shape_text((*rows, last // 2, 2))
    numbers = f"tl.arange(0, {numel(b.tile)})"
    choices = {
        "gather": gathered,
        "flip": f"tl.flip({name}, {axis})",
        "ravel": f"tl.reshape(tl.where({numbers} % 3 == 0, tl.ravel({name}), tl.ravel({gathered})), {shape})",
    }
    if len(b.tile) == 3:
        order = b.random.choice(((0, 2, 1), (1, 0, 2), (2, 1, 0), (1, 2, 0), (2, 0, 1)))
        choices["permute"] = f"tl.reshape(tl.permute({name}, {order}), {shape})"
        choices["trans"] = f"tl.reshape(tl.trans({name}, 0, 2, 1), {shape})"
    elif len(b.tile) == 2:
        choices["trans"] = f"tl.reshape(tl.trans({name}), {shape})"
        choices["trans of reshape"] = f"tl.trans(tl.reshape({name}, ({b.tile[1]}, {b.tile[0]})))"
        choices["permute"] = f"tl.reshape(tl.permute(tl.reshape({name}, {halves}), (2, 0, 1)), {shape})"
    else:
        half = last // 2
        choices["trans"] = f"tl.reshape(tl.trans(tl.reshape({name}, (2, {half}))), {shape})"
        choices["permute"] = f"tl.reshape(tl.permute(tl.reshape({name}, (2, {half // 2}, 2)), (2, 0, 1)), {shape})"
    if dtype != BF16:  # the interpreter does not compare them
        choices["join"] = f"tl.max(tl.join({name}, {gathered}), {len(b.tile)}).to(tl.{dtype.name})"
    kind = b.random.choice(list(choices))
    b.features.add(f"moves: {kind}")
    return choices[kind]


def index(b: Builder, axis: int) -> str:
    """For tl.gather: a number of a lane along the axis, for each lane."""
    value = b.pick(lambda value: value.shape == b.tile and value.dtype in (INT32, INT64, UINT32))
    if value is not None and b.random.random() < 0.5:
        number = b.cast(value, INT32)
    else:
        number = b.random.choice(("(lane + 1)", "(lane ^ 3)", "(lane * 5 + 2)", "(7 - lane)", "(lane // 2)"))
    return f"{number} & {b.tile[axis] - 1}"


@statement(6)
def move(b: Builder) -> bool:
    value = tile_value(b)
    if value is None:
        return False
    b.define(moved(b, value.name, value.dtype), b.tile, value.dtype, value.bound, value.quantum)
    return True


@statement(2)
def split_and_join(b: Builder) -> bool:
    value = tile_value(b)
    if value is None or numel(b.tile) < 4:
        return False
    first, second = split(b, value.name)
    b.define(joined(b, second, first), b.tile, value.dtype, value.bound, value.quantum)
    return True


def split(b: Builder, name: str) -> tuple[str, str]:
    """The elements at even and those at odd places."""
    halves = (*b.tile[:-1], b.tile[-1] // 2, 2)
    first, second = b.name("h"), b.name("h")
    b.emit(f"{first}, {second} = tl.split(tl.reshape({name}, {shape_text(halves)}))")
    return first, second


def joined(b: Builder, first: str, second: str) -> str:
    if b.random.random() < 0.5:
        return f"tl.interleave({first}, {second})"
    return f"tl.reshape(tl.join({first}, {second}), {shape_text(b.tile)})"


@statement(1)
def concatenate(b: Builder) -> bool:
    """In an order that is not defined, so it is only seen in a sum."""
    value = b.pick(lambda value: value.shape == b.tile and value.dtype in (INT32, INT64))
    other = b.pick(lambda other: value is not None and other.shape == b.tile and other.dtype == value.dtype)
    if value is None or other is None or len(b.tile) != 1:
        return False
    concatenated = f"tl.cat({value.name}, {other.name}, can_reorder=True)"
    function = b.random.choice(("combine_add", "combine_xor", "combine_minimum"))
    b.define(f"tl.reduce({concatenated}, 0, {function})", (), value.dtype, value.dtype.limit)
    return True


@statement(1)
def sort(b: Builder) -> bool:
    value = b.pick(lambda value: value.shape == b.tile and value.dtype in (INT32, FP32, FP16))
    if value is None or numel(b.tile) > SORTED:
        return False
    descending = b.random.choice(("", ", descending=True"))
    b.define(f"tl.sort({value.name}{descending})", b.tile, value.dtype, value.bound, value.quantum)
    return True


@statement(1)
def histogram(b: Builder) -> bool:
    value = b.pick(lambda value: value.shape == b.tile and value.dtype == INT32)
    if value is None or len(b.tile) != 1 or b.tile[0] < 4:
        return False
    bins = b.tile[0]
    b.define(f"tl.histogram({value.name} & {bins - 1}, {bins})", b.tile, INT32, bins)
    return True
