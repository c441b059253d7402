"""Passes over the parts of a plan: each returns a part as it is, or another in its place. They run in one walk, inner
parts first: several strips in a round, what is fetched ahead, how buffers are accessed, what passes by the caches."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch_mtia.triton.analyses import symbolic
from torch_mtia.triton.analyses.affine import Affine
from torch_mtia.triton.analyses.aliasing import has_read
from torch_mtia.triton.analyses.availability import RELOAD, Available
from torch_mtia.triton.analyses.symbolic import TRUE, Expression
from torch_mtia.triton.ir.module import Op, Value
from torch_mtia.triton.ir.ops import Dims, is_load, pointee_size, size_behind
from torch_mtia.triton.plan import plan as steps
from torch_mtia.triton.plan.nests import Access, Accesses, Buffer, Nest, Sources

# Several strips in a round, where a strip takes no longer than the loop -----------------------------------------------

LIGHT = 20  # the cost of a strip below which
STRIPS = 2  # are in one round


def unroll(part: Any, affine: Affine) -> Any:
    if isinstance(part, steps.Do) and part.nests:
        return dataclasses.replace(part, nests=tuple(_unrolled(nest, affine) for nest in part.nests))
    if isinstance(part, (steps.AddNeighbours, steps.Evaluate, steps.Store, steps.StoreStaged)) or (
        isinstance(part, steps.Pack) and not part.words and not part.columns
    ):
        return _with_nest(part, _unrolled(part.nest, affine))
    return part


def _with_nest(step: Any, nest: Nest) -> Any:
    return step if nest is step.nest else dataclasses.replace(step, nest=nest)


def _unrolled(nest: Nest, affine: Affine) -> Nest:
    if not nest.roots or not nest.lanes or nest.shape[nest.dim] % (STRIPS * nest.lanes):
        return nest
    available = Available(nest.sources.materialized, nest.sources.advanced)
    loads = filter(affine.is_plain_load, available.reach(nest.roots, nest.shape))
    known = dict.fromkeys(loads, RELOAD)
    cost = sum(available.cost(root, affine, known) for root in nest.roots)
    return dataclasses.replace(nest, unroll=STRIPS) if cost < LIGHT else nest


# What loads of neighbours fetch ahead ---------------------------------------------------------------------------------
#
# The long chains of a strip's instructions leave the processor no room to get there by itself. After the last row lies
# what the next program or round reads.

AHEAD_BYTES = 2 << 10


def prefetch(part: Any, affine: Affine) -> Any:
    if isinstance(part, Nest):
        return _fetching(part, part.dim, affine)
    if isinstance(part, steps.Transpose):
        return dataclasses.replace(part, accesses=_ahead(part.accesses, part.sources, part.along, affine))
    if isinstance(part, steps.Pack) and part.columns:  # the processor guesses what is at one distance
        along = None if part.columns == steps.AT_ONE_DISTANCE else len(part.nest.shape) - 2
        return _with_nest(part, _fetching(part.nest, along, affine))
    return part


def _fetching(nest: Nest, along: int | None, affine: Affine) -> Nest:
    if not nest.accesses:
        return nest
    return dataclasses.replace(nest, accesses=_ahead(nest.accesses, nest.sources, along, affine))


def _ahead(accesses: Accesses, sources: Sources, along: int | None, affine: Affine) -> Accesses:
    return {
        (what, dims): _with_prefetch(access, what.operands[0], dims, sources, along, affine)
        if isinstance(what, Op) and is_load(what) and access.kind == "vector"
        else access
        for (what, dims), access in accesses.items()
    }


def _with_prefetch(
    access: Access, pointer: Value, dims: Dims, sources: Sources, along: int | None, affine: Affine
) -> Access:
    none, shape = dataclasses.replace(access, ahead=0, rows=None), pointer.type.shape
    place = next((place for place, d in enumerate(dims) if d == along), None)
    if along is None or place is None or shape is None:
        return none
    outer = max((other for other, extent in enumerate(shape) if other != place and extent > 1), default=None)
    if outer is None:
        return dataclasses.replace(access, ahead=AHEAD_BYTES, rows=None)
    available = Available(sources.materialized, sources.advanced)
    if not affine.has_pattern(pointer) or available.reads_buffers(pointer):
        return none
    return dataclasses.replace(access, ahead=max(AHEAD_BYTES // (shape[place] * size_behind(pointer)), 1), rows=outer)


# How steps access the buffers that they name --------------------------------------------------------------------------
#
# Where nothing is said, a strip is a vector of neighbours, or one element.

# By the kind of a step, the buffers that it accesses at the index of its nest.
_AT_INDEX: dict[type, Callable[[Any], Sequence[Buffer | None]]] = {
    steps.Clear: lambda step: [step.target],
    steps.Convert: lambda step: [step.source, step.target],
    steps.Copy: lambda step: [step.source, step.target],
    steps.Decode: lambda step: [step.target],
    steps.Evaluate: lambda step: [buffer for _, buffer in step.writes],
    steps.Pack: lambda step: [] if step.columns else [operand.buffer for operand in step.operands],
    steps.Store: lambda step: step.staged,
    steps.StoreStaged: lambda step: [step.source],
}


def access_buffers(part: Any, _affine: Affine) -> Any:
    if isinstance(part, steps.Do) and part.nests:
        first, *others = part.nests
        found = _strided(first, part.writes)
        if part.op.name == "tt.gather" and first.lanes:
            found |= {(table, ()): Access("gather") for table in part.reads}
        return dataclasses.replace(part, nests=(_with(first, found), *others)) if found else part
    at_index = _AT_INDEX.get(type(part))
    return part if at_index is None else _with_nest(part, _with(part.nest, _strided(part.nest, at_index(part))))


def _with(nest: Nest, found: Mapping[Any, Access]) -> Nest:
    return dataclasses.replace(nest, accesses={**nest.accesses, **found}) if found else nest


def _strided(nest: Nest, buffers: Sequence[Buffer | None]) -> Accesses:
    """Those whose elements along a strip are not side by side."""
    found: Accesses = {}
    for buffer in buffers:
        if buffer is not None and nest.lanes:
            panels = len(buffer.shape) - len(nest.shape)  # a panel has so many columns, and all rows
            dim = nest.dim + (panels if nest.dim >= len(nest.shape) - 2 else 0)
            if buffer.strides[dim] != 1:
                found[buffer, ()] = Access("strided")
    return found


# Which stores pass by the caches --------------------------------------------------------------------------------------

# More than the caches keep for whoever reads the result. On two cores of an AMD EPYC with 32 MB of L3, relu of fp32 and
# relu with a sum after it, in microseconds, by the caches and through them: 4 MB 179, 78 and 282, 140; 8 MB 332, 186
# and 404, 295; 16 MB 381, 369 and 785, 653.
STREAMING_BYTES = 16 << 20
STREAM_OF_BYTES = 1 << 9  # neighbours, at least: short pieces here and there take longer
SIZES = (16, 32, 64)  # bytes of what such a store may write


def stream(part: Any, _affine: Affine) -> Any:
    if not isinstance(part, steps.Store):
        return part
    is_much: Expression = TRUE
    for store in part.stores:
        if (writes := _writes_much(store, part.nest.dim)) is None:
            return part
        is_much = symbolic.every(is_much, writes)
    found = {
        (what, dims): dataclasses.replace(access, nontemporal=part.nest.lanes * pointee_size(what) in SIZES)
        for (what, dims), access in part.nest.accesses.items()
        if isinstance(what, Op) and what in part.stores and access.kind == "vector"
    }
    return dataclasses.replace(part, nest=_with(part.nest, found), nontemporal=is_much)


def _writes_much(store: Op, dim: int) -> Expression | None:
    """Whether the whole grid writes more than caches hold, so that what is written should not displace what they have,
    nor be read into them first: they have what a load has just read (an update of 4 x 4 MB in place takes 2.0 ms past
    them, 1.2 through them). None where the store is not of that kind."""
    pointer, size = store.operands[0], pointee_size(store)
    shape = pointer.type.shape
    assert shape is not None
    if shape[dim] * size < STREAM_OF_BYTES:
        return None
    least = -(-STREAMING_BYTES // (pointer.type.numel * size))
    is_much = symbolic.at_most(symbolic.number(least), symbolic.PROGRAMS)
    cached = has_read(store)
    return is_much if cached is None else symbolic.every(is_much, symbolic.negated(cached))
