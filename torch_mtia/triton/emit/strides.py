"""Chooses along which dimension a nest takes its strips: the one along which its memory accesses are contiguous.

Strides are found symbolically, before anything is emitted: for each dimension a number, or None where it is not known
(a stride that is an argument of the kernel, an index that was loaded).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch_mtia.triton.emit.elementwise import pointee_size
from torch_mtia.triton.emit.registry import ELEMENTWISE, LAZY
from torch_mtia.triton.floats import element_size
from torch_mtia.triton.ttir import Dense, Op
from torch_mtia.triton.ttir import Value as Tensor

if TYPE_CHECKING:
    from torch_mtia.triton.emit.kernel import KernelEmitter

Strides = tuple["int | None", ...]

BUFFER_VOTE = 2
MEMORY_VOTE = 4
WHOLE = 16

_SAME = {"arith.extsi", "arith.extui", "arith.index_cast", "tt.bitcast", "arith.remsi", "arith.remui", "tt.int_to_ptr"}


def _unknown(rank: int) -> Strides:
    return (None,) * rank


def _zero(rank: int) -> Strides:
    return (0,) * rank


class StrideAnalysis:
    def __init__(self, emitter: KernelEmitter) -> None:
        self.emitter = emitter
        self.known: dict[Tensor, Strides] = {}

    def strides(self, value: Tensor) -> Strides:
        """How the value, an integer or an address, changes from one element to the next."""
        found = self.known.get(value)
        if found is None:
            found = self.known[value] = self.compute(value)
        return found

    def is_index(self, value: Tensor) -> bool:
        """Whether a value is index arithmetic along some dimension: it costs little, and in memory it would no longer
        be known to be contiguous."""
        if value.type.element not in ("ptr", "i32", "i64"):
            return False
        return any(
            stride is not None
            for stride, size in zip(self.strides(value), value.type.shape or (), strict=True)
            if size > 1
        )

    def compute(self, value: Tensor) -> Strides:
        rank = len(value.type.shape or ())
        if value in self.emitter.advanced:
            return self.strides(self.emitter.advanced[value][0])
        op = value.op
        if op is None or value in self.emitter.buffers:
            return _unknown(rank)
        name = op.name
        if name == "tt.splat":
            return _zero(rank)
        if name == "arith.constant":
            constant = op.attributes["value"]
            return _zero(rank) if not isinstance(constant, Dense) or constant.splat else _unknown(rank)
        if name == "tt.make_range":
            return (1,)
        if name in _SAME:
            return self.strides(op.operands[0])
        if name in ("arith.addi", "arith.subi"):
            left, right = (self.strides(operand) for operand in op.operands)
            sign = 1 if name == "arith.addi" else -1
            return tuple(
                None if one is None or other is None else one + sign * other
                for one, other in zip(left, right, strict=True)
            )
        if name == "arith.muli":
            one_factor, other_factor = op.operands
            return tuple(self.product(one_factor, other_factor, d) for d in range(rank))
        if name in ("arith.divsi", "arith.divui"):
            return tuple(0 if stride == 0 or stride == 1 else None for stride in self.strides(op.operands[0]))
        if name == "tt.addptr":
            size = pointee_size(op)
            base, offset = (self.strides(operand) for operand in op.operands)
            return tuple(
                None if one is None or other is None else one + size * other
                for one, other in zip(base, offset, strict=True)
            )
        if name == "tt.expand_dims":
            axis = op.attributes["axis"]
            inner = self.strides(op.operands[0])
            return (*inner[:axis], 0, *inner[axis:])
        if name == "tt.broadcast":
            source = op.operands[0]
            shape, target = source.type.shape, value.type.shape
            assert shape is not None
            assert target is not None
            return tuple(
                0 if size == 1 and wanted != 1 else stride
                for size, wanted, stride in zip(shape, target, self.strides(source), strict=True)
            )
        if name == "tt.trans":
            inner = self.strides(op.operands[0])
            return tuple(inner[d] for d in op.attributes["order"])
        return _unknown(rank)

    def product(self, left: Tensor, right: Tensor, d: int) -> int | None:
        one, other = self.strides(left)[d], self.strides(right)[d]
        if one == 0 and other == 0:
            return 0
        factor_left, factor_right = _constant(left), _constant(right)
        if other == 0 and factor_right is not None and one is not None:
            return one * factor_right
        if one == 0 and factor_left is not None and other is not None:
            return other * factor_left
        return None


def _constant(value: Tensor) -> int | None:
    op = value.op
    while op is not None and op.name in ("tt.splat", "tt.broadcast", "tt.expand_dims", "arith.extsi"):
        op = op.operands[0].op
    if op is None or op.name != "arith.constant":
        return None
    constant = op.attributes["value"]
    if isinstance(constant, Dense):
        return constant.values[0] if constant.splat and isinstance(constant.values[0], int) else None
    return constant if isinstance(constant, int) else None


def dimension_votes(emitter: KernelEmitter, roots: Sequence[Tensor], shape: tuple[int, ...]) -> list[int]:
    """For each dimension of the nest, how much contiguous access speaks for it."""
    analysis = StrideAnalysis(emitter)
    votes = [0] * len(shape)
    seen: set[tuple[Tensor, tuple[int | None, ...]]] = set()

    def vote(strides: Strides, size: int, dims: tuple[int | None, ...], weight: int) -> None:
        # What has fewer elements than the nest is read once for many of them, and then it does not matter how.
        if all(d in dims for d, extent in enumerate(shape) if extent > 1):
            weight *= WHOLE
        for stride, d in zip(strides, dims, strict=True):
            if d is not None and stride == size:
                votes[d] += weight

    def visit(value: Tensor, dims: tuple[int | None, ...]) -> None:
        """`dims` names for each dimension of the value the nest's own, if it is one of them."""
        if value.type.shape is None or (value, dims) in seen:
            return
        seen.add((value, dims))
        buffer = emitter.buffers.get(value)
        if buffer is not None:
            vote(buffer.strides, 1, dims, BUFFER_VOTE)
            return
        op = value.op
        if op is None or not (op.name in LAZY or op.name in ELEMENTWISE):
            return
        if op.name == "tt.load":
            pointer = op.operands[0]
            vote(analysis.strides(pointer), pointee_size(op), dims, MEMORY_VOTE)
            for operand in op.operands:
                visit(operand, dims)
            return
        for operand in op.operands:
            if operand.type.shape is not None:
                visit(operand, operand_dims(op, operand, dims))

    for root in roots:
        if root.type.shape == shape:
            dims = tuple(range(len(shape)))
            if root.type.element == "ptr":
                size = _pointed_size(root)
                vote(analysis.strides(root), size, dims, MEMORY_VOTE)
            visit(root, dims)
    return votes


def _pointed_size(value: Tensor) -> int:
    pointee = value.type.pointee
    return 8 if pointee.startswith("!tt.ptr") else element_size(pointee)


def operand_dims(op: Op, operand: Tensor, dims: tuple[int | None, ...]) -> tuple[int | None, ...]:
    rank = len(operand.type.shape or ())
    if op.name == "tt.expand_dims":
        axis = op.attributes["axis"]
        return dims[:axis] + dims[axis + 1 :]
    if op.name == "tt.trans":
        inner: list[int | None] = [None] * rank
        for position, source in enumerate(op.attributes["order"]):
            inner[source] = dims[position]
        return tuple(inner)
    if op.name == "tt.broadcast":
        shape = operand.type.shape or ()
        return tuple(None if size == 1 else d for size, d in zip(shape, dims, strict=True))
    return dims if rank == len(dims) else (None,) * rank
