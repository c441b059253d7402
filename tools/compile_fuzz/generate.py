"""The program of a seed."""

from __future__ import annotations

import itertools

# The modules whose statements programs are made of, in an order that the programs of seeds depend on.
from tools.compile_fuzz import views, elementwise, reductions, indexing, mutation  # noqa: F401  # isort: skip
from tools.compile_fuzz.builder import Builder, Refused
from tools.compile_fuzz.comparison import observe
from tools.compile_fuzz.program import CALLS, Program
from tools.compile_fuzz.table import STATEMENTS

FEWEST = 5  # lines of a program


def generate(seed: int) -> Program:
    """The program of a seed: the first attempt that runs on the CPU, backward too, with the data of every call."""
    for attempt in itertools.count():
        try:
            program = _attempt(Builder(seed, attempt))
            for call in range(CALLS):
                observe(program.function(), program.arguments(call, "cpu"), program.training)
        except (Refused, RuntimeError, IndexError):
            continue
        return program
    raise AssertionError("unreachable")


def _attempt(b: Builder) -> Program:
    functions = list(STATEMENTS)
    # Each program has its own taste, so that the statements it likes meet.
    weights = [weight * b.random.choice((0, 1, 1, 5)) for weight in STATEMENTS.values()]
    count = b.random.randint(FEWEST, 15)
    for _ in range(20 * count):
        if len(b.lines) >= count or not any(weights):
            break
        chosen = b.random.choices(functions, weights)[0]
        if chosen(b):
            b.features.append(chosen.__name__)
    if len(b.lines) < FEWEST:
        raise Refused("too little fits")
    return b.program()
