"""Which programs of a launch share what they multiply.

Where the left operand of a product depends on one of the grid's first two axes, and the right one on the other, a row
or a column of programs shares it; in what order they run decides what the caches still have. A kernel that numbers its
tiles itself, along one axis, has chosen an order. The third axis is that of batches.
"""

from __future__ import annotations

from torch_mtia.triton.ir.module import Region, Value

# A program may wait for what another one writes, so they start in the order of their numbers.
_MAY_WAIT = ("tt.atomic_rmw", "tt.atomic_cas", "scf.while", "cf.br", "cf.cond_br", "tt.call")


def shares_operands(body: Region) -> bool:
    """Whether programs along both axes of a kernel share operands, and none can wait for another."""
    products = []
    for op in body.walk():
        if op.name in _MAY_WAIT or (op.name == "tt.load" and op.attributes.get("isVolatile")):
            return False
        if op.name in ("tt.dot", "tt.dot_scaled"):
            products.append(op)
    pairs = ({frozenset(_axes(operand) - {2}) for operand in op.operands[:2]} for op in products)
    return any(pair == {frozenset((0,)), frozenset((1,))} for pair in pairs)


def _axes(value: Value) -> set[int]:
    """The axes of the grid that decide what a value is."""
    axes: set[int] = set()
    seen: set[Value] = set()
    pending = [value]
    while pending:
        value = pending.pop()
        if value in seen:
            continue
        seen.add(value)
        if value.op is not None and value.op.name == "tt.get_program_id":
            axes.add(value.op.attributes["axis"])
        pending += _made_of(value)
    return axes


def _made_of(value: Value) -> list[Value]:
    op = value.op
    if op is not None:
        inside = op.regions if op.name.startswith("scf.") else []
        return [*op.operands, *(yielded for region in inside for yielded in region.blocks[0].terminator.operands)]
    assert value.block is not None
    loop = value.block.region.parent
    if loop is None or loop.name != "scf.for":
        return []  # an argument of the kernel, or of a function that combines
    if value.number == 0:
        return loop.operands[:3]
    return [loop.operands[2 + value.number], value.block.terminator.operands[value.number - 1]]
