"""Records in tests/recorded what the package uses of a version of PyTorch. `make record TORCH=2.15.0` does both steps.

python -m tools.versions names >NAMES    where the package is built: the names that it uses
python -m tools.versions record <NAMES   where only PyTorch and Triton are: what they are there
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import triton
import yaml

from tools.codegen import upstream
from tools.codegen.generate import OVERLAY
from tools.versions import names, operators

_HEAD = """\
# PyTorch {torch} and Triton {triton}, as far as the package uses them: `make record TORCH={torch}` wrote it, and
# tests/test_versions.py compares. `operators` is cut from native_functions.yaml; `names` are private ones, which may
# change in any version. Records of later versions than the oldest have what differs from it. `cuda` is what headers of
# AOTInductor use of CUDA's runtime."""


def record(used: set[str]) -> None:
    """Writes the record of the installed version."""
    installed = upstream.installed()
    rows = operators.used(upstream.load_rows(OVERLAY), installed.rows)
    write(str(installed), rows, names.facts(used), torch.__version__.partition("+")[0], triton.__version__)


def write(version: str, rows: list[dict[str, Any]], facts: dict[str, str], torch: str, triton: str) -> None:
    """Writes a record; of a later version than the oldest, which is recorded first, what differs."""
    lines = [_HEAD.format(torch=torch, triton=triton)]
    if version != upstream.oldest_recorded():
        oldest = upstream.record(upstream.oldest_recorded())
        same = [operators.without_lines(row) for row in oldest["operators"]]
        without = [row["func"] for row in same if row["func"] not in {each["func"] for each in rows}]
        lines += [f"differs_from: {_flow(upstream.digest(oldest))}", f"without: {_flow(without)}"]
        rows = [row for row in rows if row not in same]
        facts = {name: fact for name, fact in facts.items() if oldest["names"].get(name) != fact}
    lines.append("operators:" if rows else "operators: []")
    for row in rows:
        lines += [f"- func: {row['func']}", *(f"  {field}: {_flow(row[field])}" for field in row if field != "func")]
    lines += ["names:" if facts else "names: {}", *(f"  {_flow(name)}: {_flow(fact)}" for name, fact in facts.items())]
    lines.append(f"cuda: {_flow(names.of_cuda())}")
    (upstream.RECORDED / f"{version}.yaml").write_text("\n".join(lines) + "\n")


def _flow(value: object) -> str:
    """On one line."""
    text: str = yaml.safe_dump(value, default_flow_style=True, width=10**6)
    return text.removesuffix("\n").removesuffix("\n...")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["names"]:
            print(*sorted(names.used()), sep="\n")
        case ["record"]:
            record(set(sys.stdin.read().split()))
        case _:
            sys.exit(__doc__)
