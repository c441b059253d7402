"""Gates in functions that ask whether a device is in a list that they write out."""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import Any

from torch_mtia._versions import SUPPORTED_TORCH
from torch_mtia.door import device_type
from torch_mtia.upstream_gates.gate import Gate


def device_list(name: str, module: str, why: str, versions: tuple[tuple[int, int], ...] = SUPPORTED_TORCH) -> Gate:
    """A gate in a function that asks whether a device is in a tuple, or a set, that it writes out.

    The code of the function is replaced, and not the function, which upstream keeps in tables too.
    """
    return Gate(
        name=f"{name}.__code__",
        modules=(module,),
        why=why,
        replace=_adds_device(lambda constant: "cuda" in constant and "xpu" in constant),
        is_needed=lambda code: not _lists_mtia(code),
        versions=versions,
        by_name=True,
    )


def append_device(devices: list[str]) -> list[str]:
    """In place: other modules have the same list."""
    if device_type() not in devices:
        devices.append(device_type())
    return devices


def _adds_device(listed: Callable[[Any], bool]) -> Callable[[CodeType], CodeType]:
    """Makes a function's code with the device in each tuple, or set, among its constants for which `listed` is true."""

    def replace(code: CodeType) -> CodeType:
        return code.replace(co_consts=tuple(map(extended, code.co_consts)))

    def extended(constant: Any) -> Any:
        if isinstance(constant, CodeType):
            return replace(constant)
        if isinstance(constant, tuple | frozenset) and listed(constant):
            return type(constant)([*constant, device_type()])
        return constant

    return replace


def renamed(name: str, module: str, why: str, versions: tuple[tuple[int, int], ...] = SUPPORTED_TORCH) -> Gate:
    """A gate, for a device of another name, in a function that writes "mtia" out: which is then no device."""
    return Gate(
        name=f"{name}.__code__",
        modules=(module,),
        why=why,
        replace=_rename,
        is_needed=lambda code: _rename(code) != code,
        versions=versions,
    )


def _rename(constant: Any) -> Any:
    if isinstance(constant, CodeType):
        return constant.replace(co_consts=tuple(map(_rename, constant.co_consts)))
    if isinstance(constant, tuple | frozenset):
        return type(constant)(map(_rename, constant))
    return device_type() if constant == "mtia" else constant


def _lists_mtia(code: CodeType) -> bool:
    return any(
        _lists_mtia(constant)
        if isinstance(constant, CodeType)
        else isinstance(constant, tuple | frozenset) and "mtia" in constant
        for constant in code.co_consts
    )
