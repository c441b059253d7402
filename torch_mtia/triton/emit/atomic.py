"""Atomic read-modify-write operations and compare-and-swap, one element after the other."""

from __future__ import annotations

from collections.abc import Callable

from torch_mtia.triton import floats
from torch_mtia.triton.emit import bounds
from torch_mtia.triton.emit.access import write_buffer
from torch_mtia.triton.emit.environment import Environment
from torch_mtia.triton.emit.loops import loop_over
from torch_mtia.triton.emit.memory import memory_element
from torch_mtia.triton.emit.registry import statement
from torch_mtia.triton.emit.strip import Strip
from torch_mtia.triton.ir.elements import NARROW, WIDE
from torch_mtia.triton.ir.module import Op
from torch_mtia.triton.ir.module import Value as Tensor
from torch_mtia.triton.ir.unsupported import Unsupported
from torch_mtia.triton.lanes import Lane
from torch_mtia.triton.llvm_value import Value, zero
from torch_mtia.triton.plan.plan import Do

# triton::RMWOp
_OPERATIONS = {1: "and", 2: "or", 3: "xor", 4: "add", 5: "fadd", 6: "max", 7: "min", 8: "umax", 9: "umin", 10: "xchg"}
# triton::MemSemantic
_ORDERS = {1: "monotonic", 2: "acquire", 3: "release", 4: "acq_rel"}


def _order(op: Op) -> str:
    return _ORDERS.get(op.attributes.get("sem", 4), "acq_rel")


@statement("tt.atomic_rmw")
def _rmw(env: Environment, do: Do) -> None:
    op = do.op
    pointer, value = op.operands[:2]
    mask = op.operands[2] if len(op.operands) > 2 else None
    kind = _OPERATIONS.get(op.attributes["atomic_rmw_op"])
    if kind is None:
        raise Unsupported(f"atomic operation {op.attributes['atomic_rmw_op']}", op.location)

    def one(address: Value, operands: list[Value]) -> Value:
        return _read_modify_write(env, op, kind, address, operands[0], value.type.element)

    _each(env, do, pointer, [value], mask, one)


@statement("tt.atomic_cas")
def _cas(env: Environment, do: Do) -> None:
    op = do.op
    pointer, expected, value = op.operands

    def one(address: Value, operands: list[Value]) -> Value:
        b = env.b
        element = operands[0].type
        integer_type = {"float": "i32", "double": "i64"}.get(element, element)
        compared, stored = (b.bitcast(operand, integer_type) for operand in operands)
        failure = {"release": "monotonic", "acq_rel": "acquire"}.get(_order(op), _order(op))
        pair = b.define(
            f"{{ {integer_type}, i1 }}",
            f"cmpxchg ptr {address.ref}, {compared}, {stored} {_order(op)} {failure}",
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
) -> None:
    """Does `one` for every element whose mask is true; the results are the old values."""
    op, b = do.op, env.b
    _, size = memory_element(pointer)

    def element(address: Lane, values: list[Lane], flag: Lane | None) -> Value:
        if env.checks_bounds:
            flag = bounds.checked(b, op, address, size, flag, 0)
        if flag is None:
            return one(env.host_address(address.value), [lane.value for lane in values])
        before, yes, done = b.block, b.label("atomic"), b.label("atomic_done")
        b.branch(flag.value, yes, done)
        b.start(yes)
        old = one(env.host_address(address.value), [lane.value for lane in values])
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
            write_buffer(env, target, strip.index, Lane(old), 0)

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
    """Tries until nobody else wrote in between: for formats that the machine has no atomic operation for."""
    b = env.b
    integer_type = {"float": "i32", "double": "i64"}.get(value.type, value.type)
    head, done, before = b.label("swap"), b.label("swapped"), b.block
    first = b.load(integer_type, address, int(integer_type[1:]) // 8)
    b.jump(head)
    b.start(head)
    seen = Value(b.name(), integer_type)
    slot = len(b.lines)
    b.lines.append("")
    old, new = floats.widen(b, b.bitcast(seen, value.type), element), floats.widen(b, value, element)
    if kind in ("add", "fadd"):
        total = b.binary("fadd", old, new)
    elif kind in ("max", "min"):
        total = b.select(b.fcmp("olt" if kind == "max" else "ogt", old, new), new, old)
    elif kind == "xchg":
        total = new
    else:
        raise Unsupported(f"atomic {kind} of {element}", op.location)
    stored = b.bitcast(floats.narrow(b, total, element), integer_type)
    pair = b.define(f"{{ {integer_type}, i1 }}", f"cmpxchg ptr {address.ref}, {seen}, {stored} acq_rel acquire")
    found = b.define(integer_type, f"extractvalue {{ {integer_type}, i1 }} {pair.ref}, 0")
    success = b.define("i1", f"extractvalue {{ {integer_type}, i1 }} {pair.ref}, 1")
    b.lines[slot] = f"  {seen.ref} = phi {integer_type} [ {first.ref}, %{before} ], [ {found.ref}, %{b.block} ]"
    b.branch(success, done, head)
    b.start(done)
    return b.bitcast(seen, value.type)
