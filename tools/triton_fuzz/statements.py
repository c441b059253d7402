"""Statements on memory and elements, and products of matrices."""

from __future__ import annotations

from tools.triton_fuzz.builder import Builder, Pointer, broadcasts, shape_text
from tools.triton_fuzz.table import statement
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
    STORED,
    UINT32,
    Shape,
    Value,
    is_exact,
    numel,
)

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


@statement(4)
def shift_in_memory(b: Builder) -> bool:
    """A tensor is stored over the place that it was loaded from, some elements further: all is read before that."""
    pointer = b.random.choice(b.pointers)
    others = [other for other in b.pointers if other.memory is pointer.memory]
    count = numel(b.tile)
    first, second = (b.random.choice((0, 1, 2, count // 2, count)) for _ in range(2))
    masked = "" if pointer.memory.dtype == BF16 else mask_and_other(b)
    place = f"{pointer.name} + pid * {b.region} + lane + {first}"
    memory = pointer.memory
    value = b.define(f"tl.load({place}{masked})", b.tile, memory.dtype, max(memory.bound, 2), memory.quantum)
    if not is_exact(memory.dtype, value.bound, value.quantum) or (b.depth > 0 and value.bound > memory.bound):
        return True
    masked = f", mask={mask(b)}" if b.random.random() < 0.3 else ""
    b.emit(f"tl.store({b.random.choice(others).name} + pid * {b.region} + lane + {second}, {value.name}{masked})")
    memory.bound = max(memory.bound, value.bound)
    return True


@statement(1)
def new_buffer(b: Builder) -> bool:
    if b.depth > 0 or len(b.pointers) > 6:
        return False
    load(b, b.buffer(b.random.choice(STORED)))
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


DOTS = ((FP32, FP32), (FP16, FP32), (INT8, INT32))  # the interpreter does not compute in bfloat16


@statement(8)
def dot(b: Builder) -> bool:
    """Of square tiles, a batch of them if there are three dimensions."""
    if len(b.tile) == 1 or b.tile[-1] != b.tile[-2]:
        return False
    dtype, result = b.random.choice(DOTS)
    left, right = b.operand(dtype, b.tile), b.operand(dtype, b.tile)
    if left.shape != b.tile or right.shape != b.tile:
        return False
    order = (*range(len(b.tile) - 2), len(b.tile) - 1, len(b.tile) - 2)
    names = [b.random.choice((value.name, f"tl.permute({value.name}, {order})")) for value in (left, right)]
    bound = b.tile[-1] * left.bound * right.bound if result.floating else result.limit
    quantum = left.quantum + right.quantum
    initial = b.pick(lambda value: value.shape == b.tile and value.dtype == result)
    if initial is not None and b.random.random() < 0.5:
        names.append(initial.name)
        bound, quantum = bound + initial.bound, min(quantum, initial.quantum)
    if result.floating and not is_exact(result, bound, quantum):
        return False
    options = f', input_precision="ieee", out_dtype=tl.{result.name}'
    b.define(f"tl.dot({', '.join(names)}{options})", b.tile, result, min(bound, result.limit), quantum)
    return True


@statement(5)
def dot_of_matrices(b: Builder) -> bool:
    """Of what lies in memory, by rows or by columns."""
    if len(b.tile) != 2:
        return False
    dtype, result = b.random.choice(DOTS)
    pointers = [pointer for pointer in b.pointers if pointer.memory.dtype == dtype]
    if not pointers and (b.depth > 0 or len(b.pointers) > 6):
        return False
    pointers = pointers or [b.buffer(dtype)]
    rows, columns = b.tile
    inner = 2 ** b.random.randrange(((b.region - 4) // max(b.tile)).bit_length())
    left, right = b.random.choice(pointers), b.random.choice(pointers)
    bound = inner * max(left.memory.bound, 2) * max(right.memory.bound, 2)
    quantum = left.memory.quantum + right.memory.quantum
    if result.floating and not is_exact(result, bound, quantum):
        return False
    operands = []
    for pointer, first, second in ((left, rows, inner), (right, inner, columns)):
        distances = b.random.choice(((second, 1), (1, first)))
        place = f"tl.arange(0, {first})[:, None] * {distances[0]} + tl.arange(0, {second})[None, :] * {distances[1]}"
        operands.append(f"tl.load({pointer.name} + pid * {b.region} + {place})")
    options = f'input_precision="ieee", out_dtype=tl.{result.name}'
    b.define(f"tl.dot({', '.join(operands)}, {options})", b.tile, result, min(bound, result.limit), quantum)
    return True


@statement(2)
def dot_of_a_dot(b: Builder) -> bool:
    """As in attention: one product is the left operand of the next."""
    if len(b.tile) != 2 or min(b.tile) < 2:
        return False
    query, key, value = (b.operand(FP32, b.tile) for _ in range(3))
    if any(operand.shape != b.tile for operand in (query, key, value)):
        return False
    rows, columns = b.tile
    bound, quantum = columns * query.bound * key.bound, query.quantum + key.quantum
    if not is_exact(FP32, bound, quantum):
        return False
    bound, quantum = rows * bound * value.bound, quantum + value.quantum
    if not is_exact(FP32, bound, quantum):
        return False
    weights = f'tl.dot({query.name}, tl.trans({key.name}), input_precision="ieee")'
    b.define(f'tl.dot({weights}, {value.name}, input_precision="ieee")', b.tile, FP32, bound, quantum)
    return True
