"""A pass over a plan: which stores pass by the caches."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from torch_mtia.triton.analyses import symbolic
from torch_mtia.triton.analyses.affine import Affine
from torch_mtia.triton.analyses.aliasing import has_read
from torch_mtia.triton.analyses.symbolic import TRUE, Expression
from torch_mtia.triton.ir.module import Op
from torch_mtia.triton.ir.ops import pointee_size
from torch_mtia.triton.plan.nests import Access
from torch_mtia.triton.plan.plan import Store

# More than the caches keep for whoever reads the result. On two cores of an AMD EPYC with 32 MB of L3, relu of fp32 and
# relu with a sum after it, in microseconds, by the caches and through them: 4 MB 179, 78 and 282, 140; 8 MB 332, 186
# and 404, 295; 16 MB 381, 369 and 785, 653.
STREAMING_BYTES = 16 << 20
STREAM_OF_BYTES = 1 << 9  # neighbours, at least: short pieces here and there take longer
SIZES = (16, 32, 64)  # bytes of what such a store may write


def stream(part: Any, _affine: Affine) -> Any:
    if not isinstance(part, Store) or (is_much := _write_much(part.stores, part.nest.dim)) is None:
        return part
    lanes, stores = part.nest.lanes, part.stores

    def bypasses(what: object, access: Access) -> bool:
        store = next((each for each in stores if each is what), None)
        return store is not None and access.kind == "vector" and lanes * pointee_size(store) in SIZES

    accesses = {
        key: dataclasses.replace(access, nontemporal=bypasses(key[0], access))
        for key, access in part.nest.accesses.items()
    }
    return dataclasses.replace(part, nest=dataclasses.replace(part.nest, accesses=accesses), nontemporal=is_much)


def _write_much(stores: Sequence[Op], dim: int) -> Expression | None:
    """_writes_much of every one of `stores`."""
    result: Expression | None = TRUE
    for store in stores:
        is_much = _writes_much(store, dim)
        result = None if result is None or is_much is None else symbolic.every(result, is_much)
    return result


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
