"""Along which dimension a nest takes its strips: the one along which its memory accesses are contiguous."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch_mtia.triton.analyses.strides import StrideAnalysis, Strides
from torch_mtia.triton.ir.module import Value
from torch_mtia.triton.ir.ops import Dims, is_fused, is_load, operand_dims, pointee_size, size_behind
from torch_mtia.triton.plan.plan import Buffer, Shape

BUFFER_VOTE = 2
MEMORY_VOTE = 4
WHOLE = 16


def best_dimension(
    roots: Sequence[Value], shape: Shape, lanes: int, held: Mapping[Value, Buffer], strides: StrideAnalysis
) -> int:
    """The dimension along which most accesses are contiguous; the last one if none is. One of a single element only if
    all are."""
    votes = dimension_votes(roots, shape, held, strides)
    return max(
        range(len(shape)),
        key=lambda d: (shape[d] > 1, votes[d] * min(shape[d], lanes), min(shape[d], lanes), d),
    )


def dimension_votes(
    roots: Sequence[Value], shape: Shape, held: Mapping[Value, Buffer], analysis: StrideAnalysis
) -> list[int]:
    """For each dimension of a nest, how much contiguous access speaks for it."""
    votes = [0] * len(shape)
    seen: set[tuple[Value, Dims]] = set()

    def vote(strides: Strides, size: int, dims: Dims, weight: int) -> None:
        # What has fewer elements than the nest is read once for many of them, and then it does not matter how.
        if all(d in dims for d, extent in enumerate(shape) if extent > 1):
            weight *= WHOLE
        for stride, d in zip(strides, dims, strict=True):
            if d is not None and stride == size:
                votes[d] += weight

    def visit(value: Value, dims: Dims) -> None:
        """`dims` names for each dimension of the value the nest's own, if it is one of them."""
        if value.type.shape is None or (value, dims) in seen:
            return
        seen.add((value, dims))
        buffer = held.get(value)
        op = value.op
        if buffer is not None:
            vote(buffer.strides, 1, dims, BUFFER_VOTE)
        elif op is not None and is_fused(op):
            if is_load(op):
                vote(analysis.strides(op.operands[0]), pointee_size(op), dims, MEMORY_VOTE)
            for operand in op.operands:
                if operand.type.shape is not None:
                    visit(operand, operand_dims(op, operand, dims))

    for root in roots:
        if root.type.shape == shape:
            dims = tuple(range(len(shape)))
            if root.type.element == "ptr":
                vote(analysis.strides(root), size_behind(root), dims, MEMORY_VOTE)
            visit(root, dims)
    return votes
