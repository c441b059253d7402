"""Writes the table of docs/triton.md: which operations of TTIR the compiler knows, from its table of facts.

python -m tools.triton_operations            rewrite the table
python -m tools.triton_operations --check    exit status 1 if it is not up to date
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

PAGE = Path(__file__).resolve().parent.parent / "docs" / "triton.md"
BEGIN, END = "<!-- operations -->\n", "<!-- end of operations -->\n"


def table() -> str:
    from torch_mtia.triton import libdevice
    from torch_mtia.triton.ir.ops import OPS, Kind

    kinds = [
        ("fused into the loops that need them", Kind.ELEMENTWISE),
        ("fused, and say where an element is found", Kind.PLACED),
        ("open loops of their own, or control flow", Kind.STATEMENT),
    ]
    lines = ["| how | operations of TTIR |", "|---|---|"]
    for how, kind in kinds:
        names = sorted(name for name, facts in OPS.items() if facts.kind is kind)
        lines.append(f"| {how} | {' '.join(f'`{name}`' for name in names)} |")
    prefix = len(libdevice.PREFIX)
    functions = " ".join(f"`{name[prefix:]}`" for name in sorted(libdevice.FUNCTIONS))
    lines.append(f"| `libdevice`, fused | {functions} |")
    return "\n".join(lines) + "\n"


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
