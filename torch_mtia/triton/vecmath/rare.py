"""Functions that the driver computes, one lane at a time: what is long and rare."""

from __future__ import annotations

from collections.abc import Sequence

from torch_mtia.triton import abi
from torch_mtia.triton.llvm import Builder
from torch_mtia.triton.llvm_value import Value, lanes_of, undefined, vector_type


def rare(b: Builder, name: str, operands: Sequence[Value]) -> Value:
    """A function of the driver's table, of doubles (and an i32), lane by lane."""
    # The table reaches kernels through their context parameter.
    table = b.load("ptr", b.offset(Value("%context", "ptr"), abi.KERNEL_CONTEXT_RARE_FUNCTIONS), 8)
    target = b.load("ptr", b.offset(table, 8 * abi.RARE_FUNCTIONS[name]), 8)

    def one(values: Sequence[Value]) -> Value:
        return b.define("double", f"call double {target.ref}({', '.join(map(str, values))})")

    lanes = lanes_of(operands[-1])
    if not lanes:
        return one(operands)
    result = undefined(vector_type(lanes, "double"))
    for lane in range(lanes):
        result = b.insert(result, one([b.extract(operand, lane) for operand in operands]), lane)
    return result
