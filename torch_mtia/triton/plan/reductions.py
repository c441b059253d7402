"""Reductions and scans along one axis, with any combine function and any number of operands.

The combine function is taken to be associative. If it is commutative too, several strips accumulate side by side; else
elements are combined in their own order.
"""

from __future__ import annotations

from torch_mtia.triton.analyses.commutativity import is_commutative
from torch_mtia.triton.analyses.masks import reduction_end
from torch_mtia.triton.ir.module import Op
from torch_mtia.triton.ir.ops import is_scalar
from torch_mtia.triton.plan.nests import Buffer, Nest, innermost_first
from torch_mtia.triton.plan.plan import Reduce, Scan
from torch_mtia.triton.plan.planner import Planner, plans, shape_of

ACCUMULATORS = 4  # at least, side by side, so that one does not wait for the other
MAX_SIDE = 8  # strips


@plans("tt.reduce")
def _reduce(planner: Planner, op: Op) -> None:
    axis = op.attributes["axis"]
    shape = shape_of(op.operands[0])
    saves = planner.prepare(op, op.operands, shape)
    dim = planner.best_dimension(op.operands, shape)
    buffers = {value: planner.save_buffer(value, dim) for value in saves}
    across = dim != axis
    lanes = planner.lanes_along(shape, dim)
    sources = planner.sources(op.operands)
    hoisted = planner.hoisted(op.operands, shape, axis, lanes)
    end = reduction_end(op, shape, planner.affine, planner.materialized, saves)
    targets: list[Buffer | None] = [None] * len(op.results)
    if not is_scalar(op.results[0]):
        rest = tuple(size for d, size in enumerate(shape) if d != axis)
        strides = innermost_first(rest, dim if dim < axis else dim - 1) if across else None
        targets = [planner.destination(result, strides) for result in op.results]
    any_order = is_commutative(planner.module, op.regions[0])
    # Across the axis, several strips side by side: each row is read once, over its whole length.
    side = min(MAX_SIDE, shape[dim] // max(lanes, 1)) if across else 1
    count = shape[axis] // (1 if across else max(lanes, 1))
    wanted = max(1, (ACCUMULATORS if any_order else 1) // side)
    chains = wanted if count >= 2 * wanted else 2 if count >= 4 and wanted > 1 else 1
    index = planner.index(shape, dim, lanes)
    accesses = planner.accesses(op.operands, shape, index, lanes)
    nest = Nest(shape, dim, lanes, tuple(op.operands), accesses, sources, buffers, hoisted)
    group = min(count, MAX_SIDE)
    planner.add(Reduce(op, nest, axis, tuple(targets), any_order, side, chains, group, end))
    planner.materialized.update(buffers)


@plans("tt.scan")
def _scan(planner: Planner, op: Op) -> None:
    axis, reverse = op.attributes["axis"], bool(op.attributes.get("reverse"))
    shape = shape_of(op.operands[0])
    saves = planner.prepare(op, op.operands, shape)
    others = [d for d, size in enumerate(shape) if d != axis and size > 1]
    dim = max(others, key=lambda d: (min(shape[d], planner.lanes), d), default=axis)
    buffers = {value: planner.save_buffer(value, dim) for value in saves}
    strides = innermost_first(shape, dim)
    targets = [planner.new_buffer(shape, result.type.element, strides) for result in op.results]
    sources = planner.sources(op.operands)
    lanes = planner.lanes_along(shape, dim)
    index = planner.index(shape, dim, lanes)
    accesses = planner.accesses(op.operands, shape, index, lanes)
    nest = Nest(shape, dim, lanes, tuple(op.operands), accesses, sources, buffers)
    planner.add(Scan(op, nest, axis, tuple(targets), reverse))
    planner.materialized.update(buffers)
    planner.materialized.update(zip(op.results, targets, strict=True))
