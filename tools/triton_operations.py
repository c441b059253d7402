"""Writes the table of docs/triton.md: which operations of TTIR the compiler knows, from its table of facts.

python -m tools.triton_operations            rewrite the table
python -m tools.triton_operations --check    exit status 1 if it is not up to date
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

PAGE = Path(__file__).resolve().parent.parent / "docs" / "triton.md"
BEGIN, END = "<!-- operations -->\n", "<!-- end of operations -->\n"


LETTERS = (("a", "d"), ("e", "k"), ("l", "r"), ("s", "z"))
FROM_FLOAT = re.compile(r"double|float")
CONVERSION = re.compile(r"(double|float|u?int|u?ll)2\w+|\w+_as_\w+|hiloint2double")
DIRECTED = re.compile(r"\w+_r[dnuz]")


def table() -> str:
    from torch_mtia.triton import libdevice
    from torch_mtia.triton.ir.ops import OPS, Kind

    def operations(kind: Kind) -> list[str]:
        return sorted(name for name, facts in OPS.items() if facts.kind is kind)

    elementwise = operations(Kind.ELEMENTWISE)
    arithmetic = [name for name in elementwise if name.startswith("arith.")]
    functions = sorted(name[len(libdevice.PREFIX) :] for name in libdevice.FUNCTIONS)
    conversions = [name for name in functions if CONVERSION.fullmatch(name)]
    directed = [name for name in functions if DIRECTED.fullmatch(name) and name not in conversions]
    others = [name for name in functions if name not in {*conversions, *directed}]
    rows = [
        ("fused into the loops that use them: arithmetic", [name for name in arithmetic if not name.endswith("f")]),
        ("the same, of floating point", [name for name in arithmetic if name.endswith("f")]),
        ("functions and casts, fused", [name for name in elementwise if name not in arithmetic]),
        ("fused: which element is read", operations(Kind.PLACED)),
        ("loops of their own, or control flow", operations(Kind.STATEMENT)),
        ("`libdevice`, fused: conversions of floating point", [name for name in conversions if FROM_FLOAT.match(name)]),
        ("conversions of integers", [name for name in conversions if not FROM_FLOAT.match(name)]),
        ("arithmetic with a rounding mode", directed),
        *((f"other functions, {first} to {last}", between(others, first, last)) for first, last in LETTERS),
    ]
    lines = ["| how | operations of TTIR |", "|---|---|"]
    lines += [f"| {how} | {' '.join(f'`{name}`' for name in names)} |" for how, names in rows]
    return "\n".join(lines) + "\n"


def between(names: list[str], first: str, last: str) -> list[str]:
    return [name for name in names if first <= name[0] <= last]


def updated(text: str) -> str:
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + table() + END + after


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    text = PAGE.read_text()
    new = updated(text)
    if arguments.check:
        return int(new != text)
    PAGE.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())
