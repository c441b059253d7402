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
    functions, weights = list(_STATEMENTS), list(_STATEMENTS.values())
    written = 0
    while written < count:
        function = b.random.choices(functions, weights)[0]
        if function(b):
            b.features.add(function.__name__.replace("_", " "))
            written += 1
