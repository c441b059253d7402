"""What strips of index arithmetic look like: Note [Lanes] in lanes.py. Planning asks which accesses are vectors before
any code is there, and emission asks with the values of its code; the answers are the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from torch_mtia.triton.analyses.availability import Available
from torch_mtia.triton.analyses.walk import operands_first, walk
from torch_mtia.triton.ir.attributes import Dense
from torch_mtia.triton.ir.module import Op, Value
from torch_mtia.triton.ir.ops import Dims, Elements, Kind, facts, operand_dims, pointee_size

MAX_DIVISOR = 1 << 20
# A constant stride beyond is no access pattern: hashing multiplies indices by large numbers, and relies on wrapping.
MAX_STRIDE = 1 << 20
COMPUTED = "computed"  # a stride that is a scalar of the program


class Known(Protocol):
    """What is known of a scalar."""

    @property
    def constant(self) -> int | None: ...

    @property
    def divisor(self) -> int:
        """A power of two that divides it."""

    @property
    def nonnegative(self) -> bool: ...


class AnyLanes(Protocol):
    """A strip."""

    @property
    def value(self) -> Known:
        """Its first element."""

    @property
    def stride(self) -> object:
        """From one element to the next: a number, something else for a scalar of the program, or None."""

    @property
    def uniform(self) -> bool:
        """Whether all elements are the first one, also where indices wrap."""


class Scalar(NamedTuple):
    constant: int | None = None
    divisor: int = 1
    nonnegative: bool = False


UNKNOWN = Scalar()


class Lanes(NamedTuple):
    value: Scalar = UNKNOWN
    stride: int | str | None = None
    may_wrap: bool = False  # in the middle, where it was narrower: the stride holds for addresses alone

    @property
    def uniform(self) -> bool:
        return self.stride == 0 and not self.may_wrap


ZERO = Lanes(Scalar(0, MAX_DIVISOR, True), 0)
NARROW = ("i8", "i16")  # sums and products of these wrap: they are no indices
NestLanes = Sequence[Lanes]  # of the index along each dimension of a nest


def power_of_two_divisor(number: int) -> int:
    return min(number & -number, MAX_DIVISOR) if number else MAX_DIVISOR


def counter(size: int, step: int, stride: int = 0) -> Lanes:
    """The index along a dimension of `size` that a loop goes along in steps."""
    return (
        Lanes(Scalar(0, MAX_DIVISOR, True), stride)
        if size <= step
        else Lanes(Scalar(None, power_of_two_divisor(step), True), stride)
    )


# Scalars --------------------------------------------------------------------------------------------------------------

_FOLDED = {"arith.addi": int.__add__, "arith.subi": int.__sub__, "arith.muli": int.__mul__}
WIDENINGS = ("arith.extsi", "arith.extui", "arith.index_cast", "arith.index_castui")
_EXTENDS = (*WIDENINGS, "arith.trunci")
_EXTREMES = ("arith.maxsi", "arith.maxui", "arith.minsi", "arith.minui")
_BITWISE = ("arith.andi", "arith.ori", "arith.xori")
_REMAINDERS = ("arith.remsi", "arith.remui")
_QUOTIENTS = ("arith.divsi", "arith.divui")
_SHIFTS = ("arith.shli", "arith.shrsi", "arith.shrui")


def integer(number: int, element: str) -> Scalar:
    bits = 64 if element in ("ptr", "index") else int(element.removeprefix("i"))
    wrapped = number & ((1 << bits) - 1)
    signed = wrapped - (1 << bits) if bits > 1 and wrapped >> (bits - 1) else wrapped
    return Scalar(signed, power_of_two_divisor(signed), signed >= 0)


def known_of(op: Op, operands: Sequence[Known]) -> Scalar:
    """What is known of the result of an operation on scalars."""
    name, element = op.name, op.results[0].type.element
    first, second = operands[0], operands[-1]
    if name == "tt.addptr":
        return Scalar(None, min(first.divisor, second.divisor * pointee_size(op), MAX_DIVISOR), False)
    if element not in ("i1", "i8", "i16", "i32", "i64", "index"):
        return UNKNOWN
    both = first.nonnegative and second.nonnegative and element not in NARROW
    least = min(first.divisor, second.divisor)
    if name in _FOLDED:
        if first.constant is not None and second.constant is not None:
            return integer(_FOLDED[name](first.constant, second.constant), element)
        if name == "arith.muli":
            return Scalar(None, min(first.divisor * second.divisor, MAX_DIVISOR), both)
        return Scalar(None, least, both and name == "arith.addi")
    if name in _EXTENDS:
        if first.constant is not None:
            bits = int(op.operands[0].type.element.removeprefix("i").replace("ndex", "64"))
            is_unsigned = name in ("arith.extui", "arith.index_castui")
            return integer(first.constant & ((1 << bits) - 1) if is_unsigned else first.constant, element)
        return Scalar(None, first.divisor, name == "arith.extui" or (first.nonnegative and name != "arith.trunci"))
    if name in _BITWISE or name in _EXTREMES:
        return Scalar(None, least, both)
    if name in _REMAINDERS:
        return Scalar(None, least, first.nonnegative)
    if name in _QUOTIENTS:
        return Scalar(None, 1, both)
    if name in _SHIFTS and second.constant is not None:
        divisor = min(first.divisor << min(max(second.constant, 0), 20), MAX_DIVISOR) if name == "arith.shli" else 1
        return Scalar(None, divisor, first.nonnegative and element not in NARROW)
    if name == "arith.select":
        yes, no = operands[1:]
        return Scalar(None, min(yes.divisor, no.divisor), yes.nonnegative and no.nonnegative)
    return UNKNOWN


# Strips ---------------------------------------------------------------------------------------------------------------


def fits(numerator: AnyLanes, divisor: int, width: int) -> bool:
    """Whether the strip lies between two multiples of every number that `divisor` divides."""
    stride = numerator.stride
    if not isinstance(stride, int) or stride <= 0 or stride * width > divisor:
        return False
    extent = stride * (1 << (width - 1).bit_length())
    return numerator.value.divisor % extent == 0 and divisor % extent == 0


def scaled(stride: object, factor: Known) -> object:
    """stride * factor, or None if that is no access pattern."""
    if not isinstance(stride, int) or (stride and factor.constant is None):
        return COMPUTED
    product = stride * (factor.constant or 0)
    return product if abs(product) <= MAX_STRIDE else None


def summed(left: object, right: object, sign: int = 1) -> object:
    return left + sign * right if isinstance(left, int) and isinstance(right, int) else COMPUTED


def stride_of(op: Op, operands: Sequence[AnyLanes], width: int) -> object:
    """The stride of what an operation makes of strips that have one, of which one is not uniform; None if its result
    has none."""
    name, source = op.name, op.operands[0].type.element
    left, right = operands[0], operands[-1]
    if name == "tt.addptr":
        if op.operands[1].type.element not in ("i32", "i64", "index"):
            return None
        offset = scaled(right.stride, Scalar(pointee_size(op)))
        return None if offset is None else summed(left.stride, offset)
    if name in ("tt.ptr_to_int", "tt.int_to_ptr", "tt.bitcast"):
        both = source, op.results[0].type.element  # the bits of a float are no index
        return left.stride if all(element in ("ptr", "i64") for element in both) else None
    if name in ("arith.extsi", "arith.index_cast"):
        return left.stride if source == "i32" else None
    if source not in ("i32", "i64", "index"):
        return None
    if name in ("arith.addi", "arith.subi"):
        return summed(left.stride, right.stride, 1 if name == "arith.addi" else -1)
    if name in ("arith.extui", "arith.index_castui"):
        # Below zero, the first lanes of a strip would be large numbers and the others not.
        is_kept = source == "i32" and left.value.nonnegative and isinstance(left.stride, int) and left.stride >= 0
        return left.stride if is_kept else None
    if left.uniform and name in ("arith.muli", "arith.andi"):
        left, right = right, left
    if not right.uniform:
        return None
    factor, number = right.value, right.value.constant
    if name == "arith.muli":
        return scaled(left.stride, factor)
    if name in _REMAINDERS or name in _QUOTIENTS:
        holds = left.value.nonnegative and fits(left, factor.divisor, width)
        return (left.stride if name in _REMAINDERS else 0) if holds else None
    if number is None:
        return None
    if name == "arith.andi":
        return left.stride if number >= 0 and not number & (number + 1) and fits(left, number + 1, width) else None
    if not 0 <= number < 20:
        return None
    if name == "arith.shli":
        return scaled(left.stride, Scalar(1 << number))
    return 0 if name in ("arith.shrsi", "arith.shrui") and fits(left, 1 << number, width) else None


def wraps_within(first: Known, stride: object, width: int) -> bool:
    """Whether a strip of 32 bits that begins like this may wrap in the middle: unless its first element is known, or
    so divisible that the last one lies below the next multiple."""
    if not isinstance(stride, int):
        return True
    last = stride * (width - 1)
    if first.constant is not None:
        return not -(1 << 31) <= first.constant + last < 1 << 31
    return not 0 <= last < first.divisor


class StripAnalysis:
    """What strips of a kernel look like. `divisors`: of its arguments."""

    def __init__(self, divisors: Mapping[Value, int]) -> None:
        self.scalars: dict[Value, Scalar] = {argument: Scalar(None, each) for argument, each in divisors.items()}

    def scalar(self, value: Value) -> Scalar:
        if value not in self.scalars:
            for each in operands_first(value, self.scalars, _scalar_parts):
                parts = [self.scalars[part] for part in _scalar_parts(each)]
                self.scalars[each] = _scalar(each, parts)
        return self.scalars[value]

    def lanes(
        self, roots: Sequence[tuple[Value, Dims]], index: NestLanes, width: int, available: Available
    ) -> dict[tuple[Value, Dims], Lanes]:
        """Of tensors that nests evaluate, at `index`."""
        found: dict[tuple[Value, Dims], Lanes] = {}

        def enter(value: Value, _: Dims) -> Sequence[Value] | None:
            return available.parts(value)

        for value, dims in walk(roots, enter):
            found[value, dims] = self._lanes(value, dims, index, width, available, found)
        return found

    def _lanes(
        self,
        value: Value,
        dims: Dims,
        index: NestLanes,
        width: int,
        available: Available,
        found: Mapping[tuple[Value, Dims], Lanes],
    ) -> Lanes:
        own = [ZERO if d is None else index[d] for d in dims]
        if (buffer := available.materialized.get(value)) is not None:
            strides = [lane.stride for lane, distance in zip(own, buffer.strides, strict=True) if distance]
            return Lanes(stride=0 if all(stride == 0 for stride in strides) else None)
        if value in available.advanced:
            start = found[available.advanced[value], dims]
            return start._replace(value=UNKNOWN)
        op = value.op
        known = None if op is None else facts(op)
        if op is None or known is None or known.kind is Kind.STATEMENT:
            return Lanes()
        operands = [
            Lanes(self.scalar(operand), 0)
            if operand.type.shape is None
            else found[operand, operand_dims(op, operand, dims)]
            for operand in op.operands
        ]
        if op.name == "arith.constant":
            constant = op.attributes["value"]
            if isinstance(constant, Dense) and not constant.splat:
                return Lanes(stride=0 if all(lane.uniform for lane in own) else None)
            number = constant.values[0] if isinstance(constant, Dense) else constant
            return Lanes(integer(number, value.type.element) if isinstance(number, int) else UNKNOWN, 0)
        if op.name == "ub.poison":
            return Lanes(stride=0)
        if op.name == "tt.make_range":
            (lane,) = own
            start = op.attributes["start"]
            if start and lane.value.constant is not None:
                return lane._replace(value=integer(lane.value.constant + start, "i32"))
            divisor = min(lane.value.divisor, power_of_two_divisor(start))
            return lane._replace(value=lane.value._replace(divisor=divisor)) if start else lane
        if known.elements is not Elements.SAME:
            return operands[0]
        if all(lane.uniform for lane in operands):
            return Lanes(UNKNOWN if known.reads else known_of(op, [lane.value for lane in operands]), 0)
        if not width or known.reads or any(lane.stride is None for lane in operands):
            return Lanes(stride=None if width else 0)
        stride = stride_of(op, operands, width)
        if not isinstance(stride, (int, str)):
            return Lanes()
        may_wrap = any(lane.may_wrap for lane in operands) or (
            op.name in WIDENINGS and wraps_within(operands[0].value, operands[0].stride, width)
        )
        return Lanes(first_of(op, [lane.value for lane in operands]), stride, may_wrap and op.name != "tt.addptr")


def first_of(op: Op, operands: Sequence[Known]) -> Scalar:
    """The first element of what an operation makes of strips that have a stride."""
    if op.name in ("tt.ptr_to_int", "tt.int_to_ptr", "tt.bitcast"):
        return Scalar(operands[0].constant, operands[0].divisor, operands[0].nonnegative)
    known = known_of(op, operands)
    if op.name in ("arith.remsi", "arith.remui", "arith.andi"):
        return known._replace(nonnegative=True)
    if op.name in ("arith.divui", "arith.divsi"):
        return known._replace(nonnegative=operands[1].nonnegative or op.name == "arith.divui")
    return known


def _scalar_parts(value: Value) -> Sequence[Value]:
    op = value.op
    if op is None:
        loop = value.block.region.parent if value.block is not None else None
        is_counter = loop is not None and loop.name == "scf.for" and value.number == 0
        return [loop.operands[0], loop.operands[2]] if loop is not None and is_counter else []
    if op.name == "scf.if":
        return [region.blocks[0].terminator.operands[value.number] for region in op.regions]
    known = facts(op)
    is_computed = known is not None and known.kind is not Kind.STATEMENT and not known.reads
    return op.operands if is_computed and all(operand.type.shape is None for operand in op.operands) else []


def _scalar(value: Value, parts: Sequence[Scalar]) -> Scalar:
    op = value.op
    if op is not None and op.name == "arith.constant":
        number = op.attributes["value"]
        return integer(number, value.type.element) if isinstance(number, int) else UNKNOWN
    if op is not None and op.name in ("tt.get_program_id", "tt.get_num_programs"):
        return Scalar(None, 1, True)
    if not parts:
        return UNKNOWN
    if op is None:  # the counter of a loop
        return Scalar(None, min(part.divisor for part in parts), parts[0].nonnegative)
    if op.name == "scf.if":
        return Scalar(None, min(part.divisor for part in parts), all(part.nonnegative for part in parts))
    return known_of(op, parts)


ZERO_AND_MINUS_ONE = "0 and -1"


def guard_of(op: Op, divisor: Scalar) -> str:
    """Which divisors of an integer division a program has to look for, since dividing by them would stop the process;
    empty: none."""
    is_signed = op.name.endswith("si")
    if divisor.constant and (divisor.constant != -1 or not is_signed):
        return ""
    return ZERO_AND_MINUS_ONE if is_signed and not divisor.nonnegative else "0"


class HasStride(Protocol):
    @property
    def stride(self) -> object: ...


def kind_of(pointer: HasStride, size: int, width: int, *others: AnyLanes | None) -> str:
    """How a strip of elements of `size` bytes is read, under a mask and with another value where that is false:
    "scalar", "vector" (neighbours), "strided" (at one distance) or "gather"."""
    if pointer.stride == 0 and all(other is None or other.uniform for other in others):
        return "scalar"
    kind = store_kind(pointer, size, width)
    return "gather" if kind == "scatter" else kind


def store_kind(pointer: HasStride, size: int, width: int) -> str:
    """How a strip is written: as kind_of says, or "scatter". Of lanes that share an address, the last one stays."""
    if not width:
        return "scalar"
    if pointer.stride == size:
        return "vector"
    return "scatter" if pointer.stride is None else "strided"
