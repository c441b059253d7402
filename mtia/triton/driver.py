"""Stands in for torch_mtia.triton.driver."""

from __future__ import annotations

import sys
from abc import ABCMeta
from typing import Any

from triton.backends.driver import DriverBase

from mtia.triton import is_wanted


class _StandIn(ABCMeta):
    def __instancecheck__(cls, instance: object) -> bool:
        """Inductor asks this of the driver in use, to see whether it is the backend's."""
        module = sys.modules.get("torch_mtia.triton.driver")
        return module is not None and isinstance(instance, module.MTIADriver)


class MTIADriver(DriverBase, metaclass=_StandIn):
    """Triton asks it for an instance, and gets one of the class that it stands in for."""

    def __new__(cls) -> Any:
        from torch_mtia.triton.driver import MTIADriver as Driver

        return Driver()

    @staticmethod
    def is_active() -> bool:
        if not is_wanted():
            return False
        from torch_mtia.triton.driver import MTIADriver as Driver

        return Driver.is_active()


MTIADriver.__abstractmethods__ = frozenset()
