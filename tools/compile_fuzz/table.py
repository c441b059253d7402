"""The table of statements that programs are made of. To add one: a function that writes it, decorated with its weight,
in one of the modules that generate.py imports.

A statement picks operands among the values in scope and defines new ones, or writes into one, with bounds for elements
and errors: see builder.py. It returns False, having written nothing, if nothing in scope fits.
"""

from __future__ import annotations

from collections.abc import Callable

from tools.compile_fuzz.builder import Builder

Statement = Callable[[Builder], bool]
STATEMENTS: dict[Statement, int] = {}


def statement(weight: int) -> Callable[[Statement], Statement]:
    def register(function: Statement) -> Statement:
        STATEMENTS[function] = weight
        return function

    return register
