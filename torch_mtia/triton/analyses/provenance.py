"""Where values come from through loops: what a value is made of, what a loop adds to a tensor in each round."""

from __future__ import annotations

from collections.abc import Sequence

from torch_mtia.triton.analyses.walk import reached
from torch_mtia.triton.ir.module import Op, Value
from torch_mtia.triton.ir.ops import Elements, Linear, facts, is_scalar

Step = tuple[Op, Value]  # an addition, and what it adds: a scalar, or a tensor that is one number everywhere
_SAME_BASE = ("tt.addptr", "tt.splat", "tt.broadcast", "tt.expand_dims", "tt.bitcast", "tt.trans", "tt.reshape")


def made_of(value: Value) -> list[Value]:
    """What decides a value: operands, and results of the regions inside; of what a loop carries, what it is before the
    loop and what the body makes of it."""
    op = value.op
    if op is not None:
        inside = op.regions if op.name.startswith("scf.") else []
        return [*op.operands, *(yielded for region in inside for yielded in region.blocks[0].terminator.operands)]
    if (carried := _carried(value)) is not None:
        return [carried[0], carried[2]]
    assert value.block is not None
    loop = value.block.region.parent
    return (
        loop.operands[:3] if loop is not None and loop.name == "scf.for" else []
    )  # what counts rounds, or an argument


def _carried(value: Value) -> tuple[Value, Value, Value] | None:
    """(what it is before the loop, the body's argument, what the next round gets) of what an scf.for carries: of an
    argument of its body, or of a result."""
    if value.op is not None:
        loop, number = value.op, value.number
    elif value.block is not None and value.block.region.parent is not None:
        loop, number = value.block.region.parent, value.number - 1  # the first argument counts the rounds
    else:
        return None
    if loop.name != "scf.for" or number < 0:
        return None
    body = loop.regions[0].blocks[0]
    return loop.operands[3 + number], body.arguments[1 + number], body.terminator.operands[number]


def steps(argument: Value, following: Value) -> tuple[Step, ...] | None:
    """What is added to `argument`, of a loop's body, to give `following`, which the next round gets; None if the loop
    does more than move it by scalars. A tensor of indices or addresses that is only moved need not be stored, but how
    far it is."""
    if is_scalar(argument) or argument.type.element not in ("ptr", "i32", "i64"):
        return None
    found: list[Step] = []
    value = following
    while value is not argument:
        op = value.op
        linear = None if op is None or (known := facts(op)) is None else known.linear
        if op is None or linear not in (Linear.OFFSET, Linear.SUM):
            return None
        base, step = op.operands
        source = _everywhere(step)
        if source is None and linear is Linear.SUM:
            base, step = step, base
            source = _everywhere(step)
        if source is None:
            return None
        found.append((op, source))
        value = base
    return tuple(found) or None


def _everywhere(value: Value) -> Value | None:
    """The scalar that a tensor repeats, or the tensor itself if it is a constant of one value."""
    op = value.op
    while op is not None and (known := facts(op)) and known.elements in (Elements.BROADCAST, Elements.EXPANDED):
        value = op.operands[0]
        op = value.op
    if op is not None and (known := facts(op)):
        if known.elements is Elements.SPLAT:
            return op.operands[0]
        if known.linear is Linear.CONSTANT:
            return value if op.attributes["value"].splat else None
    return None


def origin(value: Value) -> Value | None:
    """What a tensor was before the loop that moves it by scalars, of an argument of the loop's body or a result."""
    carried = _carried(value)
    return carried[0] if carried is not None and steps(*carried[1:]) is not None else None


def advanced_operands(loop: Op) -> list[Value]:
    """What tensors that a loop moves are before it."""
    if loop.name != "scf.for":
        return []
    return [before for argument in loop.regions[0].blocks[0].arguments[1:] if (before := origin(argument)) is not None]


def pointer_argument(pointer: Value) -> Value | None:
    """The argument of a function that a pointer is computed from, by adding to it; None if there may be several."""
    first, *others = (value for value in reached([pointer], _bases) if not _bases(value))
    is_argument = first.op is None and first.block is not None and first.block.region.parent is None
    return first if is_argument and not others else None


def _bases(pointer: Value) -> Sequence[Value]:
    """What a pointer is, or is added to."""
    if (carried := _carried(pointer)) is not None:
        return carried
    return pointer.op.operands[:1] if pointer.op is not None and pointer.op.name in _SAME_BASE else ()
