"""What is available of tensors at a place in the program: some are held in buffers, loops moved others."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from torch_mtia.triton.ir.module import Value
from torch_mtia.triton.ir.ops import is_elementwise, is_fused, is_load


@dataclasses.dataclass(frozen=True)
class Available:
    held: Mapping[Value, object]  # in buffers
    moved: Mapping[Value, Value]  # by a loop, from where it was before

    def is_fused(self, value: Value) -> bool:
        """Whether a tensor is evaluated wherever it is needed, from its operands."""
        return value.type.shape is not None and value not in self.held and value.op is not None and is_fused(value.op)

    def is_moved(self, value: Value) -> bool:
        """Whether evaluating a tensor evaluates what a loop moved it from."""
        return value in self.moved and value not in self.held

    def reads_memory(self, value: Value, memo: dict[Value, bool] | None = None) -> bool:
        """Whether evaluating it loads from device memory."""
        memo = {} if memo is None else memo
        if self.is_moved(value):
            return self.reads_memory(self.moved[value], memo)
        if not self.is_fused(value):
            return False
        found = memo.get(value)
        if found is None:
            assert value.op is not None
            found = memo[value] = is_load(value.op) or any(
                self.reads_memory(operand, memo) for operand in value.op.operands
            )
        return found

    def hazardous(self, roots: Sequence[Value]) -> list[Value]:
        """Those of `roots` that are computed from loads not done yet: a statement that writes while it evaluates them
        could overwrite what it has still to read."""
        return [root for root in roots if self.reads_memory(root)]

    def reads_buffers(self, value: Value) -> bool:
        """Whether evaluating it reads what is held. At an index outside of the tensor there is nothing to read then."""
        return any(leaf in self.held for leaf in self.leaves([value]))

    def reach(self, roots: Sequence[Value], shape: tuple[int, ...]) -> tuple[list[Value], dict[Value, bool]]:
        """The tensors that evaluating `roots` evaluates, operands first, and for each whether only at the index of the
        nest over `shape`. What a loop moved is among them, but not what it was before."""
        at_index: dict[Value, bool] = {}
        order: list[Value] = []

        def visit(value: Value, same: bool) -> None:
            if self.is_moved(value):
                at_index.setdefault(value, same)
                order.append(value)
                return
            if not self.is_fused(value):
                return
            known = at_index.get(value)
            if known is not None and (known == same or not known):
                return
            first = known is None
            at_index[value] = same
            assert value.op is not None
            inner = same and (is_elementwise(value.op) or is_load(value.op))
            for operand in value.op.operands:
                visit(operand, inner)
            if first:
                order.append(value)

        for root in roots:
            visit(root, root.type.shape == shape)
        return order, at_index

    def leaves(self, roots: Sequence[Value]) -> list[Value]:
        """The tensors in buffers, and those that loops moved, that evaluating `roots` reads."""
        seen: set[Value] = set()
        found: list[Value] = []

        def visit(value: Value) -> None:
            if value.type.shape is None or value in seen:
                return
            seen.add(value)
            if value in self.held:
                found.append(value)
            elif value in self.moved:
                found.append(value)
                visit(self.moved[value])
            elif value.op is not None and is_fused(value.op):
                for operand in value.op.operands:
                    visit(operand)

        for root in roots:
            visit(root)
        return found
