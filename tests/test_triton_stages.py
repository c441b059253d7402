"""The stages of the Triton compiler know only the earlier ones, and each operation has its facts and its code."""

from __future__ import annotations

import ast
import itertools
from pathlib import Path

import pytest

import torch_mtia
from torch_mtia.triton.emit import program as emit_program
from torch_mtia.triton.emit.environment import ELEMENTWISE, PLACED, SCALARS, STATEMENTS
from torch_mtia.triton.ir.ops import OPS, Kind
from torch_mtia.triton.plan import program as plan_program
from torch_mtia.triton.plan.planner import PLANS

PACKAGE = Path(torch_mtia.__file__).parent / "triton"
STAGES = ("ir", "analyses", "plan", "emit")


def _imports(path: Path) -> set[str]:
    """The modules of torch_mtia.triton that a module imports, wherever in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("torch_mtia.triton"):
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
            found.add(node.module)
    return {name.removeprefix("torch_mtia.triton.") for name in found}


@pytest.mark.parametrize(("earlier", "later"), itertools.combinations(STAGES, 2))
def test_no_stage_knows_a_later_one(earlier: str, later: str) -> None:
    for path in (PACKAGE / earlier).glob("*.py"):
        assert not {name for name in _imports(path) if name.split(".")[0] == later}, path.name


@pytest.mark.parametrize("stage", ["ir", "analyses", "plan"])
def test_only_the_last_stage_writes_code(stage: str) -> None:
    for path in (PACKAGE / stage).glob("*.py"):
        assert not {name for name in _imports(path) if name.split(".")[0] in ("llvm", "llvm_value", "lanes")}, path.name


def test_modules_do_not_import_each_other_in_circles() -> None:
    modules = {
        ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__"): _imports(path)
        for path in PACKAGE.rglob("*.py")
    }
    done: set[str] = set()

    def visit(name: str, above: tuple[str, ...]) -> None:
        assert name not in above, " -> ".join((*above, name))
        if name in done:
            return
        for imported in modules[name] & modules.keys():
            if not f"{name}.".startswith(f"{imported}."):  # a package may import its own modules
                visit(imported, (*above, name))
        done.add(name)

    for name in modules:
        visit(name, ())


def test_every_operation_has_facts_and_code() -> None:
    assert emit_program
    assert plan_program
    written = ELEMENTWISE.keys() | PLACED.keys() | SCALARS.keys() | STATEMENTS.keys()
    assert written <= OPS.keys()
    assert PLANS.keys() <= OPS.keys()
    statements = {name for name, facts in OPS.items() if facts.kind is Kind.STATEMENT}
    assert OPS.keys() - statements <= written
    assert statements <= PLANS.keys() | STATEMENTS.keys()
