"""The table of statements that programs are made of. To add one: a function that writes it, decorated with its weight,
in one of the modules that generate.py imports.

A statement picks operands among the values in scope and defines new ones, with bounds for their elements: see
values.py. It returns False, having written nothing, if nothing in scope fits.
"""

from __future__ import annotations

from collections.abc import Callable

from tools.triton_fuzz.builder import Builder

Statement = Callable[[Builder], bool]
_STATEMENTS: dict[Statement, int] = {}
MAX_DEPTH = 2


def statement(weight: int) -> Callable[[Statement], Statement]:
    def register(function: Statement) -> Statement:
        _STATEMENTS[function] = weight
        return function

    return register


def statements(b: Builder, count: int) -> None:
    """Some statements. A program has its own taste for them: what is left out leaves room for the others to meet."""
    if not b.tastes:
        b.tastes = {name: b.random.choice((0, 1, 1, 5)) for name in map(_name, _STATEMENTS)}
    # All keep some weight: those to a program's taste may never fit.
    weights = [1 + 10 * weight * b.tastes[_name(function)] for function, weight in _STATEMENTS.items()]
    functions = list(_STATEMENTS)
    written = 0
    while written < count:
        function = b.random.choices(functions, weights)[0]
        if function(b):
            b.features.add(_name(function))
            written += 1


def _name(function: Statement) -> str:
    return function.__name__.replace("_", " ")
