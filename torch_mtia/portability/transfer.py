"""A kernel as bytes from which another process makes it again, without the program that it belongs to.

Modules of a program may start it when they are imported, and `__main__` does. So functions are not named but described:
source, code, and the variables of their modules that the source names. worker.py reads the bytes.
"""

from __future__ import annotations

import ast
import functools
import io
import marshal
import pickle
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from triton.runtime.jit import JITCallable, JITFunction

# Modules that another process may import.
_IMPORTED = frozenset({"triton", "torch", "numpy", *sys.stdlib_module_names}) - {"__main__"}


class Unsendable(Exception):
    """A kernel cannot be made again in another process."""


def encode(source: Any) -> bytes:
    """Returns the bytes of an ASTSource. Raises Unsendable, with the reason."""
    functions = _Functions()
    try:
        arguments = functions.dumps((source.fn, source.signature, source.constants, source.attrs))
        described = functions.describe_all()
    except (pickle.PicklingError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise Unsendable(f"{type(error).__name__}: {error}") from None
    return pickle.dumps((described, arguments))


class _Functions:
    """Functions and modules, numbered as they are met."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._objects: list[Any] = []

    def dumps(self, value: object) -> bytes:
        numbered = self._number

        class Pickler(pickle.Pickler):
            def persistent_id(self, each: Any) -> Any:
                if isinstance(each, ModuleType) and each.__name__.partition(".")[0] in _IMPORTED:
                    return ("module", each.__name__)
                return ("object", numbered(each)) if isinstance(each, (JITCallable, ModuleType)) else None

        buffer = io.BytesIO()
        Pickler(buffer).dump(value)
        return buffer.getvalue()

    def _number(self, each: object) -> int:
        if id(each) not in self._numbers:
            self._numbers[id(each)] = len(self._objects)
            self._objects.append(each)
        return self._numbers[id(each)]

    def describe_all(self) -> list[dict[str, Any]]:
        described: dict[int, dict[str, Any]] = {}
        known = -1
        while known < len(self._objects):  # describing one may number others, whose attributes modules have to have
            known = len(self._objects)
            for number, each in enumerate(self._objects):
                if isinstance(each, ModuleType):
                    described[number] = self._module(each)
                elif number not in described:
                    described[number] = self._function(each)
        return [described[number] for number in range(known)]

    def _module(self, module: ModuleType) -> dict[str, Any]:
        """A module of the program: an empty one with those of its variables that functions name."""
        functions = (each for each in self._objects if isinstance(each, JITCallable))
        names = frozenset[str]().union(*(_attributes(each.src) for each in functions))
        return {"kind": "module", "name": module.__name__, "variables": self._variables(vars(module), names)}

    def _function(self, each: JITCallable) -> dict[str, Any]:
        fn, names = each.fn, _names(each.src)
        cells = dict(zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True))
        is_kernel = isinstance(each, JITFunction)
        return {
            "kind": "jit" if is_kernel else type(each).__name__,
            "name": fn.__name__,
            "qualname": fn.__qualname__,
            "module": fn.__module__,
            "file": fn.__code__.co_filename,
            "line": each.starting_line_number,
            "lines": each.raw_src,
            "source": each.src,
            "code": marshal.dumps(fn.__code__),
            "signature": self.dumps((fn.__defaults__, fn.__kwdefaults__, _annotations(fn))),
            "variables": self._variables(fn.__globals__, names),
            "nonlocals": self._variables({name: cell.cell_contents for name, cell in cells.items()}, frozenset(cells)),
            "options": {name: getattr(each, name) for name in _OPTIONS} if is_kernel else {},
        }

    def _variables(self, variables: Mapping[str, Any], names: frozenset[str]) -> dict[str, bytes]:
        """Those with a value that can be sent: most others have the name of a local variable."""
        found = {}
        for name in sorted(names & variables.keys()):
            try:
                found[name] = self.dumps(variables[name])
            except (pickle.PicklingError, TypeError, AttributeError):
                continue
        return found


# Of triton.jit, that the compiler sees.
_OPTIONS = ("version", "do_not_specialize", "do_not_specialize_on_alignment", "debug", "noinline")


def _annotations(fn: Any) -> dict[str, Any]:
    """Those of the arguments: classes of Triton and text."""
    return {
        name: value
        if isinstance(value, str) or getattr(value, "__module__", "").startswith("triton.")
        else getattr(value, "__name__", str(value))
        for name, value in getattr(fn, "__annotations__", {}).items()
    }


@functools.lru_cache(maxsize=4096)
def _names(source: str) -> frozenset[str]:
    """The variables that a function's source reads, apart from its arguments and those that it sets."""
    nodes = list(ast.walk(ast.parse(source)))
    names = [node for node in nodes if isinstance(node, ast.Name)]
    own = {node.id for node in names if isinstance(node.ctx, ast.Store)}
    own |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    return frozenset({node.id for node in names} - own)


@functools.lru_cache(maxsize=4096)
def _attributes(source: str) -> frozenset[str]:
    """The attributes that it names, which modules may have."""
    return frozenset(node.attr for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Attribute))
