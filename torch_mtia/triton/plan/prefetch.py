"""A pass over a plan: what loads of neighbours fetch ahead. The long chains of a strip's instructions leave the
processor no room to get there by itself. After the last row lies what the next program or round reads."""

from __future__ import annotations

import dataclasses
from typing import Any

from torch_mtia.triton.analyses.affine import Affine
from torch_mtia.triton.analyses.availability import Available
from torch_mtia.triton.ir.module import Op, Value
from torch_mtia.triton.ir.ops import Dims, is_load, size_behind
from torch_mtia.triton.plan.nests import Access, Accesses, Nest, Sources
from torch_mtia.triton.plan.plan import AT_ONE_DISTANCE, Pack, Transpose

BYTES = 2 << 10


def prefetch(part: Any, affine: Affine) -> Any:
    if isinstance(part, Nest) and part.accesses:
        return dataclasses.replace(part, accesses=_ahead(part.accesses, part.sources, part.dim, affine))
    if isinstance(part, Transpose):
        return dataclasses.replace(part, accesses=_ahead(part.accesses, part.sources, part.along, affine))
    if isinstance(part, Pack) and part.columns:  # the processor guesses what is at one distance
        along = None if part.columns == AT_ONE_DISTANCE else len(part.nest.shape) - 2
        accesses = _ahead(part.nest.accesses, part.nest.sources, along, affine)
        return dataclasses.replace(part, nest=dataclasses.replace(part.nest, accesses=accesses))
    return part


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
        return dataclasses.replace(access, ahead=BYTES, rows=None)
    available = Available(sources.materialized, sources.advanced)
    if not affine.has_pattern(pointer) or available.reads_buffers(pointer):
        return none
    return dataclasses.replace(access, ahead=max(BYTES // (shape[place] * size_behind(pointer)), 1), rows=outer)
