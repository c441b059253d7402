"""Upstream's own functions with other globals: copies, whose code is upstream's, and which nobody else calls."""

from __future__ import annotations

from collections.abc import Iterable
from types import CodeType, FunctionType, ModuleType
from typing import Any


class Overlay:
    """Stands for an object, such as a module, some of whose attributes are others. What is set is set there."""

    def __init__(self, original: Any, **attributes: Any) -> None:
        vars(self).update(attributes, _original=original)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(vars(self)["_original"], name, value)


def with_globals(function: Any, **names: Any) -> Any:
    """Returns a copy of the function for which global names are something else."""
    return _copy(function, {**function.__globals__, **names})


def copies(module: ModuleType, functions: Iterable[str], using: Iterable[str], **names: Any) -> dict[str, Any]:
    """Returns copies of a module's functions, by name, for which the global `names` are something else. Copied too, and
    called by the copies, are the functions of the module that use one of the names or attributes `using`, and what
    calls those."""
    scope = {**vars(module), **names}
    own = {name: value for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__}
    remaining = {name: _names(value.__code__) for name, value in own.items() if isinstance(value, FunctionType)}
    changed = {*using}
    while found := {name for name, used in remaining.items() if used & changed}:
        changed |= found
        remaining = {name: used for name, used in remaining.items() if name not in found}
    scope |= {name: _copy(own[name], scope) for name in changed & own.keys() - names.keys()}
    return {name: scope[name] for name in functions}


def _copy(function: FunctionType, scope: dict[str, Any]) -> FunctionType:
    copy = FunctionType(function.__code__, scope, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def _names(code: CodeType) -> set[str]:
    """Returns the global names that a function uses, and those of attributes."""
    inner = (each for each in code.co_consts if isinstance(each, CodeType))
    return {*code.co_names}.union(*map(_names, inner))
