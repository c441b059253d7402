"""What programs are made of. To add a statement: a function that writes it, decorated with its weight.

A statement picks operands among the values in scope and defines new ones, with bounds for their elements: see
values.py. It returns False, having written nothing, if nothing in scope fits.
"""

from __future__ import annotations

from collections.abc import Callable

from tools.triton_fuzz.builder import Builder, Pointer, broadcasts
from tools.triton_fuzz.program import Program
from tools.triton_fuzz.values import (
    BF16,
    BOOL,
    COMPUTED,
    COMPUTED_FLOATS,
    FP16,
    FP32,
    INT8,
    INT32,
    INT64,
    INTEGERS,
    MIN_QUANTUM,
    NUMBERS,
    UINT32,
    DType,
    Shape,
    Value,
    is_exact,
    numel,
)

Statement = Callable[[Builder], bool]
_STATEMENTS: dict[Statement, int] = {}
MAX_DEPTH = 2
# Elements of a tensor that goes through a function of the program, which the interpreter calls for each of them.
INTERPRETABLE = 32


def statement(weight: int) -> Callable[[Statement], Statement]:
    def register(function: Statement) -> Statement:
        _STATEMENTS[function] = weight
        return function

    return register


def generate(seed: int) -> Program:
    """The program of a seed."""
    b = Builder(seed)
    pid = Value("pid", (), INT32, b.grid)
    b.emit("pid = tl.program_id(0)")
    b.add_to_scope(pid)
    if len(b.tile) == 1:
        b.emit(f"lane = tl.arange(0, {b.tile[0]})")
    else:
        rows, columns = b.tile
        b.emit(f"lane = tl.arange(0, {rows})[:, None] * {columns} + tl.arange(0, {columns})[None, :]")
    b.add_to_scope(Value("lane", b.tile, INT32, numel(b.tile)))
    for _ in range(b.random.randint(1, 3)):
        load(b, b.buffer(b.random.choice(NUMBERS)))
    count = b.random.choice((1, 1, 2, 2, 3, 3, 4, 5, 8, 14))
    statements(b, count)
    write_results(b, min(count, 6))
    return b.program()


def statements(b: Builder, count: int) -> None:
    functions, weights = list(_STATEMENTS), list(_STATEMENTS.values())
    written = 0
    while written < count:
        written += b.random.choices(functions, weights)[0](b)


# Memory -------------------------------------------------------------------------------------------------------------


def load(b: Builder, pointer: Pointer) -> Value:
    memory = pointer.memory
    if b.random.random() < 0.1:  # one element
        offset = b.random.randrange(b.region - 4)
        return b.define(
            f"tl.load({pointer.name} + pid * {b.region} + {offset})", (), memory.dtype, memory.bound, memory.quantum
        )
    address = f"{pointer.name} + pid * {b.region} + {readable_lanes(b)}"
    masked = "" if memory.dtype == BF16 else mask_and_other(b)  # the interpreter has no constants of it
    expression = f"tl.load({address}{masked})"
    return b.define(expression, b.tile, memory.dtype, max(memory.bound, 2), memory.quantum)


def readable_lanes(b: Builder) -> str:
    """An expression for a number in [0, region - 4) for each lane: aliases are shifted by up to 3 elements."""
    count = numel(b.tile)
    kind = b.random.randrange(5)
    if kind == 0:
        index = b.pick(lambda value: value.shape == b.tile and value.dtype in (INT32, INT64, INT8, UINT32))
        if index is not None:
            return f"({b.cast(index, INT32)} & {b.region // 2 - 1})"
    if kind == 1:
        return f"lane * {b.random.choice((2, 3))}"
    if kind == 2:
        return f"({count - 1} - lane)"
    return f"(lane + {b.random.randrange(count * 2)})"


def mask_and_other(b: Builder) -> str:
    if b.random.random() < 0.5:
        return ""
    return f", mask={mask(b)}, other={b.random.choice((0, 1, 2))}"


def mask(b: Builder) -> str:
    kind = b.random.randrange(4)
    if kind == 0:
        return b.condition(b.tile) if b.tile == (1,) else f"({b.condition(b.tile)} & (lane >= 0))"
    if kind == 1:
        return f"(lane < {b.scalar(b.random.randint(2, numel(b.tile) + 2))})"
    if kind == 2:
        return "(lane % 3 != 1)"
    return f"(lane < {b.random.randint(0, numel(b.tile))})"


def store(b: Builder, pointer: Pointer, value: Value) -> None:
    """To distinct elements."""
    count = numel(b.tile)
    lanes = b.random.choice(
        (
            f"(lane + {b.random.randrange(count * 2)})",
            f"(lane + {b.random.randrange(count)})",
            f"({count - 1} - lane)",
            f"((lane * {b.random.choice((3, 5, 7))} + {b.random.randrange(count)}) & {count - 1})",
            "lane * 2",
        )
    )
    masked = f", mask={mask(b)}" if b.random.random() < 0.5 else ""
    expression = b.cast(value, pointer.memory.dtype)
    if value.shape != b.tile:
        expression = f"tl.broadcast_to({expression}, {shape_text(b.tile)})"
    b.emit(f"tl.store({pointer.name} + pid * {b.region} + {lanes}, {expression}{masked})")


@statement(6)
def load_again(b: Builder) -> bool:
    load(b, b.random.choice(b.pointers))
    return True


@statement(6)
def store_value(b: Builder) -> bool:
    pointer = b.random.choice(b.pointers)
    memory = pointer.memory
    value = b.pick(lambda value: broadcasts(value.shape, b.tile) and storable(value, pointer, b.depth > 0))
    if value is None:
        return False
    store(b, pointer, value)
    if memory.dtype.floating:
        memory.bound = max(memory.bound, value.bound)
        memory.quantum = min(memory.quantum, value.quantum)
    return True


def storable(value: Value, pointer: Pointer, in_loop: bool) -> bool:
    """In a loop, loads above see what is stored below: there the bounds must stay as they are."""
    memory = pointer.memory
    if value.dtype.floating != memory.dtype.floating:
        return False
    if not memory.dtype.floating:
        return True
    if in_loop and (value.bound > memory.bound or value.quantum < memory.quantum):
        return False
    return is_exact(memory.dtype, max(value.bound, memory.bound), min(value.quantum, memory.quantum))


@statement(1)
def new_buffer(b: Builder) -> bool:
    if b.depth > 0 or len(b.pointers) > 6:
        return False
    load(b, b.buffer(b.random.choice(NUMBERS)))
    return True


@statement(2)
def atomic(b: Builder) -> bool:
    """Results of commuting operations do not depend on the order; what they return does, and is not used."""
    dtype = b.random.choice((INT32, INT64, FP32))
    operations = ("add", "max", "min") if dtype.floating else ("add", "max", "min", "and", "or", "xor")
    operand = b.operand(dtype, b.tile)
    if dtype.floating and (operand.bound > 100 or operand.quantum < 0):
        return False
    size = 8
    buffer = b.atomics(dtype, size)
    index = f"(lane & {size - 1})"
    masked = f", mask={mask(b)}" if b.random.random() < 0.5 else ""
    value = f"tl.broadcast_to({operand.name}, {shape_text(b.tile)})"
    b.emit(f"tl.atomic_{b.random.choice(operations)}({buffer} + {index}, {value}{masked})")
    return True


# Elementwise --------------------------------------------------------------------------------------------------------


def broadcast_shape(a: Shape, b: Shape) -> Shape:
    if not a or not b:
        return a or b
    return tuple(max(x, y) for x, y in zip(a, b, strict=True))


@statement(12)
def integer_arithmetic(b: Builder) -> bool:
    dtype = b.random.choice(INTEGERS)
    left, right = b.operand(dtype, b.tile), b.operand(dtype, b.tile)
    operation = b.random.choice(("+", "-", "*", "&", "|", "^", "//", "%", "<<", ">>", "minimum", "maximum"))
    divisor = f"(({right.name} & 7) + 1)"
    if operation in ("//", "%"):
        expression = f"{left.name} {operation} {divisor}"
    elif operation in ("<<", ">>"):
        expression = f"{left.name} {operation} ({right.name} & {min(dtype.bits, 32) - 1})"
    elif operation in ("minimum", "maximum"):
        expression = f"tl.{operation}({left.name}, {right.name})"
    else:
        expression = f"{left.name} {operation} {right.name}"
    b.define(expression, broadcast_shape(left.shape, right.shape), dtype, dtype.limit)
    return True


@statement(12)
def float_arithmetic(b: Builder) -> bool:
    dtype = b.random.choice(COMPUTED_FLOATS)
    left, right = b.operand(dtype, b.tile), b.operand(dtype, b.tile)
    operation = b.random.choice(("+", "-", "*", "minimum", "maximum"))
    if operation in ("minimum", "maximum"):
        expression = f"tl.{operation}({left.name}, {right.name})"
        bound, quantum = max(left.bound, right.bound), min(left.quantum, right.quantum)
    elif operation == "*":
        expression = f"{left.name} * {right.name}"
        bound, quantum = left.bound * right.bound, left.quantum + right.quantum
    else:
        expression = f"{left.name} {operation} {right.name}"
        bound, quantum = left.bound + right.bound, min(left.quantum, right.quantum)
    if not is_exact(dtype, bound, quantum):
        return False
    b.define(expression, broadcast_shape(left.shape, right.shape), dtype, bound, quantum)
    return True


@statement(3)
def scale(b: Builder) -> bool:
    value = b.pick(lambda value: value.dtype in COMPUTED_FLOATS and value.quantum > MIN_QUANTUM)
    if value is None or not is_exact(value.dtype, value.bound, value.quantum - 1):
        return False
    b.define(f"{value.name} * 0.5", value.shape, value.dtype, value.bound, value.quantum - 1)
    return True


@statement(4)
def unary(b: Builder) -> bool:
    value = b.pick(lambda value: value.dtype in COMPUTED)
    if value is None:
        return False
    if not value.dtype.signed:  # the interpreter does not complement unsigned numbers
        operations = [f"{{}} ^ tl.full((), {value.dtype.limit}, tl.{value.dtype.name})"]
    else:
        operations = ["-{}", "tl.abs({})"] if value.dtype.floating else ["-{}", "tl.abs({})", "~{}"]
    bound = value.bound if value.dtype.floating else value.dtype.limit
    b.define(b.random.choice(operations).format(value.name), value.shape, value.dtype, bound, value.quantum)
    return True


@statement(5)
def compare(b: Builder) -> bool:
    dtype = b.random.choice(COMPUTED)
    left, right = b.operand(dtype, b.tile), b.operand(dtype, b.tile)
    shape = broadcast_shape(left.shape, right.shape)
    if dtype.floating and shape == ():
        return False  # the interpreter makes floats of the result where it is broadcast
    operation = b.random.choice(("<", "<=", ">", ">=", "==", "!="))
    b.define(f"{left.name} {operation} {right.name}", shape, BOOL, 1)
    return True


@statement(3)
def logic(b: Builder) -> bool:
    left = b.pick(lambda value: value.dtype == BOOL)
    right = b.pick(lambda value: value.dtype == BOOL)
    if left is None or right is None or not comparable(left, right):
        return False
    operation = b.random.choice(("&", "|", "^"))
    b.define(f"{left.name} {operation} {right.name}", broadcast_shape(left.shape, right.shape), BOOL, 1)
    return True


def comparable(left: Value, right: Value) -> bool:
    return broadcasts(left.shape, right.shape) or broadcasts(right.shape, left.shape)


@statement(6)
def where(b: Builder) -> bool:
    dtype = b.random.choice(COMPUTED)
    left, right = b.operand(dtype, b.tile), b.operand(dtype, b.tile)
    chosen = b.pick(lambda value: value.dtype == BOOL and value.shape == b.tile)
    condition = chosen.name if chosen is not None else "(lane % 2 == 0)"
    bound, quantum = max(left.bound, right.bound), min(left.quantum, right.quantum)
    if dtype.floating and not is_exact(dtype, bound, quantum):
        return False
    b.define(f"tl.where({condition}, {left.name}, {right.name})", b.tile, dtype, bound, quantum)
    return True


@statement(5)
def convert(b: Builder) -> bool:
    operand = b.operand(b.random.choice(NUMBERS), b.tile)
    b.define(operand.name, operand.shape, operand.dtype, operand.bound, operand.quantum)
    return True


# Across lanes -------------------------------------------------------------------------------------------------------


def tile_value(b: Builder, dtypes: tuple[DType, ...] = NUMBERS) -> Value | None:
    return b.pick(lambda value: value.shape == b.tile and value.dtype in dtypes)


def reduced_shape(shape: Shape, axis: int) -> Shape:
    """With keep_dims, but for a tile of one dimension, whose reduction is a scalar."""
    return () if len(shape) == 1 else tuple(1 if i == axis else size for i, size in enumerate(shape))


def keep_dims(shape: Shape) -> str:
    return ", keep_dims=True" if len(shape) == 2 else ""


@statement(5)
def reduce(b: Builder) -> bool:
    value = tile_value(b, COMPUTED)
    if value is None:
        return False
    axis = b.random.randrange(len(b.tile))
    operations = ["sum", "max", "min"] + ([] if value.dtype.floating else ["xor_sum"])
    operation = b.random.choice(operations)
    bound = value.bound * b.tile[axis] if operation == "sum" else value.bound
    if value.dtype.floating and not is_exact(value.dtype, bound, value.quantum):
        return False
    if operation == "sum" and not value.dtype.floating and bound >= 2**31:
        return False  # the interpreter raises where a sum wraps; see reduce_by_function
    if not value.dtype.floating:
        bound = value.dtype.limit
    reduction = f"tl.{operation}({value.name}, axis={axis}{keep_dims(b.tile)}).to(tl.{value.dtype.name})"
    b.define(reduction, reduced_shape(b.tile, axis), value.dtype, bound, value.quantum)
    return True


@statement(3)
def index_of_extreme(b: Builder) -> bool:
    value = tile_value(b, COMPUTED)
    if value is None:
        return False
    axis = b.random.randrange(len(b.tile))
    operation = b.random.choice(("argmax", "argmin"))
    expression = f"tl.{operation}({value.name}, axis={axis}{keep_dims(b.tile)})"
    b.define(expression, reduced_shape(b.tile, axis), INT32, b.tile[axis])
    return True


@statement(2)
def reduce_by_function(b: Builder) -> bool:
    """tl.reduce with a function of the program, of one operand or two."""
    value = b.pick(lambda value: value.shape == b.tile and value.dtype in (INT32, INT64))
    if value is None or numel(b.tile) > 2 * INTERPRETABLE:
        return False
    axis = b.random.randrange(len(b.tile))
    shape = reduced_shape(b.tile, axis)
    if b.random.random() < 0.5:
        combine = b.random.choice(("combine_xor", "combine_add"))
        expression = f"tl.reduce({value.name}, {axis}, {combine}{keep_dims(b.tile)})"
        b.define(expression, shape, value.dtype, value.dtype.limit)
    else:
        first, second = b.name(), b.name()
        operands = f"({value.name}, tl.broadcast_to(lane, {shape_text(b.tile)}))"
        b.emit(f"{first}, {second} = tl.reduce({operands}, {axis}, combine_max_of_pairs{keep_dims(b.tile)})")
        b.add_to_scope(Value(first, shape, value.dtype, value.bound))
        b.add_to_scope(Value(second, shape, INT32, numel(b.tile)))
    return True


@statement(3)
def scan(b: Builder) -> bool:
    value = tile_value(b, COMPUTED)
    if value is None:
        return False
    axis = b.random.randrange(len(b.tile))
    reverse = b.random.choice(("", ", reverse=True"))
    if value.dtype in (INT32, INT64) and numel(b.tile) <= 2 * INTERPRETABLE and b.random.random() < 0.4:
        expression = f"tl.associative_scan({value.name}, {axis}, combine_xor{reverse})"
        b.define(expression, b.tile, value.dtype, value.dtype.limit)
        return True
    bound = value.bound * b.tile[axis]
    if value.dtype.floating and not is_exact(value.dtype, bound, value.quantum):
        return False
    if not value.dtype.floating:
        bound = value.dtype.limit
    expression = f"tl.cumsum({value.name}, axis={axis}{reverse}).to(tl.{value.dtype.name})"
    b.define(expression, b.tile, value.dtype, bound, value.quantum)
    return True


@statement(4)
def rearrange(b: Builder) -> bool:
    value = tile_value(b)
    if value is None or numel(b.tile) < 4:
        return False
    text = value.name
    if len(b.tile) == 2:
        rows, columns = b.tile
        transposed = f"tl.reshape(tl.trans({text}), {shape_text(b.tile)})"
        choices = [transposed, f"tl.trans(tl.reshape({text}, ({columns}, {rows})))"]
    else:
        half = b.tile[0] // 2
        choices = [
            f"tl.reshape(tl.trans(tl.reshape({text}, (2, {half}))), {shape_text(b.tile)})",
            f"tl.reshape(tl.permute(tl.reshape({text}, (2, {half // 2}, 2)), (2, 0, 1)), {shape_text(b.tile)})",
        ]
    if numel(b.tile) <= INTERPRETABLE:
        choices.append(f"tl.flip({text}, {len(b.tile) - 1})")
    b.define(b.random.choice(choices), b.tile, value.dtype, value.bound, value.quantum)
    return True


@statement(2)
def split_and_join(b: Builder) -> bool:
    value = tile_value(b)
    if value is None or numel(b.tile) < 4:
        return False
    halves = (*b.tile[:-1], b.tile[-1] // 2, 2)
    first, second = b.name("h"), b.name("h")
    b.emit(f"{first}, {second} = tl.split(tl.reshape({value.name}, {shape_text(halves)}))")
    if b.random.random() < 0.5:
        expression = f"tl.interleave({second}, {first})"
    else:
        expression = f"tl.reshape(tl.join({second}, {first}), {shape_text(b.tile)})"
    b.define(expression, b.tile, value.dtype, value.bound, value.quantum)
    return True


@statement(1)
def sort(b: Builder) -> bool:
    value = b.pick(lambda value: value.shape == b.tile and value.dtype in (INT32, FP32, FP16))
    if value is None or numel(b.tile) > INTERPRETABLE:
        return False
    descending = b.random.choice(("", ", descending=True"))
    b.define(f"tl.sort({value.name}{descending})", b.tile, value.dtype, value.bound, value.quantum)
    return True


@statement(2)
def gather(b: Builder) -> bool:
    value = tile_value(b)
    index = b.pick(lambda value: value.shape == b.tile and value.dtype == INT32)
    if value is None or index is None:
        return False
    axis = b.random.randrange(len(b.tile))
    expression = f"tl.gather({value.name}, {index.name} & {b.tile[axis] - 1}, {axis})"
    b.define(expression, b.tile, value.dtype, value.bound, value.quantum)
    return True


@statement(1)
def histogram(b: Builder) -> bool:
    value = b.pick(lambda value: value.shape == b.tile and value.dtype == INT32)
    if value is None or len(b.tile) != 1 or b.tile[0] < 4:
        return False
    bins = b.tile[0]
    b.define(f"tl.histogram({value.name} & {bins - 1}, {bins})", b.tile, INT32, bins)
    return True


@statement(2)
def dot(b: Builder) -> bool:
    if b.tile != (16, 16):
        return False
    dtype, result = b.random.choice(((FP32, FP32), (FP16, FP32), (INT8, INT32)))
    left, right = (b.pick(lambda value: value.shape == b.tile and value.dtype == dtype) for _ in range(2))
    if left is None or right is None:
        return False
    bound = 16 * left.bound * right.bound if result.floating else result.limit
    quantum = left.quantum + right.quantum
    if result.floating and not is_exact(result, bound, quantum):
        return False
    precision = ', input_precision="ieee"' if dtype == FP32 else ""
    b.define(f"tl.dot({left.name}, {right.name}{precision})", b.tile, result, bound, quantum)
    return True


# Control flow -------------------------------------------------------------------------------------------------------


@statement(3)
def loop(b: Builder) -> bool:
    """With a carried state, which the body reads, and a sum, which it does not."""
    if b.depth >= MAX_DEPTH:
        return False
    dtype = b.random.choice((INT32, INT64, FP32, UINT32))
    state = b.operand(dtype, b.tile)
    if dtype.floating and (state.bound > 256 or state.quantum < 0):
        return False
    bound = 256 if dtype.floating else dtype.limit
    state_name, sum_name, index = b.name("state"), b.name("sum"), b.name("i")
    b.emit(f"{state_name} = tl.broadcast_to({state.name}, {shape_text(b.tile)})")
    b.emit(f"{sum_name} = tl.zeros({shape_text(b.tile)}, tl.{dtype.name})")
    trips = b.random.randint(0, 4)
    kind = b.random.randrange(4)
    if kind == 0:
        b.emit(f"{index} = pid * 0 + {trips}")
        head, tail = f"while {index} > 0:", f"{index} -= 1"
    elif kind == 1:
        head, tail = f"for {index} in range({b.scalar(max(trips, 2))}):", ""
    elif kind == 2:
        head, tail = f"for {index} in tl.static_range({trips}):", ""
    else:
        head, tail = f"for {index} in range(0, {trips} * 2, 2):", ""
    with b.block(head):
        carried = Value(state_name, b.tile, dtype, bound)
        b.add_to_scope(carried)
        statements(b, b.random.randint(1, 4))
        operand = b.operand(dtype, b.tile)
        if dtype.floating and not (operand.bound <= 256 and operand.quantum >= 0):
            operand = Value("lane.to(tl.float32)", b.tile, FP32, numel(b.tile))
        b.emit(f"{sum_name} += {operand.name}")
        update = b.random.choice(("minimum", "maximum"))
        b.emit(f"{state_name} = tl.{update}({state_name}, {operand.name})")
        if tail:
            b.emit(tail)
    for name, limit in ((state_name, bound), (sum_name, 4 * 256 if dtype.floating else dtype.limit)):
        b.add_to_scope(Value(name, b.tile, dtype, limit))
    return True


@statement(2)
def branch(b: Builder) -> bool:
    """On a scalar; what the branches assign is used behind."""
    if b.depth >= MAX_DEPTH:
        return False
    dtype = b.random.choice((INT32, FP32, INT64))
    before = b.operand(dtype, b.tile)
    name = b.name("choice")
    b.emit(f"{name} = tl.broadcast_to({before.name}, {shape_text(b.tile)})")
    bound, quantum = before.bound, before.quantum
    heads = [f"if {b.condition(())}:", "else:"][: b.random.randint(1, 2)]
    for head in heads:
        with b.block(head):
            statements(b, b.random.randint(1, 3))
            operand = b.operand(dtype, b.tile)
            b.emit(f"{name} = tl.broadcast_to({operand.name}, {shape_text(b.tile)})")
        bound, quantum = max(bound, operand.bound), min(quantum, operand.quantum)
    if not dtype.floating or is_exact(dtype, bound, quantum):
        b.add_to_scope(Value(name, b.tile, dtype, bound, quantum))
    return True


# Results ------------------------------------------------------------------------------------------------------------

ROUNDING = ("tl.exp({})", "tl.sin({})", "tl.cos({})", "tl.sqrt(tl.abs({}))", "1.0 / (tl.abs({}) + 1.0)", "tl.exp2({})")
TOLERANCE = 2e-6  # relative to 1 or to the result, whichever is larger: some units in the last place


def write_results(b: Builder, count: int) -> None:
    """The last values that the program has computed are stored."""
    for value in b.values()[::-1][:count]:
        dtype = INT8 if value.dtype == BOOL else value.dtype
        pointer = result_buffer(b, dtype)
        expression = f"tl.broadcast_to({b.cast(value, dtype)}, {shape_text(b.tile)})"
        b.emit(f"tl.store({pointer} + pid * {b.region} + lane, {expression})")
    operand = b.pick(lambda value: value.shape == b.tile and value.bound <= 64 and value.fits(FP32))
    if operand is not None:
        pointer = b.buffer(FP32, TOLERANCE).name
        expression = b.random.choice(ROUNDING).format(b.cast(operand, FP32))
        b.emit(f"tl.store({pointer} + pid * {b.region} + lane, {expression})")


def result_buffer(b: Builder, dtype: DType) -> str:
    """One of its own, so that results do not overwrite each other."""
    return b.atomics(dtype, b.region * b.grid)


def shape_text(shape: Shape) -> str:
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"
