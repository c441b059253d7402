"""A pass over a plan: several strips in a round of the innermost loop, where a strip takes no longer than the loop."""

from __future__ import annotations

import dataclasses
from typing import Any

from torch_mtia.triton.analyses.affine import Affine
from torch_mtia.triton.analyses.availability import RELOAD, Available
from torch_mtia.triton.plan.nests import Nest
from torch_mtia.triton.plan.plan import AddNeighbours, Do, Evaluate, Pack, Store, StoreStaged

LIGHT = 20  # the cost of a strip below which
STRIPS = 2  # are in one round


def unroll(part: Any, affine: Affine) -> Any:
    if isinstance(part, Do) and part.nests:
        return dataclasses.replace(part, nests=tuple(_unrolled(nest, affine) for nest in part.nests))
    if isinstance(part, (AddNeighbours, Evaluate, Store, StoreStaged)) or (
        isinstance(part, Pack) and not part.words and not part.columns
    ):
        return dataclasses.replace(part, nest=_unrolled(part.nest, affine))
    return part


def _unrolled(nest: Nest, affine: Affine) -> Nest:
    if not nest.roots or not nest.lanes or nest.shape[nest.dim] % (STRIPS * nest.lanes):
        return nest
    available = Available(nest.sources.materialized, nest.sources.advanced)
    loads = filter(affine.is_plain_load, available.reach(nest.roots, nest.shape))
    known = dict.fromkeys(loads, RELOAD)
    cost = sum(available.cost(root, affine, known) for root in nest.roots)
    return dataclasses.replace(nest, unroll=STRIPS) if cost < LIGHT else nest
