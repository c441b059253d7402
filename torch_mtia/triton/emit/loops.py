"""Writes the loops of nests, where they end early (analyses/masks.py), and conditions (analyses/symbolic.py)."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence

from torch_mtia.triton.analyses.masks import Beyond, End, ReductionEnd
from torch_mtia.triton.analyses.symbolic import PROGRAMS, TRUE, Expression
from torch_mtia.triton.analyses.walk import operands_first
from torch_mtia.triton.emit.elementwise import constant_value
from torch_mtia.triton.emit.environment import GRID, Environment
from torch_mtia.triton.emit.strip import ZERO, Strip, apply
from torch_mtia.triton.ir.elements import llvm_element
from torch_mtia.triton.lanes import Index, Lane
from torch_mtia.triton.llvm_value import Value, bits_of, integer, zero
from torch_mtia.triton.plan.nests import Nest, Sources

Cache = Mapping[tuple[object, ...], Lane]


def complete(index: Sequence[Lane | None]) -> Index:
    """An index whose dimensions were filled in one by one."""
    return tuple(lane for lane in index if lane is not None)


def loop_over(env: Environment, nest: Nest, body: Callable[[Strip], None]) -> None:
    """Writes `body` for a strip, in loops over all of them."""
    b, shape, dim = env.b, nest.shape, nest.dim
    ends = {d: first_beyond(env, nest.sources, end) for d, end in nest.ends.items()}
    index: list[Lane | None] = [None] * len(shape)
    with contextlib.ExitStack() as stack:
        for d, size in enumerate(shape):
            if d != dim:
                index[d] = Lane(stack.enter_context(b.loop(0, size, 1, ends.get(d))))
        outer = hoist(env, nest, index)
        width = max(nest.lanes, 1)
        first = stack.enter_context(b.loop(0, shape[dim], nest.unroll * width, ends.get(dim)))
        for number in range(nest.unroll):
            index[dim] = Lane(b.add(first, integer(number * width, "i32")), 1 if nest.lanes else 0)
            place = number * width
            body(Strip(env, nest.sources, complete(index), nest.lanes, nest.saves, outer, place, nest.accesses))


def hoist(env: Environment, nest: Nest, index: Sequence[Lane | None]) -> Cache:
    """Evaluates, before the innermost loop opens, what does not change in it: `index` lacks its dimension."""
    around = tuple(ZERO if lane is None else lane for lane in index)
    strip = Strip(env, nest.sources, around, nest.lanes, accesses=nest.accesses)
    for value, dims in nest.hoisted:
        strip.value(value, complete([ZERO if d is None else index[d] for d in dims]))
    return strip.cache


@contextlib.contextmanager
def loops_around(env: Environment, nest: Nest, axis: int, width: int) -> Iterator[list[Lane]]:
    """Loops over all dimensions but `axis`, in strips of `width` along the nest's dimension if that is another; gives
    the lanes of these dimensions."""
    index: dict[int, Lane] = {}
    across = nest.dim if nest.dim != axis else None
    order = [d for d in range(len(nest.shape)) if d not in (axis, across)] + ([across] if across is not None else [])
    with contextlib.ExitStack() as stack:
        for d in order:
            step = max(width, 1) if d == across else 1
            counter = stack.enter_context(env.b.loop(0, nest.shape[d], step))
            index[d] = Lane(counter, 1 if d == across and width else 0)
        yield [index[d] for d in range(len(nest.shape)) if d != axis]


# Ends -----------------------------------------------------------------------------------------------------------------


def first_beyond(env: Environment, sources: Sources, end: End) -> Value:
    """The i32 index from which on the comparison is false; the size where it is true again after."""
    b = env.b
    count, rises = _count(env, sources, end)
    return b.trunc(b.select(rises, count, integer(end.size, "i64")), "i32")


def is_true_throughout(env: Environment, sources: Sources, end: End) -> Value:
    """The i1 whether the comparison is true for all indices."""
    b = env.b
    count, rises = _count(env, sources, end)
    return b.binary("and", rises, b.icmp("eq", count, integer(end.size, "i64")))


def _count(env: Environment, sources: Sources, end: End) -> tuple[Value, Value]:
    """(for how many indices the comparison is true, i64; whether they are the first ones, i1, or nothing is known)"""
    b, size = env.b, end.size
    place = [ZERO] * len(end.comparison.operands[0].type.shape or ())
    strip = Strip(env, sources, tuple(place), 0)
    start, bound = (b.sext(strip.value(operand).value, "i64") for operand in end.comparison.operands)
    place[end.axis] = Lane(integer(size - 1, "i32"))
    last = b.sext(Strip(env, sources, tuple(place), 0).value(end.comparison.operands[0]).value, "i64")
    # Saturated: the difference of indices of 64 bits may take more.
    count = b.binary_intrinsic("smin", b.binary_intrinsic("ssub.sat", bound, start), integer(size, "i64"))
    if end.includes_bound:
        count = b.add(count, integer(1, "i64"))
    count = b.binary_intrinsic("smin", count, integer(size, "i64"))
    count = b.binary_intrinsic("smax", count, integer(0, "i64"))
    # An index that wraps, or one of 32 bits that it was made of, is below the bound again.
    goes_on = b.icmp("eq", b.sub(last, start), integer(size - 1, "i64"))
    return count, b.binary("and", goes_on, b.icmp("sle", start, last))


def reduction_limit(
    env: Environment,
    sources: Sources,
    end: ReductionEnd,
    combine: Callable[[list[Value], list[Value]], list[Value]],
) -> tuple[Value, list[Value]]:
    """Where a reduction may end, and the elements that all are after."""
    b = env.b
    known: dict[Beyond, Lane] = {}
    beyond = [_lane(env, each, known).value for each in end.beyond]
    limit = first_beyond(env, sources, end.end)
    for one, twice in zip(beyond, combine(beyond, beyond), strict=True):
        bits = f"i{bits_of(one.type)}"
        same = b.icmp("eq", b.bitcast(one, bits), b.bitcast(twice, bits))
        limit = b.select(same, limit, integer(end.end.size, "i32"))
    return limit, beyond


def _lane(env: Environment, beyond: Beyond, known: dict[Beyond, Lane]) -> Lane:
    for each in operands_first(beyond, known, lambda each: each.operands):
        if each.op is not None:
            known[each] = apply(env.b, each.op, [known[operand] for operand in each.operands], 0)[each.number]
        elif each.value is None:
            known[each] = Lane(zero(llvm_element(each.element)))
        elif each.value.type.shape is None:
            known[each] = env.scalar(each.value)
        else:
            assert each.value.op is not None
            known[each] = Lane(constant_value(each.value.op, 0))
    return known[beyond]


# Conditions -----------------------------------------------------------------------------------------------------------


def evaluate(env: Environment, expression: Expression, known: dict[Expression, Value] | None = None) -> Value:
    """An i64, or the i1 of a condition. `known`: what was computed already."""
    known = {} if known is None else known
    for each in operands_first(expression, known, _parts):
        known[each] = _compute(env, each, [known[part] for part in _parts(each)])
    return known[expression]


def _parts(expression: Expression) -> tuple[Expression, ...]:
    return expression.operands if expression.operator != "eq" else ()  # which is of addresses


def _compute(env: Environment, expression: Expression, operands: list[Value]) -> Value:
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
