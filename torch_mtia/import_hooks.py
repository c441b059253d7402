"""Calls functions when other modules are imported, so that what belongs to a module costs nothing without it."""

from __future__ import annotations

import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

Action = Callable[[ModuleType], None]


class _Finder:
    """Finds the modules that somebody waits for, as the other finders would, and has their loaders act afterwards."""

    def __init__(self) -> None:
        self.actions: dict[str, list[Action]] = {}

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in self.actions:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        spec = next((spec for finder in others if (spec := finder.find_spec(name, path, target)) is not None), None)
        if spec is not None and spec.loader is not None:
            _act_after(spec.loader, self.actions[name])
        return spec


def _act_after(loader: Any, actions: list[Action]) -> None:
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        execute(module)
        for action in actions:
            action(module)

    loader.exec_module = exec_module


_finder = _Finder()


def after_import(name: str, action: Action) -> None:
    """Calls `action(module)` at once if the module is imported, otherwise right after it is, once.

    Imports nothing.
    """
    module = sys.modules.get(name)
    if module is not None:
        action(module)
        return
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    actions = _finder.actions.setdefault(name, [])
    if action not in actions:
        actions.append(action)
