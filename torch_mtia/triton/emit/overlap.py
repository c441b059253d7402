"""Whether a store may write at once, while other elements of what it depends on are still to be read.

Reading everything first takes a buffer and a second pass over it. Mostly it is not needed: what is read lies elsewhere,
or is read where it is written. Addresses are arguments, so the program itself finds out, from the range of addresses
that each load and the store can reach.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from torch_mtia.triton.emit.elementwise import constant_value, pointee_size
from torch_mtia.triton.llvm import Value, integer
from torch_mtia.triton.ttir import Dense, Op
from torch_mtia.triton.ttir import Value as Tensor

if TYPE_CHECKING:
    from torch_mtia.triton.emit.kernel import KernelEmitter

Interval = tuple[Value, Value]  # of i64, both ends included; one object twice for a single number

MAX_PAIRS = 16  # each takes about ten instructions to check
TRUE = integer(1, "i1")


def may_write_at_once(em: KernelEmitter, stores: Sequence[Op]) -> Value | None:
    """An i1 that is true where stores of one nest, which write a strip each before the next strip is read, leave
    memory as program order says: no load that they wait for reads what one of them wrote before, and no store comes
    before an earlier one. TRUE itself if that is known now, None if it is never known."""
    target = stores[0].operands[0].type
    shape = target.shape
    assert shape is not None
    if max(shape) == target.numel <= em.width:
        return TRUE  # one strip
    order, at_index = em.reach([root for store in stores for root in store.operands], shape)
    if any(em.is_moved(value) and em.reads_memory(value, {}) for value in order):
        return None
    loads = [value for value in order if value.op is not None and value.op.name == "tt.load"]
    pairs = [(value.op, store, at_index[value]) for value in loads for store in stores]
    pairs += [(first, second, True) for first, second in itertools.combinations(stores, 2)]
    if len(pairs) > MAX_PAIRS or (loads and em.check_bounds):
        return None
    intervals = _Intervals(em)
    result = TRUE
    for first, store, same_place in pairs:
        assert first is not None
        safe = _does_not_disturb(em, intervals, first, store, same_place)
        if safe is None:
            return None
        result = _both(em, result, safe)
    return result


def has_read(em: KernelEmitter, store: Op) -> Value | None:
    """An i1 that is true where a load before `store`, in its block, reads just what that writes; None if none can."""
    b = em.b
    result: Value | None = None
    for load in store.block.ops[: store.position]:
        if load.name != "tt.load" or pointee_size(load) != pointee_size(store):
            continue
        pairs = _starts(load.operands[0], store.operands[0])
        if pairs is None:
            continue
        same = _equal(em, pairs)
        result = same if result is None else b.binary("or", result, same)
    return result


def _equal(em: KernelEmitter, pairs: Sequence[tuple[Tensor, Tensor]]) -> Value:
    result = TRUE
    for left, right in pairs:
        result = _both(em, result, em.b.icmp("eq", em.scalar(left).value, em.scalar(right).value))
    return result


def _both(em: KernelEmitter, left: Value, right: Value) -> Value:
    if left is TRUE:
        return right
    return left if right is TRUE else em.b.binary("and", left, right)


def _does_not_disturb(em: KernelEmitter, intervals: _Intervals, earlier: Op, store: Op, at_index: bool) -> Value | None:
    """Whether `store` leaves alone what `earlier`, a load or a store, accesses in later strips. `at_index`: both visit
    their elements in the same order."""
    b = em.b
    read, written = earlier.operands[0], store.operands[0]
    same: Value | None = None
    if at_index and pointee_size(earlier) == pointee_size(store) and _distinct(em, written):
        pairs = _starts(read, written)
        if pairs is not None:
            same = _equal(em, pairs)
            if same is TRUE:
                return same
    first, second = intervals.of(read), intervals.of(written)
    if first is None or second is None:
        return same
    below = b.icmp("sle", b.add(first[1], integer(pointee_size(earlier), "i64")), second[0])
    above = b.icmp("sle", b.add(second[1], integer(pointee_size(store), "i64")), first[0])
    apart = _both(em, intervals.hold, b.binary("or", below, above))
    return apart if same is None else b.binary("or", same, apart)


def _distinct(em: KernelEmitter, pointer: Tensor) -> bool:
    """Whether no two elements are the same address, as far as the strides tell."""
    if not is_linear(pointer):
        return False
    reach = 0
    strides: list[tuple[int, int]] = []
    for stride, size in zip(em.strides.strides(pointer), pointer.type.shape or (), strict=True):
        if size > 1:
            if stride is None:
                return False
            strides.append((abs(stride), size))
    for stride, size in sorted(strides):
        if stride <= reach:
            return False
        reach += stride * (size - 1)
    return reach < 1 << 31  # else indices of 32 bits may come around


_LINEAR = {
    "tt.addptr", "tt.splat", "tt.broadcast", "tt.expand_dims", "tt.trans", "tt.make_range", "arith.constant",
    "arith.addi", "arith.subi", "arith.muli", "arith.extsi", "arith.index_cast",
}  # fmt: skip


def is_linear(value: Tensor) -> bool:
    """Whether strides, which elsewhere are only asked for within a strip, hold from end to end."""
    if value.type.shape is None:
        return True
    return value.op is not None and value.op.name in _LINEAR and all(map(is_linear, value.op.operands))


def _starts(left: Tensor, right: Tensor) -> list[tuple[Tensor, Tensor]] | None:
    """The pairs of scalars that differ in two tensors of addresses that otherwise are the same; None if more does."""
    if left is right:
        return []
    one, other = left.op, right.op
    if one is None or other is None or one.name != other.name or left.type.shape != right.type.shape:
        return None
    if one.name == "tt.splat":
        return [(one.operands[0], other.operands[0])]
    if one.name == "tt.addptr" and one.operands[1] is other.operands[1]:
        return _starts(one.operands[0], other.operands[0])
    if one.name == "tt.broadcast":
        return _starts(one.operands[0], other.operands[0])
    return None


class _Intervals:
    """The least and the greatest element of tensors of integers and addresses, as numbers of 64 bits. Indices of 32
    bits may wrap: `hold`, an i1, is true where none of those that were asked about does."""

    def __init__(self, em: KernelEmitter) -> None:
        self.em = em
        self.b = em.b
        self.known: dict[Tensor, Interval | None] = {}
        self.hold = TRUE

    def of(self, value: Tensor) -> Interval | None:
        if value not in self.known:
            self.known[value] = self._compute(value)
        return self.known[value]

    def _compute(self, value: Tensor) -> Interval | None:
        if value.type.shape is None:
            return self._number(self.em.scalar(value).value)
        if value in self.em.advanced:
            start, distance = self.em.advanced[value]
            return self._plus(self.of(start), self._number(distance))
        op = value.op
        if op is None or value in self.em.buffers:
            return None
        rule = _RULES.get(op.name)
        return None if rule is None else rule(self, op)

    def _number(self, value: Value) -> Interval | None:
        if value.type not in ("i32", "i64"):
            return None
        wide = self.b.sext(value, "i64")
        return wide, wide

    def _plus(self, left: Interval | None, right: Interval | None) -> Interval | None:
        if left is None or right is None:
            return None
        low = self.b.add(left[0], right[0])
        single = left[0] is left[1] and right[0] is right[1]
        return low, low if single else self.b.add(left[1], right[1])

    def _times(self, interval: Interval, factor: Value) -> Interval:
        low = self.b.mul(interval[0], factor)
        if interval[0] is interval[1]:
            return low, low
        high = self.b.mul(interval[1], factor)
        if factor.constant is not None and factor.constant >= 0:  # others are known not to be negative unless they wrap
            return low, high
        return self.b.binary_intrinsic("smin", low, high), self.b.binary_intrinsic("smax", low, high)

    def _unwrapped(self, value: Tensor) -> Interval | None:
        """Of an operand whose bits beyond its own count. Before, in sums and products, wrapping once more or less makes
        no difference."""
        interval = self.of(value)
        if interval is None or value.type.shape is None or value.type.element != "i32":
            return interval
        for end in dict.fromkeys(interval):
            if end.constant is None or not -(1 << 31) <= end.constant < 1 << 31:
                narrow = self.b.cast("sext", self.b.trunc(end, "i32"), "i64")
                self.hold = _both(self.em, self.hold, self.b.icmp("eq", narrow, end))
        return interval

    def same(self, op: Op) -> Interval | None:
        return self.of(op.operands[0])

    def widened(self, op: Op) -> Interval | None:
        return self._unwrapped(op.operands[0])

    def constant(self, op: Op) -> Interval | None:
        constant = op.attributes["value"]
        if isinstance(constant, Dense) and not constant.splat:
            numbers = [int(number) for number in constant.values]
            return integer(min(numbers), "i64"), integer(max(numbers), "i64")
        return self._number(constant_value(op, 0))

    def make_range(self, op: Op) -> Interval | None:
        return integer(op.attributes["start"], "i64"), integer(op.attributes["end"] - 1, "i64")

    def add(self, op: Op) -> Interval | None:
        return self._plus(self.of(op.operands[0]), self.of(op.operands[1]))

    def sub(self, op: Op) -> Interval | None:
        left, right = (self.of(operand) for operand in op.operands)
        if left is None or right is None:
            return None
        return self.b.sub(left[0], right[1]), self.b.sub(left[1], right[0])

    def mul(self, op: Op) -> Interval | None:
        left, right = (self.of(operand) for operand in op.operands)
        if left is None or right is None:
            return None
        if right[0] is right[1]:
            return self._times(left, right[0])
        return self._times(right, left[0]) if left[0] is left[1] else None

    def remainder(self, op: Op) -> Interval | None:
        """Of a division by a single number: nearer to zero than it, with the sign of the dividend."""
        dividend, divisor = map(self._unwrapped, op.operands)
        if divisor is None or divisor[0] is not divisor[1]:
            return None
        zero, one = integer(0, "i64"), integer(1, "i64")
        size = self.b.sub(self.b.binary_intrinsic("smax", divisor[0], self.b.sub(zero, divisor[0])), one)
        positive = dividend is not None and dividend[0].nonnegative
        return zero if positive else self.b.sub(zero, size), size

    def quotient(self, op: Op) -> Interval | None:
        """Of a division by a constant: it keeps the order."""
        left, right = map(self._unwrapped, op.operands)
        if left is None or right is None or not right[0].constant or right[0].constant < 0:
            return None
        return self.b.binary("sdiv", left[0], right[0]), self.b.binary("sdiv", left[1], right[0])

    def addptr(self, op: Op) -> Interval | None:
        offset = self._unwrapped(op.operands[1])
        if offset is None:
            return None
        return self._plus(self.of(op.operands[0]), self._times(offset, integer(pointee_size(op), "i64")))


_RULES: dict[str, Callable[[_Intervals, Op], Interval | None]] = {
    **dict.fromkeys(
        ("tt.splat", "tt.expand_dims", "tt.broadcast", "tt.trans", "tt.bitcast"),
        _Intervals.same,
    ),
    "arith.extsi": _Intervals.widened,
    "arith.index_cast": _Intervals.widened,
    "arith.constant": _Intervals.constant,
    "tt.make_range": _Intervals.make_range,
    "arith.addi": _Intervals.add,
    "arith.subi": _Intervals.sub,
    "arith.muli": _Intervals.mul,
    "arith.remsi": _Intervals.remainder,
    "arith.divsi": _Intervals.quotient,
    "tt.addptr": _Intervals.addptr,
}
