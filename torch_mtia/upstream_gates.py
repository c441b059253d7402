"""Doors that PyTorch opens by a literal list of devices which lacks `mtia`: opened here, in one table.

This is the only file of the package that assigns to anything in torch. A row of GATES says what is replaced, in which
versions, why, and how to tell that upstream no longer needs it; a test asks that of every row. To add one: write the
replacement, add the row.

A gate is applied to a module when that module is imported, and at once if it already is. Nothing is imported for it.
"""

from __future__ import annotations

import functools
import importlib.machinery
import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any


@dataclass(frozen=True)
class Gate:
    """One name in PyTorch that is replaced."""

    name: str
    """The attribute; `class.method` for a method. One that is missing is added; its original is None."""
    modules: tuple[str, ...]
    """The modules that have it: the one that defines it, and those that import it by value."""
    versions: tuple[tuple[int, int], ...]
    """The versions (major, minor) of PyTorch in which it is replaced."""
    why: str
    replace: Callable[[Any], Any]
    """Takes the original and returns the replacement."""
    is_needed: Callable[[Any], bool]
    """Takes the original; false once upstream does what the replacement is for."""


def _capturable_on_mtia(original: Callable[..., list[str]]) -> Callable[..., list[str]]:
    def _get_capturable_supported_devices(supports_xla: bool = True) -> list[str]:
        return [*original(supports_xla), "mtia"]

    return _get_capturable_supported_devices


def _profile_of_mtia(original: Callable[..., Any]) -> Callable[..., Any]:
    def _parse_kineto_results(self: Any, result: Any, *args: Any, **kwargs: Any) -> Any:
        from torch._C._autograd import DeviceType

        from torch_mtia.profiler import credit_operators

        events = original(self, result, *args, **kwargs)
        credit_operators(events, result, DeviceType.MTIA)
        return events

    return _parse_kineto_results


def _is_current_stream_capturing(_original: Any) -> Callable[[], bool]:
    def is_current_stream_capturing() -> bool:
        """Whether work of the current stream of the current device is being captured in a graph."""
        import torch

        from torch_mtia import graphs

        return torch.mtia.is_initialized() and graphs.is_stream_capturing(torch.mtia.current_stream())

    return is_current_stream_capturing


def _refusing_elsewhere(original: Callable[..., None]) -> Callable[..., None]:
    def _init_handles(self: Any) -> None:
        loaded = self.module is not None
        original(self)
        if not loaded:
            from torch_mtia.triton.launch import refusing_tensors_of_mtia

            self._run = refusing_tensors_of_mtia(self._run)

    return _init_handles


_CAPTURABLE_OPTIMIZERS = ("adadelta", "adam", "adamax", "asgd", "nadam", "radam", "rmsprop", "rprop")

GATES: tuple[Gate, ...] = (
    Gate(
        name="_get_capturable_supported_devices",
        modules=("torch.optim.optimizer", *(f"torch.optim.{name}" for name in _CAPTURABLE_OPTIMIZERS)),
        versions=((2, 13),),
        why="Optimizers with capturable=True assert that their parameters are on one of the devices it lists.",
        replace=_capturable_on_mtia,
        is_needed=lambda original: "mtia" not in original(),
    ),
    Gate(
        name="is_current_stream_capturing",
        modules=("torch.mtia",),
        versions=((2, 13),),
        why="torch.mtia has no counterpart of torch.cuda.is_current_stream_capturing.",
        replace=_is_current_stream_capturing,
        is_needed=lambda original: original is None,
    ),
    Gate(
        name="profile._parse_kineto_results",
        modules=("torch.autograd.profiler",),
        versions=((2, 13),),
        why="The profiler credits the device's time and memory to operators only for the devices it lists.",
        replace=_profile_of_mtia,
        is_needed=lambda original: "DeviceType.MTIA" not in inspect.getsource(original),
    ),
    Gate(
        name="CompiledKernel._init_handles",
        modules=("triton.compiler.compiler",),
        versions=((2, 13),),
        why="A driver of Triton takes any address: one for another device would crash on tensors of mtia.",
        replace=_refusing_elsewhere,
        is_needed=lambda original: "mtia" not in inspect.getsource(original),
    ),
)

originals: dict[tuple[str, str], Any] = {}
"""What was replaced, by module and name."""


class _ImportHook:
    """Finds the modules of gates that are not imported yet, as the other finders would, and applies their gates."""

    def __init__(self, gates: dict[str, list[Gate]]) -> None:
        self._gates = gates

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in self._gates:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        spec = next((spec for finder in others if (spec := finder.find_spec(name, path, target)) is not None), None)
        if spec is not None and spec.loader is not None:
            self._apply_after(spec.loader, self._gates[name])
        return spec

    @staticmethod
    def _apply_after(loader: Any, gates: list[Gate]) -> None:
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            for gate in gates:
                _open(gate, module)

        loader.exec_module = exec_module


def _open(gate: Gate, module: ModuleType) -> None:
    key = (module.__name__, gate.name)
    if key not in originals:
        *owner, attribute = gate.name.split(".")
        holder = functools.reduce(getattr, owner, module)
        originals[key] = getattr(holder, attribute, None)
        setattr(holder, attribute, gate.replace(originals[key]))


def apply(torch_version: str, gates: Sequence[Gate] = GATES) -> None:
    """Opens the gates of this version of PyTorch, now or when their modules are imported."""
    major, minor = (int(part) for part in torch_version.split(".")[:2])
    waiting: dict[str, list[Gate]] = {}
    for gate in gates:
        if (major, minor) not in gate.versions:
            continue
        for name in gate.modules:
            module = sys.modules.get(name)
            if module is None:
                waiting.setdefault(name, []).append(gate)
            else:
                _open(gate, module)
    if waiting:
        sys.meta_path.insert(0, _ImportHook(waiting))
