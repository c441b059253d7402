"""The least and the greatest element of tensors of integers and addresses, as arithmetic on the kernel's scalars."""

from __future__ import annotations

from collections.abc import Callable

from torch_mtia.triton.analyses import symbolic
from torch_mtia.triton.analyses.availability import Available
from torch_mtia.triton.analyses.symbolic import TRUE, Expression, number
from torch_mtia.triton.ir.attributes import Dense
from torch_mtia.triton.ir.module import Op, Value
from torch_mtia.triton.ir.ops import Linear, facts, pointee_size, splat_constant

Interval = tuple[Expression, Expression]  # both ends included; one object twice for a single number


class Intervals:
    """Indices of 32 bits may wrap: `hold` is true where none of those that were asked about does."""

    def __init__(self, available: Available) -> None:
        self.available = available
        self.known: dict[Value, Interval | None] = {}
        self.hold: Expression = TRUE

    def of(self, value: Value) -> Interval | None:
        if value not in self.known:
            self.known[value] = self._compute(value)
        return self.known[value]

    def _compute(self, value: Value) -> Interval | None:
        if value.type.shape is None:
            return _single(symbolic.scalar(value))
        if value in self.available.held:
            return None
        if value in self.available.moved:
            return _plus(self.of(self.available.moved[value]), _single(symbolic.moved(value)))
        known = None if value.op is None else facts(value.op)
        rule = None if known is None or known.linear is None else _RULES.get(known.linear)
        return None if rule is None or value.op is None else rule(self, value.op)

    def _unwrapped(self, value: Value) -> Interval | None:
        """Of an operand whose bits beyond its own count. Before, in sums and products, wrapping once more or less makes
        no difference."""
        interval = self.of(value)
        if interval is not None and value.type.shape is not None and value.type.element == "i32":
            for end in dict.fromkeys(interval):
                self.hold = symbolic.every(self.hold, symbolic.fits_32_bits(end))
        return interval

    def same(self, op: Op) -> Interval | None:
        return self.of(op.operands[0])

    def widened(self, op: Op) -> Interval | None:
        return self._unwrapped(op.operands[0])

    def constant(self, op: Op) -> Interval | None:
        constant = op.attributes["value"]
        if isinstance(constant, Dense) and not constant.splat:
            numbers = [int(value) for value in constant.values]
            return number(min(numbers)), number(max(numbers))
        found = splat_constant(op)
        return _single(number(found)) if isinstance(found, int) else None

    def make_range(self, op: Op) -> Interval | None:
        return number(op.attributes["start"]), number(op.attributes["end"] - 1)

    def add(self, op: Op) -> Interval | None:
        return _plus(self.of(op.operands[0]), self.of(op.operands[1]))

    def subtract(self, op: Op) -> Interval | None:
        left, right = (self.of(operand) for operand in op.operands)
        if left is None or right is None:
            return None
        return symbolic.subtract(left[0], right[1]), symbolic.subtract(left[1], right[0])

    def multiply(self, op: Op) -> Interval | None:
        left, right = (self.of(operand) for operand in op.operands)
        if left is None or right is None:
            return None
        if right[0] is right[1]:
            return _times(left, right[0])
        return _times(right, left[0]) if left[0] is left[1] else None

    def remainder(self, op: Op) -> Interval | None:
        """Of a division by a single number: nearer to zero than it, and below zero no further than the dividend."""
        dividend, divisor = map(self._unwrapped, op.operands)
        if divisor is None or divisor[0] is not divisor[1]:
            return None
        zero = symbolic.ZERO
        size = symbolic.greatest(divisor[0], symbolic.subtract(zero, divisor[0]))
        most = symbolic.add(size, number(-1))
        return symbolic.subtract(zero, most) if dividend is None else symbolic.least(zero, dividend[0]), most

    def quotient(self, op: Op) -> Interval | None:
        """Of a division by a constant: it keeps the order."""
        left, right = map(self._unwrapped, op.operands)
        if left is None or right is None or not right[0].constant or right[0].constant < 0:
            return None
        return symbolic.divide(left[0], right[0]), symbolic.divide(left[1], right[0])

    def offset(self, op: Op) -> Interval | None:
        offset = self._unwrapped(op.operands[1])
        if offset is None:
            return None
        return _plus(self.of(op.operands[0]), _times(offset, number(pointee_size(op))))


def _single(value: Expression | None) -> Interval | None:
    return None if value is None else (value, value)


def _plus(left: Interval | None, right: Interval | None) -> Interval | None:
    if left is None or right is None:
        return None
    low = symbolic.add(left[0], right[0])
    single = left[0] is left[1] and right[0] is right[1]
    return low, low if single else symbolic.add(left[1], right[1])


def _times(interval: Interval, factor: Expression) -> Interval:
    low = symbolic.multiply(interval[0], factor)
    if interval[0] is interval[1]:
        return low, low
    high = symbolic.multiply(interval[1], factor)
    if factor.constant is not None and factor.constant >= 0:
        return low, high
    return symbolic.least(low, high), symbolic.greatest(low, high)


_RULES: dict[Linear, Callable[[Intervals, Op], Interval | None]] = {
    Linear.SAME: Intervals.same,
    Linear.REINTERPRETED: Intervals.same,
    Linear.WIDENED: Intervals.widened,
    Linear.CONSTANT: Intervals.constant,
    Linear.RANGE: Intervals.make_range,
    Linear.SUM: Intervals.add,
    Linear.DIFFERENCE: Intervals.subtract,
    Linear.PRODUCT: Intervals.multiply,
    Linear.REMAINDER: Intervals.remainder,
    Linear.QUOTIENT: Intervals.quotient,
    Linear.OFFSET: Intervals.offset,
}
