"""A smaller program that fails in the same way."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator

from tools.compile_fuzz.program import Program


def shrink(program: Program, fails: Callable[[Program], bool]) -> Program:
    """Drops results, statements and inputs while `fails` holds of what is left."""
    smaller = True
    while smaller:
        smaller = False
        for candidate in _candidates(program):
            if fails(candidate):
                program, smaller = candidate, True
                break
    return program


def _candidates(program: Program) -> Iterator[Program]:
    if program.training:
        yield dataclasses.replace(
            program, training=False, inputs=tuple(dataclasses.replace(each, gradient="") for each in program.inputs)
        )
    for place in range(len(program.results)):
        rest = program.results[:place] + program.results[place + 1 :]
        if rest:
            yield _without_unused(dataclasses.replace(program, results=rest))
    for place in reversed(range(len(program.lines))):
        line = program.lines[place]
        rest_lines = program.lines[:place] + program.lines[place + 1 :]
        defined = re.match(r"(v\d+) = ", line)
        if defined is None:
            yield dataclasses.replace(program, lines=rest_lines)
            continue
        # What it computed is taken to be one of its operands.
        for operand in dict.fromkeys(re.findall(r"\b[av]\d+\b", line[defined.end() :])):
            pattern = rf"\b{defined[1]}\b"
            lines = tuple(re.sub(pattern, operand, each) for each in rest_lines)
            results = tuple(operand if each == defined[1] else each for each in program.results)
            errors = {
                **program.errors,
                operand: max(program.errors.get(operand, 0.0), program.errors.get(defined[1], 0.0)),
            }
            yield _without_unused(dataclasses.replace(program, lines=lines, results=results, errors=errors))
    for place, each in enumerate(program.inputs):
        for change in (
            {"padding": (0,) * len(each.shape)},
            {"order": tuple(range(len(each.shape)))},
            {"special": False},
            {"gradient": "a leaf"} if each.gradient == "no leaf" else {},
        ):
            changed = dataclasses.replace(each, **change)
            if changed != each:
                inputs = (*program.inputs[:place], changed, *program.inputs[place + 1 :])
                yield dataclasses.replace(program, inputs=inputs)


def _without_unused(program: Program) -> Program:
    """Without definitions that nothing uses, and without inputs that nothing uses."""
    lines = list(program.lines)
    while True:
        text = "\n".join([*lines, *program.results])
        unused = [
            line for line in lines if (m := re.match(r"(v\d+) = ", line)) and len(re.findall(rf"\b{m[1]}\b", text)) == 1
        ]
        if not unused:
            break
        lines = [line for line in lines if line not in unused]
    names = set(re.findall(r"\ba\d+\b", text)) | {each.within for each in program.inputs}
    inputs = tuple(each for each in program.inputs if each.name in names)
    return dataclasses.replace(program, lines=tuple(lines), inputs=inputs)
