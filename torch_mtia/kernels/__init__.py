"""Triton kernels for the operators that programs use most: with them, a driver needs memory, copies and launches of
host machine code, and no kernel of its own. See docs/kernels.md.

Importing this registers nothing; Triton is imported at the first call of an operator.
"""

from __future__ import annotations

from torch_mtia import _C
from torch_mtia.environment import settings

__all__ = ["register", "wanted"]


def wanted() -> bool:
    """Whether the operators are to run as Triton kernels: as TORCH_MTIA_KERNELS says, or, with `auto`, if the driver
    has no host view, without which ATen's kernels cannot reach its memory.

    A driver that does not load counts as one with a host view, and raises at its first use.
    """
    if settings().kernels != "auto":
        return settings().kernels == "triton"
    try:
        capabilities = _C._driver_info()["capabilities"]
    except RuntimeError:
        return False
    return "host_view" not in capabilities and "kernels" in capabilities


def register() -> None:
    """Puts the kernels over those that the device has, if they are wanted. Called once the device has its name."""
    if wanted():
        from torch_mtia.kernels import dispatch

        dispatch.register()
