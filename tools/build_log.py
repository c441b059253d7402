"""What a build prints: a line for each source file, in the place of its command of 700 characters.

V=1 or VERBOSE=1 prints the commands. A command that fails is printed always, with all that the compiler says.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

_PATH = r"""('[^']*'|"[^"]*"|\S+)"""
COMPILED = re.compile(rf"\[(\d+)/(\d+)\] .* -c {_PATH} -o ")  # by ninja, which prints a command that fails once more
LINKED = re.compile(rf".* -shared .* -o {_PATH}")
PRECOMPILED = re.compile(rf".* -x c\+\+-header {_PATH} -o ")


def short(line: str) -> str:
    """The line, or what takes the place of a command that compiles or links."""
    if found := COMPILED.match(line):
        number, count, source = found.groups()
        return f"[{number:>{len(count)}}/{count}] {_relative(source)}\n"
    if found := PRECOMPILED.match(line):
        return f"precompiling headers: {_relative(found[1])}\n"
    if found := LINKED.match(line):
        return f"linking {_relative(found[1])}\n"
    return line


def _relative(path: str) -> str:
    return path.strip("'\"").removeprefix(f"{ROOT}/")


@contextlib.contextmanager
def shortened() -> Iterator[None]:
    """Shortens what this process and its children write to the standard output."""
    if any(os.environ.get(name, "0") not in ("", "0") for name in ("V", "VERBOSE")):
        yield
        return
    commands: list[str] = []

    def copy(source: int, target: int) -> None:
        with open(source, errors="replace") as lines, open(target, "w", errors="replace", closefd=False) as output:
            for line in lines:
                if short(line) != line:
                    commands[:] = [line]
                output.write(short(line))
                output.flush()

    sys.stdout.flush()
    output = os.dup(1)
    source, sink = os.pipe()
    os.dup2(sink, 1)
    os.close(sink)
    copier = threading.Thread(target=copy, args=(source, output))
    copier.start()
    failed = True
    try:
        yield
        failed = False
    finally:
        sys.stdout.flush()
        os.dup2(output, 1)  # closes the pipe
        copier.join()
        os.close(output)
        if failed and commands and not COMPILED.match(commands[0]):
            print(f"FAILED: {commands[0]}", end="", flush=True)
