"""Gates in lists of devices that upstream writes out, and in functions that name one device, or what is its alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import CodeType, FunctionType
from typing import Any

import torch

from torch_mtia._versions import SUPPORTED_TORCH
from torch_mtia.door import device_type
from torch_mtia.upstream_gates.gate import Gate

Versions = tuple[tuple[int, int], ...]


def device_list(
    name: str,
    module: str,
    why: str,
    versions: Versions = SUPPORTED_TORCH,
    *,
    in_place_of: str | None = None,
    is_function: bool = True,
    also_in: tuple[str, ...] = (),
    **entry: Any,
) -> Gate:
    """A gate in a function that asks whether a device is in a list that it writes out, or in the list itself.

    The code of a function is replaced, and not the function, which upstream keeps in tables too.

    Args:
        also_in: other modules that have imported the list by value.
        entry: the fields of Gate of that name and the one beside it, for a list in a table.
        in_place_of: the device whose place ours takes, for a list that the function makes when it runs: one that no
            process has beside ours, or "mtia" where ours has another name.
    """

    def opened(value: Any) -> Any:
        if isinstance(value, CodeType):
            return value.replace(co_consts=tuple(map(opened, value.co_consts)))
        if value is not None and value == in_place_of:
            return device_type()
        if not isinstance(value, tuple | frozenset | list):
            return value
        if in_place_of is not None:
            return type(value)(map(opened, value))
        if not is_device_list(value) or device_type() in value:
            return value
        return type(value)([*value, device_type()])

    return Gate(
        name=f"{name}.__code__" if is_function else name,
        modules=(module, *also_in),
        why=why,
        replace=opened,
        is_needed=lambda value: not _names(value, device_type()),
        versions=versions,
        by_name=True,
        **entry,
    )


def named_instead(
    name: str, module: str, why: str, names: Mapping[str, Callable[[], str]], versions: Versions = SUPPORTED_TORCH
) -> Gate:
    """A gate in a function that names what one device alone has: it names something else, as `names` says."""

    def renamed(value: Any) -> Any:
        if isinstance(value, CodeType):
            attributes = (names[each]() if each in names else each for each in value.co_names)
            return value.replace(co_names=tuple(attributes), co_consts=tuple(map(renamed, value.co_consts)))
        if isinstance(value, str):
            return re.sub("|".join(rf"\b{old}\b" for old in names), lambda found: names[found[0]](), value)
        return value

    return Gate(
        name=f"{name}.__code__",
        modules=(module,),
        why=why,
        replace=renamed,
        is_needed=lambda code: renamed(code) != code and not _names(code, device_type()),
        versions=versions,
        by_name=True,
    )


def with_another_cuda(function: Any, cuda: Any) -> Any:
    """Upstream's own code, for which `torch.cuda` is that object."""

    class Torch:
        def __getattr__(self, name: str) -> Any:
            return cuda if name == "cuda" else getattr(torch, name)

    scope = {**function.__globals__, "torch": Torch()}
    return FunctionType(function.__code__, scope, function.__name__, function.__defaults__, function.__closure__)


def is_device_list(value: Any) -> bool:
    return isinstance(value, tuple | frozenset | list) and "cuda" in value and "xpu" in value


def _names(value: Any, device: str) -> bool:
    """Whether a list, or the code of a function, names the device."""
    parts = (*value.co_consts, *value.co_names) if isinstance(value, CodeType) else value
    if isinstance(parts, tuple | frozenset | list):
        return any(_names(part, device) for part in parts)
    return bool(parts == device)
