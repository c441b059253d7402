"""What is removed from TTIR before anything looks at it."""

from __future__ import annotations

from torch_mtia.triton.ir.module import Module, Op


def simplify(module: Module) -> None:
    for function in module.functions.values():
        for op in list(function.body.walk()):
            if op.name == "tt.reshape" and op.operands[0].type.shape == op.results[0].type.shape:
                _replace_by_operand(op)


def _replace_by_operand(op: Op) -> None:
    """A reshape to the same shape, as `tl.sum(x)` makes it, would take a buffer for nothing."""
    (source,), (result,) = op.operands, op.results
    source.users.remove(op)
    for user in result.users:
        user.operands[:] = [source if operand is result else operand for operand in user.operands]
        source.users.append(user)
    op.block.ops.remove(op)
    for position, other in enumerate(op.block.ops):
        other.position = position
