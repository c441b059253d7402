"""Whether a tensor is still needed after a place of the program."""

from __future__ import annotations

from torch_mtia.triton.analyses.availability import Available
from torch_mtia.triton.ir.module import Block, Op, Value


def position_in(block: Block, user: Op) -> int:
    """Where in `block` an operation takes place: its own position, or that of the one it is nested in."""
    op = user
    while op.block is not block:
        parent = op.block.region.parent
        if parent is None:
            return len(block.ops) - 1  # in another block of the function: not later than the terminator
        op = parent
    return op.position


def needed_from(
    value: Value,
    block: Block,
    position: int,
    available: Available,
    memo: dict[Value, bool] | None = None,
    entering: Op | None = None,
) -> bool:
    """Whether a statement at `position` of `block` or after still has to evaluate `value`. `memo`: what is known
    already, or is to be taken for known. What the loop `entering` itself takes does not count."""
    memo = {} if memo is None else memo
    pending, seen = [value], {value}
    while pending:
        each = pending.pop()
        if each in memo:
            if memo[each]:
                memo[value] = True
                return True
            continue
        for user in each.users:
            evaluated = [
                result for result in user.results if available.is_fused(result) or available.is_advanced(result)
            ]
            pending += [result for result in evaluated if result not in seen]
            seen.update(evaluated)
            if user.results and len(evaluated) == len(user.results):
                continue
            if user.results and all(result in available.materialized for result in user.results):
                continue
            if user is not entering and position_in(block, user) >= position:
                memo[value] = True
                return True
    memo.update(dict.fromkeys(seen - memo.keys(), False))
    return False


def is_used_elsewhere(value: Value, block: Block) -> bool:
    """Whether another block of the function uses a value of `block`."""
    for user in value.users:
        op = user
        while op.block is not block and op.block.region.parent is not None:
            op = op.block.region.parent
        if op.block is not block:
            return True
    return False
