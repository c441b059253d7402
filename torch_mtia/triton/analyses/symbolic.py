"""Arithmetic on scalars of a kernel that the program is to do when it runs: what a plan's conditions and limits are.

Numbers have 64 bits; scalars are extended with their sign. Constants are folded. `emit/symbolic.py` writes the code.
"""

from __future__ import annotations

import dataclasses

from torch_mtia.triton.ir.module import Value


@dataclasses.dataclass(frozen=True, eq=False)
class Expression:
    """`operator` of `operands`; without operands a constant, or what `leaf` names."""

    operator: str
    operands: tuple[Expression, ...] = ()
    leaf: Value | None = None
    constant: int | None = None

    def __str__(self) -> str:
        if self.constant is not None:
            return str(self.constant)
        if self.leaf is not None:
            return f"{self.operator}({self.leaf})" if self.operator else str(self.leaf)
        if self.operator in _INFIX:
            return f" {_INFIX[self.operator]} ".join(map(_in_parentheses, self.operands))
        return f"{self.operator}({', '.join(map(str, self.operands))})" if self.operands else self.operator

    def conjuncts(self) -> tuple[Expression, ...]:
        """The conditions that all have to be true."""
        return tuple(part for each in self.operands for part in each.conjuncts()) if self.operator == "and" else (self,)


def _in_parentheses(expression: Expression) -> str:
    return f"({expression})" if expression.operator in _INFIX else str(expression)


_INFIX = {"add": "+", "sub": "-", "mul": "*", "sdiv": "/", "and": "and", "or": "or", "le": "<=", "eq": "=="}

TRUE = Expression("true", constant=1)
PROGRAMS = Expression("programs")  # of the launch


def number(value: int) -> Expression:
    return Expression("", constant=value)


def scalar(value: Value) -> Expression | None:
    """A scalar integer or address."""
    if value.type.element not in ("i32", "i64", "ptr", "index"):
        return None
    if value.op is not None and value.op.name == "arith.constant":
        return number(int(value.op.attributes["value"]))
    return Expression("", leaf=value)


def moved(argument: Value) -> Expression:
    """How far a loop has moved what it carries in an argument of its body, or has left as a result."""
    return Expression("moved", leaf=argument)


def add(left: Expression, right: Expression) -> Expression:
    if left.constant is not None and right.constant is not None:
        return number(left.constant + right.constant)
    if right.constant == 0:
        return left
    if left.constant == 0:
        return right
    if right.constant is not None and left.operator == "add" and left.operands[1].constant is not None:
        return add(left.operands[0], number(left.operands[1].constant + right.constant))
    return Expression("add", (left, right))


def subtract(left: Expression, right: Expression) -> Expression:
    if left.constant is not None and right.constant is not None:
        return number(left.constant - right.constant)
    return left if right.constant == 0 else Expression("sub", (left, right))


def multiply(left: Expression, right: Expression) -> Expression:
    if left.constant is not None and right.constant is not None:
        return number(left.constant * right.constant)
    if right.constant == 1:
        return left
    return Expression("mul", (left, right))


def divide(left: Expression, right: Expression) -> Expression:
    """Toward zero."""
    return Expression("sdiv", (left, right))


def least(left: Expression, right: Expression) -> Expression:
    if left.constant is not None and right.constant is not None:
        return number(min(left.constant, right.constant))
    return Expression("smin", (left, right))


def greatest(left: Expression, right: Expression) -> Expression:
    if left.constant is not None and right.constant is not None:
        return number(max(left.constant, right.constant))
    return Expression("smax", (left, right))


# Conditions -----------------------------------------------------------------------------------------------------------


def fits_32_bits(value: Expression) -> Expression:
    if value.constant is not None and -(1 << 31) <= value.constant < 1 << 31:
        return TRUE
    return Expression("fits32", (value,))


def at_most(left: Expression, right: Expression) -> Expression:
    return Expression("le", (left, right))


def same(left: Value, right: Value) -> Expression:
    """Of two scalars of one type."""
    return Expression("eq", (Expression("", leaf=left), Expression("", leaf=right)))


def both(left: Expression, right: Expression) -> Expression:
    if left is TRUE:
        return right
    return left if right is TRUE else Expression("and", (left, right))


def either(left: Expression, right: Expression) -> Expression:
    return TRUE if left is TRUE or right is TRUE else Expression("or", (left, right))


def negated(condition: Expression) -> Expression:
    return Expression("not", (condition,))
