"""Functions that the driver computes, one lane at a time: what is long and rare."""

from __future__ import annotations

from collections.abc import Sequence

from torch_mtia.triton.llvm import (
    Builder,
    Value,
    lanes_of,
    undefined,
    vector_type,
)

RARE = {
    "lgamma": 0, "tgamma": 1, "j0": 2, "j1": 3, "y0": 4, "y1": 5, "cyl_bessel_i0": 6, "cyl_bessel_i1": 7, "sin": 8,
    "cos": 9, "tan": 10, "jn": 11, "yn": 12, "pow": 13, "fmod": 14, "remainder": 15,
}  # fmt: skip
CONTEXT_RARE_FUNCTIONS = 64  # in mtia_kernel_context


def rare(b: Builder, name: str, operands: Sequence[Value]) -> Value:
    """A function of the driver's table, of doubles (and an i32), lane by lane."""
    # The table reaches kernels through their context parameter.
    table = b.load("ptr", b.offset(Value("%context", "ptr"), CONTEXT_RARE_FUNCTIONS), 8)
    target = b.load("ptr", b.offset(table, 8 * RARE[name]), 8)

    def one(values: Sequence[Value]) -> Value:
        return b.define("double", f"call double {target.ref}({', '.join(map(str, values))})")

    lanes = lanes_of(operands[-1])
    if not lanes:
        return one(operands)
    result = undefined(vector_type(lanes, "double"))
    for lane in range(lanes):
        result = b.insert(result, one([b.extract(operand, lane) for operand in operands]), lane)
    return result
