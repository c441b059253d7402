"""Statements with blocks: loops, and what they carry, and branches."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tools.triton_fuzz.builder import Builder, shape_text
from tools.triton_fuzz.moves import joined, moved, split
from tools.triton_fuzz.table import MAX_DEPTH, statement, statements
from tools.triton_fuzz.values import (
    FP16,
    FP32,
    INT8,
    INT32,
    INT64,
    UINT32,
    DType,
    Value,
    is_exact,
    numel,
)


@contextlib.contextmanager
def loop_block(b: Builder) -> Iterator[str]:
    """A loop of any kind, of 0 to 4 rounds. Yields the name of its counter."""
    index = b.name("i")
    trips = b.random.randint(0, 4)
    kind = b.random.randrange(5)
    tail = ""
    if kind == 0 and b.random.random() < 0.4:
        b.features.add("loop: while, on data")
        numbers = b.pick(lambda value: value.shape == b.tile and value.dtype in (INT32, INT64))
        rounds = f"tl.max({numbers.name if numbers else 'lane'} & 3)" if len(b.tile) == 1 else "(pid + 2) % 4"
        b.emit(f"{index} = {rounds}")
        head, tail = f"while {index} > 0:", f"{index} -= 1"
    elif kind == 0:
        b.features.add("loop: while")
        b.emit(f"{index} = pid * 0 + {trips}")
        head, tail = f"while {index} > 0:", f"{index} -= 1"
    elif kind == 1:
        b.features.add("loop: range of an argument")
        head = f"for {index} in range({b.scalar(trips)}):"
    elif kind == 2:
        b.features.add("loop: unrolled")
        trips_text = b.parameter(trips, constant=True) if b.random.random() < 0.5 else trips
        head = f"for {index} in tl.static_range({trips_text}):"
    elif kind == 3:
        b.features.add("loop: backwards")
        head = f"for {index} in range({trips}, 0, -1):"
    else:
        b.features.add("loop: range")
        head = f"for {index} in range(0, {trips} * 2, 2):"
    with b.block(head):
        yield index
        if tail:
            b.emit(tail)


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
    state_name, sum_name = b.name("state"), b.name("sum")
    b.emit(f"{state_name} = tl.broadcast_to({state.name}, {shape_text(b.tile)})")
    b.emit(f"{sum_name} = tl.zeros({shape_text(b.tile)}, tl.{dtype.name})")
    with loop_block(b):
        b.add_to_scope(Value(state_name, b.tile, dtype, bound))
        statements(b, b.random.randint(1, 4))
        operand = b.operand(dtype, b.tile)
        if dtype.floating and not (operand.bound <= 256 and operand.quantum >= 0):
            operand = Value("lane.to(tl.float32)", b.tile, FP32, numel(b.tile))
        b.emit(f"{sum_name} += {operand.name}")
        update = b.random.choice(("minimum", "maximum"))
        b.emit(f"{state_name} = tl.{update}({state_name}, {operand.name})")
    for name, limit in ((state_name, bound), (sum_name, 4 * 256 if dtype.floating else dtype.limit)):
        b.add_to_scope(Value(name, b.tile, dtype, limit))
    return True


@statement(8)
def carried(b: Builder) -> bool:
    """A loop that carries some tensors of one type, which are moved, exchanged and combined with each other."""
    if b.depth >= MAX_DEPTH:
        return False
    dtype = b.random.choice((INT32, INT32, INT64, UINT32, INT8, FP32, FP16))
    operands = [b.operand(dtype, b.tile) for _ in range(b.random.randint(1, 3))]
    bound = max(operand.bound for operand in operands) if dtype.floating else dtype.limit
    quantum = min(operand.quantum for operand in operands)
    if dtype.floating and not is_exact(dtype, bound, quantum):
        return False
    names = [b.name("state") for _ in operands]
    for number, (name, operand) in enumerate(zip(names, operands, strict=True)):
        initial = f"tl.broadcast_to({operand.name}, {shape_text(b.tile)})"
        # Exchanged names that begin as one tensor are not carried: Triton's front end takes them for invariant. The
        # selection makes a tensor of each, and its optimizer one of all.
        b.emit(f"{name} = " + (f"tl.where(lane >= 0, {initial}, {initial})" if number else initial))
    states = [Value(name, b.tile, dtype, bound, quantum) for name in names]
    with loop_block(b) as index:
        for state in states:
            b.add_to_scope(state)
        statements(b, b.random.choice((0, 0, 1, 2)))
        for _ in range(b.random.randint(1, 3)):
            update(b, names, dtype, index)
        statements(b, b.random.choice((0, 0, 0, 1)))
    for state in states:
        b.add_to_scope(state)
    return True


def update(b: Builder, names: list[str], dtype: DType, index: str) -> None:
    """Of one carried tensor, or of all at once; elements stay within the bounds of all of them."""
    target, source, other = (b.random.choice(names) for _ in range(3))
    shape = shape_text(b.tile)
    if len(names) > 1 and b.random.random() < 0.4:
        b.features.add("carried: exchange")
        sources = b.random.sample(names, len(names))
        if b.random.random() < 0.5:
            sources[0] = moved(b, sources[0], dtype)
        b.emit(f"{', '.join(names)} = {', '.join(sources)}")
        return
    kinds = ["move", "move", "where", "extreme", "branch"]
    kinds += [] if dtype.floating else ["combine", "scan", "total"]
    kinds += ["split"] if numel(b.tile) >= 4 and b.tile[-1] >= 2 else []
    kinds += ["histogram"] * 3 if dtype == INT32 and len(b.tile) == 1 and b.tile[0] >= 4 else []
    memories = [pointer for pointer in b.pointers if pointer.memory.dtype == dtype]
    kinds += ["load", "load"] if memories and dtype in (INT32, INT64) else []
    kind = b.random.choice(kinds)
    axis = b.random.randrange(len(b.tile))
    if kind == "move":
        expression = moved(b, source, dtype)
    elif kind == "where":
        expression = f"tl.where(lane % 3 == {index} % 3, {source}, {moved(b, other, dtype)})"
    elif kind == "extreme":
        reduced = f"tl.{b.random.choice(('max', 'min'))}({source}, {axis}, keep_dims=True).to(tl.{dtype.name})"
        expression = f"tl.maximum({other}, tl.broadcast_to({reduced}, {shape}))"
    elif kind == "branch":
        expression = moved(b, source, dtype)
        b.emit(f"if {index} > 1:")
        b.emit(f"    {target} = {expression}")
        return
    elif kind == "combine":
        expression = f"{other} {b.random.choice(('+', '-', '^'))} {moved(b, source, dtype)}"
    elif kind == "scan":
        reverse = b.random.choice(("", ", reverse=True"))
        expression = f"tl.cumsum({source}, {axis}{reverse}).to(tl.{dtype.name})"
    elif kind == "total":
        expression = f"{other} ^ tl.broadcast_to(tl.xor_sum({source}, {axis}, keep_dims=True), {shape})"
    elif kind == "split":
        first, second = split(b, source)
        expression = joined(b, second, first)
    elif kind == "histogram":
        expression = f"tl.histogram({source} & {b.tile[0] - 1}, {b.tile[0]})"
    else:
        pointer = b.random.choice(memories).name
        expression = f"tl.load({pointer} + pid * {b.region} + ({source} & {b.region // 2 - 1}))"
    b.features.add(f"carried: {kind}")
    b.emit(f"{target} = {expression}")


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
