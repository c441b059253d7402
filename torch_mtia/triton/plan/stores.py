"""Stores to device memory, atomic operations, and others that write or say something element by element."""

from __future__ import annotations

from collections.abc import Sequence

from torch_mtia.triton.analyses.aliasing import may_write_unstaged
from torch_mtia.triton.analyses.masks import is_all_of
from torch_mtia.triton.analyses.symbolic import TRUE, Expression
from torch_mtia.triton.ir.elements import element_size
from torch_mtia.triton.ir.module import Op, Unsupported, Value
from torch_mtia.triton.ir.ops import is_scalar, pointee_size, store_operands
from torch_mtia.triton.plan.dimensions import dimension_votes
from torch_mtia.triton.plan.nests import Nest
from torch_mtia.triton.plan.plan import AddNeighbours, Do, Store, StoreStaged
from torch_mtia.triton.plan.planner import Planner, plans, shape_of

ATOMIC_SUMS = (4, 5)  # triton::RMWOp: of integers, of floats


@plans("tt.store")
def _store(planner: Planner, op: Op) -> None:
    stores = [*planner.put_off.pop(op, []), op]
    unstaged = _may_share_a_nest(planner, stores) if len(stores) > 1 else None
    if unstaged is not None:
        _store_strips(planner, stores, unstaged)
        return
    for store in stores:
        if store is not op:
            planner.order_memory(store)
        _store_alone(planner, store)


def _may_share_a_nest(planner: Planner, stores: Sequence[Op]) -> Expression | None:
    """Whether stores may all write strip by strip, as may_write_unstaged says; None also where their dimensions differ
    along which neighbours lie, or where it takes a load to know what is written."""
    shape = shape_of(stores[0].operands[0])
    dims = {planner.best_dimension(store.operands, shape) for store in stores}
    if any(_transposed_to(planner, store) is not None for store in stores):
        return None
    places = [place for store in stores for place in (store.operands[0], *store.operands[2:])]
    if len(dims) > 1 or planner.available.hazardous(places):
        return None
    return _unstaged(planner, stores)


def _unstaged(planner: Planner, stores: Sequence[Op]) -> Expression | None:
    target = stores[0].operands[0]
    shape = shape_of(target)
    if max(shape) == target.type.numel <= planner.lanes:
        roots = [root for store in stores for root in store.operands]
        assert shape[planner.best_dimension(roots, shape)] == max(shape), "one strip"
        return TRUE  # one strip
    return may_write_unstaged(stores, planner.available, planner.affine, checked=planner.instrumented)


def _store_alone(planner: Planner, op: Op) -> None:
    pointer, value, mask = store_operands(op)
    if pointer.type.pointee.startswith("tensor"):
        raise Unsupported("a store through a block pointer that was not rewritten", op.location)
    if is_scalar(pointer):
        planner.add(Do(op))
        return
    along = _transposed_to(planner, op)
    if along is not None:
        planner.materialized[value] = planner.materialize([value], op, [planner.save_buffer(value, along)], mask=mask)[
            0
        ]
    unstaged = _unstaged(planner, [op])
    # What reads memory is read now; but the value, if it is only the program that can tell whether that is needed.
    places = [pointer, *([mask] if mask is not None else []), *([value] if unstaged is None else [])]
    early = [] if unstaged is TRUE else planner.available.hazardous(places)
    if early:
        planner.materialize(early, op, dim=planner.best_dimension(op.operands, shape_of(pointer)))
    _store_strips(planner, [op], TRUE if unstaged is None else unstaged)


def _transposed_to(planner: Planner, op: Op) -> int | None:
    """The dimension along which a store writes neighbours, if its value is computed along another one: it is transposed
    in registers on its way into a buffer, since writing lane by lane takes several times as long."""
    pointer, value, _ = store_operands(op)
    if is_scalar(pointer):
        return None
    shape = shape_of(value)
    strides = planner.affine.strides(pointer)
    along = next((d for d, stride in enumerate(strides) if stride == pointee_size(op) and shape[d] > 1), None)
    votes = dimension_votes([value], shape, planner.materialized, planner.affine)
    computed = max(range(len(shape)), key=votes.__getitem__)
    if along is None or votes[computed] <= votes[along] or not planner.is_square(value, computed, along):
        return None
    return along


def _store_strips(planner: Planner, stores: Sequence[Op], unstaged: Expression) -> None:
    """Reads and writes in one nest; where `unstaged` is false, it writes to buffers that are copied afterwards."""
    op = stores[-1]
    roots = [root for store in stores for root in store.operands]
    shape = shape_of(op.operands[0])
    dim = planner.best_dimension(roots, shape)
    masks = {store_operands(store)[2] for store in stores}
    staged = [planner.save_buffer(store.operands[1], dim) for store in stores] if unstaged is not TRUE else []
    mask = masks.pop() if len(masks) == 1 else None
    nest = planner.nest(op, roots, shape, dim=dim, mask=mask, stores=stores)
    before = dict(planner.materialized)
    with planner.collected() as afterwards:
        for store, buffer in zip(stores, staged, strict=False):
            pointer, _, own = store_operands(store)
            places = [pointer, *([own] if own is not None else [])]
            planner.add(
                StoreStaged(planner.nest(store, places, shape, dim=dim, mask=own, stores=[store]), store, buffer)
            )
    planner.after_branch(before)
    unmasked = mask if _is_often_unmasked(planner, mask, nest) else None
    planner.add(Store(nest, tuple(stores), unmasked, unstaged, None, tuple(staged), tuple(afterwards)))


def _is_often_unmasked(planner: Planner, mask: Value | None, nest: Nest) -> bool:
    """Whether a mask is worth code of its own for where it is true throughout: that of a matrix cut into blocks, of
    which few lie across its edges."""
    if mask is None or len(nest.ends) < 2 or planner.instrumented:
        return False
    return is_all_of(mask, {end.comparison for end in nest.ends.values()})


# Element by element ---------------------------------------------------------------------------------------------------


@plans("tt.atomic_rmw", "tt.atomic_cas")
def _atomic(planner: Planner, op: Op) -> None:
    (result,) = op.results
    if is_scalar(result):
        planner.add(Do(op))
        return
    if hazards := planner.available.hazardous(op.operands):
        planner.materialize(hazards, op)
    shape = shape_of(result)
    if _adds_neighbours(planner, op):
        dim = planner.best_dimension(op.operands, shape)
        mask = op.operands[2] if len(op.operands) > 2 else None
        nest = planner.nest(op, op.operands, shape, dim=dim, mask=mask, stores=[op])
        if not nest.lanes:
            planner.add(Do(op, (nest,), writes=(None,)))
            return
        (access,) = (found for (each, _), found in nest.accesses.items() if each is op)
        most = (16 if "cas16" in planner.features else 8) // pointee_size(op)  # that the processor swaps at once
        planner.add(AddNeighbours(op, nest, min(nest.lanes, most) if access.kind == "vector" else 1))
        return
    target = planner.destination(result) if result.users else None
    nest = planner.nest(op, op.operands, shape, dim=len(shape) - 1, one_by_one=True)
    planner.add(Do(op, (nest,), writes=(target,)))


def _adds_neighbours(planner: Planner, op: Op) -> bool:
    """Whether numbers side by side are added to, and nobody asks what was there before."""
    (result,) = op.results
    is_sum = op.attributes.get("atomic_rmw_op") in ATOMIC_SUMS and not result.users
    if not is_sum or planner.instrumented:  # checks look at each element by itself
        return False
    dim = planner.best_dimension(op.operands, shape_of(result))
    return planner.affine.strides(op.operands[0])[dim] == element_size(result.type.element)


@plans("tt.assert")
def _assert(planner: Planner, op: Op) -> None:
    (condition,) = op.operands
    nests = () if is_scalar(condition) else (planner.nest(op, [condition], shape_of(condition)),)
    planner.add(Do(op, nests))


@plans("tt.print")
def _print(planner: Planner, op: Op) -> None:
    nests: list[Nest] = []
    for value in op.operands:
        if not is_scalar(value):
            shape = shape_of(value)
            nests.append(planner.nest(op, [value], shape, dim=len(shape) - 1, one_by_one=True))
    planner.add(Do(op, tuple(nests)))
