"""Names that PyTorch, Triton and libraries that use them have for other devices: replaced, in one table.

Nothing else in torch_mtia assigns to anything of theirs. A row of GATES says what is replaced, in which versions, and
why; docs/replacements.md is written from it. A replacement calls the original unless a tensor, a device or another
argument is the device's. To add one: write the replacement in the module of its kind, the row, and in
tests/gate_checks a check that tells when upstream no longer needs it.

A row is applied to a module when that module is imported, and at once if it already is. Nothing is imported for it.
"""

from __future__ import annotations

import functools
import importlib
import logging
import operator
import sys
import warnings
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from torch_mtia import environment
from torch_mtia.backend import device_module
from torch_mtia.import_hooks import after_import, before_import
from torch_mtia.upstream_gates.gate import Gate, Reason

__all__ = [
    "GATES",
    "GATES_OF_OTHER_NAMES",
    "Gate",
    "Reason",
    "Replacement",
    "apply",
    "apply_again",
    "originals",
    "present",
    "replacements",
    "skipped",
]

log = logging.getLogger("torch_mtia")


class Replacement(NamedTuple):
    """A name that was replaced in this process, or could not be."""

    module: str
    name: str
    reason: Reason
    why: str
    skipped: str
    """Why it could not be replaced; empty if it was."""


if TYPE_CHECKING:
    GATES: tuple[Gate, ...]
    GATES_OF_OTHER_NAMES: tuple[Gate, ...]

TABLES: dict[str, tuple[str, ...]] = {
    "upstream_gates.table": (),
    "upstream_gates.inductor_table": (
        *("torch._dynamo", "torch._inductor", "torch._functorch.compile_utils", "torch._functorch.partitioners"),
        "torch._functorch._aot_autograd.autograd_cache",
    ),
    "upstream_gates.distributed_table": (
        *("torch._inductor", "torch.utils._runtime_estimation", "torch.distributed._symmetric_memory"),
        *("torch.distributed.checkpoint", "torch.distributed.nn", "torch.distributed.tensor"),
        "torch.testing._internal.distributed",
    ),
    "upstream_gates.packages_table": (
        *("triton", "torchao", "torch._higher_order_ops.triton_kernel_wrap"),
        *("torch.nested._internal.sdpa", "torch.nested._internal.ops", "torch.nn.attention.flex_attention"),
        "torch.utils.flop_counter",
    ),
    "clients.table": (
        *("accelerate", "kernels", "liger_kernel", "peft", "safetensors", "sentence_transformers", "torch_geometric"),
        "transformers",
    ),
    "clients.lightning_table": ("lightning", "lightning_fabric", "pytorch_lightning"),
}
"""The tables, with the packages and modules that their rows are about: a table is imported before the first of these.
`import torch` imports the modules of the first."""
originals: dict[tuple[str, str], Any] = {}
"""What was replaced, by module and name."""
skipped: dict[tuple[str, str], str] = {}
"""What could not be replaced, by module and name, and why not."""
_rows: dict[tuple[str, str], Gate] = {}
_replaced: dict[int, tuple[Any, Any]] = {}
"""By id, replacements and what they replaced: for modules that import a name by value after it was replaced."""


def replacements() -> tuple[Replacement, ...]:
    """Returns what this package has replaced in modules that the process has imported, and what it could not."""
    return tuple(
        Replacement(module, name, gate.reason, gate.why, skipped.get((module, name), ""))
        for (module, name), gate in _rows.items()
        if (module, name) in originals or (module, name) in skipped
    )


def present(gate: Gate, module: ModuleType) -> Any:
    """Returns what is in the gate's place now."""
    holder, key = _place(gate, module)
    return getattr(holder, key, None) if gate.entry is None else holder.get(key)


def _place(gate: Gate, module: ModuleType) -> tuple[Any, Any]:
    """Returns an object and the name of its attribute, or a table and the key of its entry."""
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
    _rows[name, gate.name] = gate
    try:
        _try_to_open(gate, name)
    except Exception as error:
        originals.pop((name, gate.name), None)
        skipped[name, gate.name] = f"{type(error).__name__}: {error}"
        if len(skipped) == 1:
            _warn_at_the_first_use()


def _warn_at_the_first_use() -> None:
    """If the device is in use, as nothing may be raised where a module is imported, a line is logged."""
    module = device_module()
    if module.is_initialized():
        log.warning(_message())
    else:
        module._lazy_call(lambda: warnings.warn(_message(), stacklevel=2))


def _message() -> str:
    (module, name), *others = skipped
    return (
        f"torch_mtia cannot replace {name} of {module}{f' and {len(others)} other names' if others else ''}, which is "
        f"not as in the versions that it knows ({skipped[module, name]}). {_rows[module, name].why} "
        "`python -m torch_mtia --verbose` lists what is skipped."
    )


def _try_to_open(gate: Gate, name: str) -> None:
    module, key = sys.modules[name], (name, gate.name)
    if gate.is_of_a_client and _is_missing(gate, module):
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
        gate = _rows[module, name]
        if gate.by_name:
            _replace(gate, sys.modules[module])
    apply(torch_version, _rows_of("upstream_gates.other_names_table"))


def apply(torch_version: str, gates: Sequence[Gate] | None = None) -> None:
    """Applies the rows of this version of PyTorch, now or when their modules are imported: those of all tables, or
    others."""
    if gates is None:
        for table, packages in TABLES.items():
            before_import(packages, functools.partial(_apply_table, table, torch_version))
        return
    major, minor = (int(part) for part in torch_version.split(".")[:2])
    for gate in gates:
        if (major, minor) in gate.versions and (environment.settings().clients or not gate.is_of_a_client):
            for name in gate.modules:
                after_import(gate.filled_by or name, functools.partial(_open, gate, name))


def _apply_table(table: str, torch_version: str) -> None:
    apply(torch_version, _rows_of(table))


def _rows_of(table: str) -> tuple[Gate, ...]:
    try:
        rows: tuple[Gate, ...] = importlib.import_module(f"torch_mtia.{table}").GATES
    except ModuleNotFoundError as error:
        if not str(error.name).startswith("torch_mtia.clients"):
            raise
        return ()  # an extra that is not installed
    return rows


def __getattr__(name: str) -> tuple[Gate, ...]:
    """Returns the rows of all tables, which this imports."""
    if name == "GATES":
        return tuple(row for table in TABLES for row in _rows_of(table))
    if name == "GATES_OF_OTHER_NAMES":
        return _rows_of("upstream_gates.other_names_table")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
