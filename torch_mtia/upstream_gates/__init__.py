"""Features that PyTorch offers to a literal list of devices which lacks `mtia`: offered here, in one table.

Nothing else in torch_mtia assigns to anything in torch, triton, torchao, or the libraries of clients_table.py. A row of
GATES (table.py, inductor_table.py, and for torch.distributed distributed_table.py) says what is replaced, in which
versions, why, and how to tell that upstream no longer needs it; a test asks that of every row. To add one: write the
replacement in the module of its kind, a check that runs what upstream has in the probes beside it, and the row.

A gate is applied to a module when that module is imported, and at once if it already is. Nothing is imported for it.
"""

from __future__ import annotations

import functools
import operator
import sys
import warnings
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from torch_mtia.import_hooks import after_import
from torch_mtia.upstream_gates.gate import Gate
from torch_mtia.upstream_gates.other_names_table import GATES_OF_OTHER_NAMES
from torch_mtia.upstream_gates.table import GATES

__all__ = ["GATES", "GATES_OF_OTHER_NAMES", "Gate", "apply", "apply_again", "originals", "present", "skipped"]

originals: dict[tuple[str, str], Any] = {}
"""What was replaced, by module and name."""
skipped: dict[tuple[str, str], str] = {}
"""What could not be replaced, by module and name, and why not."""
_replaced: dict[int, tuple[Any, Any]] = {}
"""By id, replacements and what they replaced: for modules that import a name by value after it was replaced."""


def present(gate: Gate, module: ModuleType) -> Any:
    """What is in the gate's place now."""
    holder, key = _place(gate, module)
    return getattr(holder, key, None) if gate.entry is None else holder.get(key)


def _place(gate: Gate, module: ModuleType) -> tuple[Any, Any]:
    """An object and the name of its attribute, or a table and the key of its entry."""
    if gate.entry is not None:
        return operator.attrgetter(gate.name.partition("[")[0])(module), gate.entry()
    *owner, attribute = gate.name.split(".")
    return functools.reduce(getattr, owner, module), attribute


def _has(gate: Gate, module: ModuleType) -> bool:
    holder, key = _place(gate, module)
    return hasattr(holder, key)


def _is_missing(gate: Gate, module: ModuleType) -> bool:
    try:
        return present(gate, module) is None
    except AttributeError:
        return True


def _open(gate: Gate, name: str, _imported: ModuleType) -> None:
    """Called inside upstream's import of the module, which a name that a patch release has moved must not fail."""
    try:
        _try_to_open(gate, name)
    except Exception as error:
        if not skipped:
            warnings.warn(
                f"torch_mtia cannot replace {gate.name} of {name}, which is not as in the versions that it knows "
                f"({type(error).__name__}: {error}). {gate.why} `python -m torch_mtia` lists what else is skipped.",
                stacklevel=2,
            )
        originals.pop((name, gate.name), None)
        skipped[name, gate.name] = f"{type(error).__name__}: {error}"


def _try_to_open(gate: Gate, name: str) -> None:
    module, key = sys.modules[name], (name, gate.name)
    if gate.of_any_version and _is_missing(gate, module):
        return
    if gate.entry is None and not gate.adds and not _has(gate, module):
        raise AttributeError(f"there is no {gate.name}")
    now = present(gate, module)
    _, original = _replaced.get(id(now), (now, now))
    if original is now:
        originals[key] = now
        _replace(gate, module)
    else:
        originals.setdefault(key, original)


def _replace(gate: Gate, module: ModuleType) -> None:
    original = originals[module.__name__, gate.name]
    replacement = gate.replace(original)
    _replaced[id(replacement)] = (replacement, original)
    holder, key = _place(gate, module)
    if gate.entry is None:
        setattr(holder, key, replacement)
    else:
        holder[key] = replacement


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
                after_import(gate.filled_by or name, functools.partial(_open, gate, name))
