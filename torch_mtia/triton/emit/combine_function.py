"""What the combine function of a reduction allows: its operands in either order, and leaving out neutral elements.

If it is commutative, lanes can accumulate side by side; else elements are combined in their own order, which takes
longer. Nothing in TTIR says it, so the function is tried on numbers; where that is not possible, it allows nothing.
"""

from __future__ import annotations

import itertools
import math
import operator
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch_mtia.triton.ttir import Bits, Dense, Module, Op, Region
from torch_mtia.triton.ttir import Value as Tensor

Number = Any  # int, float or bool

TRIALS = 24
FLOATS = (0.25, 0.5, 1.0, 1.5, 3.0)
INTEGERS = (0, 1, 2, 3, 5)


def _never(_left: Number, _right: Number) -> bool:
    return False


def _ever(_left: Number, _right: Number) -> bool:
    return True


_ORDER = (operator.eq, operator.gt, operator.ge, operator.lt, operator.le, operator.ne)
INTEGER_PREDICATES = (
    operator.eq, operator.ne, *(operator.lt, operator.le, operator.gt, operator.ge) * 2,
)  # fmt: skip
FLOAT_PREDICATES = (_never, *_ORDER, _ever, *_ORDER, _never, _ever)  # there is no NaN among the numbers that are tried


def _compare(predicates: Sequence[Callable[[Number, Number], bool]]) -> Callable[[Op, Number, Number], bool]:
    return lambda op, left, right: predicates[op.attributes["predicate"]](left, right)


def _always(function: Callable[..., Number]) -> Callable[..., Number]:
    return lambda _op, *operands: function(*operands)


# Plain Python numbers: neither widths nor signs matter to the numbers that are tried.
_COMMUTATIVE: dict[str, Callable[..., Number]] = {
    **dict.fromkeys(("arith.addf", "arith.addi"), operator.add),
    **dict.fromkeys(("arith.mulf", "arith.muli"), operator.mul),
    **{f"arith.{name}": max for name in ("maxsi", "maxui", "maxnumf", "maximumf")},
    **{f"arith.{name}": min for name in ("minsi", "minui", "minnumf", "minimumf")},
    "arith.andi": operator.and_,
    "arith.ori": operator.or_,
    "arith.xori": operator.xor,
}
_RULES: dict[str, Callable[..., Number]] = {
    **{name: _always(function) for name, function in _COMMUTATIVE.items()},
    **dict.fromkeys(("arith.subf", "arith.subi"), _always(operator.sub)),
    **dict.fromkeys(("arith.divf", "tt.precise_divf", "tt.approx_divf"), _always(lambda x, y: x / y)),
    **dict.fromkeys(("arith.divsi", "arith.divui"), _always(operator.floordiv)),
    **dict.fromkeys(("arith.remsi", "arith.remui"), _always(operator.mod)),
    **dict.fromkeys(
        ("arith.extf", "arith.truncf", "arith.extsi", "arith.extui", "arith.trunci", "tt.fp_to_fp"),
        _always(lambda x: x),
    ),
    **dict.fromkeys(("arith.sitofp", "arith.uitofp"), _always(float)),
    **dict.fromkeys(("arith.fptosi", "arith.fptoui"), _always(int)),
    "arith.negf": _always(operator.neg),
    "math.absf": _always(abs),
    "math.absi": _always(abs),
    "math.exp": _always(math.exp),
    "math.exp2": _always(lambda x: 2.0**x),
    "math.log": _always(math.log),
    "math.log2": _always(math.log2),
    "math.sqrt": _always(math.sqrt),
    "math.fma": _always(lambda x, y, z: x * y + z),
    "arith.select": _always(lambda condition, yes, no: yes if condition else no),
    "arith.cmpi": _compare(INTEGER_PREDICATES),
    "arith.cmpf": _compare(FLOAT_PREDICATES),
}


def is_commutative(module: Module, region: Region) -> bool:
    block = region.blocks[0]
    if len(block.ops) == 2 and block.ops[0].name in _COMMUTATIVE and len(block.arguments) == 2:
        return set(block.ops[0].operands) == set(block.arguments)
    count = len(block.arguments) // 2
    chance = random.Random(0)
    pairs = ([_random(chance, argument) for argument in block.arguments] for _ in range(TRIALS))
    return _holds(
        _same(_run(module, region, pair), _run(module, region, pair[count:] + pair[:count])) for pair in pairs
    )


def is_neutral(module: Module, region: Region, numbers: list[Number]) -> bool:
    """Whether combining with `numbers`, from either side, changes nothing."""
    block = region.blocks[0]
    chance = random.Random(0)
    trials = ([_random(chance, argument) for argument in block.arguments[: len(numbers)]] for _ in range(TRIALS))
    return _holds(
        _same(_run(module, region, trial + numbers), trial) and _same(_run(module, region, numbers + trial), trial)
        for trial in trials
    )


def _holds(trials: Iterable[bool]) -> bool:
    try:
        return all(trials)
    except (KeyError, ArithmeticError, ValueError, TypeError, AttributeError):
        return False  # what cannot be tried


def _same(left: Sequence[Number], right: Sequence[Number]) -> bool:
    return all(itertools.starmap(_equal, zip(left, right, strict=True)))


def _random(chance: random.Random, argument: Tensor) -> Number:
    element = argument.type.element
    if element == "i1":
        return chance.random() < 0.5
    return chance.choice(INTEGERS if element.startswith("i") else FLOATS)


def _equal(left: Number, right: Number) -> bool:
    return bool(left == right) or math.isclose(left, right, rel_tol=1e-9, abs_tol=1e-9)


def _run(module: Module, region: Region, arguments: Sequence[Number]) -> list[Number]:
    block = region.blocks[0]
    return _run_block(module, region, dict(zip(block.arguments, arguments, strict=True)))


def _run_block(module: Module, region: Region, values: dict[Tensor, Number]) -> list[Number]:
    (block,) = region.blocks
    for op in block.ops[:-1]:
        if op.name == "arith.constant":
            continue
        operands = [_look_up(values, operand) for operand in op.operands]
        if op.name == "scf.if":
            chosen = op.regions[0 if operands[0] else 1]
            values.update(zip(op.results, _run_block(module, chosen, values), strict=True))
        elif op.name == "tt.call":
            callee = module.functions[op.attributes["callee"].lstrip("@")]
            values.update(zip(op.results, _run(module, callee.body, operands), strict=True))
        else:
            values[op.results[0]] = _RULES[op.name](op, *operands)
    return [_look_up(values, operand) for operand in block.terminator.operands]


def _look_up(values: dict[Tensor, Number], value: Tensor) -> Number:
    if value in values:
        return values[value]
    if value.op is None or value.op.name != "arith.constant":
        raise KeyError(f"{value} is not known before the kernel runs")
    constant = value.op.attributes["value"]
    if isinstance(constant, (Bits, Dense)):
        raise ValueError("a constant that is no plain number")
    return constant
