"""Atomic read-modify-write operations and compare-and-swap, one element after the other; sums of neighbours in pieces
as long as the processor swaps at once. Both are atomic beside each other: each holds the cache line."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

from torch_mtia.triton import floats
from torch_mtia.triton.emit import watching
from torch_mtia.triton.emit.environment import Environment, statement
from torch_mtia.triton.emit.loops import loop_over
from torch_mtia.triton.emit.memory import memory_element
from torch_mtia.triton.emit.strip import Strip
from torch_mtia.triton.ir.elements import NARROW, WIDE, element_size, is_float_element
from torch_mtia.triton.ir.module import Op, Unsupported
from torch_mtia.triton.ir.module import Value as Tensor
from torch_mtia.triton.lanes import Lane, materialize
from torch_mtia.triton.llvm import Builder
from torch_mtia.triton.llvm_value import Value, integer, lanes_of, zero
from torch_mtia.triton.plan.plan import AddNeighbours, Do

# triton::RMWOp
_OPERATIONS = {1: "and", 2: "or", 3: "xor", 4: "add", 5: "fadd", 6: "max", 7: "min", 8: "umax", 9: "umin", 10: "xchg"}
# triton::MemSemantic
_ORDERS = {1: "monotonic", 2: "acquire", 3: "release", 4: "acq_rel"}


def _order(op: Op) -> str:
    return _ORDERS.get(op.attributes.get("sem", 4), "acq_rel")


def _failure(op: Op) -> str:
    """The order of a swap that found something else."""
    return {"release": "monotonic", "acq_rel": "acquire"}.get(_order(op), _order(op))


def _operation(op: Op) -> str:
    kind = _OPERATIONS.get(op.attributes["atomic_rmw_op"])
    if kind is None:
        raise Unsupported(f"atomic operation {op.attributes['atomic_rmw_op']}", op.location)
    return kind


@statement("tt.atomic_rmw")
def _rmw(env: Environment, do: Do) -> None:
    op = do.op
    pointer, value = op.operands[:2]
    mask = op.operands[2] if len(op.operands) > 2 else None
    kind = _operation(op)

    def one(address: Value, operands: list[Value]) -> Value:
        return _read_modify_write(env, op, kind, address, operands[0], value.type.element)

    def traced(address: Value, given: Value, old: Value) -> None:
        element = value.type.element
        if watching.is_followed(env, element):
            new = _combined(env.b, op, kind, old, given, element)
            watching.exchanged(env, op, address, element, old, given, new)

    _each(env, do, pointer, [value], mask, one, traced)


@statement("tt.atomic_cas")
def _cas(env: Environment, do: Do) -> None:
    op = do.op
    pointer, expected, value = op.operands

    def one(address: Value, operands: list[Value]) -> Value:
        b = env.b
        element = operands[0].type
        integer_type = {"float": "i32", "double": "i64"}.get(element, element)
        compared, stored = (b.bitcast(operand, integer_type) for operand in operands)
        pair = b.define(
            f"{{ {integer_type}, i1 }}",
            f"cmpxchg ptr {address.ref}, {compared}, {stored} {_order(op)} {_failure(op)}",
        )
        old = b.define(integer_type, f"extractvalue {{ {integer_type}, i1 }} {pair.ref}, 0")
        return b.bitcast(old, element)

    _each(env, do, pointer, [expected, value], None, one)


def _each(
    env: Environment,
    do: Do,
    pointer: Tensor,
    operands: list[Tensor],
    mask: Tensor | None,
    one: Callable[[Value, list[Value]], Value],
    traced: Callable[[Value, Value, Value], None] = lambda _address, _given, _old: None,
) -> None:
    """Does `one` for every element whose mask is true, and then `traced`; the results are the old values."""
    op, b = do.op, env.b
    _, size = memory_element(pointer)

    def element(address: Lane, values: list[Lane], flag: Lane | None) -> Value:
        if env.instrumented:
            flag = watching.allowed(env, op, address, size, flag, 0)
        if flag is None:
            return one(env.host_address(address.value), [lane.value for lane in values])
        before, yes, done = b.block, b.label("atomic"), b.label("atomic_done")
        b.branch(flag.value, yes, done)
        b.start(yes)
        old = one(env.host_address(address.value), [lane.value for lane in values])
        traced(address.value, values[0].value, old)
        end = b.block
        b.jump(done)
        b.start(done)
        return b.phi(old.type, [(zero(old.type), before), (old, end)])

    if not do.nests:
        flag = env.scalar(mask) if mask is not None else None
        values = [env.scalar(operand) for operand in operands]
        env.set_scalar(op.results[0], element(env.scalar(pointer), values, flag))
        return
    (target,) = do.writes

    def body(strip: Strip) -> None:
        flag = strip.value(mask) if mask is not None else None
        old = element(strip.value(pointer), [strip.value(operand) for operand in operands], flag)
        if target is not None:
            strip.write(target, Lane(old))

    loop_over(env, do.nests[0], body)


def _read_modify_write(env: Environment, op: Op, kind: str, address: Value, value: Value, element: str) -> Value:
    b = env.b
    if element in NARROW or (kind in ("max", "min") and element in WIDE):
        return _by_swapping(env, op, kind, address, value, element)
    if element in WIDE and kind == "add":
        kind = "fadd"
    if element in WIDE and kind not in ("fadd", "xchg"):
        raise Unsupported(f"atomic {kind} of {element}", op.location)
    return b.define(value.type, f"atomicrmw {kind} ptr {address.ref}, {value} {_order(op)}")


def _by_swapping(env: Environment, op: Op, kind: str, address: Value, value: Value, element: str) -> Value:
    """Tries until nobody else wrote in between: for formats that the machine has no atomic operation for, and for a
    vector of neighbours, which lie in one piece of its size."""
    b = env.b
    size = element_size(element)
    integer_type = f"i{8 * size * max(lanes_of(value), 1)}"
    head, done, before = b.label("swap"), b.label("swapped"), b.block
    first = b.load(integer_type, address, size)
    b.jump(head)
    b.start(head)
    seen = Value(b.name(), integer_type)
    slot = len(b.lines)
    b.lines.append("")
    old = b.define(value.type, f"bitcast {seen} to {value.type}")
    new = _combined(b, op, kind, old, value, element)
    stored = b.define(integer_type, f"bitcast {new} to {integer_type}")
    pair = b.define(
        f"{{ {integer_type}, i1 }}", f"cmpxchg ptr {address.ref}, {seen}, {stored} {_order(op)} {_failure(op)}"
    )
    found = b.define(integer_type, f"extractvalue {{ {integer_type}, i1 }} {pair.ref}, 0")
    success = b.define("i1", f"extractvalue {{ {integer_type}, i1 }} {pair.ref}, 1")
    b.lines[slot] = f"  {seen.ref} = phi {integer_type} [ {first.ref}, %{before} ], [ {found.ref}, %{b.block} ]"
    b.branch(success, done, head)
    b.start(done)
    return old


def _combined(b: Builder, op: Op, kind: str, old: Value, value: Value, element: str) -> Value:
    if not is_float_element(element):
        return b.add(old, value)
    left, right = floats.widen(b, old, element), floats.widen(b, value, element)
    if kind in ("add", "fadd"):
        result = b.binary("fadd", left, right)
    elif kind in ("max", "min"):
        result = b.select(b.fcmp("olt" if kind == "max" else "ogt", left, right), right, left)
    elif kind == "xchg":
        result = right
    else:
        raise Unsupported(f"atomic {kind} of {element}", op.location)
    return floats.narrow(b, result, element)


def add_neighbours(env: Environment, step: AddNeighbours) -> None:
    b, op, piece = env.b, step.op, step.piece
    kind, (pointer, tensor), element = _operation(op), op.operands[:2], op.operands[1].type.element
    _, size = memory_element(pointer)

    def body(strip: Strip) -> None:
        width, address, values = strip.width, strip.value(pointer), strip.vector(tensor)
        flags = strip.vector(op.operands[2]) if len(op.operands) > 2 else None
        apart, done = b.label("apart"), b.label("added")
        if piece > 1:
            host = env.host_address(address.value)
            begins = b.binary("and", b.define("i64", f"ptrtoint {host} to i64"), integer(piece * size - 1, "i64"))
            fits = b.icmp("eq", begins, integer(0, "i64"))
            if flags is not None:
                fits = b.binary("and", fits, b.intrinsic(f"llvm.vector.reduce.and.v{width}i1", "i1", flags))
            together = b.label("together")
            b.branch(fits, together, apart)
            b.start(together)
            for first in range(0, width, piece):
                part = b.shuffle(values, None, range(first, first + piece))
                _by_swapping(env, op, kind, b.offset(host, first * size), part, element)
            b.jump(done)
        else:
            b.jump(apart)
        b.start(apart)
        addresses = materialize(b, address, width)
        with b.loop(0, width, 1) as lane, b.when(b.extract(flags, lane)) if flags is not None else nullcontext():
            one = env.host_address(b.extract(addresses, lane))
            _read_modify_write(env, op, kind, one, b.extract(values, lane), element)
        b.jump(done)
        b.start(done)

    loop_over(env, step.nest, body)
