"""Records in tests/recorded what the package uses of a version of PyTorch. `make record TORCH=2.15.0` does both steps.

python -m tools.versions names >NAMES    where the package is built: the names that it uses
python -m tools.versions record <NAMES   where only PyTorch and Triton are: what they are there
"""

from __future__ import annotations

import sys

import torch
import triton
import yaml

from tools.codegen import upstream
from tools.codegen.generate import OVERLAY
from tools.versions import names, operators

_HEAD = """\
# PyTorch {torch} and Triton {triton}, as far as the package uses them: `make record TORCH={torch}` wrote it, and
# tests/test_versions.py compares. `operators` is cut from native_functions.yaml; `names` has those that nobody promises
# to keep."""


def record(used: set[str]) -> None:
    """Writes the record of the installed version."""
    installed = upstream.installed()
    rows = operators.used(upstream.load_rows(OVERLAY), installed.rows)
    lines = [_HEAD.format(torch=torch.__version__.partition("+")[0], triton=triton.__version__), "operators:"]
    for row in rows:
        lines += [f"- func: {row['func']}", *(f"  {field}: {_flow(row[field])}" for field in row if field != "func")]
    lines += ["names:", *(f"  {_flow(name)}: {_flow(fact)}" for name, fact in names.facts(used).items())]
    (upstream.RECORDED / f"{installed}.yaml").write_text("\n".join(lines) + "\n")


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
