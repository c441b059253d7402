"""Statements with arguments that are not memory: numbers, constants and None, which Triton compiles for."""

from __future__ import annotations

from tools.triton_fuzz.builder import Builder, broadcasts, shape_text
from tools.triton_fuzz.table import statement
from tools.triton_fuzz.values import FP32, INT32, INT64, UINT32, is_exact


@statement(4)
def integer_argument(b: Builder) -> bool:
    """With a lane's number, which is wider than any small argument: what is 1 is a constant to Triton, of no type."""
    value = b.random.choice((0, 1, 1, 2, 16, 32, 7, -1, -16, 2**31 - 1))
    operation = b.random.choice(("+", "-", "*", "&", "|", "^"))
    b.features.add(f"integer argument {value if value in (0, 1) else 'of another value'}")
    b.define(f"lane {operation} {b.scalar(value)}", b.tile, INT32, INT32.limit)
    return True


@statement(1)
def long_argument(b: Builder) -> bool:
    value = b.random.choice((2**31, 2**32 - 1, 2**40, 2**62, -(2**31) - 1, -(2**40)))
    b.define(f"lane.to(tl.int64) + ({b.scalar(value)}).to(tl.int64)", b.tile, INT64, INT64.limit)
    return True


@statement(2)
def float_argument(b: Builder) -> bool:
    value = b.operand(FP32, b.tile)
    number = b.random.choice((0.0, 1.0, -2.0, 4.0, 16.0))
    bound = value.bound * max(int(abs(number)), 1)
    if not is_exact(FP32, bound, value.quantum):
        return False
    b.define(f"{value.name} * {b.parameter(number)}", value.shape, FP32, bound, value.quantum)
    return True


@statement(2)
def flag_argument(b: Builder) -> bool:
    """A bool, on which the program branches, where it runs or where it is compiled."""
    dtype = b.random.choice((INT32, INT64, UINT32))
    before, after = b.operand(dtype, b.tile), b.operand(dtype, b.tile)
    name = b.name("chosen")
    b.emit(f"{name} = tl.broadcast_to({before.name}, {shape_text(b.tile)})")
    flag = b.parameter(b.random.random() < 0.5, constant=b.random.random() < 0.5)
    b.emit(f"if {flag}:")
    b.emit(f"    {name} = tl.broadcast_to({after.name}, {shape_text(b.tile)})")
    b.define(name, b.tile, dtype, dtype.limit)
    return True


@statement(3)
def constant_argument(b: Builder) -> bool:
    value = b.random.choice((0, 1, 2, 3, 5, 16, -1))
    constant = b.parameter(value, constant=True)
    expressions = [
        f"lane + {constant}",
        f"lane * {constant}",
        f"tl.full({shape_text(b.tile)}, {constant}, tl.int32)",
        f"lane << ({constant} & 7)",
        f"(lane if {constant} > 1 else lane + 1)",
    ]
    b.define(b.random.choice(expressions), b.tile, INT32, INT32.limit)
    return True


@statement(2)
def optional_argument(b: Builder) -> bool:
    """A pointer that may be None."""
    if b.depth > 0:
        return False
    dtype = b.random.choice((INT32, FP32))
    value = b.pick(lambda value: broadcasts(value.shape, b.tile) and value.dtype == dtype)
    if value is None:
        return False
    pointer = b.optional_pointer(dtype)
    name = b.name("optional")
    b.emit(f"{name} = tl.broadcast_to({value.name}, {shape_text(b.tile)})")
    b.emit(f"if {pointer.name} is not None:")
    b.emit(f"    {name} = tl.load({pointer.name} + pid * {b.region} + lane)")
    bound = max(value.bound, pointer.memory.bound)
    if not dtype.floating or is_exact(dtype, bound, value.quantum):
        b.define(name, b.tile, dtype, bound, value.quantum)
    return True
