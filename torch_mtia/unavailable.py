"""Errors at the first use of the device: where the package does not load, and where a setting is wrong."""

from __future__ import annotations

import warnings
from types import ModuleType
from typing import Any, NoReturn

import torch

# With these a program begins to use a device. Operators call the first one.
_FIRST_USES = ("_lazy_init", "set_device", "synchronize", "get_device_properties")

_originals: dict[str, Any] = {}


def refuse(reason: str, cause: Exception | None = None, module: ModuleType = torch.mtia) -> None:
    """Has the first use of a device, whose functions the module has, raise RuntimeError with that message."""

    def raise_it(*_args: object, **_kwargs: object) -> NoReturn:
        raise RuntimeError(reason) from cause

    for name in _FIRST_USES:
        _originals.setdefault(name, getattr(module, name))
        setattr(module, name, raise_it)


def withdraw() -> None:
    """Undoes refuse()."""
    for name, original in _originals.items():
        setattr(torch.mtia, name, original)
    _originals.clear()


def announce(error: Exception) -> None:
    """Warns, and has the first use of a device of type mtia raise `error`, by name and message."""
    reason = f"torch_mtia did not load, so there is no device of type mtia. {type(error).__name__}: {error}"
    refuse(reason, error)
    warnings.warn(f"{reason} `python -m torch_mtia` says more.", stacklevel=2)
