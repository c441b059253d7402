"""What the package replaces in torch is needed, works, and costs no import."""

from __future__ import annotations

import importlib
import operator
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from torch_mtia import torch_version, upstream_gates
from torch_mtia._versions import SUPPORTED_TORCH
from torch_mtia.upstream_gates import Gate

if TYPE_CHECKING:
    from tests.conftest import RunScript

pytestmark = pytest.mark.in_tree(
    "whether a gate is needed is asked with the name mtia; test_privateuse1 has the others"
)
GATES = [gate for gate in upstream_gates.GATES if torch_version.TORCH in gate.versions]
PLACES = [(gate, module) for gate in GATES for module in gate.modules]


@pytest.mark.parametrize(("gate", "module"), PLACES, ids=lambda value: getattr(value, "name", value))
def test_a_gate_is_applied_and_still_needed(gate: Gate, module: str) -> None:
    replaced = operator.attrgetter(gate.name)(importlib.import_module(module))
    original = upstream_gates.originals[module, gate.name]
    assert replaced is not original
    assert gate.is_needed(original), f"{gate.name}: upstream does this itself now; remove the row"
    assert not gate.is_needed(replaced)


def test_gates_are_for_versions_that_are_supported() -> None:
    assert all(set(gate.versions) <= set(SUPPORTED_TORCH) for gate in upstream_gates.GATES)


@pytest.mark.parametrize("gate", GATES, ids=lambda gate: gate.name)
def test_a_gate_names_all_modules_that_have_the_name(gate: Gate) -> None:
    assert gate.why
    package = gate.modules[0].rpartition(".")[0]
    original = upstream_gates.originals[gate.modules[0], gate.name]
    missing = object()
    missed = [
        name
        for name, module in sys.modules.items()
        if name.startswith(package) and getattr(module, gate.name, missing) is original
    ]
    assert not missed


def test_a_module_that_is_imported_later_gets_its_gate_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "imported_later.py").write_text("devices = ['cuda']\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    gate = Gate(
        name="devices",
        modules=("imported_later",),
        why="a test",
        replace=lambda devices: [*devices, "mtia"],
        is_needed=lambda devices: "mtia" not in devices,
    )
    upstream_gates.apply("2.13.0+cpu", [gate])
    assert "imported_later" not in sys.modules
    module = importlib.import_module("imported_later")
    try:
        assert module.devices == ["cuda", "mtia"]
        assert module.__spec__ is not None
        assert module.__file__ == str(tmp_path / "imported_later.py")
    finally:
        del sys.modules["imported_later"]
        del upstream_gates.originals["imported_later", "devices"]


def test_another_version_of_pytorch_is_left_alone() -> None:
    gate = Gate("DEVICES", ("torch_mtia.upstream_gates",), "a test", lambda _: None, lambda _: True, ((1, 0),))
    upstream_gates.apply(torch.__version__, [gate])
    assert ("torch_mtia.upstream_gates", "DEVICES") not in upstream_gates.originals


def test_applying_imports_nothing(run_script: RunScript) -> None:
    script = """
        import sys
        import torch
        before = set(sys.modules)
        import torch_mtia
        print(sorted(name for name in set(sys.modules) - before if name.startswith("torch.")))
    """
    assert run_script(script, TORCH_DEVICE_BACKEND_AUTOLOAD="0").output() == "[]\n"
