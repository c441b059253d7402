"""What is known of each operation of TTIR: one row of facts. No function here writes code.

To add an operation: one row in `OPS`, and one function in `emit/`, in the module of its kind, under the same name
(emit/registry.py). A fused operation needs no more. One that is done in program order also needs a function in `plan/`
that says which tensors it wants in buffers, unless it has none (plan/planner.py).
"""

from __future__ import annotations

import dataclasses
import enum

from torch_mtia.triton.ir.attributes import Dense
from torch_mtia.triton.ir.elements import element_size
from torch_mtia.triton.ir.module import Op, Value


class Kind(enum.Enum):
    ELEMENTWISE = "acts element by element, on scalars and tensors alike; fused into the loops that need its result"
    PLACED = "fused as well; says where an element is found"
    STATEMENT = "done in program order, in loops of its own; or control flow"


class Elements(enum.Enum):
    """Which elements of its operands one element of a tensor is made of."""

    SAME = "the same of each operand"
    SPLAT = "a scalar"
    BROADCAST = "the same, or the only one along a dimension"
    EXPANDED = "the same, without one dimension"
    PERMUTED = "the one with the index in another order"
    NONE = "no operand's"


class Linear(enum.Enum):
    """How integers and addresses that grow evenly along the dimensions of a tensor go through an operation."""

    SAME = "operand 0"
    REINTERPRETED = "operand 0, as another type of its size"
    WIDENED = "operand 0, as a longer number"
    WIDENED_UNSIGNED = "operand 0, as a longer number, if it is not negative"
    CONSTANT = "the same everywhere"
    RANGE = "counts"
    SUM = "operand 0 + operand 1"
    DIFFERENCE = "operand 0 - operand 1"
    PRODUCT = "operand 0 * operand 1"
    OFFSET = "operand 0 + operand 1 * size"
    QUOTIENT = "operand 0 / operand 1, evenly only within a strip"
    REMAINDER = "operand 0 % operand 1, evenly only within a strip"
    QUOTIENT_UNSIGNED = "like QUOTIENT, of numbers without a sign"
    REMAINDER_UNSIGNED = "like REMAINDER, of numbers without a sign"


@dataclasses.dataclass(frozen=True)
class Facts:
    kind: Kind = Kind.ELEMENTWISE
    cost: int = 1  # of one lane, in simple instructions
    elements: Elements = Elements.SAME
    linear: Linear | None = None
    commutative: bool = False  # the first two operands may change places
    reads: bool = False  # device memory
    writes: bool = False  # device memory
    # Reads all of an operand before it writes, or each element only where it writes: its result may take the operand's
    # place.
    in_place: bool = False
    # Checks or says something about values, and has no result.
    remark: bool = False


INTEGER_DIVISIONS = (
    *("arith.divsi", "arith.divui", "arith.remsi", "arith.remui"),
    *("arith.ceildivsi", "arith.ceildivui", "arith.floordivsi"),
)
_ELEMENTWISE = Facts()
_STATEMENT = Facts(Kind.STATEMENT)
_COMMUTES = Facts(commutative=True)
_COSTLY = Facts(cost=16)

OPS: dict[str, Facts] = {
    # Integers
    "arith.addi": Facts(linear=Linear.SUM, commutative=True),
    "arith.subi": Facts(linear=Linear.DIFFERENCE),
    "arith.muli": Facts(linear=Linear.PRODUCT, commutative=True),
    **dict.fromkeys(("arith.andi", "arith.ori", "arith.xori"), _COMMUTES),
    **dict.fromkeys(("arith.shli", "arith.shrsi", "arith.shrui"), _ELEMENTWISE),
    "arith.divsi": Facts(cost=8, linear=Linear.QUOTIENT),
    "arith.divui": Facts(cost=8, linear=Linear.QUOTIENT_UNSIGNED),
    "arith.remsi": Facts(cost=8, linear=Linear.REMAINDER),
    "arith.remui": Facts(cost=8, linear=Linear.REMAINDER_UNSIGNED),
    **dict.fromkeys(("arith.ceildivsi", "arith.ceildivui", "arith.floordivsi"), Facts(cost=10)),
    **dict.fromkeys(("arith.maxsi", "arith.maxui", "arith.minsi", "arith.minui"), _COMMUTES),
    "math.absi": Facts(),
    "tt.mulhiui": Facts(cost=3, commutative=True),
    "arith.mulsi_extended": Facts(cost=4, commutative=True),
    "arith.mului_extended": Facts(cost=4, commutative=True),
    "arith.addui_extended": Facts(cost=2, commutative=True),
    "arith.cmpi": _ELEMENTWISE,
    # Floating-point numbers
    "arith.addf": _COMMUTES,
    "arith.subf": _ELEMENTWISE,
    "arith.mulf": _COMMUTES,
    **dict.fromkeys(("arith.divf", "tt.precise_divf", "tt.approx_divf"), Facts(cost=6)),
    "arith.remf": Facts(cost=40),
    "arith.negf": _ELEMENTWISE,
    "math.absf": _ELEMENTWISE,
    **dict.fromkeys(
        ("arith.maxnumf", "arith.minnumf", "arith.maximumf", "arith.minimumf"), Facts(cost=2, commutative=True)
    ),
    "tt.clampf": Facts(cost=4),
    "arith.cmpf": _ELEMENTWISE,
    "arith.select": _ELEMENTWISE,
    "math.fma": Facts(commutative=True),
    **{
        f"math.{name}": _COSTLY
        for name in ["ceil", "floor", "cos", "sin", "exp", "exp2", "log", "log2", "sqrt", "rsqrt", "erf", "tanh"]
    },
    "tt.precise_sqrt": _COSTLY,
    "tt.extern_elementwise": _COSTLY,
    "tt.elementwise_inline_asm": _ELEMENTWISE,
    # Casts
    "arith.extsi": Facts(linear=Linear.WIDENED),
    "arith.extui": Facts(linear=Linear.WIDENED_UNSIGNED),
    "arith.index_cast": Facts(linear=Linear.WIDENED),
    **dict.fromkeys(("arith.index_castui", "arith.trunci", "arith.sitofp", "arith.uitofp"), _ELEMENTWISE),
    **dict.fromkeys(("arith.fptosi", "arith.fptoui"), Facts(cost=2)),
    **dict.fromkeys(("arith.extf", "arith.truncf", "arith.bitcast", "tt.ptr_to_int"), _ELEMENTWISE),
    "tt.fp_to_fp": Facts(cost=8),
    "tt.bitcast": Facts(linear=Linear.REINTERPRETED),
    "tt.int_to_ptr": Facts(linear=Linear.REINTERPRETED),
    # Where an element is found
    "tt.addptr": Facts(Kind.PLACED, linear=Linear.OFFSET),
    "arith.constant": Facts(Kind.PLACED, 0, linear=Linear.CONSTANT),
    "ub.poison": Facts(Kind.PLACED, 0),
    "tt.make_range": Facts(Kind.PLACED, 0, Elements.NONE, Linear.RANGE),
    "tt.splat": Facts(Kind.PLACED, 0, Elements.SPLAT, Linear.SAME),
    "tt.broadcast": Facts(Kind.PLACED, 0, Elements.BROADCAST, Linear.SAME),
    "tt.expand_dims": Facts(Kind.PLACED, 0, Elements.EXPANDED, Linear.SAME),
    "tt.trans": Facts(Kind.PLACED, 0, Elements.PERMUTED, Linear.SAME),
    "tt.load": Facts(Kind.PLACED, 24, reads=True),
    # Memory
    "tt.store": Facts(Kind.STATEMENT, writes=True),
    "tt.atomic_rmw": Facts(Kind.STATEMENT, reads=True, writes=True),
    "tt.atomic_cas": Facts(Kind.STATEMENT, reads=True, writes=True),
    # Across elements
    "tt.reduce": _STATEMENT,
    "tt.scan": _STATEMENT,
    "tt.dot": Facts(Kind.STATEMENT, in_place=True),
    "tt.dot_scaled": Facts(Kind.STATEMENT, in_place=True),
    **dict.fromkeys(("tt.reshape", "tt.join", "tt.split", "tt.cat", "tt.gather", "tt.histogram"), _STATEMENT),
    "tt.map_elementwise": _STATEMENT,
    # Scalars
    **dict.fromkeys(("tt.get_program_id", "tt.get_num_programs", "tt.unsplat"), _STATEMENT),
    # Remarks
    "tt.assert": Facts(Kind.STATEMENT, remark=True),
    "llvm.intr.assume": Facts(Kind.STATEMENT, remark=True),
    "tt.print": Facts(Kind.STATEMENT, remark=True),
    **dict.fromkeys(
        ("gpu.barrier", "ttg.barrier", "ttg.local_barrier", "tt.debug_barrier"), Facts(Kind.STATEMENT, remark=True)
    ),
    # Control flow
    **dict.fromkeys(("scf.for", "scf.while", "scf.if", "cf.br", "cf.cond_br", "tt.return"), _STATEMENT),
    "tt.call": Facts(Kind.STATEMENT, reads=True, writes=True),  # for all that is known
    **dict.fromkeys(("tt.map_elementwise.return", "ub.unreachable", "llvm.unreachable"), _STATEMENT),
}


# By number, as LLVM names them.
INTEGER_PREDICATES = ("eq", "ne", "slt", "sle", "sgt", "sge", "ult", "ule", "ugt", "uge")
FLOAT_PREDICATES = (
    "false", "oeq", "ogt", "oge", "olt", "ole", "one", "ord", "ueq", "ugt", "uge", "ult", "ule", "une", "uno", "true",
)  # fmt: skip


_FUSED = frozenset(name for name, found in OPS.items() if found.kind is not Kind.STATEMENT)
# Those whose elements are not made of the same ones of their operands.
MOVING = frozenset(name for name, found in OPS.items() if found.elements is not Elements.SAME)


def facts(op: Op) -> Facts | None:
    return OPS.get(op.name)


def is_fused(op: Op) -> bool:
    """Whether a tensor that the operation gives is evaluated where it is needed."""
    return op.name in _FUSED


def is_elementwise(op: Op) -> bool:
    """Whether an element of the result is computed from the same elements of the operands."""
    found = OPS.get(op.name)
    return (
        found is not None and found.kind is not Kind.STATEMENT and found.elements is Elements.SAME and not found.reads
    )


def is_load(op: Op | None) -> bool:
    """Whether an operation reads device memory where its result is needed."""
    return op is not None and op.name == "tt.load"


def is_scalar(value: Value) -> bool:
    return value.type.shape is None


Dims = tuple["int | None", ...]


def operand_dims(op: Op, operand: Value, dims: Dims) -> Dims:
    """For each dimension of an operand the one that `dims` names for the same dimension of the result; None where the
    operand's element is the same for every index."""
    rank = len(operand.type.shape or ())
    found = OPS.get(op.name)
    elements = found.elements if found is not None else Elements.SAME
    if elements is Elements.SAME:
        return dims if rank == len(dims) else (None,) * rank
    if elements is Elements.EXPANDED:
        axis = op.attributes["axis"]
        return dims[:axis] + dims[axis + 1 :]
    if elements is Elements.PERMUTED:
        inner: list[int | None] = [None] * rank
        for position, source in enumerate(op.attributes["order"]):
            inner[source] = dims[position]
        return tuple(inner)
    if elements is Elements.BROADCAST:
        shape = operand.type.shape or ()
        return tuple(None if size == 1 else d for size, d in zip(shape, dims, strict=True))
    return (None,) * rank


def pointee_size(op: Op) -> int:
    """Bytes of what the pointers in operand 0 point to."""
    return size_behind(op.operands[0])


def size_behind(pointer: Value) -> int:
    pointee = pointer.type.pointee
    return 8 if pointee.startswith("!tt.ptr") else element_size(pointee)


def load_operands(op: Op) -> tuple[Value, Value | None, Value | None]:
    """(pointer, mask, other) of a load."""
    pointer, mask, other = op.segments()
    return pointer[0], mask[0] if mask else None, other[0] if other else None


def store_operands(op: Op) -> tuple[Value, Value, Value | None]:
    """(pointer, value, mask) of a store."""
    pointer, value, *mask = op.operands
    return pointer, value, mask[0] if mask else None


def splat_constant(op: Op) -> object | None:
    """The one number of an `arith.constant`, if it is one for all elements."""
    constant: object = op.attributes["value"]
    if not isinstance(constant, Dense):
        return constant
    return constant.values[0] if constant.splat else None
