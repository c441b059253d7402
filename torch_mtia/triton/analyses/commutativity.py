"""Whether the combine function of a reduction is commutative: then its elements may be combined in any order.

Nothing in TTIR says it, so it is decided by algebra. The results of f(a, b) and f(b, a) are written as terms. What
ir/ops.py calls commutative has its operands sorted; what comparisons choose between is looked at in every case that
there is (less, equal, greater, and for floating-point numbers whether either is a NaN). The function is commutative if
in each case the terms are the same. What is not seen to be commutative is taken not to be.

Floating-point numbers that compare equal count as the same, so zeros of either sign do, and so do all NaNs. A function
that always gives the right one of a NaN and another element, as `where(a > b, a, b)` does, or always the left one, and
else is commutative, is not associative: (x, NaN), y gives y, and x, (NaN, y) the same as x, y, which may be x. So there
is no order of them to keep, although there would be one for NaNs alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from torch_mtia.triton.ir.attributes import Bits, Dense
from torch_mtia.triton.ir.module import Module, Op, Region, Value
from torch_mtia.triton.ir.ops import OPS

MAX_CASES = 4096

# By predicate of arith.cmpi: whether it holds for a (signed, unsigned) order, each -1, 0 or 1.
_INTEGER_PREDICATES: tuple[Callable[[int, int], bool], ...] = (
    lambda signed, _: signed == 0,
    lambda signed, _: signed != 0,
    lambda signed, _: signed < 0,
    lambda signed, _: signed <= 0,
    lambda signed, _: signed > 0,
    lambda signed, _: signed >= 0,
    lambda _, unsigned: unsigned < 0,
    lambda _, unsigned: unsigned <= 0,
    lambda _, unsigned: unsigned > 0,
    lambda _, unsigned: unsigned >= 0,
)
_INTEGER_ORDERS = ((0, 0), (-1, -1), (-1, 1), (1, -1), (1, 1))
# By predicate of arith.cmpf: for which orders it holds; 2 is unordered.
_FLOAT_PREDICATES: tuple[frozenset[int], ...] = tuple(
    map(frozenset, ((), (0,), (1,), (0, 1), (-1,), (-1, 0), (-1, 1), (-1, 0, 1),
                    (0, 2), (1, 2), (0, 1, 2), (-1, 2), (-1, 0, 2), (-1, 1, 2), (2,), (-1, 0, 1, 2)))
)  # fmt: skip


class Term(NamedTuple):
    """An operation on terms. One without a name is an argument of the function, a value from outside, or a constant:
    `what` tells which."""

    name: str
    what: Any
    operands: tuple[int, ...]
    element: str


Question: TypeAlias = "tuple[Any, ...]"  # about terms: which is greater, whether one is a NaN or true
Case: TypeAlias = "dict[Question, Any]"


class _Open(Exception):
    """The case does not say yet what a term depends on."""

    def __init__(self, question: Question, answers: Sequence[Any]) -> None:
        super().__init__()
        self.question = question
        self.answers = answers


class _Unknown(Exception):
    """The function cannot be written as terms, or has too many cases."""


def is_commutative(module: Module, region: Region) -> bool:
    arguments = region.blocks[0].arguments
    half = len(arguments) // 2
    algebra = _Algebra(module)
    terms = [algebra.leaf(argument, argument.type.element) for argument in arguments]
    left, right = terms[:half], terms[half:]
    try:
        forward, backward = algebra.apply(region, left + right), algebra.apply(region, right + left)
        return algebra.are_same(forward, backward, {}, left, right)
    except _Unknown:
        return False


class _Algebra:
    """Terms by number; equal terms have one number."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.terms: list[Term] = []
        self.numbers: dict[Term, int] = {}
        self.cases = 0
        self.with_nan = {"left", "right", "same"}  # what holds in every case with a NaN

    # Terms ------------------------------------------------------------------------------------------------------------

    def leaf(self, what: object, element: str) -> int:
        return self.term(Term("", what, (), element))

    def truth(self, value: bool) -> int:
        return self.leaf(int(value), "i1")

    def term(self, term: Term) -> int:
        if term.name in OPS and OPS[term.name].commutative:
            first, second, *rest = term.operands
            term = term._replace(operands=(min(first, second), max(first, second), *rest))
        number = self.numbers.setdefault(term, len(self.terms))
        if number == len(self.terms):
            self.terms.append(term)
        return number

    def apply(self, region: Region, arguments: Sequence[int]) -> list[int]:
        """The results of a region of scalar operations."""
        return self._apply(region, dict(zip(region.blocks[0].arguments, arguments, strict=True)))

    def _apply(self, region: Region, known: dict[Value, int]) -> list[int]:
        if len(region.blocks) != 1:
            raise _Unknown
        block = region.blocks[0]
        for op in block.ops[:-1]:
            if op.name in OPS and OPS[op.name].remark:
                continue
            operands = [self._operand(known, operand) for operand in op.operands]
            known.update(zip(op.results, self._results(op, operands, known), strict=True))
        return [self._operand(known, operand) for operand in block.terminator.operands]

    def _operand(self, known: dict[Value, int], value: Value) -> int:
        found = known.get(value)
        if found is not None:
            return found
        op = value.op
        if op is None or op.name != "arith.constant":
            return self.leaf(value, value.type.element)
        constant = op.attributes["value"]
        return self.leaf(_Constant(repr(constant), constant), value.type.element)

    def _results(self, op: Op, operands: list[int], known: dict[Value, int]) -> list[int]:
        if op.name == "arith.constant":
            return [self._operand({}, op.results[0])]
        if op.name == "tt.call":
            return self.apply(self.module.functions[op.attributes["callee"].lstrip("@")].body, operands)
        if op.name == "scf.if" and op.results:
            branches = [self._apply(region, known) for region in op.regions]
            return [
                self.term(Term("arith.select", "", (operands[0], yes, no), result.type.element))
                for result, yes, no in zip(op.results, *branches, strict=True)
            ]
        if op.regions:
            raise _Unknown
        what = op.attributes.get("predicate") if op.name in ("arith.cmpi", "arith.cmpf") else op.attribute_text
        return [
            self.term(Term(op.name, (what, number), tuple(operands), result.type.element))
            for number, result in enumerate(op.results)
        ]

    # Cases ------------------------------------------------------------------------------------------------------------

    def are_same(
        self, forward: Sequence[int], backward: Sequence[int], case: Case, left: Sequence[int], right: Sequence[int]
    ) -> bool:
        """Whether f(left, right) and f(right, left) are the same in `case`, and in every case into which it has to be
        split; those with a NaN may also all give the left one, or all the right one."""
        self.cases += 1
        if self.cases > MAX_CASES:
            raise _Unknown
        resolved: dict[int, int] = {}
        try:
            one, other = ([self._resolve(number, case, resolved) for number in side] for side in (forward, backward))
        except _Open as split:
            cases = ({**case, split.question: answer} for answer in split.answers)
            return all(self.are_same(forward, backward, each, left, right) for each in cases)
        is_same = all(self._is_same(*pair, case) for pair in zip(one, other, strict=True))
        if not any(question[0] == "nan" and answer for question, answer in case.items()):
            return is_same
        found = {"left": (one, other) == (left, right), "right": (one, other) == (right, left), "same": is_same}
        self.with_nan &= {name for name, holds in found.items() if holds}
        return bool(self.with_nan)

    def _is_same(self, left: int, right: int, case: Case) -> bool:
        if left == right:
            return True
        if case.get(("nan", left)) and case.get(("nan", right)):
            return True
        return case.get(("order", min(left, right), max(left, right))) in (0, (0, 0))

    def _resolve(self, number: int, case: Case, resolved: dict[int, int]) -> int:
        """The term without what the case decides: selections, comparisons, truth."""
        found = resolved.get(number)
        if found is None:
            term = self.terms[number]
            if term.name == "arith.select":
                condition, yes, no = term.operands
                found = self._resolve(yes if self._is_true(condition, case, resolved) else no, case, resolved)
            elif term.element == "i1":
                found = self.truth(self._decide(number, case, resolved))
            else:
                operands = tuple(self._resolve(operand, case, resolved) for operand in term.operands)
                found = self.term(term._replace(operands=operands))
            resolved[number] = found
        return found

    def _is_true(self, number: int, case: Case, resolved: dict[int, int]) -> bool:
        return bool(self.terms[self._resolve(number, case, resolved)].what)

    def _decide(self, number: int, case: Case, resolved: dict[int, int]) -> bool:
        """Whether a term of type i1, which is no selection, is true."""
        term = self.terms[number]
        if term.name == "" and isinstance(term.what, int):
            return bool(term.what)
        if term.name == "" and isinstance(term.what, _Constant) and isinstance(term.what.value, int):
            return bool(term.what.value)
        if term.name in ("arith.andi", "arith.ori", "arith.xori"):
            left, right = (self._is_true(operand, case, resolved) for operand in term.operands)
            return {"arith.andi": left and right, "arith.ori": left or right}.get(term.name, left != right)
        operands = tuple(self._resolve(operand, case, resolved) for operand in term.operands)
        if term.name == "arith.cmpi":
            holds: Callable[[int, int], bool] = _INTEGER_PREDICATES[term.what[0]]
            return holds(*self._integer_order(operands[0], operands[1], case))
        if term.name == "arith.cmpf":
            return self._float_order(operands[0], operands[1], case) in _FLOAT_PREDICATES[term.what[0]]
        opaque = self.term(term._replace(operands=operands))
        return bool(_answer(case, ("true", opaque), (False, True)))

    def _integer_order(self, left: int, right: int, case: Case) -> tuple[int, int]:
        if left == right:
            return 0, 0
        one, other = (self.terms[number] for number in (left, right))
        if one.element == "i1" and isinstance(one.what, int) and isinstance(other.what, int):
            unsigned = one.what - other.what
            return -unsigned, unsigned
        if left > right:
            signed, unsigned = self._integer_order(right, left, case)
            return -signed, -unsigned
        signed, unsigned = _answer(case, ("order", left, right), _INTEGER_ORDERS)
        return signed, unsigned

    def _float_order(self, left: int, right: int, case: Case) -> int:
        if any([self._is_nan(left, case), self._is_nan(right, case)]):
            return 2
        if left == right:
            return 0
        if left > right:
            return -self._float_order(right, left, case)
        return int(_answer(case, ("order", left, right), (-1, 0, 1)))

    def _is_nan(self, number: int, case: Case) -> bool:
        what = self.terms[number].what
        if isinstance(what, _Constant) and isinstance(what.value, float):
            return math.isnan(what.value)
        return bool(_answer(case, ("nan", number), (False, True)))


class _Constant(NamedTuple):
    text: str  # tells 0.0 from -0.0
    value: int | float | Bits | Dense


def _answer(case: Case, question: Question, answers: Sequence[Any]) -> Any:
    if question not in case:
        raise _Open(question, answers)
    return case[question]
