"""torch.foreign."""

from __future__ import annotations

import torch

_library = torch.ops.foreign
_DEVICES = 2


def _index(device: int | str | torch.device) -> int:
    if isinstance(device, int):
        return device
    index = torch.device(device).index
    return current_device() if index is None else index


def is_available() -> bool:
    return True


def is_initialized() -> bool:
    return True


def device_count() -> int:
    return _DEVICES


def current_device() -> int:
    return int(_library.current_device())


def set_device(device: int | str | torch.device) -> None:
    _library.set_device(_index(device))


def device(device: int | str | torch.device) -> torch.accelerator.device_index:
    """For torch.load."""
    return torch.accelerator.device_index(_index(device))


def synchronize(device: int | str | torch.device | None = None) -> None:
    """Returns at once: work is done when a call returns."""


def _is_in_bad_fork() -> bool:
    return False


def manual_seed(seed: int) -> None:
    _library.seed(current_device(), seed)


def manual_seed_all(seed: int) -> None:
    for index in range(_DEVICES):
        _library.seed(index, seed)


def get_rng_state(device: int | str | torch.device = "foreign") -> torch.Tensor:
    state: torch.Tensor = _library.get_rng_state(_index(device))
    return state


def set_rng_state(state: torch.Tensor, device: int | str | torch.device = "foreign") -> None:
    _library.set_rng_state(_index(device), state)
