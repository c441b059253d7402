"""A pass over a plan: how steps access the buffers that they name, strip by strip of their nest. Where nothing is said,
a strip is a vector of neighbours, or one element."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from torch_mtia.triton.analyses.affine import Affine
from torch_mtia.triton.plan.nests import Access, Buffer, Nest
from torch_mtia.triton.plan.plan import Clear, Convert, Copy, Decode, Do, Evaluate, Pack, Store, StoreStaged

# By the kind of a step, those at the index of its nest.
_AT_INDEX: dict[type, Callable[[Any], Sequence[Buffer | None]]] = {
    Clear: lambda step: [step.target],
    Convert: lambda step: [step.source, step.target],
    Copy: lambda step: [step.source, step.target],
    Decode: lambda step: [step.target],
    Evaluate: lambda step: [buffer for _, buffer in step.writes],
    Pack: lambda step: [] if step.columns else [operand.buffer for operand in step.operands],
    Store: lambda step: step.staged,
    StoreStaged: lambda step: [step.source],
}


def access_buffers(part: Any, _affine: Affine) -> Any:
    if isinstance(part, Do) and part.nests:
        first, *others = part.nests
        found = _strided(first, part.writes)
        if part.op.name == "tt.gather" and first.lanes:
            found |= {(table, ()): Access("gather") for table in part.reads}
        return dataclasses.replace(part, nests=(_with(first, found), *others)) if found else part
    at_index = _AT_INDEX.get(type(part))
    found = {} if at_index is None else _strided(part.nest, at_index(part))
    return dataclasses.replace(part, nest=_with(part.nest, found)) if found else part


def _with(nest: Nest, found: dict[Any, Access]) -> Nest:
    return dataclasses.replace(nest, accesses={**nest.accesses, **found})


def _strided(nest: Nest, buffers: Sequence[Buffer | None]) -> dict[Any, Access]:
    """Those whose elements along a strip are not side by side."""
    found = {}
    for buffer in buffers:
        if buffer is not None and nest.lanes:
            panels = len(buffer.shape) - len(nest.shape)  # a panel has so many columns, and all rows
            dim = nest.dim + (panels if nest.dim >= len(nest.shape) - 2 else 0)
            if buffer.strides[dim] != 1:
                found[buffer, ()] = Access("strided")
    return found
