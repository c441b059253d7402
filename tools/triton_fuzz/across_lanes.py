"""Statements that combine elements along an axis: reductions and scans, of any tensor and right behind a mask."""

from __future__ import annotations

from collections.abc import Callable

from tools.triton_fuzz.builder import Builder, shape_text, tile_value
from tools.triton_fuzz.combine import FUNCTIONS
from tools.triton_fuzz.statements import mask, readable_lanes
from tools.triton_fuzz.table import statement
from tools.triton_fuzz.values import COMPUTED, INT32, INT64, UINT32, UINT64, DType, Shape, Value, is_exact, numel

INFINITE = 1 << 200  # a bound that no type has: such values are moved and compared, and nothing is computed with them
Combination = Callable[[Builder, Value], bool]


@statement(6)
def combine(b: Builder) -> bool:
    value = tile_value(b, COMPUTED)
    return value is not None and b.random.choice(COMBINATIONS)(b, value)


@statement(14)
def combine_masked(b: Builder) -> bool:
    """Lanes that are masked off count with what `other` says, whether or not it is neutral."""
    pointers = [pointer for pointer in b.pointers if pointer.memory.dtype in COMPUTED]
    if not pointers:
        return False
    memory = b.random.choice(pointers).memory
    pointer = next(pointer for pointer in pointers if pointer.memory is memory)
    dtype = memory.dtype
    other = some_other(b, dtype)
    bound = max(memory.bound, other.bound)
    quantum = min(memory.quantum, other.quantum)
    if bound < INFINITE and not is_exact(dtype, bound, quantum):
        return False
    address = f"{pointer.name} + pid * {b.region} + {readable_lanes(b)}"
    masked = mask_along_axes(b) if b.random.random() < 0.5 else mask(b)
    if b.random.random() < 0.25:
        value = b.define(f"tl.where({masked}, tl.load({address}), {other.name})", b.tile, dtype, bound, quantum)
    else:
        value = b.define(f"tl.load({address}, mask={masked}, other={other.name})", b.tile, dtype, bound, quantum)
    if b.random.random() < 0.3:
        value = changed(b, value)
    combination = b.random.choice(COMBINATIONS)
    if combination(b, value):
        b.features.add(f"masked: {combination.__name__}")
    return True


def some_other(b: Builder, dtype: DType) -> Value:
    """A number or an expression, with what is known about it."""
    kind = b.random.randrange(4)
    if kind == 0:
        return b.operand(dtype, b.tile)
    if kind == 1 and dtype.floating:
        return Value(b.random.choice(('float("inf")', 'float("-inf")')), (), dtype, INFINITE)
    if kind == 1:
        limit = min(dtype.limit, 2**31)
        number = b.random.choice((-limit, limit - 1) if dtype.signed else (dtype.limit if dtype.bits <= 32 else limit,))
    else:
        number = b.random.choice((0, 1, -1, 2, -7, 100) if dtype.signed else (0, 1, 2, 100))
    return Value(str(number), (), dtype, max(abs(number), 1))


def mask_along_axes(b: Builder) -> str:
    """Of what lies below or from a bound on, along an axis or two."""
    axes = b.random.sample(range(len(b.tile)), b.random.randint(1, min(len(b.tile), 2)))
    parts = []
    for axis in axes:
        number = b.random.randint(0, b.tile[axis])
        bound = b.scalar(number) if b.random.random() < 0.5 else number
        parts.append(f"({b.along(axis)} {b.random.choice(('<', '<', '>='))} {bound})")
    return f"({' & '.join(parts)})" if len(parts) > 1 else parts[0]


def changed(b: Builder, value: Value) -> Value:
    """The value behind an operation that may make a neutral element of what is none, and the other way round."""
    if value.dtype.floating:
        return b.define(b.random.choice(("-{}", "tl.abs({})")).format(value.name), *of(value))
    expressions = (
        ["{} * 3 + 1", "{0} ^ ({0} >> 1)", "-{}"] if value.dtype.signed else ["{} * 3 + 1", "{0} ^ ({0} >> 1)"]
    )
    expression = b.random.choice(expressions).format(value.name)
    return b.define(expression, value.shape, value.dtype, value.dtype.limit)


def of(value: Value) -> tuple[Shape, DType, int, int]:
    return value.shape, value.dtype, value.bound, value.quantum


# Reductions ---------------------------------------------------------------------------------------------------------


def some_axis(b: Builder) -> tuple[int | None, str, Shape]:
    """An axis, or all of them; what the call says of it; the shape of the result."""
    if len(b.tile) == 1:
        return 0, b.random.choice((", axis=0", "")), ()
    if b.random.random() < 0.15:
        return None, "", ()
    axis = b.random.randrange(len(b.tile))
    shape = tuple(1 if i == axis else size for i, size in enumerate(b.tile))
    return axis, f", axis={axis}, keep_dims=True", shape


def reduced_lanes(b: Builder, axis: int | None) -> int:
    return b.tile[axis] if axis is not None else numel(b.tile)


def total(b: Builder, value: Value) -> bool:
    axis, text, shape = some_axis(b)
    bound = value.bound * reduced_lanes(b, axis)
    if value.dtype.floating and not is_exact(value.dtype, bound, value.quantum):
        return False
    if not value.dtype.floating and bound >= 2**31:
        return False  # the interpreter raises where a sum wraps; see reduced_by_function
    b.define(f"tl.sum({value.name}{text}).to(tl.{value.dtype.name})", shape, value.dtype, bound, value.quantum)
    return True


def extreme(b: Builder, value: Value) -> bool:
    axis, text, shape = some_axis(b)
    expression = f"tl.{b.random.choice(('max', 'min'))}({value.name}{text}).to(tl.{value.dtype.name})"
    if shape and b.random.random() < 0.5:  # without keep_dims
        dropped = ", ".join("None" if size == 1 and d == axis else ":" for d, size in enumerate(shape))
        expression = f"{expression.replace(', keep_dims=True', '')}[{dropped}]"
    b.define(expression, shape, *of(value)[1:])
    return True


def parity(b: Builder, value: Value) -> bool:
    if value.dtype.floating:
        return False
    _, text, shape = some_axis(b)
    b.define(f"tl.xor_sum({value.name}{text})", shape, value.dtype, value.dtype.limit)
    return True


def index_of_extreme(b: Builder, value: Value) -> bool:
    axis, text, shape = some_axis(b)
    if axis is None:
        return False
    text = text or ", axis=0"
    if b.random.random() < 0.5:
        operation = b.random.choice(("argmax", "argmin"))
        b.define(f"tl.{operation}({value.name}{text})", shape, INT32, b.tile[axis])
        return True
    first, second = b.name(), b.name()
    b.emit(f"{first}, {second} = tl.{b.random.choice(('max', 'min'))}({value.name}{text}, return_indices=True)")
    b.emit(f"{first} = {first}.to(tl.{value.dtype.name})")
    b.add_to_scope(Value(first, shape, *of(value)[1:]))
    b.add_to_scope(Value(second, shape, INT32, b.tile[axis]))
    return True


def reduced_by_function(b: Builder, value: Value) -> bool:
    name, operands = some_function(b, value)
    axis, _, shape = some_axis(b)
    if axis is None and not FUNCTIONS[name].commutes:
        return False  # tl.reduce over all axes takes the elements in any order
    keep_dims = ", keep_dims=True" if shape else ""
    write_call(b, f"tl.reduce({{}}, {axis}, {name}{keep_dims})", operands, shape)
    return True


def some_function(b: Builder, value: Value) -> tuple[str, list[Value]]:
    """A function for values of the type, and the tensors that it combines, the value first."""
    arithmetic = value.dtype in (INT32, INT64, UINT32, UINT64)
    name = b.random.choice([name for name, function in FUNCTIONS.items() if arithmetic or function.floats])
    function = FUNCTIONS[name]
    b.features.add(f"function: {name.removeprefix('combine_').replace('_', ' ')}")
    if not function.commutes:
        b.features.add("order of a reduction or scan")
    operands = [value]
    for _ in range(function.operands - 1):
        if function.floats:
            operands.append(Value("lane", b.tile, INT32, numel(b.tile)))
        else:
            other = b.operand(value.dtype, b.tile)
            text = f"tl.broadcast_to({other.name}, {shape_text(b.tile)})"
            operands.append(Value(text, b.tile, value.dtype, value.dtype.limit))
    return name, operands


def write_call(b: Builder, call: str, operands: list[Value], shape: Shape) -> None:
    """Selecting functions keep the bounds, and only they are for floating-point numbers."""
    names = [b.name() for _ in operands]
    texts = ", ".join(operand.name for operand in operands)
    b.emit(f"{', '.join(names)} = {call.format(f'({texts})' if len(operands) > 1 else texts)}")
    for name, operand in zip(names, operands, strict=True):
        bound = operand.bound if operand.dtype.floating else operand.dtype.limit
        b.add_to_scope(Value(name, shape, operand.dtype, bound, operand.quantum))


# Scans --------------------------------------------------------------------------------------------------------------


def some_direction(b: Builder) -> str:
    return b.random.choice(("", ", reverse=True"))


def running_total(b: Builder, value: Value) -> bool:
    axis = b.random.randrange(len(b.tile))
    bound = value.bound * b.tile[axis]
    if value.dtype.floating and not is_exact(value.dtype, bound, value.quantum):
        return False
    if not value.dtype.floating:
        bound = value.dtype.limit
    expression = f"tl.cumsum({value.name}, axis={axis}{some_direction(b)}).to(tl.{value.dtype.name})"
    b.define(expression, b.tile, value.dtype, bound, value.quantum)
    return True


def running_product(b: Builder, value: Value) -> bool:
    axis = b.random.randrange(len(b.tile))
    text = f"tl.cumprod({{}}, axis={axis}{some_direction(b)}).to(tl.{value.dtype.name})"
    if not value.dtype.floating:
        b.define(text.format(value.name), b.tile, value.dtype, value.dtype.limit)
        return True
    # Of -1, 0 and 1, which stay what they are.
    text = text.format(f"tl.minimum(tl.maximum({value.name}, -1), 1)")
    if value.quantum < 0 or value.bound >= INFINITE:
        return False
    b.define(text, b.tile, value.dtype, 1)
    return True


def scanned_by_function(b: Builder, value: Value) -> bool:
    name, operands = some_function(b, value)
    axis = b.random.randrange(len(b.tile))
    write_call(b, f"tl.associative_scan({{}}, {axis}, {name}{some_direction(b)})", operands, b.tile)
    return True


COMBINATIONS: tuple[Combination, ...] = (
    total,
    extreme,
    extreme,
    parity,
    index_of_extreme,
    reduced_by_function,
    reduced_by_function,
    running_total,
    running_product,
    scanned_by_function,
    scanned_by_function,
)
