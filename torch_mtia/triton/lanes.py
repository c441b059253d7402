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

from torch_mtia.triton.llvm import Builder
from torch_mtia.triton.llvm_value import Value, bits_of, integer, iota, power_of_two_divisor

# A constant stride beyond is no access pattern: hashing multiplies indices by large numbers, and relies on wrapping.
MAX_STRIDE = 1 << 20


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


def _stride_value(stride: int | Value, element: str) -> Value:
    return integer(stride, element) if isinstance(stride, int) else stride


def add_strides(b: Builder, left: int | Value, right: int | Value, element: str) -> int | Value:
    if isinstance(left, int) and isinstance(right, int):
        return left + right
    return b.add(_stride_value(left, element), _stride_value(right, element))


def scale_stride(b: Builder, stride: int | Value, factor: Value) -> int | Value | None:
    """stride * factor, or None if that is no access pattern."""
    if isinstance(stride, int):
        if stride == 0:
            return 0
        if factor.constant is not None:
            product = stride * factor.constant
            return product if abs(product) <= MAX_STRIDE else None
        return b.mul(integer(stride, factor.type), factor)
    return b.mul(stride, factor)


AffineRule = Callable[[Builder, list[Lane], int], "Lane | None"]
AFFINE_RULES: dict[str, AffineRule] = {}


def affine_rule(*names: str) -> Callable[[AffineRule], AffineRule]:
    """Registers how an operation acts on affine strips. The rule returns None where the result is not affine; it is
    asked only if all operands are uniform or affine and one is not uniform, and the width is not 0."""

    def register(rule: AffineRule) -> AffineRule:
        for name in names:
            AFFINE_RULES[name] = rule
        return rule

    return register


def _indexlike(value: Value) -> bool:
    return value.type in ("i32", "i64")


@affine_rule("arith.addi")
def _add(b: Builder, lanes: list[Lane], width: int) -> Lane | None:
    left, right = lanes
    if not _indexlike(left.value):
        return None
    assert left.stride is not None
    assert right.stride is not None
    return Lane(b.add(left.value, right.value), add_strides(b, left.stride, right.stride, left.value.type))


@affine_rule("arith.subi")
def _sub(b: Builder, lanes: list[Lane], width: int) -> Lane | None:
    left, right = lanes
    if not _indexlike(left.value):
        return None
    assert left.stride is not None
    assert right.stride is not None
    minus = -right.stride if isinstance(right.stride, int) else b.sub(integer(0, right.stride.type), right.stride)
    return Lane(b.sub(left.value, right.value), add_strides(b, left.stride, minus, left.value.type))


@affine_rule("arith.muli")
def _mul(b: Builder, lanes: list[Lane], width: int) -> Lane | None:
    left, right = lanes
    if left.uniform:
        left, right = right, left
    if not right.uniform or not _indexlike(left.value):
        return None
    assert left.stride is not None
    stride = scale_stride(b, left.stride, right.value)
    return None if stride is None else Lane(b.mul(left.value, right.value), stride)


@affine_rule("arith.shli")
def _shl(b: Builder, lanes: list[Lane], width: int) -> Lane | None:
    left, right = lanes
    if not right.uniform or right.value.constant is None or not 0 <= right.value.constant < 20:
        return None
    return _mul(b, [left, Lane(integer(1 << right.value.constant, left.value.type))], width)


@affine_rule("arith.extsi", "arith.index_cast")
def _extsi(b: Builder, lanes: list[Lane], width: int) -> Lane | None:
    (lane,) = lanes
    if lane.value.type != "i32":
        return None
    wide = widened(b, lane)
    if not (isinstance(lane.stride, int) and _does_not_wrap(lane.value, lane.stride, width)):
        wide.exact = b.cast("sext", materialize(b, lane, width), "i64")
    return wide


def widened(b: Builder, lane: Lane) -> Lane:
    """A strip of 32-bit indices that does not wrap in the middle, as 64-bit ones."""
    assert lane.stride is not None
    return Lane(b.sext(lane.value, "i64"), lane.stride if isinstance(lane.stride, int) else b.sext(lane.stride, "i64"))


def _does_not_wrap(first: Value, stride: int, width: int) -> bool:
    """Whether no 32-bit strip that begins like this wraps in the middle: its first element is known, or so divisible
    that the last one lies below the next multiple."""
    last = stride * (width - 1)
    if first.constant is not None:
        return -(1 << 31) <= first.constant + last < 1 << 31
    return 0 <= last < first.divisor


@affine_rule("arith.extui", "arith.index_castui")
def _extui(b: Builder, lanes: list[Lane], width: int) -> Lane | None:
    (lane,) = lanes
    # Below zero, the first lanes of a strip would be large numbers and the others not.
    if lane.value.type != "i32" or not lane.value.nonnegative or not isinstance(lane.stride, int) or lane.stride < 0:
        return None
    wide = Lane(b.zext(lane.value, "i64"), lane.stride)
    if not _does_not_wrap(lane.value, lane.stride, width):
        wide.exact = b.cast("zext", materialize(b, lane, width), "i64")
    return wide


def _strip_fits(numerator: Lane, divisor: int, width: int) -> bool:
    """Whether the strip lies between two multiples of every number that `divisor` divides."""
    return (
        isinstance(numerator.stride, int)
        and numerator.stride > 0
        and numerator.stride * width <= divisor
        and numerator.value.divisor % (numerator.stride * _ceil_power_of_two(width)) == 0
        and divisor % (numerator.stride * _ceil_power_of_two(width)) == 0
    )


def _ceil_power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()


@affine_rule("arith.remsi")
def _remsi(b: Builder, lanes: list[Lane], width: int) -> Lane | None:
    return _rem(b, lanes, width, signed=True)


@affine_rule("arith.remui")
def _remui(b: Builder, lanes: list[Lane], width: int) -> Lane | None:
    return _rem(b, lanes, width, signed=False)


def _rem(b: Builder, lanes: list[Lane], width: int, signed: bool) -> Lane | None:
    left, right = lanes
    if not right.uniform or not left.value.nonnegative or not _strip_fits(left, right.value.divisor, width):
        return None
    result = _unless_below(b, "rem", left.value, right.value, left.value, signed)
    result.divisor = min(left.value.divisor, right.value.divisor)
    result.nonnegative = True
    return Lane(result, left.stride)


def _unless_below(b: Builder, name: str, left: Value, right: Value, otherwise: Value, signed: bool) -> Value:
    """A division of what is not negative, done only where `left` is not below `right`: mostly it is, and dividing takes
    long. As signed numbers, nothing is below a divisor that is negative."""
    signed = signed and not right.nonnegative
    name = f"{'s' if signed else 'u'}{name}"
    if right.constant is not None:
        return b.binary(name, left, guarded_divisor(b, right))
    before, divide, done = b.block, b.label("divide"), b.label("divided")
    b.branch(b.icmp("slt" if signed else "ult", left, right), done, divide)
    b.start(divide)
    divided = b.binary(name, left, guarded_divisor(b, right))
    end = b.block
    b.jump(done)
    b.start(done)
    return b.phi(left.type, [(otherwise, before), (divided, end)])


@affine_rule("arith.divsi")
def _divsi(b: Builder, lanes: list[Lane], width: int) -> Lane | None:
    return _div(b, lanes, width, signed=True)


@affine_rule("arith.divui")
def _divui(b: Builder, lanes: list[Lane], width: int) -> Lane | None:
    return _div(b, lanes, width, signed=False)


def _div(b: Builder, lanes: list[Lane], width: int, signed: bool) -> Lane | None:
    left, right = lanes
    if not right.uniform or not left.value.nonnegative or not _strip_fits(left, right.value.divisor, width):
        return None
    result = _unless_below(b, "div", left.value, right.value, b.integer_like(0, left.value), signed)
    result.nonnegative = right.value.nonnegative or not signed
    return Lane(result)


def guarded_divisor(b: Builder, divisor: Value) -> Value:
    """Division by zero is undefined in Triton, but must not stop the process."""
    if divisor.constant:
        return divisor
    one = b.integer_like(1, divisor)
    result = b.select(b.icmp("eq", divisor, b.integer_like(0, divisor)), one, divisor)
    result.divisor = divisor.divisor
    return result


@affine_rule("arith.andi")
def _and(b: Builder, lanes: list[Lane], width: int) -> Lane | None:
    left, right = lanes
    if left.uniform:
        left, right = right, left
    constant = right.value.constant
    if not right.uniform or constant is None or constant < 0 or constant & (constant + 1):
        return None
    if not _strip_fits(left, constant + 1, width):
        return None
    result = b.binary("and", left.value, right.value)
    result.divisor = min(left.value.divisor, power_of_two_divisor(constant + 1))
    result.nonnegative = True
    return Lane(result, left.stride)


@affine_rule("arith.shrsi")
def _shrsi(b: Builder, lanes: list[Lane], width: int) -> Lane | None:
    return _shr(b, lanes, width, "ashr")


@affine_rule("arith.shrui")
def _shrui(b: Builder, lanes: list[Lane], width: int) -> Lane | None:
    return _shr(b, lanes, width, "lshr")


def _shr(b: Builder, lanes: list[Lane], width: int, name: str) -> Lane | None:
    left, right = lanes
    if not right.uniform or right.value.constant is None or not 0 <= right.value.constant < 20:
        return None
    if not _strip_fits(left, 1 << right.value.constant, width):
        return None
    result = b.binary(name, left.value, right.value)
    result.nonnegative = left.value.nonnegative
    return Lane(result)


@affine_rule("tt.ptr_to_int", "tt.int_to_ptr")
def _same_address(b: Builder, lanes: list[Lane], width: int) -> Lane | None:
    return lanes[0] if lanes[0].value.type == "i64" else None
