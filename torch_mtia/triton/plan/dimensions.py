"""Along which dimension a nest takes its strips: the one along which its memory accesses are contiguous."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch_mtia.triton.analyses.affine import Affine, Strides
from torch_mtia.triton.analyses.walk import own_dims, walk
from torch_mtia.triton.ir.module import Value
from torch_mtia.triton.ir.ops import Dims, is_fused, is_load, pointee_size, size_behind
from torch_mtia.triton.plan.nests import Buffer, Shape

BUFFER_VOTE = 2
MEMORY_VOTE = 4
WHOLE = 16


def best_dimension(
    roots: Sequence[Value], shape: Shape, lanes: int, materialized: Mapping[Value, Buffer], affine: Affine
) -> int:
    """The dimension along which most accesses are contiguous; the last one if none is. One of a single element only if
    all are."""
    votes = dimension_votes(roots, shape, materialized, affine)
    return max(
        range(len(shape)),
        key=lambda d: (shape[d] > 1, votes[d] * min(shape[d], lanes), min(shape[d], lanes), d),
    )


def dimension_votes(
    roots: Sequence[Value], shape: Shape, materialized: Mapping[Value, Buffer], affine: Affine
) -> list[int]:
    """For each dimension of a nest, how much contiguous access speaks for it."""
    votes = [0] * len(shape)

    def vote(strides: Strides, size: int, dims: Dims, weight: int) -> None:
        # What has fewer elements than the nest is read once for many of them, and then it does not matter how.
        if all(d in dims for d, extent in enumerate(shape) if extent > 1):
            weight *= WHOLE
        for stride, d in zip(strides, dims, strict=True):
            if d is not None and stride == size:
                votes[d] += weight

    def enter(value: Value, dims: Dims) -> Sequence[Value] | None:
        op = value.op
        if (buffer := materialized.get(value)) is not None:
            vote(buffer.strides, 1, dims, BUFFER_VOTE)
        elif op is not None and value.type.shape is not None and is_fused(op):
            if is_load(op):
                vote(affine.strides(op.operands[0]), pointee_size(op), dims, MEMORY_VOTE)
            return op.operands
        return None

    at_index = [(root, own_dims(root)) for root in roots if root.type.shape == shape]
    for root, dims in at_index:
        if root.type.element == "ptr":
            vote(affine.strides(root), size_behind(root), dims, MEMORY_VOTE)
    walk(at_index, enter)
    return votes
