"""Arithmetic on scalars of a kernel that the program is to do when it runs: what a plan's conditions and limits are.

Numbers have 64 bits; scalars are extended with their sign. Constants are folded. `emit/symbolic.py` writes the code.
"""

from __future__ import annotations

from torch_mtia.triton.ir.module import Value

WORD = 64  # bits of what is computed with
MAX_SIZE = 400  # of a sum or a condition that is worth computing


class Expression:
    """`operator` of `operands`; without operands a constant, or what `leaf` names. Equal ones are the same."""

    __slots__ = ("_hash", "bits", "constant", "leaf", "operands", "operator", "size")

    def __init__(
        self,
        operator: str,
        operands: tuple[Expression, ...] = (),
        leaf: Value | None = None,
        constant: int | None = None,
    ) -> None:
        self.operator, self.operands, self.leaf, self.constant = operator, operands, leaf, constant
        self._hash: int = hash((operator, operands, leaf, constant))
        # How many operators and operands there are in its text, which repeats what it shares.
        self.size: int = 1 + sum(operand.size for operand in operands)
        # How many bits any value of it takes, with the sign.
        if constant is not None:
            self.bits: int = constant.bit_length() + 1
        elif not operands:
            self.bits = 32 if leaf is not None and leaf.type.element == "i32" else WORD
        else:
            sizes = [operand.bits for operand in operands]
            self.bits = sum(sizes) if operator == "mul" else max(sizes) + (operator in ("add", "sub"))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Expression)
            and self._hash == other._hash
            and (self.operator, self.leaf, self.constant) == (other.operator, other.leaf, other.constant)
            and self.operands == other.operands
        )

    def __str__(self) -> str:
        if self.constant is not None:
            return str(self.constant)
        if self.leaf is not None:
            return f"{self.operator}({self.leaf})" if self.operator else str(self.leaf)
        if self.operator in _INFIX:
            return f" {_INFIX[self.operator]} ".join(map(_in_parentheses, self.operands))
        return f"{self.operator}({', '.join(map(str, self.operands))})" if self.operands else self.operator


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


def advanced(argument: Value) -> Expression:
    """How far a loop has moved what it carries in an argument of its body, or has left as a result."""
    return Expression("advanced", leaf=argument)


def _without_constant(sum_: Expression) -> tuple[Expression, int]:
    """What a sum is of, and the constant in it, which is its last operand."""
    if sum_.constant is not None:
        return number(0), sum_.constant
    if sum_.operator == "add" and (last := sum_.operands[1].constant) is not None:
        return sum_.operands[0], last
    return sum_, 0


def add(left: Expression, right: Expression) -> Expression:
    (one, first), (other, second) = _without_constant(left), _without_constant(right)
    total = other if one == ZERO else one if other == ZERO else Expression("add", (one, other))
    constant = number(first + second)
    return total if constant == ZERO else constant if total == ZERO else Expression("add", (total, constant))


def subtract(left: Expression, right: Expression) -> Expression:
    if left == right:
        return ZERO
    if right.constant is not None:
        return add(left, number(-right.constant))
    return Expression("sub", (left, right))


def multiply(left: Expression, right: Expression) -> Expression:
    factor = right.constant
    if factor is None:
        return multiply(right, left) if left.constant is not None else Expression("mul", (left, right))
    if left.constant is not None:
        return number(left.constant * factor)
    rest, constant = _without_constant(left)
    if constant:
        return add(multiply(rest, right), number(constant * factor))
    if left.operator == "mul" and (other := left.operands[1].constant) is not None:
        return multiply(left.operands[0], number(other * factor))
    return ZERO if factor == 0 else left if factor == 1 else Expression("mul", (left, right))


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


ZERO = number(0)

# Conditions -----------------------------------------------------------------------------------------------------------


def fits_32_bits(value: Expression) -> Expression:
    if value.constant is not None and -(1 << 31) <= value.constant < 1 << 31:
        return TRUE
    if not value.operator and value.leaf is not None and value.leaf.type.element == "i32":
        return TRUE
    return Expression("fits32", (value,))


def at_most(left: Expression, right: Expression) -> Expression:
    return Expression("le", (left, right))


def same(left: Value, right: Value) -> Expression:
    """Of two scalars of one type."""
    return Expression("eq", (Expression("", leaf=left), Expression("", leaf=right)))


def every(*conditions: Expression) -> Expression:
    """Whether all are true."""
    parts: dict[Expression, None] = {}
    for condition in conditions:
        parts.update(dict.fromkeys(conjuncts(condition)))
    parts.pop(TRUE, None)
    if len(parts) < 2:
        return next(iter(parts), TRUE)
    return Expression("and", tuple(parts))


def conjuncts(condition: Expression) -> tuple[Expression, ...]:
    """The conditions that all have to be true."""
    return condition.operands if condition.operator == "and" else (condition,)


def either(left: Expression, right: Expression) -> Expression:
    return TRUE if TRUE in (left, right) else Expression("or", (left, right))


def negated(condition: Expression) -> Expression:
    return Expression("not", (condition,))
