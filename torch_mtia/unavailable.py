"""What there is of the device where the package does not load: a warning, and an error at the first use."""

from __future__ import annotations

import warnings
from typing import NoReturn

import torch

# With these a program begins to use a device. Operators call the first one.
_FIRST_USES = ("_lazy_init", "set_device", "synchronize", "get_device_properties")


def announce(error: Exception) -> None:
    """Warns, and has the first use of a device of type mtia raise `error`, by name and message."""
    reason = f"torch_mtia did not load, so there is no device of type mtia. {type(error).__name__}: {error}"
    warnings.warn(f"{reason} `python -m torch_mtia` says more.", stacklevel=2)

    def refuse(*_args: object, **_kwargs: object) -> NoReturn:
        raise RuntimeError(reason) from error

    for name in _FIRST_USES:
        setattr(torch.mtia, name, refuse)
