"""What a strip of a tensor looks like: the lane structure that turns index arithmetic into plain vector accesses.

Note [Lanes]
A nest of loops visits a tensor in strips of W lanes along one dimension. The elements of a strip are one of

    uniform   the same scalar in every lane                              Lane(scalar, 0)
    affine    scalar + stride * lane, for integers and addresses         Lane(scalar, stride)
    varying   anything                                                   Lane(vector, None)

so `base + offsets[:, None] * stride + columns[None, :]` stays one scalar and a stride, and the load at it is one vector
load. Facts about the scalar (a power of two that divides it, that it is not negative) decide when division and
remainder, with which generated code folds several dimensions into one, keep a strip contiguous.

Address arithmetic is taken not to wrap around within a strip, as in Triton's own analysis of contiguity. So is
an index that is divided, if it is a sum of products of what is not negative, as of the program's number. All other
integers wrap: where a 32-bit index is widened, a strip may wrap in the middle. What is made of it keeps its affine form
for addresses, and has `exact`, for all other uses, the vector of what its operands are in each lane.
"""

from __future__ import annotations

from collections.abc import Callable

from torch_mtia.triton.analyses.strips import WIDENINGS, first_of, stride_of, wraps_within
from torch_mtia.triton.ir.module import Op
from torch_mtia.triton.ir.ops import pointee_size
from torch_mtia.triton.llvm import Builder
from torch_mtia.triton.llvm_value import Value, bits_of, integer, iota


class Lane:
    """See Note [Lanes]. `stride` is 0, a number, a scalar of the element's type, or None for a vector."""

    __slots__ = ("exact", "stride", "value")

    def __init__(self, value: Value, stride: int | Value | None = 0, exact: Value | None = None) -> None:
        self.value = value
        self.stride = stride
        self.exact = exact

    @property
    def uniform(self) -> bool:
        return isinstance(self.stride, int) and self.stride == 0 and self.exact is None

    @property
    def affine(self) -> bool:
        return self.stride is not None


Index = tuple[Lane, ...]  # which elements of a tensor a strip is: a lane structure for each dimension


def materialize(b: Builder, lane: Lane, lanes: int) -> Value:
    """The strip as a vector (`lanes` >= 1), or as a scalar (0)."""
    if lane.stride is None or not lanes:
        return lane.value
    if lane.exact is not None:
        return lane.exact
    base = b.splat(lane.value, lanes)
    if lane.uniform:
        return base
    element = lane.value.type
    if isinstance(lane.stride, int):
        bits = (1 << bits_of(element)) - 1
        values = [(lane.stride * index) & bits for index in range(lanes)]
        steps = Value("<" + ", ".join(f"{element} {value}" for value in values) + ">", base.type)
    else:
        steps = b.binary("mul", b.splat(lane.stride, lanes), iota(lanes, element))
    return b.binary("add", base, steps)


def affine(b: Builder, op: Op, lanes: list[Lane], width: int) -> Lane | None:
    """What an operation makes of strips that all have a stride; None where the result has none."""
    decided, name = stride_of(op, lanes, width), op.name
    if decided is None:
        return None
    left, right = lanes[0], lanes[-1]
    if name in ("arith.addi", "arith.subi"):
        combine = b.add if name == "arith.addi" else b.sub
        stride = _stride(b, left, decided, lambda step: combine(step, _step(right, step.type)))
        return Lane(combine(left.value, right.value), stride)
    if name in ("arith.muli", "arith.shli"):
        left, right = (right, left) if left.uniform else (left, right)
        factor = right.value if name == "arith.muli" else integer(1 << (right.value.constant or 0), left.value.type)
        return Lane(b.mul(left.value, factor), _stride(b, left, decided, lambda step: b.mul(step, factor)))
    if name in WIDENINGS:
        is_signed = name in ("arith.extsi", "arith.index_cast")
        wide = widened(b, left) if is_signed else Lane(b.zext(left.value, "i64"), left.stride)
        if wraps_within(left.value, left.stride, width):
            wide.exact = b.cast("sext" if is_signed else "zext", materialize(b, left, width), "i64")
        return wide
    if name in ("arith.remsi", "arith.remui", "arith.divsi", "arith.divui"):
        is_remainder = name.startswith("arith.rem")
        below = left.value if is_remainder else b.integer_like(0, left.value)
        result = _unless_below(b, op, name[6:9], left.value, right.value, below, name.endswith("si"))
    elif name in ("arith.andi", "arith.shrsi", "arith.shrui"):
        left, right = (right, left) if left.uniform else (left, right)
        result = b.binary({"andi": "and", "shrsi": "ashr", "shrui": "lshr"}[name[6:]], left.value, right.value)
    else:
        return left
    known = first_of(op, [left.value, right.value])
    result.divisor, result.nonnegative = known.divisor, known.nonnegative
    return Lane(result, left.stride if decided else 0)


def _step(lane: Lane, element: str) -> Value:
    return integer(lane.stride, element) if isinstance(lane.stride, int) else lane.stride or integer(0, element)


def _stride(b: Builder, lane: Lane, decided: object, compute: Callable[[Value], Value]) -> int | Value:
    """The stride that was decided, or where it is a scalar of the program, what `compute` makes of the lane's."""
    return decided if isinstance(decided, int) else compute(_step(lane, lane.value.type))


def offset_address(b: Builder, op: Op, address: Lane, offset: Lane, width: int) -> Lane:
    """A tt.addptr; offsets are signed."""
    size = pointee_size(op)
    if address.uniform and offset.uniform:
        return Lane(b.add(address.value, b.mul(b.sext(offset.value, "i64"), integer(size, "i64"))))
    if address.affine and offset.affine and (decided := stride_of(op, [address, offset], width)) is not None:
        wide = widened(b, offset)
        factor = integer(size, "i64")
        moved = b.add(address.value, b.mul(wide.value, factor))
        return Lane(moved, _stride(b, address, decided, lambda step: b.add(step, b.mul(_step(wide, "i64"), factor))))
    vector = b.cast("sext", materialize(b, offset, width), "i64")
    if size != 1:
        vector = b.mul(vector, integer(size, vector.type))
    if address.uniform:
        return Lane(b.add(b.splat(address.value, width), vector), None)
    return Lane(b.add(materialize(b, address, width), vector), None)


def widened(b: Builder, lane: Lane) -> Lane:
    """A strip of indices that does not wrap in the middle, as 64-bit ones."""
    assert lane.stride is not None
    return Lane(b.sext(lane.value, "i64"), lane.stride if isinstance(lane.stride, int) else b.sext(lane.stride, "i64"))


def _unless_below(b: Builder, op: Op, name: str, left: Value, right: Value, otherwise: Value, signed: bool) -> Value:
    """A division of what is not negative, done only where `left` is not below `right`: mostly it is, and dividing takes
    long. As signed numbers, nothing is below a divisor that is negative."""
    signed = signed and not right.nonnegative
    name = f"{'s' if signed else 'u'}{name}"
    if right.constant is not None:
        return b.binary(name, left, guarded_divisor(b, op, right))
    before, divide, done = b.block, b.label("divide"), b.label("divided")
    b.branch(b.icmp("slt" if signed else "ult", left, right), done, divide)
    b.start(divide)
    divided = b.binary(name, left, guarded_divisor(b, op, right))
    end = b.block
    b.jump(done)
    b.start(done)
    return b.phi(left.type, [(otherwise, before), (divided, end)])


def guarded_divisor(b: Builder, op: Op, divisor: Value) -> Value:
    """Division by zero is undefined in Triton, but must not stop the process."""
    if op not in b.guards:
        return divisor
    one = b.integer_like(1, divisor)
    result = b.select(b.icmp("eq", divisor, b.integer_like(0, divisor)), one, divisor)
    result.divisor = divisor.divisor
    return result
