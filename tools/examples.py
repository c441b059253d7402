"""Prints the commands that run the examples: python -m tools.examples [PYTHON]"""

from __future__ import annotations

import ast
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NOT_PROGRAMS = ("training.py",)  # which the demos import


def programs() -> Iterator[Path]:
    """The examples that are run by `python FILE`, from the root of the tree."""
    for path in (*sorted(ROOT.glob("examples/*.py")), ROOT / "examples" / "custom_operator" / "axpy.py"):
        if path.name not in NOT_PROGRAMS:
            yield path.relative_to(ROOT)


def summary(path: Path) -> str:
    """The first sentence of the example's docstring, or its beginning."""
    text = " ".join((ast.get_docstring(ast.parse((ROOT / path).read_text())) or "").split())
    return textwrap.shorten(text.partition(": ")[0].partition(". ")[0].rstrip("."), 75, placeholder=" ...")


def main() -> None:
    python = sys.argv[1] if len(sys.argv) > 1 else "python"
    commands = {f"{python} {path}": summary(path) for path in programs()}
    width = max(map(len, commands))
    print("\nThe examples, from this folder:\n")
    for command, shown in commands.items():
        print(f"  {command:<{width}}  {shown}")
    print("\nThe twenty lines of README.md, saved as first.py, and its race, saved as race.py:\n")
    print(f"  {python} first.py")
    print(f"  {python} -m torch_mtia.sanitize race.py")


if __name__ == "__main__":
    main()
