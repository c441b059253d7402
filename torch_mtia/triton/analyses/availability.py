"""What is available of tensors at a place in the program: some are materialized in buffers, loops moved others. And
what it takes to evaluate the rest."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Protocol

from torch_mtia.triton.analyses.affine import Affine
from torch_mtia.triton.analyses.walk import operands_first, own_dims, reached, walk
from torch_mtia.triton.ir.module import Value
from torch_mtia.triton.ir.ops import OPS, Dims, is_fused, is_load

EXPENSIVE = 10  # the cost from which on a value that is needed again is kept
RELOAD = 4  # the cost of reading a strip of neighbours from memory again
_MOST = 1000


class Strided(Protocol):
    """A buffer."""

    @property
    def strides(self) -> tuple[int, ...]: ...


@dataclasses.dataclass(frozen=True)
class Available:
    materialized: Mapping[Value, Strided]  # in buffers
    advanced: Mapping[Value, Value]  # by a loop, from where it was before

    def is_fused(self, value: Value) -> bool:
        """Whether a tensor is evaluated wherever it is needed, from its operands."""
        return (
            value.type.shape is not None
            and value not in self.materialized
            and value.op is not None
            and is_fused(value.op)
        )

    def is_advanced(self, value: Value) -> bool:
        """Whether evaluating a tensor evaluates what a loop moved it from."""
        return value in self.advanced and value not in self.materialized

    def parts(self, value: Value) -> Sequence[Value]:
        """What evaluating a tensor evaluates first."""
        if self.is_advanced(value):
            return [self.advanced[value]]
        return value.op.operands if value.op is not None and self.is_fused(value) else []

    def evaluated(self, roots: Sequence[Value]) -> dict[Value, None]:
        """All that evaluating `roots` evaluates or reads, operands first."""
        return reached(roots, self.parts)

    def reads_memory(self, value: Value) -> bool:
        """Whether evaluating it loads from device memory."""
        return any(is_load(each.op) and self.is_fused(each) for each in self.evaluated([value]))

    def hazardous(self, roots: Sequence[Value]) -> list[Value]:
        """Those of `roots` that are computed from loads not done yet: a statement that writes while it evaluates them
        could overwrite what it has still to read."""
        return [root for root in roots if self.reads_memory(root)]

    def leaves(self, roots: Sequence[Value]) -> list[Value]:
        """The tensors in buffers, and those that loops moved, that evaluating `roots` reads."""
        return [value for value in self.evaluated(roots) if value in self.materialized or value in self.advanced]

    def reads_buffers(self, value: Value) -> bool:
        """Whether evaluating it reads what is materialized. At an index outside of the tensor there is nothing to read
        then."""
        return any(leaf in self.materialized for leaf in self.leaves([value]))

    def reach(self, roots: Sequence[Value], shape: tuple[int, ...]) -> dict[Value, bool]:
        """The tensors that evaluating `roots` evaluates, operands first, and for each whether only at the index of the
        nest over `shape`. A tensor that a loop moved is among them, but not what it was before."""
        at_index: dict[Value, bool] = {}
        here = tuple(range(len(shape)))

        def enter(value: Value, dims: Dims) -> Sequence[Value] | None:
            is_advanced = self.is_advanced(value)
            if not is_advanced and not self.is_fused(value):
                return None
            at_index[value] = at_index.get(value, True) and dims == here and value.type.shape == shape
            return [] if is_advanced else self.parts(value)

        dims = [own_dims(root) if root.type.shape == shape else (None,) * len(own_dims(root)) for root in roots]
        return {value: at_index[value] for value, _ in walk(zip(roots, dims, strict=True), enter)}

    def cost(self, value: Value, affine: Affine, memo: dict[Value, int] | None = None) -> int:
        """What evaluating one lane of a tensor takes, in simple instructions. `memo`: costs that are known already, or
        are to be taken for known."""
        memo = {} if memo is None else memo
        if value in memo:
            return memo[value]

        def parts(value: Value) -> Sequence[Value]:
            return self.parts(value) if self.is_fused(value) and not affine.is_index(value) else []

        for each in operands_first(value, memo, parts):
            if each.op is None or not self.is_fused(each):
                memo[each] = 0
            elif affine.is_index(each):
                memo[each] = 1
            else:
                memo[each] = min(OPS[each.op.name].cost + sum(memo[operand] for operand in each.op.operands), _MOST)
        return memo[value]
