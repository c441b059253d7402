"""Tensors of indices or addresses that a loop only moves by scalars: they need not be stored, only how far they are."""

from __future__ import annotations

from torch_mtia.triton.ir.module import Op, Value
from torch_mtia.triton.ir.ops import Elements, Linear, facts, is_scalar

Step = tuple[Op, Value]  # an addition, and what it adds: a scalar, or a tensor that is one number everywhere


def steps(argument: Value, following: Value) -> tuple[Step, ...] | None:
    """What is added to `argument`, of a loop's body, to give `following`, which the next round gets; None if it is not
    moved by sums of scalars."""
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
            constant = op.attributes["value"]
            return value if constant.splat else None
    return None


def moved_operands(loop: Op) -> list[Value]:
    """What tensors that a loop moves are before it."""
    if loop.name != "scf.for":
        return []
    body = loop.regions[0].blocks[0]
    return [
        initial
        for argument, initial, following in zip(
            body.arguments[1:], loop.operands[3:], body.terminator.operands, strict=True
        )
        if steps(argument, following) is not None
    ]


def origin(value: Value) -> Value | None:
    """What a tensor was before the loop that moves it: of an argument of the loop's body, and of a result."""
    if value.op is not None:
        loop, number = value.op, value.number
    elif value.block is not None and value.block.region.parent is not None:
        loop, number = value.block.region.parent, value.number - 1  # the first argument counts the rounds
    else:
        return None
    if loop.name != "scf.for" or number < 0:
        return None
    body = loop.regions[0].blocks[0]
    moved = steps(body.arguments[number + 1], body.terminator.operands[number])
    return loop.operands[3 + number] if moved is not None else None
