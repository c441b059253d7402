"""What the package uses of PyTorch and Triton without a promise that it stays: which names, and what they are.

The names are found in the sources, by their imports and by the rows of torch_mtia/upstream_gates; what they are is
asked of an installation. A name is a module, a colon and attributes: `torch._inductor.ir:StorageBox`.
"""

from __future__ import annotations

import ast
import enum
import importlib
import inspect
import pathlib
import re
import sys
from collections.abc import Iterable, Iterator
from types import CodeType, ModuleType
from typing import Any

import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOURCES = ("torch_mtia", "mtia", "tools/codegen", "setup.py")
UPSTREAM = ("torch", "torchgen", "triton")
ABSENT = "absent"
_OF_THE_MOMENT = ("torch._inductor.virtualized:V", "triton.runtime:driver", "triton:runtime.driver")
"""Whose attributes are those of what is compiled, or of the driver that is active."""


def used() -> set[str]:
    """All names that are recorded; those that are called, or replaced, end in `()`."""
    return {*used_in_sources(), *(f"{name}()" for name in used_by_gates())}


def used_in_sources(root: pathlib.Path = ROOT) -> set[str]:
    """The names that the sources import, and the attributes that they take of those."""
    names: set[str] = set()
    for source in SOURCES:
        path = root / source
        for file in [path] if path.is_file() else sorted(path.rglob("*.py")):
            names.update(used_in(ast.parse(file.read_text())))
    return {name for name in names if is_private(name) and f"{name}()" not in names}


def is_private(name: str) -> bool:
    """Whether nobody promises that the name stays. Triton and torchgen promise nothing."""
    top, *rest = re.findall(r"\w+", name)
    return top != "torch" or any(part.startswith("_") and not part.endswith("__") for part in rest)


def used_in(tree: ast.Module) -> Iterator[str]:
    """Names in PyTorch and Triton that one module imports, each with the longest chain of attributes, and the methods
    that its classes define in place of those of a class there."""
    imported = dict(_imported(tree))
    yield from (name for name in imported.values() if name.rstrip(":") not in UPSTREAM)
    rebound = {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)} | {
        node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute | ast.Name) and id(node) not in inner:
            root, attributes = _chain(node)
            if root in imported and root not in rebound:
                yield _joined(imported[root], attributes) + ("()" if id(node) in called else "")
        elif isinstance(node, ast.ClassDef):
            for base in node.bases:
                root, attributes = _chain(base)
                if root in imported:
                    methods = [each.name for each in node.body if isinstance(each, ast.FunctionDef)]
                    yield from (f"{_joined(imported[root], [*attributes, method])}()" for method in methods)


def _joined(name: str, attributes: list[str]) -> str:
    joined = name + ("." if attributes and not name.endswith(":") else "") + ".".join(attributes)
    return next((place for place in _OF_THE_MOMENT if joined.startswith(f"{place}.")), joined)


def _imported(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                if top in UPSTREAM:
                    yield (alias.asname, f"{alias.name}:") if alias.asname else (top, f"{top}:")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in UPSTREAM and not node.level:
            for alias in node.names:
                if alias.name != "*":
                    yield alias.asname or alias.name, f"{node.module}:{alias.name}"


def _chain(node: ast.expr) -> tuple[str, list[str]]:
    attributes: list[str] = []
    while isinstance(node, ast.Attribute):
        attributes.insert(0, node.attr)
        node = node.value
    return (node.id if isinstance(node, ast.Name) else ""), attributes


def used_by_gates() -> dict[str, tuple[tuple[int, int], ...]]:
    """The names that are replaced, and the versions of PyTorch in which they are. Of a table, the table."""
    from torch_mtia import upstream_gates

    found: dict[str, tuple[tuple[int, int], ...]] = {}
    for gate in (*upstream_gates.GATES, *upstream_gates.GATES_OF_OTHER_NAMES):
        for module in gate.modules:
            if module.partition(".")[0] in UPSTREAM:
                name = f"{module}:{gate.name.partition('[')[0]}"
                found[name] = tuple(sorted({*found.get(name, ()), *gate.versions}))
    return found


def facts(names: Iterable[str]) -> dict[str, str]:
    """What the names are in the installed PyTorch and Triton. Nothing may have replaced any in this process."""
    return {name.removesuffix("()"): fact(name) for name in sorted(names)}


def fact(name: str) -> str:
    """The kind of object, and of what is called its parameters."""
    try:
        found = _resolve(name.removesuffix("()"))
    except (AttributeError, ImportError):
        return ABSENT
    if isinstance(found, ModuleType):
        return "module"
    if isinstance(found, CodeType):
        lists = sorted(sorted(words) for words in _lists(found) if "cuda" in words)
        return f"code with {lists}" if lists else "code"
    kind = "class" if inspect.isclass(found) else "function" if callable(found) else type(found).__name__
    return kind + (_signature(found) if name.endswith("()") and callable(found) else "")


def _lists(code: CodeType) -> Iterator[set[str]]:
    """The lists of words, such as devices, that a function has in its code."""
    for value in code.co_consts:
        if isinstance(value, CodeType):
            yield from _lists(value)
        elif isinstance(value, tuple | frozenset) and value and all(isinstance(each, str) for each in value):
            yield set(value)


def _resolve(name: str) -> Any:
    path, _, attributes = name.partition(":")
    importlib.import_module(path)
    found: Any = sys.modules[path]  # an attribute of its package may have the same name
    for attribute in attributes.split(".") if attributes else ():
        path += f".{attribute}"
        try:
            found = inspect.getattr_static(found, attribute) if inspect.isclass(found) else getattr(found, attribute)
        except AttributeError:
            if not isinstance(found, ModuleType):
                raise
            found = importlib.import_module(path)
        found = found.__func__ if isinstance(found, staticmethod | classmethod) else found
    return found


def _signature(function: Any) -> str:
    """Without annotations, and of default values only those that are plain."""
    if inspect.isclass(function) and issubclass(function, enum.Enum):
        return ""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a builtin function
        return ""
    parameters = [
        parameter.replace(
            annotation=parameter.empty,
            default=parameter.default
            if parameter.default is parameter.empty
            or parameter.default is None
            or isinstance(parameter.default, bool | int | float | str)
            else ...,
        )
        for parameter in signature.parameters.values()
    ]
    return str(signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty))


def of_cuda() -> list[str]:
    """What the headers that packages include use of CUDA's runtime: csrc/aoti/cuda declares it for the device."""
    folder = pathlib.Path(torch.__path__[0]) / "include" / "torch" / "csrc" / "inductor" / "aoti_runtime"
    code = "\n".join(re.sub(r'//.*|"[^"\n]*"', "", path.read_text()) for path in folder.glob("*.h"))
    return sorted(set(re.findall(r"\bcuda[A-Z]\w*", code)))
