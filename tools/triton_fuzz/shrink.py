"""Makes a program that fails as short as it still fails."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable

from tools.triton_fuzz.program import Program

TRIES = 300
COUNTS_DOWN = re.compile(r"\s*\w+ -= 1")


def shrink(program: Program, fails: Callable[[Program], bool]) -> Program:
    """Lines are left out, and the heads of blocks, for as long as `fails` says so. What a line defines is used by its
    name, so a program that lacks a line it needs does not compile: it fails in another way."""
    tries = 0

    def kept(candidate: Program) -> bool:
        nonlocal program, tries
        tries += 1
        if tries > TRIES or not fails(candidate):
            return False
        program = candidate
        return True

    kept(dataclasses.replace(program, grid=1))
    before = None
    while program != before and tries < TRIES:
        before = program
        size = len(program.lines) // 2
        while size:
            # From the end on: what uses a line goes before it.
            for start in range(len(program.lines) - size, -1, -1):
                if (shorter := _without(program, start, size)) is not None:
                    kept(shorter)
            size //= 2
        for start in range(len(program.lines) - 1, -1, -1):
            if (shorter := _without_head(program, start)) is not None:
                kept(shorter)
    return program


def _without(program: Program, start: int, size: int) -> Program | None:
    """The program without some lines and what is inside of their blocks."""
    lines = program.lines
    end = start + size
    if end > len(lines):
        return None
    while end < len(lines) and _indent(lines[end]) > _indent(lines[start]):
        end += 1
    left = lines[:start] + lines[end:]
    if sum(map(_loops, lines)) - sum(map(_loops, left)) != sum(map(_counts, lines)) - sum(map(_counts, left)):
        return None
    return _with_lines(program, left)


def _without_head(program: Program, start: int) -> Program | None:
    """The program with what is inside of a block in its place."""
    lines = program.lines
    if start >= len(lines) or lines[start].lstrip().startswith("else"):
        return None
    end = start + 1
    while end < len(lines) and _indent(lines[end]) > _indent(lines[start]):
        end += 1
    if end == start + 1:
        return None
    body = tuple(line[4:] for line in lines[start + 1 : end])
    return _with_lines(program, lines[:start] + body + lines[end:])


def _loops(line: str) -> bool:
    return line.lstrip().startswith("while ")


def _counts(line: str) -> bool:
    """Without which a loop does not end."""
    return COUNTS_DOWN.fullmatch(line) is not None


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _with_lines(program: Program, lines: tuple[str, ...]) -> Program:
    """With the parameters that they use."""
    words = set(re.findall(r"\w+", "\n".join(lines)))
    parameters = tuple(parameter for parameter in program.parameters if parameter.name in words)
    return dataclasses.replace(program, lines=lines, parameters=parameters)
