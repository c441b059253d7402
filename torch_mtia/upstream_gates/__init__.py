"""Doors that PyTorch opens by a literal list of devices which lacks `mtia`: opened here, in one table.

Nothing else in torch_mtia assigns to anything in torch or triton. A row of GATES (table.py) says what is replaced, in
which versions, why, and how to tell that upstream no longer needs it; a test asks that of every row. To add one: write
the replacement in the module of its kind, add the row.

A gate is applied to a module when that module is imported, and at once if it already is. Nothing is imported for it.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from torch_mtia.import_hooks import after_import
from torch_mtia.upstream_gates.gate import Gate
from torch_mtia.upstream_gates.table import GATES, GATES_OF_OTHER_NAMES

__all__ = ["GATES", "GATES_OF_OTHER_NAMES", "Gate", "apply", "apply_again", "originals"]

originals: dict[tuple[str, str], Any] = {}
"""What was replaced, by module and name."""
_replaced: dict[int, tuple[Any, Any]] = {}
"""By id, replacements and what they replaced: for modules that import a name by value after it was replaced."""


def _open(gate: Gate, module: ModuleType) -> None:
    key = (module.__name__, gate.name)
    if key not in originals:
        holder, attribute = _place(gate, module)
        present = getattr(holder, attribute, None)
        _, originals[key] = _replaced.get(id(present), (present, present))
        if originals[key] is present:
            _replace(gate, module)


def _place(gate: Gate, module: ModuleType) -> tuple[Any, str]:
    *owner, attribute = gate.name.split(".")
    return functools.reduce(getattr, owner, module), attribute


def _replace(gate: Gate, module: ModuleType) -> None:
    holder, attribute = _place(gate, module)
    present = getattr(holder, attribute, None)
    replacement = gate.replace(present)
    _replaced[id(replacement)] = (replacement, present)
    setattr(holder, attribute, replacement)


def apply_again(torch_version: str) -> None:
    """For a device that has another name than mtia from now on."""
    for module, name in list(originals):
        for gate in GATES:
            if gate.by_name and gate.name == name and module in gate.modules:
                _replace(gate, sys.modules[module])
    apply(torch_version, GATES_OF_OTHER_NAMES)


def apply(torch_version: str, gates: Sequence[Gate] = GATES) -> None:
    """Opens the gates of this version of PyTorch, now or when their modules are imported."""
    major, minor = (int(part) for part in torch_version.split(".")[:2])
    for gate in gates:
        if (major, minor) in gate.versions:
            for name in gate.modules:
                after_import(name, functools.partial(_open, gate))
