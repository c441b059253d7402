"""Rows for lists of devices that upstream writes out: the device is added."""

from __future__ import annotations

import functools
from types import CodeType
from typing import Any

from torch_mtia._versions import SUPPORTED_TORCH
from torch_mtia.backend import device_type
from torch_mtia.upstream_gates.gate import Gate, Reason

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
    reason: Reason = Reason.DEVICES,
    **entry: Any,
) -> Gate:
    """Returns a row for a list, or for a function that asks whether a device is in a list that it writes out.

    The code of a function is replaced, and not the function, which upstream keeps in tables too. A list only grows, so
    that nothing changes for other devices.

    Args:
        also_in: other modules that have imported the list by value.
        entry: the fields of Gate of that name and the one beside it, for a list in a table.
        in_place_of: the device whose place ours takes, for a list that the function makes when it runs. Only for
            "mtia", which is no device where ours has another name.
    """

    return Gate(
        name=f"{name}.__code__" if is_function else name,
        modules=(module, *also_in),
        reason=reason,
        why=why,
        replace=functools.partial(with_the_device, in_place_of=in_place_of),
        versions=versions,
        by_name=True,
        **entry,
    )


def with_the_device(value: Any, in_place_of: str | None = None) -> Any:
    """Returns a list of devices to which the device is added, or code whose lists are such."""
    if isinstance(value, CodeType):
        return value.replace(co_consts=tuple(with_the_device(each, in_place_of) for each in value.co_consts))
    if value is not None and value == in_place_of:
        return device_type()
    if not isinstance(value, tuple | frozenset | list):
        return value
    if in_place_of is not None:
        return type(value)(with_the_device(each, in_place_of) for each in value)
    if not is_device_list(value) or device_type() in value:
        return value
    return type(value)([*value, device_type()])


def is_device_list(value: Any) -> bool:
    return isinstance(value, tuple | frozenset | list) and "cuda" in value and "xpu" in value
