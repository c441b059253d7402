"""Makes a program that fails as short as it still fails."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator

from tools.triton_fuzz.program import Program

TRIES = 400
COUNTS_DOWN = re.compile(r"\s*\w+ -= 1")  # without it a loop does not end


def shrink(program: Program, fails: Callable[[Program], bool]) -> Program:
    """Lines are left out, and the heads of blocks, for as long as `fails` says so. What a line defines is used by its
    name, so a program that lacks a line it needs does not compile: it fails in another way."""
    tries = 0
    found = True
    while found and tries < TRIES:
        found = False
        for candidate in _shorter(program):
            tries += 1
            if tries > TRIES:
                break
            if fails(candidate):
                program, found = candidate, True
                break
    return program


def _shorter(program: Program) -> Iterator[Program]:
    lines = program.lines
    if program.grid > 1:
        yield dataclasses.replace(program, grid=1)
    size = len(lines) // 2
    while size:
        for start in range(len(lines) - size, -1, -1):
            end = start + size
            while end < len(lines) and _indent(lines[end]) > _indent(lines[start]):
                end += 1
            removed = lines[start:end]
            in_part = any(map(COUNTS_DOWN.fullmatch, removed)) and _indent(removed[0]) == _indent(removed[-1]) > 4
            if not in_part:
                yield _with_lines(program, lines[:start] + lines[end:])
        size //= 2
    for start, line in enumerate(lines):
        end = start + 1
        while end < len(lines) and _indent(lines[end]) > _indent(line):
            end += 1
        if end > start + 1 and not line.lstrip().startswith("else"):
            body = tuple(text[4:] for text in lines[start + 1 : end])
            yield _with_lines(program, lines[:start] + body + lines[end:])


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _with_lines(program: Program, lines: tuple[str, ...]) -> Program:
    """With the parameters that they use."""
    words = set(re.findall(r"\w+", "\n".join(lines)))
    parameters = tuple(parameter for parameter in program.parameters if parameter.name in words)
    return dataclasses.replace(program, lines=lines, parameters=parameters)
