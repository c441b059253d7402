"""Writes the arithmetic of analyses/symbolic.py."""

from __future__ import annotations

import functools

from torch_mtia.triton.analyses.symbolic import PROGRAMS, TRUE, Expression
from torch_mtia.triton.emit.environment import Environment
from torch_mtia.triton.emit.parameters import GRID
from torch_mtia.triton.llvm_value import Value, integer


def evaluate(env: Environment, expression: Expression, known: dict[Expression, Value] | None = None) -> Value:
    """An i64, or the i1 of a condition. `known`: what was computed already."""
    known = {} if known is None else known
    if expression not in known:
        known[expression] = _compute(env, expression, known)
    return known[expression]


def _compute(env: Environment, expression: Expression, known: dict[Expression, Value]) -> Value:
    b = env.b
    if expression is TRUE:
        return integer(1, "i1")
    if expression is PROGRAMS:
        x, y, z = (b.zext(size, "i64") for size in GRID)
        return b.mul(b.mul(x, y), z)
    if expression.constant is not None:
        return integer(expression.constant, "i64")
    if expression.leaf is not None:
        found = env.distances[expression.leaf] if expression.operator else env.scalar(expression.leaf).value
        return b.sext(found, "i64")
    operator = expression.operator
    if operator == "eq":
        left, right = (env.scalar(each.leaf).value for each in expression.operands if each.leaf is not None)
        return b.icmp("eq", left, right)
    operands = [evaluate(env, operand, known) for operand in expression.operands]
    if operator == "fits32":
        (value,) = operands
        return b.icmp("eq", b.cast("sext", b.trunc(value, "i32"), "i64"), value)
    if operator == "not":
        return b.binary("xor", operands[0], integer(1, "i1"))
    if operator == "le":
        return b.icmp("sle", *operands)
    if operator in ("add", "sub", "mul"):
        return {"add": b.add, "sub": b.sub, "mul": b.mul}[operator](*operands)
    if operator in ("smin", "smax"):
        return b.binary_intrinsic(operator, *operands)
    return functools.reduce(functools.partial(b.binary, operator), operands)
