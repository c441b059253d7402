"""Where masks let loops end early: kernels pad a row to a power of two, and mask what lies beyond its end.

A mask `start + index < bound` is false from some index on. A store does nothing there, and a reduction nothing if what
it combines is the neutral element there; so their loops need not go that far.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch_mtia.triton.emit.combine_function import is_neutral
from torch_mtia.triton.emit.nest import ZERO, Strip
from torch_mtia.triton.emit.overlap import is_linear
from torch_mtia.triton.emit.registry import ELEMENTWISE, LAZY
from torch_mtia.triton.emit.strides import operand_dims
from torch_mtia.triton.floats import is_float_element
from torch_mtia.triton.llvm import Value, integer
from torch_mtia.triton.ttir import Bits, Dense, Op
from torch_mtia.triton.ttir import Value as Tensor

if TYPE_CHECKING:
    from torch_mtia.triton.emit.kernel import KernelEmitter

_LESS, _LESS_OR_EQUAL = 2, 3  # predicates of arith.cmpi

Limits = dict[int, Value]  # by dimension, the i32 from which on nothing happens


def comparisons(mask: Tensor) -> set[Tensor]:
    """The comparisons that all have to be true where a mask is."""
    op = mask.op
    if op is None:
        return set()
    if op.name == "arith.andi":
        return comparisons(op.operands[0]) | comparisons(op.operands[1])
    if op.name in ("tt.broadcast", "tt.expand_dims", "tt.splat"):
        return comparisons(op.operands[0])
    return {mask} if op.name == "arith.cmpi" else set()


def limits(em: KernelEmitter, mask: Tensor, shape: tuple[int, ...], saves: Sequence[Tensor]) -> Limits:
    """From where on the mask is false, for a nest over `shape` that keeps `saves` for later ones."""
    found: Limits = {}

    def visit(value: Tensor, dims: tuple[int | None, ...]) -> None:
        op = value.op
        if op is None or value in em.buffers:
            return
        if op.name == "arith.cmpi":
            d = _dimension(em, op, dims)
            if d is not None and d not in found and all(_is_used_only_under(save, value) for save in saves):
                found[d] = _count(em, op, shape[d])
        elif op.name in ("arith.andi", "tt.broadcast", "tt.expand_dims"):
            for operand in op.operands:
                visit(operand, operand_dims(op, operand, dims))

    visit(mask, tuple(range(len(shape))))
    return found


def _dimension(em: KernelEmitter, op: Op, dims: tuple[int | None, ...]) -> int | None:
    """The one along which a comparison `start + index < bound` changes."""
    left, right = op.operands
    if op.attributes["predicate"] not in (_LESS, _LESS_OR_EQUAL) or not (is_linear(left) and is_linear(right)):
        return None
    if any(stride != 0 for stride in em.strides.strides(right)):
        return None
    moving = [(stride, d) for stride, d in zip(em.strides.strides(left), dims, strict=True) if stride != 0]
    return moving[0][1] if len(moving) == 1 and moving[0][0] == 1 else None


def _count(em: KernelEmitter, op: Op, size: int) -> Value:
    b = em.b
    strip = Strip(em, (ZERO,) * len(op.operands[0].type.shape or ()), 0)
    start, bound = (b.sext(strip.value(operand).value, "i64") for operand in op.operands)
    count = b.sub(bound, start)
    if op.attributes["predicate"] == _LESS_OR_EQUAL:
        count = b.add(count, integer(1, "i64"))
    count = b.binary_intrinsic("smin", count, integer(size, "i64"))
    return b.trunc(b.binary_intrinsic("smax", count, integer(0, "i64")), "i32")


def _is_used_only_under(value: Tensor, comparison: Tensor) -> bool:
    """Whether it makes no difference what a value is where the comparison is false."""
    return all(_is_harmless(value, user, comparison) for user in value.users)


def _is_harmless(value: Tensor, user: Op, comparison: Tensor) -> bool:
    mask: Tensor | None = None
    if user.name == "arith.select" and value is not user.operands[0] and value is not user.operands[2]:
        mask = user.operands[0]
    elif user.name == "tt.store" and len(user.operands) == 3 and value is user.operands[1]:
        mask = user.operands[2]
    elif user.name == "tt.load":
        pointer, masks, _ = user.segments()
        if value is not pointer[0] or not masks:
            return False
        mask = masks[0]
    if mask is not None:
        return comparison in comparisons(mask)
    elementwise = user.name in ELEMENTWISE or user.name in LAZY
    return bool(user.results) and elementwise and all(_is_used_only_under(each, comparison) for each in user.results)


def reduction_limit(em: KernelEmitter, op: Op, shape: tuple[int, ...], saves: Sequence[Tensor]) -> Value | None:
    """From where on, along the axis, all operands of a reduction are its neutral element."""
    masked = [found for operand in op.operands if (found := _masked(operand)) is not None]
    if len(masked) < len(op.operands) or not is_neutral(em.module, op.regions[0], [number for _, number in masked]):
        return None
    (mask, _), *others = masked
    if any(comparisons(mask) != comparisons(other) for other, _ in others):
        return None
    return limits(em, mask, shape, saves).get(op.attributes["axis"])


def _masked(value: Tensor) -> tuple[Tensor, float] | None:
    """(mask, number) if a tensor is that number wherever the mask is false."""
    op = value.op
    if op is None:
        return None
    if op.name == "arith.select":
        return _with_number(op.operands[0], op.operands[2])
    if op.name == "tt.load":
        _, mask, other = op.segments()
        return _with_number(mask[0], other[0]) if mask and other else None
    if op.name == "arith.mulf":
        left, right = (_masked(operand) for operand in op.operands)
        return left if left == right and left is not None and left[1] == 0 else None
    if op.name in ("arith.extf", "tt.fp_to_fp"):
        return _masked(op.operands[0])
    return None


def _with_number(mask: Tensor, other: Tensor) -> tuple[Tensor, float] | None:
    op = other.op
    if op is None or op.name != "arith.constant" or mask.type.shape != other.type.shape:
        return None
    constant = op.attributes["value"]
    if isinstance(constant, Dense):
        if not constant.splat:
            return None
        constant = constant.values[0]
    if isinstance(constant, Bits):
        constant = _float(constant.value, other.type.element)
    if constant is None or (isinstance(constant, float) and math.isnan(constant)):
        return None
    return mask, constant


def _float(bits: int, element: str) -> float | None:
    format_, size = {"f16": ("<e", 2), "f32": ("<f", 4), "f64": ("<d", 8)}.get(element, ("", 0))
    if not is_float_element(element) or not format_:
        return None
    return float(struct.unpack(format_, bits.to_bytes(size, "little"))[0])
