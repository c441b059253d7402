"""What evaluating one lane of a tensor takes, in simple instructions."""

from __future__ import annotations

from torch_mtia.triton.analyses.availability import Available
from torch_mtia.triton.analyses.strides import StrideAnalysis
from torch_mtia.triton.ir.module import Value
from torch_mtia.triton.ir.ops import OPS

DEAR = 10  # from which on a value that is needed again is kept
RELOAD = 4  # of reading a strip of neighbours from memory again
_MOST = 1000


def cost_of(value: Value, available: Available, strides: StrideAnalysis, memo: dict[Value, int] | None = None) -> int:
    """As far as it is not in a buffer yet. `memo`: what is known already, or is to be taken for known."""
    memo = {} if memo is None else memo
    found = memo.get(value)
    if found is not None:
        return found
    memo[value] = 0
    if not available.is_fused(value):
        return 0
    if strides.is_index(value):
        memo[value] = 1
        return 1
    assert value.op is not None
    cost = OPS[value.op.name].cost
    for operand in value.op.operands:  # a loop, as in liveness.py
        cost += cost_of(operand, available, strides, memo)
    memo[value] = min(cost, _MOST)
    return memo[value]
