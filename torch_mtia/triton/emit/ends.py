"""Writes where loops end early (analyses/masks.py)."""

from __future__ import annotations

from collections.abc import Callable

from torch_mtia.triton.analyses.masks import Beyond, End, ReductionEnd
from torch_mtia.triton.emit.elementwise import constant_value
from torch_mtia.triton.emit.environment import Environment
from torch_mtia.triton.emit.strip import ZERO, Strip, apply
from torch_mtia.triton.ir.elements import llvm_element
from torch_mtia.triton.lanes import Lane
from torch_mtia.triton.llvm_value import Value, bits_of, integer, zero
from torch_mtia.triton.plan.plan import Sources


def first_beyond(env: Environment, sources: Sources, end: End) -> Value:
    """The i32 index from which on the comparison is false; the size where it is true again behind."""
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
    """Where a reduction may end, and the elements that all are behind."""
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
    if beyond not in known:
        known[beyond] = _compute_lane(env, beyond, known)
    return known[beyond]


def _compute_lane(env: Environment, beyond: Beyond, known: dict[Beyond, Lane]) -> Lane:
    if beyond.op is not None:
        operands = [_lane(env, operand, known) for operand in beyond.operands]
        return apply(env.b, beyond.op, operands, 0)[beyond.number]
    if beyond.value is None:
        return Lane(zero(llvm_element(beyond.element)))
    if beyond.value.type.shape is None:
        return env.scalar(beyond.value)
    assert beyond.value.op is not None
    return Lane(constant_value(beyond.value.op, 0))
