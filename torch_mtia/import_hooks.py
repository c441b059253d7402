"""Calls functions before and after other modules are imported: what belongs to a module costs nothing without it."""

from __future__ import annotations

import functools
import importlib.machinery
import sys
import threading
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

Action = Callable[[ModuleType], None]


class _Finder:
    """Finds the modules that somebody waits for, as the other finders would, and has their loaders act afterwards."""

    def __init__(self) -> None:
        self.actions: dict[str, list[Action]] = {}
        self.preparations: dict[str, list[Callable[[], None]]] = {}  # by package
        self.lock = threading.RLock()  # another thread may import a module of the package meanwhile

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if self.preparations:
            self.prepare(name)
        if name not in self.actions:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        spec = next((spec for finder in others if (spec := finder.find_spec(name, path, target)) is not None), None)
        if spec is not None and spec.loader is not None:
            _act_after(spec.loader, name, self.actions[name])
        return spec

    def prepare(self, name: str) -> None:
        while name:
            if name in self.preparations:
                with self.lock:
                    for prepare in self.preparations.get(name, ()):
                        prepare()
                    self.preparations.pop(name, None)
            name = name.rpartition(".")[0]


def _act_after(loader: Any, name: str, actions: list[Action]) -> None:
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        execute(module)
        if module.__name__ == name:  # a loader may serve several modules
            for action in actions:
                action(module)

    loader.exec_module = exec_module


class _Loading(importlib.machinery.ModuleSpec):
    """The spec of a module whose execution is under way, as where a library imports torch, which imports this.

    The import system sets `_initializing` to False after the execution. If that failed, it has removed the module.
    """

    actions: list[Action]

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "_initializing" and not value and (module := sys.modules.get(self.name)) is not None:
            for action in self.actions:
                action(module)


def _is_loading(module: ModuleType) -> bool:
    # The last line of torch loads this package: torch is complete.
    return module.__name__ != "torch" and getattr(module.__spec__, "_initializing", False)


_finder = _Finder()


def _listen() -> None:
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


def before_import(packages: Sequence[str], prepare: Callable[[], None]) -> None:
    """Calls `prepare()` once: at once if one of the packages is imported, or there are none; otherwise before the first
    import of one of them, or of a module in one.

    Imports nothing.
    """
    if not packages or any(package in sys.modules for package in packages):
        prepare()
        return
    _listen()
    once = functools.cache(prepare)
    for package in packages:
        _finder.preparations.setdefault(package, []).append(once)


def after_import(name: str, action: Action) -> None:
    """Calls `action(module)` at once if the module is imported, and right after each later import or reload of it.

    Imports nothing.
    """
    _listen()
    actions = _finder.actions.setdefault(name, [])
    if action not in actions:
        actions.append(action)
    module = sys.modules.get(name)
    if module is None:
        return
    if not _is_loading(module):
        action(module)
        return
    spec: Any = module.__spec__
    if not isinstance(spec, _Loading):
        spec.__class__ = _Loading
        spec.actions = actions
