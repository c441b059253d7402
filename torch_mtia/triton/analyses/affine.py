"""How integers and addresses go with the indices of their tensor, `base + i * strides[0] + j * strides[1]`, as far as
it is known before the program runs, and the range they lie in, as arithmetic on the kernel's scalars.

Everything about index arithmetic is asked here: which accesses are contiguous, whether a store may overwrite what is
still to be read, where a mask ends a loop. Linear in ir/ops.py says what each operation does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

from torch_mtia.triton.analyses import symbolic
from torch_mtia.triton.analyses.provenance import origin
from torch_mtia.triton.analyses.symbolic import MAX_SIZE, TRUE, WORD, ZERO, Expression, number
from torch_mtia.triton.analyses.walk import operands_first, own_dims
from torch_mtia.triton.ir.attributes import Dense
from torch_mtia.triton.ir.elements import element_size
from torch_mtia.triton.ir.module import Op, Value
from torch_mtia.triton.ir.ops import Linear, facts, is_load, operand_dims, pointee_size, splat_constant

Strides = tuple["int | None", ...]

_REMAINDERS = (Linear.REMAINDER, Linear.REMAINDER_UNSIGNED)
_QUOTIENTS = (Linear.QUOTIENT, Linear.QUOTIENT_UNSIGNED)
_WITHIN_A_STRIP = (*_QUOTIENTS, Linear.REINTERPRETED, Linear.WIDENED_UNSIGNED)
_KEEPS_CONSTANTS = (Linear.SAME, Linear.WIDENED)
_COUNTS_ALL_BITS = (Linear.WIDENED, Linear.REMAINDER, Linear.QUOTIENT)
_WITHOUT_RANGE = (Linear.WIDENED_UNSIGNED, Linear.REMAINDER_UNSIGNED, Linear.QUOTIENT_UNSIGNED)


@dataclasses.dataclass(frozen=True)
class Form:
    """What is known of a value."""

    strides: Strides  # from one element to the next along each dimension; None: not known, as of a loaded index
    is_even: bool  # whether they hold from end to end, and not only within a strip as those of a quotient do,
    turns: tuple[bool, ...]  # apart from these dimensions, along which indices start again (`rows % m`)
    ranges: int = 0  # how many times it is made of tl.arange, each of which may wrap at an element of its own
    constant: int | None = None  # what it is everywhere
    is_loaded: bool = False  # whether it is made of loaded tensors,
    divides_loaded: bool = False  # and divides them
    is_advanced: bool = False  # whether it is made of tensors that a loop advances

    def is_linear(self, along: int | None = None) -> bool:
        """Whether strides hold from end to end, of a matrix maybe along one dimension alone."""
        return self.is_even and not (any(self.turns) if along is None else self.turns[along])


class Range(NamedTuple):
    """The least and the greatest element, one object twice for a single number, where `holds` are true: indices of 32
    bits may wrap."""

    low: Expression
    high: Expression
    holds: tuple[Expression, ...] = ()

    @property
    def is_single(self) -> bool:
        return self.low is self.high

    def plus(self, other: Range) -> Range:
        low = symbolic.add(self.low, other.low)
        high = low if self.is_single and other.is_single else symbolic.add(self.high, other.high)
        return Range(low, high, (*self.holds, *other.holds))

    def minus(self, other: Range) -> Range:
        low, high = symbolic.subtract(self.low, other.high), symbolic.subtract(self.high, other.low)
        return Range(low, high, (*self.holds, *other.holds))

    def times(self, factor: Range) -> Range:
        """By a single number."""
        by, holds = factor.low, (*self.holds, *factor.holds)
        low = symbolic.multiply(self.low, by)
        if self.is_single:
            return Range(low, low, holds)
        high = symbolic.multiply(self.high, by)
        if by.constant is None or by.constant < 0:
            low, high = symbolic.least(low, high), symbolic.greatest(low, high)
        return Range(low, high, holds)


class Affine:
    """The forms and ranges of a kernel's values, which depend on nothing but the value."""

    def __init__(self) -> None:
        self.forms: dict[Value, Form] = {}
        self.ranges: dict[Value, Range | None] = {}
        self.indices: dict[Value, bool] = {}

    def form(self, value: Value) -> Form:
        found = self.forms.get(value)
        if found is None:
            for each in operands_first(value, self.forms, _parts):
                self.forms[each] = found = self._form(each)
        assert found is not None
        return found

    def strides(self, value: Value) -> Strides:
        return self.form(value).strides

    def has_pattern(self, pointer: Value, along: int | None = None) -> bool:
        """Whether addresses are linear, and a loop does no more to them than advance them as a whole."""
        form = self.form(origin(pointer) or pointer)
        return form.is_linear(along) and not form.is_advanced

    def range(self, value: Value) -> Range | None:
        if value not in self.ranges:
            for each in operands_first(value, self.ranges, _parts):
                self.ranges[each] = self._range(each)
        return self.ranges[value]

    def is_index(self, value: Value) -> bool:
        """Whether a value is index arithmetic along some dimension: it costs little, and in memory it would no longer
        be known to be contiguous. What divides loaded numbers costs as much as that takes, but for an address."""
        found = self.indices.get(value)
        if found is None:
            form = self.form(value)
            strides = zip(form.strides, value.type.shape or (), strict=True)
            found = self.indices[value] = (
                value.type.element in ("ptr", "i32", "i64")
                and any(stride is not None for stride, size in strides if size > 1)
                and (not form.divides_loaded or _leads_to_address(value))
            )
        return found

    def is_plain_load(self, value: Value) -> bool:
        """Whether a value is a load of neighbours, or of one element."""
        if value.op is None or value.op.name != "tt.load":
            return False
        strides = self.strides(value.op.operands[0])
        return element_size(value.type.element) in strides or not any(stride != 0 for stride in strides)

    def _form(self, value: Value) -> Form:
        rank = len(value.type.shape or ())
        if (before := origin(value)) is not None:
            return dataclasses.replace(self.forms[before], constant=None, is_advanced=True)
        op, linear = value.op, _linear(value)
        if op is None or linear is None:
            return Form((None,) * rank, not rank, (False,) * rank, is_loaded=rank > 0 and is_load(op))
        operands = [self.forms[operand] for operand in op.operands]
        is_even = all(form.is_even for form in operands) and linear not in _WITHIN_A_STRIP
        turns = [linear in _REMAINDERS] * rank
        for operand, form in zip(op.operands, operands, strict=True):
            for d, transposed in zip(operand_dims(op, operand, own_dims(value)), form.turns, strict=True):
                if d is not None and transposed:
                    turns[d] = True
        is_loaded = any(form.is_loaded for form in operands)
        constant = operands[0].constant if linear in _KEEPS_CONSTANTS else None
        if linear is Linear.CONSTANT and isinstance(found := splat_constant(op), int):
            constant = found
        return Form(
            _strides(op, linear, operands),
            not rank or (is_even and (linear not in _REMAINDERS or operands[1].constant is not None)),
            tuple(turns),
            int(linear is Linear.RANGE) + sum(form.ranges for form in operands),
            constant,
            is_loaded,
            (is_loaded and linear in (*_QUOTIENTS, *_REMAINDERS)) or any(form.divides_loaded for form in operands),
            any(form.is_advanced for form in operands),
        )

    def _range(self, value: Value) -> Range | None:
        if value.type.shape is None:
            return _single(symbolic.scalar(value))
        if (before := origin(value)) is not None:
            start, distance = self.ranges[before], symbolic.advanced(value)
            return None if start is None else start.plus(Range(distance, distance))
        op, linear = value.op, _linear(value)
        if op is None or linear is None or linear in _WITHOUT_RANGE:
            return None
        operands = [self.ranges[operand] for operand in op.operands]
        unwrapped = [_unwrapped(operand, found) for operand, found in zip(op.operands, operands, strict=True)]
        if linear in _COUNTS_ALL_BITS:
            operands = unwrapped
        elif linear is Linear.OFFSET:
            operands[1] = unwrapped[1]
        found = _combined(op, linear, operands)
        if found is not None and value.type.element == "i32" and max(found.low.bits, found.high.bits) > WORD:
            found = _combined(op, linear, unwrapped)
        return found if found is not None and max(found.low.size, found.high.size) <= MAX_SIZE else None


def _linear(value: Value) -> Linear | None:
    return None if value.op is None or (known := facts(value.op)) is None else known.linear


def _parts(value: Value) -> Sequence[Value]:
    """What the form and the range of a value depend on."""
    if (before := origin(value)) is not None:
        return [before]
    return value.op.operands if value.op is not None and _linear(value) is not None else []


def _leads_to_address(value: Value) -> bool:
    """Whether an index is part of an address, as far as index arithmetic goes."""
    pending, seen = [value], {value}
    while pending:
        value = pending.pop()
        if value.type.element == "ptr":
            return True
        following = [result for user in value.users for result in user.results if _linear(result) is not None]
        pending += [each for each in following if each not in seen]
        seen.update(following)
    return False


def _strides(op: Op, linear: Linear, operands: Sequence[Form]) -> Strides:
    result = op.results[0]
    dims = own_dims(result)
    if linear is Linear.CONSTANT:
        return (None if splat_constant(op) is None else 0,) * len(dims)
    if linear is Linear.RANGE:
        return (1,)
    first = operands[0].strides
    if linear is Linear.SAME:
        along = dict(zip(operand_dims(op, op.operands[0], dims), first, strict=True))
        return tuple(along.get(d, 0) for d in dims)
    if linear in _QUOTIENTS:
        return tuple(0 if stride in (0, 1) else None for stride in first)
    if linear in _REMAINDERS or len(operands) == 1:
        return first
    left, right = operands
    pairs = list(zip(first, right.strides, strict=True))
    if linear is Linear.PRODUCT:
        return tuple(_product(one, left.constant, other, right.constant) for one, other in pairs)
    scale = {Linear.SUM: 1, Linear.DIFFERENCE: -1}.get(linear) or pointee_size(op)
    return tuple(None if one is None or other is None else one + scale * other for one, other in pairs)


def _product(one: int | None, left: int | None, other: int | None, right: int | None) -> int | None:
    """The stride of a product whose factors have the strides `one` and `other`, and may be the constants `left` and
    `right`."""
    if one == 0 and other == 0:
        return 0
    if other == 0 and one is not None and right is not None:
        return one * right
    return other * left if one == 0 and other is not None and left is not None else None


def _single(value: Expression | None) -> Range | None:
    return None if value is None else Range(value, value)


def _unwrapped(value: Value, found: Range | None) -> Range | None:
    """The range of an operand whose bits beyond its own count. Before, in sums and products, wrapping once more or less
    makes no difference."""
    if found is None or value.type.shape is None or value.type.element != "i32":
        return found
    fits = map(symbolic.fits_32_bits, dict.fromkeys((found.low, found.high)))
    return found._replace(holds=(*found.holds, *(condition for condition in fits if condition is not TRUE)))


def _combined(op: Op, linear: Linear, operands: Sequence[Range | None]) -> Range | None:
    if linear is Linear.CONSTANT:
        constant = op.attributes["value"]
        if isinstance(constant, Dense) and not constant.splat:
            numbers = [int(value) for value in constant.values]
            return Range(number(min(numbers)), number(max(numbers)))
        found = splat_constant(op)
        return _single(number(found)) if isinstance(found, int) else None
    if linear is Linear.RANGE:
        return Range(number(op.attributes["start"]), number(op.attributes["end"] - 1))
    first, second = operands[0], operands[-1]
    if linear is Linear.REMAINDER:
        return None if second is None or not second.is_single else _remainder(first, second)
    if first is None or second is None:
        return None
    if len(operands) == 1:
        return first
    if linear is Linear.SUM:
        return first.plus(second)
    if linear is Linear.DIFFERENCE:
        return first.minus(second)
    if linear is Linear.OFFSET:
        size = number(pointee_size(op))
        return first.plus(second.times(Range(size, size)))
    if linear is Linear.PRODUCT:
        return first.times(second) if second.is_single else second.times(first) if first.is_single else None
    # A division by one constant keeps the order.
    if not second.is_single or not second.low.constant or second.low.constant < 0:
        return None
    low, high = (symbolic.divide(end, second.low) for end in (first.low, first.high))
    return Range(low, high, (*first.holds, *second.holds))


def _remainder(dividend: Range | None, divisor: Range) -> Range:
    """Nearer to zero than a divisor that is a single number, and below zero no further than the dividend."""
    most = symbolic.add(symbolic.greatest(divisor.low, symbolic.subtract(ZERO, divisor.low)), number(-1))
    if dividend is None:
        return Range(symbolic.subtract(ZERO, most), most, divisor.holds)
    return Range(symbolic.least(ZERO, dividend.low), most, (*dividend.holds, *divisor.holds))
