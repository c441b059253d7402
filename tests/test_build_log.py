"""A build prints a line for each source file, and in full what fails."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tools import build_log

ROOT = build_log.ROOT
FLAGS = "c++ -MMD -MF x.o.d -Wall -I/include " * 10


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (f"[7/164] {FLAGS} -c {ROOT}/csrc/aten/Copy.cpp -o x.o -O2\n", "[  7/164] csrc/aten/Copy.cpp\n"),
        (f"[7/9] {FLAGS} -c '/with a space/Copy.cpp' -o 'x y.o'\n", "[7/9] /with a space/Copy.cpp\n"),
        (f"{FLAGS} -shared a.o b.o -o build/lib/_C.so\n", "linking build/lib/_C.so\n"),
        (
            f'{FLAGS} -x c++-header "{ROOT}/build/temp/precompiled_1.h" -o build/temp/precompiled_1.h.gch\n',
            "precompiling headers: build/temp/precompiled_1.h\n",
        ),
        ("csrc/aten/Copy.cpp:7:1: warning: unused\n", "csrc/aten/Copy.cpp:7:1: warning: unused\n"),
        (f"{FLAGS} -c x.cpp -o x.o\n", f"{FLAGS} -c x.cpp -o x.o\n"),  # as ninja prints it below FAILED
    ],
)
def test_a_command_becomes_the_name_of_its_file(line: str, shown: str) -> None:
    assert build_log.short(line) == shown


def printed(body: str, **environment: str) -> str:
    """By a process whose build is `body`."""
    program = "import subprocess, sys\nfrom tools import build_log\nwith build_log.shortened():\n"
    program += textwrap.indent(textwrap.dedent(body), "    ")
    finished = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin"} | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert not finished.stderr
    return finished.stdout


COMPILES = f"""
print("[1/2] c++ -c {ROOT}/csrc/a.cpp -o a.o", flush=True)
subprocess.run(["echo", "[2/2] c++ -c {ROOT}/csrc/b.cpp -o b.o"])
"""
LINK = "g++ -shared a.o -o a.so"


def test_what_child_processes_print_is_shortened() -> None:
    assert printed(COMPILES) == "[1/2] csrc/a.cpp\n[2/2] csrc/b.cpp\n"


@pytest.mark.parametrize("name", ["V", "VERBOSE"])
def test_full_commands_are_printed_on_demand(name: str) -> None:
    assert printed(COMPILES, **{name: "1"}) == COMPILES.split('"')[1] + "\n" + COMPILES.split('"')[5] + "\n"
    assert printed(COMPILES, **{name: "0"}) == "[1/2] csrc/a.cpp\n[2/2] csrc/b.cpp\n"


def test_a_link_that_fails_is_shown_with_its_command() -> None:
    text = printed(f"print({LINK!r})\nprint('undefined reference')\nsys.exit(1)")
    assert text == f"linking a.so\nundefined reference\nFAILED: {LINK}\n"


def test_a_source_file_that_fails_is_shown_once() -> None:
    command = f"c++ -c {Path(ROOT, 'csrc/a.cpp')} -o a.o"
    text = printed(f"print('[1/2] {command}\\nFAILED: a.o\\n{command}\\na.cpp:1:1: error')\nsys.exit(1)")
    assert text == f"[1/2] csrc/a.cpp\nFAILED: a.o\n{command}\na.cpp:1:1: error\n"
