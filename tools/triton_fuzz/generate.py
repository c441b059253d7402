"""The program of a seed."""

from __future__ import annotations

# The modules whose statements programs are made of.
from tools.triton_fuzz import across_lanes, control, launches, moves, statements  # noqa: F401
from tools.triton_fuzz.builder import Builder, shape_text
from tools.triton_fuzz.program import Program
from tools.triton_fuzz.statements import load
from tools.triton_fuzz.table import statements as write_statements
from tools.triton_fuzz.values import BOOL, FP32, INT8, INT32, STORED, DType, Value, numel

ROUNDING = ("tl.exp({})", "tl.sin({})", "tl.cos({})", "tl.sqrt(tl.abs({}))", "1.0 / (tl.abs({}) + 1.0)", "tl.exp2({})")
TOLERANCE = 2e-6  # relative to 1 or to the result, whichever is larger: some units in the last place


def generate(seed: int) -> Program:
    b = Builder(seed)
    pid = Value("pid", (), INT32, b.grid)
    b.emit("pid = tl.program_id(0)")
    b.add_to_scope(pid)
    steps = [numel(b.tile[axis + 1 :]) for axis in range(len(b.tile))]
    b.emit("lane = " + " + ".join(f"{b.along(axis)} * {step}" for axis, step in enumerate(steps)))
    b.add_to_scope(Value("lane", b.tile, INT32, numel(b.tile)))
    for _ in range(b.random.randint(1, 3)):
        load(b, b.buffer(b.random.choice(STORED)))
    count = b.random.choice((1, 1, 2, 2, 3, 3, 4, 5, 8, 14))
    write_statements(b, count)
    write_results(b, min(count, 6))
    return b.program()


def write_results(b: Builder, count: int) -> None:
    """The last values that the program has computed are stored."""
    for value in b.values()[::-1][:count]:
        dtype = INT8 if value.dtype == BOOL else value.dtype
        pointer = result_buffer(b, dtype)
        expression = f"tl.broadcast_to({b.cast(value, dtype)}, {shape_text(b.tile)})"
        b.emit(f"tl.store({pointer} + pid * {b.region} + lane, {expression})")
    operand = b.pick(lambda value: value.shape == b.tile and value.bound <= 64 and value.fits(FP32))
    if operand is not None and b.random.random() < 0.3:
        pointer = b.buffer(FP32, TOLERANCE).name
        expression = b.random.choice(ROUNDING).format(b.cast(operand, FP32))
        b.emit(f"tl.store({pointer} + pid * {b.region} + lane, {expression})")


def result_buffer(b: Builder, dtype: DType) -> str:
    """One of its own, so that results do not overwrite each other."""
    return b.atomics(dtype, b.region * b.grid)
