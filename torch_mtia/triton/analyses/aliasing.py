"""Whether a store may write at once, while other elements of what it depends on are still to be read.

Reading everything first takes a buffer and a second pass over it. Mostly it is not needed: what is read lies elsewhere,
or is read where it is written. Addresses are arguments, so the program itself finds out, from the range of addresses
that each load and the store can reach.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from torch_mtia.triton.analyses import symbolic
from torch_mtia.triton.analyses.affine import Affine
from torch_mtia.triton.analyses.availability import Available
from torch_mtia.triton.analyses.symbolic import TRUE, Expression
from torch_mtia.triton.ir.module import Op, Value
from torch_mtia.triton.ir.ops import Elements, Linear, facts, is_load, pointee_size

MAX_PAIRS = 16  # each takes about ten instructions to check
MAX_CONDITION = 2000  # its size


def may_write_unstaged(
    stores: Sequence[Op], available: Available, affine: Affine, *, checked: bool
) -> Expression | None:
    """A condition under which stores of one nest, which write a strip each before the next strip is read, leave memory
    as program order says: no load that they wait for reads what one of them wrote before, and no store comes before an
    earlier one. TRUE itself if that is known now, None if it is never known. `checked`: a load outside of live memory
    is left out, so that it is not known which ones read."""
    shape = stores[0].operands[0].type.shape
    assert shape is not None
    at_index = available.reach([root for store in stores for root in store.operands], shape)
    if any(available.is_advanced(value) and available.reads_memory(value) for value in at_index):
        return None
    loads = [value for value in at_index if is_load(value.op)]
    pairs = [(value.op, store, at_index[value]) for value in loads for store in stores]
    pairs += [(first, second, True) for first, second in itertools.combinations(stores, 2)]
    if len(pairs) > MAX_PAIRS or (loads and checked):
        return None
    conditions: list[Expression] = []
    holds: list[Expression] = []  # without which nothing is known of the ranges of addresses
    for first, store, same_place in pairs:
        assert first is not None
        undisturbed = _does_not_disturb(affine, first, store, same_place, holds)
        if undisturbed is None:
            return None
        conditions.append(undisturbed)
    safe = symbolic.every(*conditions, *holds)
    return safe if safe.size <= MAX_CONDITION else None


def has_read(store: Op) -> Expression | None:
    """Whether a load before `store`, in its block, reads just what that writes; None if none can."""
    result: Expression | None = None
    for load in store.block.ops[: store.position]:
        if not is_load(load) or pointee_size(load) != pointee_size(store):
            continue
        pairs = _starts(load.operands[0], store.operands[0])
        if pairs is not None:
            found = _equal(pairs)
            result = found if result is None else symbolic.either(result, found)
    return result


def _equal(pairs: Sequence[tuple[Value, Value]]) -> Expression:
    return symbolic.every(*itertools.starmap(symbolic.same, pairs))


def _does_not_disturb(
    affine: Affine, earlier: Op, store: Op, at_index: bool, holds: list[Expression]
) -> Expression | None:
    """Whether `store` leaves alone what `earlier`, a load or a store, accesses in later strips, where `holds`, to
    which it adds, are true. `at_index`: both visit their elements in the same order."""
    read, written = earlier.operands[0], store.operands[0]
    same: Expression | None = None
    if at_index and pointee_size(earlier) == pointee_size(store) and _are_distinct(affine, written):
        pairs = _starts(read, written)
        if pairs is not None:
            same = _equal(pairs)
            if same is TRUE:
                return same
    first, second = affine.range(read), affine.range(written)
    if first is None or second is None:
        return same
    holds += (*first.holds, *second.holds)
    after = symbolic.add(first.high, symbolic.number(pointee_size(earlier)))
    above = symbolic.add(second.high, symbolic.number(pointee_size(store)))
    apart = symbolic.either(symbolic.at_most(after, second.low), symbolic.at_most(above, first.low))
    return apart if same is None else symbolic.either(same, apart)


def _are_distinct(affine: Affine, pointer: Value) -> bool:
    """Whether no two elements are the same address, as far as the strides tell."""
    form = affine.form(pointer)
    if not form.is_linear():
        return False
    steps: list[tuple[int, int]] = []
    for stride, size in zip(form.strides, pointer.type.shape or (), strict=True):
        if size > 1:
            if stride is None:
                return False
            steps.append((abs(stride), size))
    reach = 0
    for stride, size in sorted(steps):
        if stride <= reach:
            return False
        reach += stride * (size - 1)
    return reach < 1 << 31  # else indices of 32 bits may come around


def _starts(left: Value, right: Value) -> list[tuple[Value, Value]] | None:
    """The pairs of scalars that differ in two tensors of addresses that otherwise are the same; None if more does."""
    if left is right:
        return []
    one, other = left.op, right.op
    if one is None or other is None or one.name != other.name or left.type.shape != right.type.shape:
        return None
    known = facts(one)
    if known is not None and known.elements is Elements.SPLAT:
        return [(one.operands[0], other.operands[0])]
    if known is not None and known.linear is Linear.OFFSET and one.operands[1] is other.operands[1]:
        return _starts(one.operands[0], other.operands[0])
    if known is not None and known.elements is Elements.BROADCAST:
        return _starts(one.operands[0], other.operands[0])
    return None
